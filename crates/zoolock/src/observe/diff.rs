//! The changes between two reads of a queue, as far as the reads show them.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use crate::admin::kinds::{PreviousEnd, Role};
use crate::admin::snapshot::{Entry, Snapshot};
use crate::base::text_enum::text_enum;
use crate::base::ticket::Ticket;
use crate::base::unix_time;

text_enum! {
    /// A kind of change in a queue.
    Change {
        /// The contender held at the first read, or at the first read after an outage.
        Holds = "holds",
        /// The contender waited at the first read, or at the first read after an outage.
        Waits = "waits",
        /// The contender joined the queue and waits.
        Queued = "queued",
        /// The contender holds the lock, or held it between two reads.
        Granted = "granted",
        /// The holder released, as the data of the lock directory shows.
        Released = "released",
        /// The holder released while its thread unwound from a panic, as the data of the lock directory shows.
        Panicked = "panicked",
        /// The holder ended without a release, as the data of the lock directory shows.
        Crashed = "crashed",
        /// An operator deleted the holder's znode, as the data of the lock directory shows.
        Broken = "broken",
        /// The contender held the lock, or may have held it, and has left. No record shows how it left.
        Gone = "gone",
        /// The contender stopped waiting.
        Left = "left",
        /// Other contenders came and left between two reads.
        Unseen = "unseen",
        /// The contender was asked to release the lock.
        Asked = "asked",
        /// The lock cannot be read any more.
        Unreachable = "unreachable",
        /// The lock can be read again.
        Back = "back",
    }
}

/// A change between two reads of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diff {
    /// The kind of change.
    pub event: Change,
    /// Path of the lock directory.
    #[serde(rename = "path")]
    pub lock: String,
    /// Time at which the change was seen, by this machine's clock.
    #[serde(rename = "at_ms", serialize_with = "unix_time::serialize")]
    pub at: SystemTime,
    /// The contender that changed.
    pub contender: Option<Entry>,
    /// Queue position among the waiters, from 1 on, for `waits` and `queued`.
    pub place: Option<usize>,
    /// Number of waiters now.
    pub waiting: usize,
    /// Time for which the contender waited, as far as the reads show it.
    #[serde(rename = "waited_ms", serialize_with = "unix_time::serialize_duration")]
    pub waited: Option<Duration>,
    /// Time for which the contender held, as far as the reads show it.
    #[serde(rename = "held_ms", serialize_with = "unix_time::serialize_duration")]
    pub held: Option<Duration>,
    /// Set if `waited` or `held` is a lower bound, because the wait or the hold began before the first read or
    /// during an outage.
    pub at_least: bool,
    /// Upper bound of the number of contenders, for `unseen`.
    pub count: Option<u32>,
    /// The reason, for `unreachable`.
    pub message: Option<String>,
}

impl Diff {
    /// Returns a change of an unused lock.
    pub(crate) fn sample(event: Change, contender: Option<Entry>) -> Diff {
        Diff { contender, ..Diff::new(event, &Snapshot::unused(String::new()), ReadEnd::now()) }
    }

    fn new(event: Change, lock: &Snapshot, now: ReadEnd) -> Diff {
        let (lock, waiting) = (lock.path.clone(), lock.waiting);
        Diff {
            event,
            lock,
            at: now.wall,
            contender: None,
            place: None,
            waiting,
            waited: None,
            held: None,
            at_least: false,
            count: None,
            message: None,
        }
    }

    fn of(event: Change, entry: &Entry, lock: &Snapshot, now: ReadEnd) -> Diff {
        Diff { contender: Some(entry.clone()), ..Diff::new(event, lock, now) }
    }
}

/// The time at which a read ended, by the wall clock and by a monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadEnd {
    wall: SystemTime,
    at: Instant,
}

impl ReadEnd {
    pub(super) fn now() -> ReadEnd {
        ReadEnd { wall: SystemTime::now(), at: Instant::now() }
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
type Key<'a> = (&'a str, Option<Ticket>);

fn key(entry: &Entry) -> Key<'_> {
    (entry.node.as_str(), entry.token)
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
        Some(Diff { message: Some(why.to_owned()), ..Diff::new(Change::Unreachable, &self.lock, now) })
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
            diffs.push(Diff::new(Change::Back, lock, now));
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
            diffs.push(Diff { count: Some(count), ..Diff::new(Change::Unseen, lock, now) });
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
    written: Option<(Change, u32)>,
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
        entry.role != Role::Exclusive || held().filter(is_present).all(is_own)
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
            waited: Some(times.arrived.until(now)),
            at_least: times.arrived.at_least,
            ..Diff::of(Change::Left, entry, lock, now)
        };
        match (times.holds, how) {
            (Some(since), how) => diffs.push(Diff {
                held: Some(since.until(now)),
                at_least: since.at_least,
                ..Diff::of(how.unwrap_or(Change::Gone), entry, lock, now)
            }),
            // The contender acquired and released between two reads.
            (None, Some(how)) => {
                diffs.push(Diff { event: Change::Granted, ..waited });
                diffs.push(Diff::of(how, entry, lock, now));
            }
            // The contender may have acquired between two reads.
            (None, None) if holder_left && next && is_alone(entry) => {
                diffs.push(Diff { event: Change::Gone, ..waited })
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
            (None, true) if is_first => Some(Change::Holds),
            (None, false) if is_first => Some(Change::Waits),
            (None, false) => Some(Change::Queued),
            (_, true) if held_since.is_none() => Some(Change::Granted),
            _ => None,
        };
        let waited = known.map(|known| known.times.arrived);
        diffs.extend(event.map(|event| Diff {
            place: (known.is_none() && !holds).then(|| at - holders + 1),
            waited: waited.map(|since| since.until(now)),
            at_least: waited.is_some_and(|since| since.at_least),
            ..Diff::of(event, entry, lock, now)
        }));
        if entry.revoked && known.is_some_and(|known| !known.entry.revoked) {
            diffs.push(Diff::of(Change::Asked, entry, lock, now));
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
    fn until(self, now: ReadEnd) -> Duration {
        now.at.saturating_duration_since(self.at)
    }
}

/// Returns how the last holder left and its sequence number, if the release marker shows them.
fn last_departure(lock: &Snapshot) -> Option<(Change, u32)> {
    let number = lock.previous_number?;
    let how = match lock.previous {
        PreviousEnd::Clean => Change::Released,
        PreviousEnd::Panicked => Change::Panicked,
        PreviousEnd::Crashed => Change::Crashed,
        PreviousEnd::Broken => Change::Broken,
        PreviousEnd::Unknown => return None,
    };
    Some((how, number))
}
