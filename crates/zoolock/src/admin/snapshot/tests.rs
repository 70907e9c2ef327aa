//! Snapshots of a lock that changes while it is read.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use zoolock_core::names::Name;
use zoolock_core::record::{HolderState, Marker};
use zoolock_core::{Sequence, SessionId, Zxid};

use super::{CrashFinder, Snapshot, SnapshotCache, SnapshotOptions, describe, gather, read};
use crate::admin::kinds::PreviousEnd;
use crate::base::path::LockPath;
use crate::base::sync::lock;
use crate::base::wait::Wait as _;
use crate::engine::reader::{ObserverReads, QueueReader};
use crate::zk::session::{Answer, ZnodeStat};

/// A directory that changes when its children are listed.
struct Changing {
    record: Mutex<Marker>,
    later: Marker,
    children: Vec<String>,
    /// Number of reads of contenders that are answered. Later reads get no answer.
    answers: AtomicUsize,
    /// `czxid` of the contenders.
    born: AtomicI64,
}

const DIRECTORY: Zxid = Zxid(1);
const LAST: Sequence = Sequence(4);

fn stat() -> ZnodeStat {
    let owner = SessionId::NONE;
    let (children, created_children, created_ms, modified_ms) = (0, 0, 0, 0);
    ZnodeStat {
        czxid: DIRECTORY,
        pzxid: Zxid(9),
        version: 1,
        children,
        created_children,
        owner,
        created_ms,
        modified_ms,
    }
}

impl ObserverReads for Changing {
    fn read(&self, path: &str) -> Answer<(Vec<u8>, ZnodeStat)> {
        if path == "/locks/x" {
            let data = lock(&self.record).encode().into_bytes();
            return Box::pin(async move { Ok((data, stat())) });
        }
        let less = |answers: usize| answers.checked_sub(1);
        if self.answers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            return Box::pin(std::future::pending());
        }
        let stat = ZnodeStat { czxid: Zxid(self.born.load(Ordering::Relaxed)), ..stat() };
        Box::pin(async move { Ok((Vec::new(), stat)) })
    }

    fn children(&self, _: &str) -> Answer<(Vec<String>, ZnodeStat)> {
        *lock(&self.record) = self.later;
        let children = self.children.clone();
        Box::pin(async move { Ok((children, stat())) })
    }

    fn exists(&self, _: &str) -> Answer<Option<ZnodeStat>> {
        unreachable!("a snapshot reads the data and the children")
    }
}

fn marker(left: HolderState, sequence: Sequence) -> Marker {
    Marker { directory: DIRECTORY, state: left, sequence, tracked: true }
}

/// Returns a directory whose record is `before` until the queue is read, and `later` from then on.
fn changing(before: Marker, later: Marker, children: &[&str]) -> Changing {
    let children = children.iter().map(|&child| child.to_owned()).collect();
    let (answers, born) = (AtomicUsize::new(usize::MAX), AtomicI64::new(5));
    Changing { record: Mutex::new(before), later, children, answers, born }
}

const VIEW: SnapshotOptions<'static> =
    SnapshotOptions { servers: "zk1:2181", chroot: "", epoch: 0, waiters: usize::MAX };

fn path() -> LockPath {
    LockPath::from_server("/locks/x".to_owned())
}

/// Takes one snapshot with a cache. Returns `None` if a read gets no answer.
fn read_snapshot(zk: &Changing, cache: &mut SnapshotCache) -> Option<Snapshot> {
    let reader = QueueReader::new(zk);
    let snapshot = async {
        let here = gather(&reader, path(), &VIEW).await.expect("the lock is readable");
        describe(&reader, here, &VIEW, Some(cache)).await.expect("a snapshot").0
    };
    snapshot.wait_timeout(Duration::ZERO)
}

/// Returns how the previous holder left, as a snapshot shows it. Before the queue is read, the
/// marker records that contender `LAST` holds. Then the marker changes to `later`, written by
/// contender `by`.
fn previous_after(later: HolderState, by: Sequence, children: &[&str]) -> (PreviousEnd, Option<u32>) {
    let zk = changing(marker(HolderState::Held, LAST), marker(later, by), children);
    let seen = read(&QueueReader::new(&zk), path(), &VIEW).wait().expect("a snapshot");
    (seen.previous, seen.previous_number)
}

