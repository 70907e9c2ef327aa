//! The report of a run: a table, and the violations.

use std::fmt::Write as _;

use super::growth::growth;
use super::result::{LoadResult, LoadSample};
use super::settings::{LoadArgs, OTHER_FILES};
use crate::report::SHOWN;

/// The figures that must not grow.
const FIGURES: [(&str, SampleField); 4] = [
    ("memory of the server", |sample| sample.server.memory),
    ("memory of the clients", |sample| sample.clients.memory),
    ("files of the server", |sample| sample.server.files),
    ("files of the clients", |sample| sample.clients.files),
];

/// Bytes by which the heap of a Java virtual machine may grow once, for its own classes and buffers.
const JVM_OVERHEAD: u64 = 4 << 20;

type SampleField = fn(&LoadSample) -> u64;

fn points(result: &LoadResult, figure: SampleField) -> Vec<(f64, f64)> {
    result.samples.iter().map(|sample| (sample.at, figure(sample) as f64)).collect()
}

/// Returns the violations of a run.
pub(super) fn violations(settings: &LoadArgs, result: &LoadResult) -> Vec<String> {
    let mut found = Vec::new();
    for (what, figure) in FIGURES {
        match growth(&points(result, figure)) {
            Some(growth) if 100.0 * growth <= settings.tolerance => {}
            Some(growth) => found.push(format!("the {what} grew by {:.1} %", 100.0 * growth)),
            None => found.push(format!("the {what}: too few samples")),
        }
    }
    if let Some((then, end)) = result.alive
        && end > then + JVM_OVERHEAD + (settings.tolerance / 100.0 * then as f64) as u64
    {
        found.push(format!("the live bytes on the server's heap grew from {then} to {end} bytes"));
    }
    for (error, count) in &result.tally.errors {
        found.push(format!("{count} times {error}"));
    }
    if result.tally.locks != settings.locks {
        found.push(format!("only {} of {} locks were ever held", result.tally.locks, settings.locks));
    }
    if !result.idle.is_free() {
        let (nodes, watches) = (result.idle.ephemerals, result.idle.watches);
        found.push(format!("{nodes} nodes and {watches} watches are left after all clients released"));
    }
    let sessions = (settings.sessions / 2 * 2) as u64;
    if result.idle.sessions != sessions {
        found.push(format!("{} sessions are open and not {sessions}", result.idle.sessions));
    }
    if !result.empty.is_free() || result.empty.sessions != 0 {
        found.push(format!("when all sessions are closed there are {:?}", result.empty));
    }
    let (before, after) = (result.server_before.files, result.server_after.files);
    if after > before + OTHER_FILES {
        found.push(format!("the server has {after} files at the end and had {before} before"));
    }
    let (before, after) = (result.clients_before.files, result.clients_after.files);
    if after > before + OTHER_FILES * settings.processes as u64 {
        found.push(format!("the clients have {after} files at the end and had {before} before"));
    }
    found.extend(result.left.iter().map(|left| format!("{left} is left")));
    found.into_iter().map(|what| format!("{:?}: {what}", result.kind)).collect()
}

/// Returns the table.
pub(super) fn format_report(
    settings: &LoadArgs,
    seed: u64,
    results: &[LoadResult],
    violations: &[String],
) -> String {
    let mut text = String::new();
    let LoadArgs { sessions, locks, time, processes, tolerance, .. } = settings;
    let _ = writeln!(
        text,
        "{sessions} sessions in {processes} processes, {locks} locks, {time:?} each, seed {seed}. Growth is that of the \
         second half, as a part of its mean; {tolerance} % are allowed.\n",
    );
    text += "| |";
    results.iter().for_each(|result| text += &format!(" {:?} |", result.kind));
    text += "\n|-|";
    results.iter().for_each(|_| text += "-|");
    text.push('\n');
    let mut row = |what: &str, cell: &dyn Fn(&LoadResult) -> String| {
        let _ = write!(text, "| {what} |");
        results.iter().for_each(|result| text += &format!(" {} |", cell(result)));
        text.push('\n');
    };
    row("sessions open after", &|result| format!("{:.1} s", result.opening));
    row("each lock held once after", &|result| format!("{:.1} s", result.first_round));
    row("turns", &|result| result.tally.turns().to_string());
    row("different locks held", &|result| result.tally.locks.to_string());
    row("sessions opened in all", &|result| result.tally.opened.to_string());
    let mut turns: Vec<&String> = results.iter().flat_map(|result| result.tally.turns.keys()).collect();
    turns.sort();
    turns.dedup();
    for turn in turns {
        row(&format!("… {turn}"), &|result| result.tally.turns.get(turn).unwrap_or(&0).to_string());
    }
    for (what, figure) in FIGURES {
        let is_memory = what.starts_with("memory");
        let value = |value: u64| match is_memory {
            true => format!("{} MiB", value >> 20),
            false => value.to_string(),
        };
        row(&format!("{what}: before, half time, end, after"), &|result| {
            let of = |sample: &LoadSample| value(figure(sample));
            let (before, after) = (result.before(), result.after());
            let half = result.samples.get(result.samples.len() / 2).map_or_else(String::new, of);
            let end = result.samples.last().map_or_else(String::new, of);
            format!("{}, {half}, {end}, {}", of(&before), of(&after))
        });
        row(&format!("{what}: growth"), &|result| match growth(&points(result, figure)) {
            Some(growth) => format!("{:+.2} %", 100.0 * growth),
            None => "too few samples".to_owned(),
        });
    }
    row("live heap of the server: after the first round, after all released", &|result| match result.alive {
        Some((then, end)) => format!("{} MiB, {} MiB", then >> 20, end >> 20),
        None => "all that it has".to_owned(),
    });
    row("threads of the clients: before, end, after", &|result| {
        let end = result.samples.last().map_or(0, |sample| sample.clients.threads);
        format!("{}, {end}, {}", result.clients_before.threads, result.clients_after.threads)
    });
    row("nodes and watches after all released", &|result| {
        format!("{}, {}", result.idle.ephemerals, result.idle.watches)
    });
    row("sessions when all are closed", &|result| result.empty.sessions.to_string());
    row("directories of locks at the end, and locks that are not free", &|result| {
        format!("{}, {}", result.directories, result.left.len())
    });
    let _ = writeln!(text, "\n{} violations.", violations.len());
    for violation in violations.iter().take(SHOWN) {
        let _ = writeln!(text, "\nVIOLATION: {violation}");
    }
    text
}

