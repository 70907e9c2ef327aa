//! Derives the changes of a lock from two snapshots, as far as the snapshots show them.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use zoolock::{Entry, Snapshot};

use crate::base::rates::number;

/// A change of the lock.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Event {
    /// Kind of change; `docs/JSON.md` lists all kinds.
    pub(super) event: &'static str,
    pub(super) lock: String,
    /// Time at which the change was seen.
    pub(super) at_ms: u64,
    /// The contender.
    pub(super) contender: Option<Entry>,
    /// Queue position among the waiters, from 1 on.
    pub(super) place: Option<usize>,
    /// Number of waiters now.
    pub(super) waiting: usize,
    /// Times for which the contender waited and held, as far as reads show them.
    pub(super) waited_ms: Option<u64>,
    pub(super) held_ms: Option<u64>,
    /// Set if the wait or hold took longer, since it began before the first read or during an outage.
    pub(super) at_least: bool,
    /// Maximum number of contenders that came and went unseen.
    pub(super) count: Option<u32>,
    pub(super) message: Option<String>,
}

/// All kinds of changes.
const EVENTS: [&str; 13] = [
    "holds", "waits", "queued", "granted", "released", "panicked", "crashed", "broken", "gone", "left",
    "unseen", "lost", "back",
];

/// Time of a read, by the wall clock and by a monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) unix_ms: u64,
    pub(super) at: Instant,
}

impl Moment {
    pub(super) fn now() -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { unix_ms: ms(unix), at: Instant::now() }
    }
}

/// The last seen state of a lock.
#[derive(Debug)]
pub(super) struct SnapshotDiff {
    path: String,
    /// Holders, then waiters in queue order.
    contenders: Vec<Contender>,
    /// Creation time of the directory, which the sequence numbers belong to.
    created: Option<i64>,
    /// Highest sequence number that the server has given to a contender.
    last_number: Option<u32>,
    /// Number of later sequence numbers that were used to replace the znode of a contender, as by a downgrade.
    renamed: u32,
    waiting: usize,
    contact: Contact,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    /// No read has succeeded yet.
    None,
    Lost,
    Established,
}

/// A contender in the queue.
#[derive(Debug, Clone)]
struct Contender {
    entry: Entry,
    /// Start of its hold, if it holds.
    holds: Option<Since>,
    arrived: Since,
}

#[derive(Debug, Clone, Copy)]
struct Since {
    at: Instant,
    /// Set if it began before the first read or during an outage.
    at_least: bool,
}

impl SnapshotDiff {
    pub(super) fn new(path: &str) -> SnapshotDiff {
        let path = path.to_owned();
        let (contenders, contact) = (Vec::new(), Contact::None);
        SnapshotDiff { path, contenders, created: None, last_number: None, renamed: 0, waiting: 0, contact }
    }

    /// Returns the event for a failed read, once per outage.
    pub(super) fn lose_contact(&mut self, why: &str, now: Moment) -> Option<Event> {
        if std::mem::replace(&mut self.contact, Contact::Lost) == Contact::Lost {
            return None;
        }
        Some(Event { message: Some(why.to_owned()), ..self.event("lost", now) })
    }

