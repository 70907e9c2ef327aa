//! The changes between two reads of a queue, as far as the reads show them.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::admin::snapshot::{Entry, Snapshot};

/// A change between two reads of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diff {
    /// The kind of change.
    /// - `holds`, `waits`: the contender held or waited at the first read, or at the first read after an outage.
    /// - `queued`: the contender joined the queue and waits.
    /// - `granted`: the contender holds the lock, or held it between two reads.
    /// - `released`, `panicked`, `crashed`, `broken`: the holder left in this way, as the data of
    ///   the lock directory shows.
    /// - `gone`: the contender held the lock, or may have held it, and has left. No record shows how it left.
    /// - `left`: the contender stopped waiting.
    /// - `unseen`: other contenders came and left between two reads.
    /// - `asked`: the contender was asked to release the lock.
    /// - `unreachable`: the lock cannot be read any more. `back`: it can be read again.
    pub event: &'static str,
    /// Path of the lock directory.
    #[serde(rename = "path")]
    pub lock: String,
    /// Time at which the change was seen, in milliseconds of Unix time.
    pub at_ms: u64,
    /// The contender that changed.
    pub contender: Option<Entry>,
    /// Queue position among the waiters, from 1 on, for `waits` and `queued`.
    pub place: Option<usize>,
    /// Number of waiters now.
    pub waiting: usize,
    /// Time for which the contender waited, in milliseconds, as far as the reads show it.
    pub waited_ms: Option<u64>,
    /// Time for which the contender held, in milliseconds, as far as the reads show it.
    pub held_ms: Option<u64>,
    /// Set if `waited_ms` or `held_ms` is a lower bound, because the wait or the hold began before the first read or
    /// during an outage.
    pub at_least: bool,
    /// Upper bound of the number of contenders, for `unseen`.
    pub count: Option<u32>,
    /// The reason, for `unreachable`.
    pub message: Option<String>,
}

impl Diff {
    fn new(event: &'static str, lock: &Snapshot, now: ReadEnd) -> Diff {
        let (lock, waiting) = (lock.path.clone(), lock.waiting);
        Diff { event, lock, at_ms: now.unix_ms, waiting, ..Diff::default() }
    }

    fn of(event: &'static str, entry: &Entry, lock: &Snapshot, now: ReadEnd) -> Diff {
        Diff { contender: Some(entry.clone()), ..Diff::new(event, lock, now) }
    }
}

/// The time at which a read ended, by the wall clock and by a monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadEnd {
    unix_ms: u64,
    at: Instant,
}

impl ReadEnd {
    pub(super) fn now() -> ReadEnd {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ReadEnd { unix_ms: ms(unix), at: Instant::now() }
    }
}

/// The last read of a queue, to which the next read is compared.
pub(super) struct Tracker {
    lock: Snapshot,
    /// The times of the contenders, in the order of [`Snapshot::queue`].
    times: Vec<Times>,
    /// The czxid of the directory in the last read that found one. `numbers` belongs to this
    /// directory.
    created: Option<i64>,
    numbers: SequenceNumbers,
    last_read: LastRead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastRead {
    /// No read is complete yet.
    None,
    Failed,
    Complete,
}

/// The times of a contender.
#[derive(Debug, Clone, Copy)]
struct Times {
    arrived: Since,
    /// Start of the contender's hold; `None` if the contender has only waited.
    holds: Option<Since>,
}

#[derive(Debug, Clone, Copy)]
struct Since {
    at: Instant,
    /// Set if the wait or the hold may have begun earlier: before the first read or during an outage.
    at_least: bool,
}

/// A contender of the previous read.
#[derive(Clone, Copy)]
struct KnownContender<'a> {
    entry: &'a Entry,
    times: Times,
}

/// Znode and token of a contender. The token distinguishes a later znode of the same name.
type Key<'a> = (&'a str, Option<&'a str>);

fn key(entry: &Entry) -> Key<'_> {
    (entry.node.as_str(), entry.token.as_deref())
}

impl Tracker {
    pub(super) fn new(path: String) -> Tracker {
        let (times, created, last_read) = (Vec::new(), None, LastRead::None);
        Tracker {
            lock: Snapshot::unused(path),
            times,
            created,
            numbers: SequenceNumbers::default(),
            last_read,
        }
    }

    /// Returns the lock as of the last complete read.
    pub(super) fn lock(&self) -> &Snapshot {
        &self.lock
    }

