//! The report of a run: a table, and the violations.

use std::fmt::Write as _;

use super::flat::growth;
use super::{OTHER_FILES, Sample, Settings, Story};
use crate::report::SHOWN;

/// The figures that must not grow.
const FIGURES: [(&str, Figure); 4] = [
    ("memory of the server", |sample| sample.server.memory),
    ("memory of the clients", |sample| sample.clients.memory),
    ("files of the server", |sample| sample.server.files),
    ("files of the clients", |sample| sample.clients.files),
];

/// Bytes that a virtual machine may use once on its heap for its own classes and buffers.
const OF_ITSELF: u64 = 4 << 20;

type Figure = fn(&Sample) -> u64;

fn points(story: &Story, figure: Figure) -> Vec<(f64, f64)> {
    story.samples.iter().map(|sample| (sample.at, figure(sample) as f64)).collect()
}

/// Returns the violations of a run.
pub(super) fn violations(settings: &Settings, story: &Story) -> Vec<String> {
    let mut found = Vec::new();
    for (what, figure) in FIGURES {
        match growth(&points(story, figure)) {
            Some(growth) if 100.0 * growth <= settings.tolerance => {}
            Some(growth) => found.push(format!("the {what} grew by {:.1} %", 100.0 * growth)),
            None => found.push(format!("the {what}: too few samples")),
        }
    }
    if let Some((then, end)) = story.alive
        && end > then + OF_ITSELF + (settings.tolerance / 100.0 * then as f64) as u64
    {
        found.push(format!("what is alive on the server's heap grew from {then} to {end} bytes"));
    }
    for (error, count) in &story.tally.errors {
        found.push(format!("{count} times {error}"));
    }
    if story.tally.locks != settings.locks {
        found.push(format!("only {} of {} locks were ever held", story.tally.locks, settings.locks));
    }
    if !story.idle.is_free() {
        let (nodes, watches) = (story.idle.ephemerals, story.idle.watches);
        found.push(format!("{nodes} nodes and {watches} watches are left when everybody has let go"));
    }
    let sessions = (settings.sessions / 2 * 2) as u64;
    if story.idle.sessions != sessions {
        found.push(format!("{} sessions are open and not {sessions}", story.idle.sessions));
    }
    if !story.empty.is_free() || story.empty.sessions != 0 {
        found.push(format!("when all sessions are closed there are {:?}", story.empty));
    }
    let (before, after) = (story.server_before.files, story.server_after.files);
    if after > before + OTHER_FILES {
        found.push(format!("the server has {after} files at the end and had {before} before"));
    }
    let (before, after) = (story.clients_before.files, story.clients_after.files);
    if after > before + OTHER_FILES * settings.processes as u64 {
        found.push(format!("the clients have {after} files at the end and had {before} before"));
    }
    found.extend(story.left.iter().map(|left| format!("{left} is left")));
    found.into_iter().map(|what| format!("{:?}: {what}", story.kind)).collect()
}

/// Returns the table.
pub(super) fn text(settings: &Settings, seed: u64, stories: &[Story], violations: &[String]) -> String {
    let mut text = String::new();
    let Settings { sessions, locks, time, processes, tolerance, .. } = settings;
    let _ = writeln!(
        text,
        "{sessions} sessions in {processes} processes, {locks} locks, {time:?} each, seed {seed}. Growth is that of the \
         second half, as a part of its mean; {tolerance} % are allowed.\n",
    );
    text += "| |";
    stories.iter().for_each(|story| text += &format!(" {:?} |", story.kind));
    text += "\n|-|";
    stories.iter().for_each(|_| text += "-|");
    text.push('\n');
    let mut row = |what: &str, cell: &dyn Fn(&Story) -> String| {
        let _ = write!(text, "| {what} |");
        stories.iter().for_each(|story| text += &format!(" {} |", cell(story)));
        text.push('\n');
    };
    row("sessions open after", &|story| format!("{:.1} s", story.opening));
    row("each lock held once after", &|story| format!("{:.1} s", story.first_round));
    row("turns", &|story| story.tally.turns().to_string());
    row("different locks held", &|story| story.tally.locks.to_string());
    row("sessions opened in all", &|story| story.tally.opened.to_string());
    let mut turns: Vec<&String> = stories.iter().flat_map(|story| story.tally.turns.keys()).collect();
    turns.sort();
    turns.dedup();
    for turn in turns {
        row(&format!("… {turn}"), &|story| story.tally.turns.get(turn).unwrap_or(&0).to_string());
    }
    for (what, figure) in FIGURES {
        let is_memory = what.starts_with("memory");
        let value = |value: u64| match is_memory {
            true => format!("{} MiB", value >> 20),
            false => value.to_string(),
        };
        row(&format!("{what}: before, half time, end, after"), &|story| {
            let of = |having: &Sample| value(figure(having));
            let (before, after) = (story.before(), story.after());
            let half = story.samples.get(story.samples.len() / 2).map_or_else(String::new, of);
            let end = story.samples.last().map_or_else(String::new, of);
            format!("{}, {half}, {end}, {}", of(&before), of(&after))
        });
        row(&format!("{what}: growth"), &|story| match growth(&points(story, figure)) {
            Some(growth) => format!("{:+.2} %", 100.0 * growth),
            None => "too few samples".to_owned(),
        });
    }
    row(
        "alive on the server's heap: after the first round, when all have let go",
        &|story| match story.alive {
            Some((then, end)) => format!("{} MiB, {} MiB", then >> 20, end >> 20),
            None => "all that it has".to_owned(),
        },
    );
    row("threads of the clients: before, end, after", &|story| {
        let end = story.samples.last().map_or(0, |sample| sample.clients.threads);
        format!("{}, {end}, {}", story.clients_before.threads, story.clients_after.threads)
    });
    row("nodes and watches when all have let go", &|story| {
        format!("{}, {}", story.idle.ephemerals, story.idle.watches)
    });
    row("sessions when all are closed", &|story| story.empty.sessions.to_string());
    row("directories of locks at the end, and locks that are not free", &|story| {
        format!("{}, {}", story.directories, story.left.len())
    });
    let _ = writeln!(text, "\n{} violations.", violations.len());
    for violation in violations.iter().take(SHOWN) {
        let _ = writeln!(text, "\nVIOLATION: {violation}");
    }
    text
}