    /// Returns the changes since the last read: first departures, then arrivals and grants. `created` is the creation
    /// time of the directory.
    pub(super) fn update(&mut self, lock: &Snapshot, created: Option<i64>, now: Moment) -> Vec<Event> {
        self.waiting = lock.waiting;
        let contact = std::mem::replace(&mut self.contact, Contact::Established);
        let unseen_before = contact != Contact::Established;
        let back = (contact == Contact::Lost).then(|| self.event("back", now));
        let holders: Vec<&Entry> = lock.holder.iter().chain(&lock.beside).collect();
        let contenders_now = || holders.iter().copied().chain(&lock.waiters);
        let present: HashMap<Key, usize> =
            contenders_now().enumerate().map(|(at, entry)| (key(entry), at)).collect();
        let mut before = std::mem::take(&mut self.contenders);
        let mut events: Vec<Event> = back.into_iter().collect();
        if let (Some(last), Some(created)) = (self.created, created)
            && last != created
        {
            // The directory is a new one. Contenders of the old directory have left, even if znodes have the same
            // names. The release marker describes contenders of the new directory.
            events.extend(self.departures(&before, &HashMap::new(), 0, None, now));
            (before, self.last_number, self.renamed) = (Vec::new(), None, 0);
        }
        self.created = created.or(self.created);
        events.extend(self.departures(&before, &present, holders.len(), last_departure(lock), now));
        let count = self.unseen(lock, &before);
        if count > 0 {
            events.push(Event { count: Some(count), ..self.event("unseen", now) });
        }
        let mut before: HashMap<Key, Contender> =
            before.into_iter().map(|contender| (key(&contender.entry), contender)).collect();
        for (at, entry) in contenders_now().enumerate() {
            let (known, new) = match before.remove(&key(entry)) {
                Some(known) => (known, false),
                None => {
                    let arrived = Since { at: now.at, at_least: unseen_before };
                    (Contender { entry: entry.clone(), holds: None, arrived }, true)
                }
            };
            let (is_holder, held) = (at < holders.len(), known.holds.is_some());
            let begins = Since { at: now.at, at_least: unseen_before };
            // A holder keeps holding, even if the semaphore now has fewer permits than are held.
            let holds = known.holds.or_else(|| is_holder.then_some(begins));
            let contender = Contender { entry: entry.clone(), holds, arrived: known.arrived };
            if is_holder && !held {
                let event = if new && unseen_before { "holds" } else { "granted" };
                let waited = (!new).then_some(contender.arrived);
                let waited_ms = waited.map(|since| since.until(now));
                let at_least = waited.is_some_and(|since| since.at_least);
                events.push(Event { waited_ms, at_least, ..self.event_of(event, entry, now) });
            } else if new && !is_holder {
                let event = if unseen_before { "waits" } else { "queued" };
                let place = Some(at - holders.len() + 1);
                events.push(Event { place, ..self.event_of(event, entry, now) });
            }
            self.contenders.push(contender);
        }
        events
    }