    /// Records a failed read. Returns a diff once per outage.
    pub(super) fn record_failed_read(&mut self, why: &str, now: ReadEnd) -> Option<Diff> {
        if std::mem::replace(&mut self.last_read, LastRead::Failed) == LastRead::Failed {
            return None;
        }
        Some(Diff { message: Some(why.to_owned()), ..Diff::new("unreachable", &self.lock, now) })
    }

    /// Records a read, and returns the changes: first departures, then arrivals and grants. `created`: the czxid of the
    /// directory.
    pub(super) fn update(&mut self, lock: Snapshot, created: Option<i64>, now: ReadEnd) -> Vec<Diff> {
        let last_read = std::mem::replace(&mut self.last_read, LastRead::Complete);
        let is_first = last_read != LastRead::Complete;
        if !is_first && lock == self.lock && created == self.created {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.lock, lock);
        let lock = &self.lock;
        let known = before.queue().zip(std::mem::take(&mut self.times));
        let mut known: Vec<_> = known.map(|(entry, times)| KnownContender { entry, times }).collect();
        let mut diffs = Vec::new();
        if last_read == LastRead::Failed {
            diffs.push(Diff::new("back", lock, now));
        }
        if let (Some(last), Some(created)) = (self.created, created)
            && last != created
        {
            // Reports that all contenders of the old directory have left, even if znodes of the new one have the same
            // names. Uses no release marker, because it describes contenders of the new directory.
            diffs.extend(departure_diffs(&known, &HashMap::new(), None, lock, now));
            known.clear();
            self.numbers = SequenceNumbers::default();
        }
        self.created = created.or(self.created);
        let present: HashMap<Key<'_>, usize> =
            lock.queue().enumerate().map(|(at, entry)| (key(entry), at)).collect();
        diffs.extend(departure_diffs(&known, &present, last_departure(lock), lock, now));
        let count = self.numbers.count_unseen(lock, &known);
        if count > 0 {
            diffs.push(Diff { count: Some(count), ..Diff::new("unseen", lock, now) });
        }
        known.retain(|known| present.contains_key(&key(known.entry)));
        let (arrivals, times) = arrival_diffs(&known, lock, is_first, now);
        diffs.extend(arrivals);
        self.times = times;
        diffs
    }
}