#[test]
fn release_between_reads_is_no_crash() {
    assert_eq!(previous_after(HolderState::Released, LAST, &[]), (PreviousEnd::Clean, Some(4)));
    assert_eq!(
        previous_after(HolderState::Panicked, LAST, &["lock-0000000005"]),
        (PreviousEnd::Panicked, Some(4))
    );
    assert_eq!(
        previous_after(HolderState::Broken, LAST, &["lock-0000000005"]),
        (PreviousEnd::Broken, Some(4))
    );
    // Another holder has begun after the release. Its marker has overwritten the marker of the
    // previous holder.
    assert_eq!(previous_after(HolderState::Held, Sequence(5), &[]), (PreviousEnd::Unknown, None));
}

#[test]
fn missing_release_marker_is_a_crash() {
    assert_eq!(previous_after(HolderState::Held, LAST, &[]), (PreviousEnd::Crashed, Some(4)));
    assert_eq!(
        previous_after(HolderState::Held, LAST, &["lock-0000000005"]),
        (PreviousEnd::Crashed, Some(4))
    );
    assert_eq!(previous_after(HolderState::Held, LAST, &["lock-0000000004"]), (PreviousEnd::Unknown, None));
}

#[test]
fn cached_reads_complete_a_long_queue() {
    let marked = marker(HolderState::Released, Sequence(0));
    let zk = changing(marked, marked, &["lock-0000000001", "lock-0000000002", "lock-0000000003"]);
    let mut cache = SnapshotCache::default();
    for answers in [2, 0] {
        zk.answers.store(answers, Ordering::Relaxed);
        assert!(read_snapshot(&zk, &mut cache).is_none());
    }
    zk.answers.store(1, Ordering::Relaxed);
    assert_eq!(read_snapshot(&zk, &mut cache).expect("all were read").waiting, 2);
    // Another read of a contender would get no answer.
    assert_eq!(read_snapshot(&zk, &mut cache).expect("all are cached").waiting, 2);
}

#[test]
fn release_of_cached_holder_is_seen() {
    let before = marker(HolderState::Released, Sequence(3));
    let mut cache = SnapshotCache::default();
    let here = changing(before, before, &["lock-0000000004"]);
    assert_eq!(read_snapshot(&here, &mut cache).expect("a snapshot").previous_number, Some(3));
    for (later, previous) in [
        (HolderState::Released, PreviousEnd::Clean),
        (HolderState::Panicked, PreviousEnd::Panicked),
        (HolderState::Broken, PreviousEnd::Broken),
    ] {
        read_snapshot(&here, &mut cache).expect("a snapshot");
        let seen =
            read_snapshot(&changing(before, marker(later, LAST), &[]), &mut cache).expect("a snapshot");
        assert_eq!((seen.previous, seen.previous_number), (previous, Some(4)));
    }
    // The holder wrote no marker.
    read_snapshot(&here, &mut cache).expect("a snapshot");
    let seen = read_snapshot(&changing(before, before, &[]), &mut cache).expect("a snapshot");
    assert_eq!(seen.previous_number, Some(3));
}

#[test]
fn marker_of_another_directory_is_ignored() {
    let of_another = Marker { directory: Zxid(7), ..marker(HolderState::Broken, LAST) };
    let seen = read_snapshot(&changing(of_another, of_another, &[]), &mut SnapshotCache::default())
        .expect("a snapshot");
    assert_eq!((seen.previous, seen.previous_number), (PreviousEnd::Unknown, None));
}

#[test]
fn held_marker_over_held_marker_is_a_crash() {
    let held = |number, version| Some((marker(HolderState::Held, Sequence(number)), version));
    let name = Name::parse("lock-0000000005").expect("a contender's name");
    let mut crashes = CrashFinder::default();
    assert_eq!(crashes.find_crash(held(4, 7), &[]), None);
    assert_eq!(crashes.find_crash(held(5, 8), &[name]), Some(Sequence(4)));
    assert_eq!(crashes.find_crash(held(5, 8), &[name]), Some(Sequence(4)), "as long as that marker stays");
    assert_eq!(crashes.find_crash(Some((marker(HolderState::Released, Sequence(5)), 9)), &[]), None);
    assert_eq!(crashes.find_crash(held(6, 10), &[]), None, "5 has released");
    assert_eq!(crashes.find_crash(held(8, 12), &[]), None, "6 may have released in between");
    let present = Name::parse("lock-0000000008").expect("a contender's name");
    assert_eq!(crashes.find_crash(held(9, 13), &[present]), None, "8 still has its znode");
}