    /// Returns the events of contenders that have left. `written` is the release marker: how a contender left, and its
    /// sequence number.
    fn departures(
        &self,
        before: &[Contender],
        present: &HashMap<Key, usize>,
        holders: usize,
        written: Option<(&'static str, u32)>,
        now: Moment,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let is_present = |contender: &Contender| present.contains_key(&key(&contender.entry));
        let holder_left = before.iter().any(|contender| contender.holds.is_some() && !is_present(contender));
        let holds_on: Vec<&Entry> = before
            .iter()
            .filter(|contender| contender.holds.is_some() && is_present(contender))
            .map(|contender| &contender.entry)
            .collect();
        // An exclusive contender does not acquire beside other holders. The exception is an upgrade: beside the read
        // lock of its own owner.
        let is_alone = |entry: &Entry| {
            let is_own = |other: &&Entry| other.owner.is_some() && other.owner == entry.owner;
            entry.role != "exclusive" || holds_on.iter().all(is_own)
        };
        // Set while no contender further ahead still waits.
        let mut next = true;
        for contender in before {
            if let Some(at) = present.get(&key(&contender.entry)) {
                next &= *at < holders;
                continue;
            }
            let how =
                written.filter(|(_, of)| number(&contender.entry.node) == Some(*of)).map(|(how, _)| how);
            let entry = &contender.entry;
            let waited = Event {
                waited_ms: Some(contender.arrived.until(now)),
                at_least: contender.arrived.at_least,
                ..self.event_of("left", entry, now)
            };
            match (contender.holds, how) {
                (Some(since), how) => events.push(Event {
                    held_ms: Some(since.until(now)),
                    at_least: since.at_least,
                    ..self.event_of(how.unwrap_or("gone"), entry, now)
                }),
                // It acquired and released between two reads.
                (None, Some(how)) => {
                    events.push(Event { event: "granted", ..waited });
                    events.push(self.event_of(how, entry, now));
                }
                // It may have acquired between two reads.
                (None, None) if holder_left && next && is_alone(entry) => {
                    events.push(Event { event: "gone", ..waited })
                }
                (None, None) => events.push(waited),
            }
        }
        events
    }

    /// Returns the number of contenders that came and went between two reads, by the sequence numbers that the
    /// server gave. It is an upper bound because directories take numbers, too. A writer that downgrades to a
    /// reader takes a number as well, although its name keeps the old one; these numbers are subtracted.
    fn unseen(&mut self, lock: &Snapshot, before: &[Contender]) -> u32 {
        let contenders_now = || lock.holder.iter().chain(&lock.beside).chain(&lock.waiters);
        let known: HashMap<u32, &str> = before
            .iter()
            .filter_map(|contender| Some((number(&contender.entry.node)?, contender.entry.node.as_str())))
            .collect();
        let (mut new, mut highest) = (0_u32, lock.previous_number);
        for entry in contenders_now() {
            let Some(number) = number(&entry.node) else { continue };
            highest = highest.max(Some(number));
            match known.get(&number) {
                Some(node) => self.renamed += u32::from(*node != entry.node),
                None => new += 1,
            }
        }
        let Some(last) = self.last_number else {
            self.last_number = highest;
            return 0;
        };
        self.last_number = Some(last).max(highest);
        let given = highest.unwrap_or(0).saturating_sub(last).saturating_sub(new);
        // The remaining numbers of replaced znodes were given later, and are subtracted then.
        let of_renamed = given.min(self.renamed);
        self.renamed -= of_renamed;
        given - of_renamed
    }

    fn event(&self, event: &'static str, now: Moment) -> Event {
        debug_assert!(EVENTS.contains(&event), "{event} is not in EVENTS");
        Event {
            event,
            lock: self.path.clone(),
            at_ms: now.unix_ms,
            contender: None,
            place: None,
            waiting: self.waiting,
            waited_ms: None,
            held_ms: None,
            at_least: false,
            count: None,
            message: None,
        }
    }

    fn event_of(&self, event: &'static str, entry: &Entry, now: Moment) -> Event {
        Event { contender: Some(entry.clone()), ..self.event(event, now) }
    }
}

impl Since {
    fn until(self, now: Moment) -> u64 {
        ms(now.at.saturating_duration_since(self.at))
    }
}

/// Returns how the last holder left and its sequence number, if the release marker tells.
fn last_departure(lock: &Snapshot) -> Option<(&'static str, u32)> {
    let number = lock.previous_number?;
    match lock.previous {
        "unknown" => None,
        "clean" => Some(("released", number)),
        how => Some((how, number)),
    }
}

/// Znode and token of a contender. The token distinguishes a later znode of the same name.
type Key = (String, Option<String>);

fn key(entry: &Entry) -> Key {
    (entry.node.clone(), entry.token.clone())
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    const PATH: &str = "/locks/x";

    /// Returns a lock with these sequence numbers in its queue. The first contender holds.
    fn queue(numbers: &[u32]) -> Snapshot {
        let mut all = numbers.iter().map(|n| entry(&format!("lock-{n:010}"), &format!("0.{n}")));
        lock(PATH, all.next(), all.collect())
    }

    fn after(previous: &'static str, of: u32, numbers: &[u32]) -> Snapshot {
        let mut lock = queue(numbers);
        (lock.previous, lock.previous_number) = (previous, Some(of));
        lock
    }

    /// Returns the events of these reads, a second apart. Each event has its sequence number or its count.
    fn event_names(reads: &[Snapshot]) -> Vec<Vec<String>> {
        event_names_of(reads.iter().map(|read| (read, 1)))
    }

    /// Returns the events of reads that also contain the creation time of the directory.
    fn event_names_of<'a>(reads: impl IntoIterator<Item = (&'a Snapshot, i64)>) -> Vec<Vec<String>> {
        let (mut diff, mut now) = (SnapshotDiff::new(PATH), Moment::now());
        let mut events = Vec::new();
        for (read, created) in reads {
            now.at += Duration::from_secs(1);
            let word = |event: Event| match event.contender {
                Some(contender) => {
                    format!("{} {}", event.event, number(&contender.node).expect("a number"))
                }
                None => format!("{} {}", event.event, event.count.expect("a count")),
            };
            events.push(diff.update(read, Some(created), now).into_iter().map(word).collect());
        }
        events
    }

    /// Returns a lock with these roles and sequence numbers in its queue. The first `holders` contenders hold.
    fn held(holders: usize, names: &[(&'static str, u32)]) -> Snapshot {
        let mut all = names.iter().map(|(role, number)| {
            let prefix = match *role {
                "shared" => "__READ__",
                "permit" => "permit-1-",
                _ => "__WRIT__",
            };
            let mut entry = entry(&format!("{prefix}{number:010}"), &format!("0.{number}"));
            (entry.role, entry.owner) = (role, Some(format!("owner {number}")));
            entry
        });
        let first = all.next();
        let beside = all.by_ref().take(holders.saturating_sub(1)).collect();
        let mut lock = lock(PATH, first, all.collect());
        lock.beside = beside;
        lock
    }

    #[test]
    fn every_event_is_documented() {
        let docs = include_str!("../../../../docs/JSON.md");
        let section = docs.split("\n## ").find(|section| section.starts_with("watch")).expect("a section");
        let row = section.lines().find(|line| line.starts_with("| `event`")).expect("a row");
        for word in EVENTS {
            assert!(row.contains(&format!("`{word}`")), "{word} is not in docs/JSON.md");
        }
    }

    #[test]
    fn differences_become_events() {
        let events = event_names(&[
            queue(&[1, 2]),
            queue(&[1, 2, 3]),
            after("clean", 1, &[2, 3]),
            after("clean", 1, &[2]),
            after("crashed", 2, &[]),
        ]);
        let expected = [
            &["holds 1", "waits 2"][..],
            &["queued 3"],
            &["released 1", "granted 2"],
            &["left 3"],
            &["crashed 2"],
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn marker_names_kind_of_departure() {
        // The marker describes an earlier holder.
        assert_eq!(event_names(&[after("clean", 1, &[2]), after("clean", 1, &[])])[1], ["gone 2"]);
        assert_eq!(event_names(&[queue(&[2]), queue(&[])])[1], ["gone 2"]);
        assert_eq!(event_names(&[queue(&[2]), after("broken", 2, &[3])])[1], ["broken 2", "granted 3"]);
    }

    #[test]
    fn short_holds_between_reads_are_reported() {
        // The marker names contender 2.
        let events = event_names(&[queue(&[1, 2, 3]), after("clean", 2, &[3])]);
        assert_eq!(events[1], ["gone 1", "granted 2", "released 2", "granted 3"]);
        // Contender 2 may have held the lock, or not.
        assert_eq!(event_names(&[queue(&[1, 2, 3]), queue(&[3])])[1], ["gone 1", "gone 2", "granted 3"]);
        // A waiter cannot hold before the holder and all waiters ahead of it have left.
        assert_eq!(event_names(&[queue(&[1, 2, 3]), queue(&[1, 3])])[1], ["left 2"]);
        assert_eq!(
            event_names(&[queue(&[1, 2, 3, 4]), queue(&[2, 3])])[1],
            ["gone 1", "left 4", "granted 2"]
        );
    }

    #[test]
    fn unseen_contenders_are_counted() {
        assert_eq!(
            event_names(&[queue(&[1]), queue(&[5, 6])])[1],
            ["gone 1", "unseen 3", "granted 5", "queued 6"]
        );
        assert_eq!(event_names(&[queue(&[1]), queue(&[]), after("clean", 3, &[])])[2], ["unseen 2"]);
    }

    #[test]
    fn new_directory_restarts_numbers_and_marker() {
        let events = event_names_of([(&queue(&[7]), 1), (&queue(&[0]), 2), (&queue(&[0, 1]), 2)]);
        assert_eq!(events[1..], [vec!["gone 7", "granted 0"], vec!["queued 1"]]);
        // The number 9 of the new directory implies no unseen contenders. Its marker does not describe the old holder.
        let events = event_names_of([(&queue(&[2]), 1), (&after("broken", 2, &[9]), 2)]);
        assert_eq!(events[1], ["gone 2", "granted 9"]);
        let mut same = queue(&[2]);
        same.holder.as_mut().expect("one holds").token = None;
        let events = event_names_of([(&same, 1), (&same, 2)]);
        assert_eq!(events[1], ["gone 2", "granted 2"]);
    }

    #[test]
    fn downgrade_is_not_counted_as_unseen() {
        let (writes, reads) = (("exclusive", 1), ("shared", 1));
        let mut down = held(1, &[reads]);
        (down.previous, down.previous_number) = ("clean", Some(1));
        let events = event_names(&[held(1, &[writes]), down, held(2, &[reads, ("shared", 3)])]);
        assert_eq!(events[1..], [vec!["released 1", "granted 1"], vec!["granted 3"]]);
        // The downgrade took the number 3 or 4. The other one is unseen.
        let events = event_names(&[
            held(1, &[writes]),
            held(2, &[reads, ("shared", 2)]),
            held(2, &[reads, ("shared", 5)]),
        ]);
        assert_eq!(events[2], ["gone 2", "unseen 1", "granted 5"]);
    }

    #[test]
    fn writer_never_held_beside_foreign_reader() {
        let (reads, writes) = (|number| ("shared", number), ("exclusive", 3));
        let both = held(2, &[reads(1), reads(2), writes]);
        assert_eq!(event_names(&[both.clone(), held(1, &[reads(2)])])[1], ["gone 1", "left 3"]);
        assert_eq!(event_names(&[both.clone(), held(1, &[])])[1], ["gone 1", "gone 2", "gone 3"]);
        // The writer is an upgrade of reader 2, so it may have held.
        let mut upgrades = both;
        upgrades.waiters[0].owner = Some("owner 2".to_owned());
        assert_eq!(event_names(&[upgrades, held(1, &[reads(2)])])[1], ["gone 1", "gone 3"]);
    }

    #[test]
    fn permit_is_granted_once() {
        let permits = [("permit", 1), ("permit", 2)];
        let events =
            event_names(&[held(2, &permits), held(1, &permits), held(2, &permits), held(1, &permits[..1])]);
        assert_eq!(events[1..], [vec![], vec![], vec!["gone 2".to_owned()]]);
    }

    #[test]
    fn durations_follow_reads() {
        let (mut diff, mut now) = (SnapshotDiff::new(PATH), Moment::now());
        let mut update = |read: &Snapshot| {
            now.at += Duration::from_secs(1);
            diff.update(read, Some(1), now)
        };
        update(&queue(&[1, 2]));
        let events = update(&after("clean", 1, &[2]));
        assert_eq!((events[0].held_ms, events[0].at_least), (Some(1_000), true));
        assert_eq!((events[1].waited_ms, events[1].at_least), (Some(1_000), true));
        let events = update(&queue(&[2, 3]));
        assert_eq!((events[0].place, events[0].waiting), (Some(1), 1));
        let events = update(&after("clean", 2, &[3]));
        assert_eq!((events[0].held_ms, events[0].at_least), (Some(2_000), false));
        assert_eq!((events[1].waited_ms, events[1].at_least), (Some(1_000), false));
    }

    #[test]
    fn outage_is_reported_once() {
        let (mut diff, now) = (SnapshotDiff::new(PATH), Moment::now());
        diff.update(&queue(&[1]), Some(1), now);
        assert_eq!(diff.lose_contact("no answer", now).map(|event| event.event), Some("lost"));
        assert!(diff.lose_contact("no answer", now).is_none());
        let events = diff.update(&queue(&[1, 2]), Some(1), now);
        let event_names: Vec<_> = events.iter().map(|event| event.event).collect();
        assert_eq!(event_names, ["back", "waits"]);
        assert_eq!(diff.update(&queue(&[1, 2]), Some(1), now).len(), 0);
    }
}
