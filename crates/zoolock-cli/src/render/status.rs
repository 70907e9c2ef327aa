//! The status line of a waiting command, and descriptions of contenders.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock::Zoolock;
use zoolock::admin::{Entry, Family, LockPoller, PolledSnapshot, Role, Snapshot};
use zoolock_core::names;

use crate::base::duration::format_duration;
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::render::text::and_more;

/// Delay before the status line is shown.
const FIRST_LINE_AFTER: Duration = Duration::from_millis(700);
/// Interval between updates of the status line.
const TICK: Duration = Duration::from_secs(1);
/// Maximum interval between two reads of the lock. After a long wait, the status line may show a
/// former holder for this long.
const MAX_READ_INTERVAL: Duration = Duration::from_secs(30);
/// The status line shows the age of a read that is older than this.
const MAX_FRESH_AGE: Duration = Duration::from_secs(5);

/// Shows the status line and updates it until the task is aborted. Without a terminal, prints the holder once.
pub(crate) async fn update_status_line(
    zoolock: Zoolock,
    names: Vec<String>,
    lock_delay: Duration,
    reporter: Arc<Reporter>,
) {
    let began = Instant::now();
    tokio::time::sleep(FIRST_LINE_AFTER).await;
    let mut locks = AwaitedLocks::new(&zoolock, &names);
    loop {
        let read_at = Instant::now();
        // Errors are ignored, because the acquisition reports its own errors.
        let seen = locks.blocking_lock().await;
        if let (Some((name, snapshot)), false) = (&seen, reporter.can_show_status()) {
            reporter.note(single_message(name, &snapshot.lock, lock_delay));
            return;
        }
        let next = Instant::now() + read_interval(began.elapsed());
        while Instant::now() < next {
            reporter.show_status(&match &seen {
                Some((name, snapshot)) => {
                    format_status_line(name, snapshot, lock_delay, began.elapsed(), read_at.elapsed())
                }
                None => {
                    format!(
                        "zoolock: waiting for {} · {}",
                        names.join(" and "),
                        format_seconds(began.elapsed())
                    )
                }
            });
            tokio::time::sleep(TICK).await;
        }
    }
}

/// Returns the time until the next read of the lock. It grows with the wait, because thousands of
/// waiters may read the same lock.
pub(crate) fn read_interval(waited: Duration) -> Duration {
    (waited / 10).clamp(TICK, MAX_READ_INTERVAL)
}

/// Says which client holds the first lock that is held. `wanted`: the role of the contender that does not get the lock.
pub(crate) async fn describe_holder(
    zoolock: &Zoolock,
    names: &[String],
    wanted: names::Role,
) -> Option<String> {
    let (name, PolledSnapshot { lock, .. }) = AwaitedLocks::new(zoolock, names).blocking_lock().await?;
    let holder = lock.holder.as_ref()?;
    let held = format!("{name} is held by {}", describe_contender(holder));
    if wanted != names::Role::Shared || holder.role != Role::Shared {
        return Some(held);
    }
    // A reader waits for no other reader, but for the writer that waits before it.
    let lock = zoolock.admin().poller(&name, 1).snapshot().await.ok()?.lock;
    let behind =
        |writer| format!("{name} is held by readers, and a writer waits: {}", describe_contender(writer));
    Some(lock.waiters.first().map_or(held, behind))
}

/// Pollers of the locks to acquire. They read the holders, but not the waiters.
struct AwaitedLocks(Vec<(String, LockPoller)>);

impl AwaitedLocks {
    fn new(zoolock: &Zoolock, names: &[String]) -> Self {
        let with_poller = |name: &String| (name.clone(), zoolock.admin().poller(name, 0).with_position());
        Self(names.iter().map(with_poller).collect())
    }

    /// Returns the first lock that another process holds. Otherwise returns the first lock that can
    /// be read.
    async fn blocking_lock(&mut self) -> Option<(String, PolledSnapshot)> {
        let mut first = None;
        for (name, poller) in &mut self.0 {
            let Ok(snapshot) = poller.snapshot().await else { continue };
            let is_foreign = snapshot.lock.holder.as_ref().is_some_and(|holder| !is_this_process(holder));
            if is_foreign {
                return Some((name.clone(), snapshot));
            }
            first.get_or_insert((name.clone(), snapshot));
        }
        first
    }
}