impl Story {
    fn before(&self) -> Sample {
        Sample { at: 0.0, turns: 0, server: self.server_before, clients: self.clients_before }
    }

    fn after(&self) -> Sample {
        Sample { at: 0.0, turns: 0, server: self.server_after, clients: self.clients_after }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::churn::Tally;
    use super::super::server::Counts;
    use super::*;
    use crate::load::Kind;
    use crate::process::Having;

    fn settings() -> Settings {
        Settings {
            sessions: 10,
            locks: 20,
            time: Duration::from_secs(100),
            processes: 1,
            rate: 1,
            tolerance: 5.0,
            seed: None,
            only: Vec::new(),
            broken: None,
            out: None,
        }
    }

    fn having(memory: u64, files: u64) -> Having {
        Having { memory, files, threads: 1 }
    }

    fn good() -> Story {
        let sample = |at: u32| {
            let (server, clients) = (having(100 << 20, 30), having(50 << 20, 90));
            Sample { at: f64::from(at), turns: u64::from(at), server, clients }
        };
        Story {
            kind: Kind::Serve,
            server_before: having(10 << 20, 20),
            clients_before: having(10 << 20, 10),
            opening: 1.0,
            first_round: 3.0,
            alive: Some((90 << 20, 92 << 20)),
            samples: (0..100).map(sample).collect(),
            tally: Tally { locks: 20, ..Tally::default() },
            idle: Counts { sessions: 10, znodes: 25, ..Counts::default() },
            empty: Counts { znodes: 25, ..Counts::default() },
            server_after: having(90 << 20, 20),
            clients_after: having(40 << 20, 13),
            directories: 20,
            left: Vec::new(),
        }
    }

    #[track_caller]
    fn finds(what: &str, spoil: impl FnOnce(&mut Story)) {
        let mut story = good();
        spoil(&mut story);
        let found = violations(&settings(), &story);
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    }

    #[test]
    fn what_stays_as_it_is_and_leaves_nothing_is_no_violation() {
        assert_eq!(violations(&settings(), &good()), Vec::<String>::new());
    }

    #[test]
    fn whatever_grows_is_found() {
        let rising = |sample: &Sample| sample.at as u64;
        finds("memory of the server grew", |story| {
            story.samples.iter_mut().for_each(|it| it.server.memory += rising(it) << 20);
        });
        finds("memory of the clients grew", |story| {
            story.samples.iter_mut().for_each(|it| it.clients.memory += rising(it) << 20);
        });
        finds("alive on the server's heap grew", |story| story.alive = Some((90 << 20, 99 << 20)));
        finds("files of the server grew", |story| {
            story.samples.iter_mut().for_each(|it| it.server.files += rising(it));
        });
        finds("files of the clients grew", |story| {
            story.samples.iter_mut().for_each(|it| it.clients.files += rising(it));
        });
    }

    #[test]
    fn whatever_is_left_is_found() {
        finds("1 nodes and 0 watches", |story| story.idle.ephemerals = 1);
        finds("0 nodes and 3 watches", |story| story.idle.watches = 3);
        finds("9 sessions are open", |story| story.idle.sessions = 9);
        finds("when all sessions are closed", |story| story.empty.sessions = 1);
        finds("when all sessions are closed", |story| story.empty.ephemerals = 1);
        finds("the server has 40 files", |story| story.server_after.files = 40);
        finds("the clients have 40 files", |story| story.clients_after.files = 40);
        finds("/locks/l00001 is left", |story| story.left.push("/locks/l00001".to_owned()));
        finds("only 19 of 20", |story| story.tally.locks = 19);
        finds("2 times oops", |story| story.tally.errors = [("oops".to_owned(), 2)].into());
    }
}
