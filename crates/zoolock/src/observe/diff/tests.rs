use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use zoolock_core::Zxid;

use super::*;

const PATH: &str = "/locks/x";

fn entry(node: String, number: u32) -> Entry {
    Entry { node, token: Some(Ticket::new(0, Zxid(number.into()))), ..Entry::default() }
}

/// Returns a lock of which the first `holders` contenders hold.
fn lock(holders: usize, mut contenders: Vec<Entry>) -> Snapshot {
    let waiters = contenders.split_off(holders.min(contenders.len()));
    let mut holders = contenders.into_iter();
    Snapshot {
        holder: holders.next(),
        beside: holders.collect(),
        waiting: waiters.len(),
        waiters,
        ..Snapshot::unused(PATH.to_owned())
    }
}

/// Returns a lock with these sequence numbers in its queue. The first contender holds.
fn queue(numbers: &[u32]) -> Snapshot {
    lock(1, numbers.iter().map(|n| entry(format!("lock-{n:010}"), *n)).collect())
}

fn after(previous: PreviousEnd, of: u32, numbers: &[u32]) -> Snapshot {
    Snapshot { previous, previous_number: Some(of), ..queue(numbers) }
}

/// Returns a lock with these roles and sequence numbers in its queue. The first `holders` contenders hold.
fn held(holders: usize, names: &[(Role, u32)]) -> Snapshot {
    let contender = |&(role, number): &(Role, u32)| {
        let prefix = match role {
            Role::Shared => "__READ__",
            Role::Permit => "permit-1-",
            _ => "__WRIT__",
        };
        let owner = Some(format!("owner {number}"));
        Entry { role, owner, ..entry(format!("{prefix}{number:010}"), number) }
    };
    lock(holders, names.iter().map(contender).collect())
}

/// Returns the diffs of each of these reads, which are a second apart. A diff is shown as its event, with a sequence
/// number or a count.
fn events(reads: &[Snapshot]) -> Vec<Vec<String>> {
    events_in(reads.iter().map(|read| (read, 1)))
}

/// Returns the diffs of these reads, each with the czxid of the directory.
fn events_in<'a>(reads: impl IntoIterator<Item = (&'a Snapshot, i64)>) -> Vec<Vec<String>> {
    let (mut tracker, mut now) = (Tracker::new(PATH.to_owned()), ReadEnd::now());
    let mut events = Vec::new();
    for (read, created) in reads {
        now.at += Duration::from_secs(1);
        let name = |diff: Diff| match diff.contender {
            Some(contender) => format!("{} {}", diff.event, contender.number().expect("a number")),
            None => format!("{} {}", diff.event, diff.count.expect("a count")),
        };
        let diffs = tracker.update(read.clone(), Some(created), now).into_iter();
        events.push(diffs.map(name).collect());
    }
    events
}

#[test]
fn number_is_ten_digits_at_the_end() {
    let number = |node: &str| entry(node.to_owned(), 1).number();
    assert_eq!(number("-0000000012"), Some(12));
    assert_eq!(number("a\u{e9}000000012"), None);
    assert_eq!(number("12"), None);
}

#[test]
fn differences_become_events() {
    let seen = events(&[
        queue(&[1, 2]),
        queue(&[1, 2, 3]),
        after(PreviousEnd::Clean, 1, &[2, 3]),
        after(PreviousEnd::Clean, 1, &[2]),
        after(PreviousEnd::Crashed, 2, &[]),
    ]);
    let expected = [
        &["holds 1", "waits 2"][..],
        &["queued 3"],
        &["released 1", "granted 2"],
        &["left 3"],
        &["crashed 2"],
    ];
    assert_eq!(seen, expected);
}

#[test]
fn marker_names_kind_of_departure() {
    // The marker describes an earlier holder.
    assert_eq!(
        events(&[after(PreviousEnd::Clean, 1, &[2]), after(PreviousEnd::Clean, 1, &[])])[1],
        ["gone 2"]
    );
    assert_eq!(events(&[queue(&[2]), queue(&[])])[1], ["gone 2"]);
    assert_eq!(events(&[queue(&[2]), after(PreviousEnd::Broken, 2, &[3])])[1], ["broken 2", "granted 3"]);
}