/// Returns the changes of the contenders that have left. `present`: the indexes of the contenders in the queue now;
/// `written`: how the contender in the release marker left, and its sequence number.
fn departure_diffs(
    known: &[KnownContender<'_>],
    present: &HashMap<Key<'_>, usize>,
    written: Option<(&'static str, u32)>,
    lock: &Snapshot,
    now: ReadEnd,
) -> Vec<Diff> {
    let mut diffs = Vec::new();
    let holders = lock.holders().count();
    let held = || known.iter().filter(|known| known.times.holds.is_some());
    let is_present = |known: &&KnownContender<'_>| present.contains_key(&key(known.entry));
    let holder_left = !held().all(|known| is_present(&known));
    // An exclusive contender cannot have acquired while other contenders held, except for an upgrade,
    // because its owner also holds the read lock.
    let is_alone = |entry: &Entry| {
        let is_own =
            |other: &KnownContender<'_>| other.entry.owner.is_some() && other.entry.owner == entry.owner;
        entry.role != "exclusive" || held().filter(is_present).all(is_own)
    };
    // Set while no contender ahead of the current one still waits.
    let mut next = true;
    for &KnownContender { entry, times, .. } in known {
        if let Some(at) = present.get(&key(entry)) {
            next &= *at < holders;
            continue;
        }
        let how = written.filter(|(_, of)| entry.number() == Some(*of)).map(|(how, _)| how);
        let waited = Diff {
            waited_ms: Some(times.arrived.until(now)),
            at_least: times.arrived.at_least,
            ..Diff::of("left", entry, lock, now)
        };
        match (times.holds, how) {
            (Some(since), how) => diffs.push(Diff {
                held_ms: Some(since.until(now)),
                at_least: since.at_least,
                ..Diff::of(how.unwrap_or("gone"), entry, lock, now)
            }),
            // The contender acquired and released between two reads.
            (None, Some(how)) => {
                diffs.push(Diff { event: "granted", ..waited });
                diffs.push(Diff::of(how, entry, lock, now));
            }
            // The contender may have acquired between two reads.
            (None, None) if holder_left && next && is_alone(entry) => {
                diffs.push(Diff { event: "gone", ..waited })
            }
            (None, None) => diffs.push(waited),
        }
    }
    diffs
}

/// Returns the changes of the contenders that are in the queue now, and the times of all of them. `known`: the
/// contenders that were also in the previous read; `is_first`: the first read, or the first one after an outage.
fn arrival_diffs(
    known: &[KnownContender<'_>],
    lock: &Snapshot,
    is_first: bool,
    now: ReadEnd,
) -> (Vec<Diff>, Vec<Times>) {
    let (mut diffs, mut all_times) = (Vec::new(), Vec::new());
    let by_key: HashMap<Key<'_>, &KnownContender<'_>> =
        known.iter().map(|known| (key(known.entry), known)).collect();
    let holders = lock.holders().count();
    for (at, entry) in lock.queue().enumerate() {
        let holds = at < holders;
        let known = by_key.get(&key(entry)).copied();
        let begins = Since { at: now.at, at_least: is_first };
        let held_since = known.and_then(|known| known.times.holds);
        let arrived = known.map_or(begins, |known| known.times.arrived);
        // A contender that has held counts as a holder until it leaves, because after a resize a semaphore
        // may have fewer permits than are held.
        all_times.push(Times { arrived, holds: held_since.or_else(|| holds.then_some(begins)) });
        let event = match (known, holds) {
            (None, true) if is_first => Some("holds"),
            (None, false) if is_first => Some("waits"),
            (None, false) => Some("queued"),
            (_, true) if held_since.is_none() => Some("granted"),
            _ => None,
        };
        let waited = known.map(|known| known.times.arrived);
        diffs.extend(event.map(|event| Diff {
            place: (known.is_none() && !holds).then(|| at - holders + 1),
            waited_ms: waited.map(|since| since.until(now)),
            at_least: waited.is_some_and(|since| since.at_least),
            ..Diff::of(event, entry, lock, now)
        }));
        if entry.revoked && known.is_some_and(|known| !known.entry.revoked) {
            diffs.push(Diff::of("asked", entry, lock, now));
        }
    }
    (diffs, all_times)
}

/// The sequence numbers that were seen in a directory.
#[derive(Default)]
struct SequenceNumbers {
    /// Highest number that the server has given to a contender.
    last: Option<u32>,
    /// Number of contenders whose znode was replaced, for example by a downgrade, and for which
    /// `unseen` has not yet subtracted a number.
    renamed: u32,
}

impl SequenceNumbers {
    /// Returns an upper bound of the number of contenders that came and went between two reads. It
    /// counts the sequence numbers that the server gave in the meantime. Child directories also use
    /// up sequence numbers, so the true number of contenders may be lower. A downgrade uses up a
    /// number, too, although the reader's znode keeps the writer's number. So one number is
    /// subtracted for each downgrade.
    fn count_unseen(&mut self, lock: &Snapshot, known: &[KnownContender<'_>]) -> u32 {
        let nodes = known.iter().map(|known| known.entry);
        let nodes: HashMap<u32, &str> =
            nodes.filter_map(|entry| Some((entry.number()?, entry.node.as_str()))).collect();
        let (mut new, mut highest) = (0_u32, lock.previous_number);
        for entry in lock.queue() {
            let Some(number) = entry.number() else { continue };
            highest = highest.max(Some(number));
            match nodes.get(&number) {
                Some(node) => self.renamed += u32::from(*node != entry.node),
                None => new += 1,
            }
        }
        let Some(last) = self.last else {
            self.last = highest;
            return 0;
        };
        self.last = Some(last).max(highest);
        let given = highest.unwrap_or(0).saturating_sub(last).saturating_sub(new);
        // If more znodes were replaced than numbers were given, a later call subtracts the rest.
        let of_renamed = given.min(self.renamed);
        self.renamed -= of_renamed;
        given - of_renamed
    }
}

impl Since {
    fn until(self, now: ReadEnd) -> u64 {
        ms(now.at.saturating_duration_since(self.at))
    }
}

/// Returns how the last holder left and its sequence number, if the release marker shows them.
fn last_departure(lock: &Snapshot) -> Option<(&'static str, u32)> {
    let number = lock.previous_number?;
    match lock.previous {
        "unknown" => None,
        "clean" => Some(("released", number)),
        how => Some((how, number)),
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