fn single_message(name: &str, lock: &Snapshot, lock_delay: Duration) -> String {
    let obstacle = describe_obstacle(lock, lock_delay).map(|obstacle| format!(", {obstacle}"));
    format!("waiting for {name}{}", obstacle.unwrap_or_default())
}

/// Describes what a waiter waits for: the holder, or the end of the lock delay.
fn describe_obstacle(lock: &Snapshot, lock_delay: Duration) -> Option<String> {
    let holder = lock.holder.as_ref()?;
    if !is_this_process(holder) {
        return Some(format!("held by {}{}", describe_contender(holder), and_more(lock.beside.len())));
    }
    let delay = format_duration(lock_delay);
    (!lock_delay.is_zero())
        .then(|| format!("free after the lock delay of {delay}: the previous holder may have crashed"))
}

fn format_status_line(
    name: &str,
    PolledSnapshot { lock, place, .. }: &PolledSnapshot,
    lock_delay: Duration,
    waited: Duration,
    age: Duration,
) -> String {
    let mut line = format!("zoolock: waiting for {name} · {}", format_seconds(waited));
    if let Some(before) = place {
        line.push_str(&format!(" · position {} of {}", before + 1, lock.waiting));
    }
    if let Some(obstacle) = describe_obstacle(lock, lock_delay) {
        line.push_str(&format!(" · {obstacle}{}", format_age(age)));
    }
    line
}

/// Returns the age of a read of the lock, or nothing if the read is fresh.
fn format_age(age: Duration) -> String {
    if age > MAX_FRESH_AGE { format!(" {} ago", format_seconds(age)) } else { String::new() }
}

fn format_seconds(duration: Duration) -> String {
    format_duration(Duration::from_secs(duration.as_secs()))
}

/// Returns whether the contender belongs to this process.
pub(crate) fn is_this_process(entry: &Entry) -> bool {
    let host = rustix::system::uname();
    entry.pid == Some(std::process::id())
        && entry.host.as_deref().is_some_and(|name| name == host.nodename().to_string_lossy())
}

/// Describes a contender in a few words, with its note.
pub(crate) fn describe_contender(entry: &Entry) -> String {
    let client = describe_client(entry);
    match note(entry) {
        Some(note) => format!("{client}: {}", escape_unprintable(note)),
        None => client,
    }
}

/// Returns the note of a contender, or the identifier that its client library wrote.
pub(crate) fn note(entry: &Entry) -> Option<&String> {
    entry.note.as_ref().or(entry.identifier.as_ref())
}

/// Describes the client of a contender: its host, process and program.
pub(crate) fn describe_client(entry: &Entry) -> String {
    let library = match entry.family {
        Family::Unknown => format!("{} ({})", entry.library(), entry.node),
        _ => entry.library().to_owned(),
    };
    let mut words = match &entry.host {
        Some(host) if entry.has_zoolock_data() => host.clone(),
        Some(host) => format!("{library} at {host}"),
        None if entry.has_zoolock_data() => "an unknown host".to_owned(),
        None => library,
    };
    if let Some(pid) = entry.pid {
        words.push_str(&format!(" pid {pid}"));
    }
    if let Some(program) = &entry.program {
        words.push_str(&format!(" ({})", describe_program(program, entry.runs_program)));
    }
    if entry.is_superseded {
        words.push_str(", in another session of the same process");
    }
    escape_unprintable(&words)
}

/// Describes the program of a process, which may be another program that the process runs.
pub(crate) fn describe_program(program: &str, runs_program: bool) -> String {
    if runs_program { format!("run of {program}") } else { program.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_interval_grows_with_waiting_time() {
        let of = |seconds| read_interval(Duration::from_secs(seconds));
        assert_eq!(of(1), Duration::from_secs(1));
        assert_eq!(of(60), Duration::from_secs(6));
        assert_eq!(of(86_400), Duration::from_secs(30));
    }

    #[test]
    fn status_line_shows_age_of_old_read() {
        assert_eq!(format_age(Duration::from_secs(5)), "");
        assert_eq!(format_age(Duration::from_secs(12)), " 12s ago");
    }
}