#[test]
fn short_holds_between_reads_are_reported() {
    // The marker names contender 2.
    let seen = events(&[queue(&[1, 2, 3]), after(PreviousEnd::Clean, 2, &[3])]);
    assert_eq!(seen[1], ["gone 1", "granted 2", "released 2", "granted 3"]);
    // Contender 2 may have held the lock, or not.
    assert_eq!(events(&[queue(&[1, 2, 3]), queue(&[3])])[1], ["gone 1", "gone 2", "granted 3"]);
    // A waiter cannot hold until the holder and all waiters ahead of it have left.
    assert_eq!(events(&[queue(&[1, 2, 3]), queue(&[1, 3])])[1], ["left 2"]);
    assert_eq!(events(&[queue(&[1, 2, 3, 4]), queue(&[2, 3])])[1], ["gone 1", "left 4", "granted 2"]);
}

#[test]
fn unseen_contenders_are_counted() {
    let seen = events(&[queue(&[1]), queue(&[5, 6])]);
    assert_eq!(seen[1], ["gone 1", "unseen 3", "granted 5", "queued 6"]);
    assert_eq!(events(&[queue(&[1]), queue(&[]), after(PreviousEnd::Clean, 3, &[])])[2], ["unseen 2"]);
}

#[test]
fn new_directory_restarts_numbers_and_marker() {
    let seen = events_in([(&queue(&[7]), 1), (&queue(&[0]), 2), (&queue(&[0, 1]), 2)]);
    assert_eq!(seen[1..], [vec!["gone 7", "granted 0"], vec!["queued 1"]]);
    // The number 9 of the new directory implies no unseen contenders. The marker of the new
    // directory does not describe the old holder.
    let seen = events_in([(&queue(&[2]), 1), (&after(PreviousEnd::Broken, 2, &[9]), 2)]);
    assert_eq!(seen[1], ["gone 2", "granted 9"]);
    let mut same = queue(&[2]);
    same.holder.as_mut().expect("one holds").token = None;
    assert_eq!(events_in([(&same, 1), (&same, 2)])[1], ["gone 2", "granted 2"]);
}

#[test]
fn downgrade_is_not_counted_as_unseen() {
    let (writes, reads) = ((Role::Exclusive, 1), (Role::Shared, 1));
    let down = Snapshot { previous: PreviousEnd::Clean, previous_number: Some(1), ..held(1, &[reads]) };
    let seen = events(&[held(1, &[writes]), down, held(2, &[reads, (Role::Shared, 3)])]);
    assert_eq!(seen[1..], [vec!["released 1", "granted 1"], vec!["granted 3"]]);
    // The downgrade used up number 3 or 4. The other of the two numbers counts as unseen.
    let seen = events(&[
        held(1, &[writes]),
        held(2, &[reads, (Role::Shared, 2)]),
        held(2, &[reads, (Role::Shared, 5)]),
    ]);
    assert_eq!(seen[2], ["gone 2", "unseen 1", "granted 5"]);
}

#[test]
fn writer_never_held_beside_foreign_reader() {
    let (reads, writes) = (|number| (Role::Shared, number), (Role::Exclusive, 3));
    let both = held(2, &[reads(1), reads(2), writes]);
    assert_eq!(events(&[both.clone(), held(1, &[reads(2)])])[1], ["gone 1", "left 3"]);
    assert_eq!(events(&[both.clone(), held(1, &[])])[1], ["gone 1", "gone 2", "gone 3"]);
    // The writer is an upgrade of reader 2, so it may have held.
    let mut upgrades = both;
    upgrades.waiters[0].owner = Some("owner 2".to_owned());
    assert_eq!(events(&[upgrades, held(1, &[reads(2)])])[1], ["gone 1", "gone 3"]);
}

#[test]
fn permit_is_granted_once() {
    let permits = [(Role::Permit, 1), (Role::Permit, 2)];
    let seen = events(&[held(2, &permits), held(1, &permits), held(2, &permits), held(1, &permits[..1])]);
    assert_eq!(seen[1..], [vec![], vec![], vec!["gone 2".to_owned()]]);
}