impl LoadResult {
    fn before(&self) -> LoadSample {
        LoadSample { at: 0.0, turns: 0, server: self.server_before, clients: self.clients_before }
    }

    fn after(&self) -> LoadSample {
        LoadSample { at: 0.0, turns: 0, server: self.server_after, clients: self.clients_after }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::server::ServerCounts;
    use super::super::tally::ChurnTally;
    use super::*;
    use crate::load::settings::ServerChoice;
    use crate::process::ResourceUse;

    fn settings() -> LoadArgs {
        LoadArgs {
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

    fn resources(memory: u64, files: u64) -> ResourceUse {
        ResourceUse { memory, files, threads: 1 }
    }

    fn good() -> LoadResult {
        let sample = |at: u32| {
            let (server, clients) = (resources(100 << 20, 30), resources(50 << 20, 90));
            LoadSample { at: f64::from(at), turns: u64::from(at), server, clients }
        };
        LoadResult {
            kind: ServerChoice::Serve,
            server_before: resources(10 << 20, 20),
            clients_before: resources(10 << 20, 10),
            opening: 1.0,
            first_round: 3.0,
            alive: Some((90 << 20, 92 << 20)),
            samples: (0..100).map(sample).collect(),
            tally: ChurnTally { locks: 20, ..ChurnTally::default() },
            idle: ServerCounts { sessions: 10, znodes: 25, ..ServerCounts::default() },
            empty: ServerCounts { znodes: 25, ..ServerCounts::default() },
            server_after: resources(90 << 20, 20),
            clients_after: resources(40 << 20, 13),
            directories: 20,
            left: Vec::new(),
        }
    }

    #[track_caller]
    fn finds(what: &str, spoil: impl FnOnce(&mut LoadResult)) {
        let mut result = good();
        spoil(&mut result);
        let found = violations(&settings(), &result);
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    }

    #[test]
    fn clean_run_has_no_violations() {
        assert_eq!(violations(&settings(), &good()), Vec::<String>::new());
    }

    #[test]
    fn growth_is_a_violation() {
        let rising = |sample: &LoadSample| sample.at as u64;
        finds("memory of the server grew", |result| {
            result.samples.iter_mut().for_each(|it| it.server.memory += rising(it) << 20);
        });
        finds("memory of the clients grew", |result| {
            result.samples.iter_mut().for_each(|it| it.clients.memory += rising(it) << 20);
        });
        finds("live bytes on the server's heap grew", |result| result.alive = Some((90 << 20, 99 << 20)));
        finds("files of the server grew", |result| {
            result.samples.iter_mut().for_each(|it| it.server.files += rising(it));
        });
        finds("files of the clients grew", |result| {
            result.samples.iter_mut().for_each(|it| it.clients.files += rising(it));
        });
    }

    #[test]
    fn leftovers_are_violations() {
        finds("1 nodes and 0 watches", |result| result.idle.ephemerals = 1);
        finds("0 nodes and 3 watches", |result| result.idle.watches = 3);
        finds("9 sessions are open", |result| result.idle.sessions = 9);
        finds("when all sessions are closed", |result| result.empty.sessions = 1);
        finds("when all sessions are closed", |result| result.empty.ephemerals = 1);
        finds("the server has 40 files", |result| result.server_after.files = 40);
        finds("the clients have 40 files", |result| result.clients_after.files = 40);
        finds("/locks/l00001 is left", |result| result.left.push("/locks/l00001".to_owned()));
        finds("only 19 of 20", |result| result.tally.locks = 19);
        finds("2 times oops", |result| result.tally.errors = [("oops".to_owned(), 2)].into());
    }
}