#[test]
fn durations_are_measured_between_reads() {
    let (mut tracker, mut now) = (Tracker::new(PATH.to_owned()), ReadEnd::now());
    let mut update = |read: Snapshot| {
        now.at += Duration::from_secs(1);
        tracker.update(read, Some(1), now)
    };
    update(queue(&[1, 2]));
    let diffs = update(after(PreviousEnd::Clean, 1, &[2]));
    assert_eq!((diffs[0].held, diffs[0].at_least), (Some(Duration::from_secs(1)), true));
    assert_eq!((diffs[1].waited, diffs[1].at_least), (Some(Duration::from_secs(1)), true));
    let diffs = update(queue(&[2, 3]));
    assert_eq!((diffs[0].place, diffs[0].waiting), (Some(1), 1));
    let diffs = update(after(PreviousEnd::Clean, 2, &[3]));
    assert_eq!((diffs[0].held, diffs[0].at_least), (Some(Duration::from_secs(2)), false));
    assert_eq!((diffs[1].waited, diffs[1].at_least), (Some(Duration::from_secs(1)), false));
}

#[test]
fn outage_is_reported_once() {
    let (mut tracker, now) = (Tracker::new(PATH.to_owned()), ReadEnd::now());
    tracker.update(queue(&[1]), Some(1), now);
    assert_eq!(
        tracker.record_failed_read("no answer", now).map(|diff| diff.event),
        Some(Change::Unreachable)
    );
    assert!(tracker.record_failed_read("no answer", now).is_none());
    let diffs = tracker.update(queue(&[1, 2]), Some(1), now);
    let events: Vec<_> = diffs.iter().map(|diff| diff.event).collect();
    assert_eq!(events, [Change::Back, Change::Waits]);
    assert!(tracker.update(queue(&[1, 2]), Some(1), now).is_empty());
}

/// Generates any read, and the czxid of its directory. A contender holds or waits, and may have been asked to release.
fn read() -> impl Strategy<Value = (Snapshot, Option<i64>)> {
    let contenders = btree_map(0..9_u32, (any::<bool>(), any::<bool>()), 0..7);
    let details = (0..5_u32, 0..3_usize, proptest::option::of(0..3_i64));
    (contenders, details).prop_map(|(contenders, (previous, unread, created))| {
        let mut lists = [Vec::new(), Vec::new()];
        for (number, (holds, revoked)) in contenders {
            let entry = entry(format!("lock-{number:010}"), number);
            lists[usize::from(!holds)].push(Entry { revoked, ..entry });
        }
        let holders = lists[0].len();
        let read = Snapshot {
            previous: [
                PreviousEnd::Unknown,
                PreviousEnd::Clean,
                PreviousEnd::Crashed,
                PreviousEnd::Panicked,
                PreviousEnd::Broken,
            ][previous as usize],
            previous_number: previous.checked_sub(1),
            unread: vec!["part".to_owned(); unread],
            ..lock(holders, lists.concat())
        };
        (read, created)
    })
}

proptest! {
    /// The diffs of all reads so far tell which contenders the last read has, and its holders as such.
    #[test]
    fn diffs_tell_who_is_in_the_queue(reads in vec((read(), any::<bool>()), 1..8)) {
        let (mut tracker, now) = (Tracker::new(PATH.to_owned()), ReadEnd::now());
        let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/JSON.md")).expect("readable");
        let documented = docs.lines().find(|line| line.starts_with("| `event` | `holds`")).expect("a row");
        let mut told = BTreeMap::new();
        for ((read, created), is_outage) in reads {
            let lost = is_outage.then(|| tracker.record_failed_read("no answer", now)).flatten();
            for Diff { event, contender, .. } in lost.into_iter().chain(tracker.update(read.clone(), created, now)) {
                prop_assert!(documented.contains(&format!("`{event}`")), "{event} is not in docs/JSON.md");
                match (event.as_str(), contender) {
                    ("holds" | "granted", Some(entry)) => told.insert(entry.node, true),
                    ("waits" | "queued", Some(entry)) => told.insert(entry.node, false),
                    ("released" | "panicked" | "crashed" | "broken" | "gone" | "left", Some(entry)) => {
                        told.remove(&entry.node)
                    }
                    _ => continue,
                };
            }
            prop_assert!(told.keys().eq(read.queue().map(|entry| &entry.node).collect::<BTreeSet<_>>()));
            prop_assert!(read.holders().all(|holder| told[&holder.node]));
            prop_assert_eq!(tracker.lock(), &read);
        }
    }
}
