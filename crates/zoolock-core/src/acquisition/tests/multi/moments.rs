//! State queries, and events in unusual states.

use super::*;
use crate::acquisition::several::worse_outcome;

#[test]
fn znodes_are_known_once_the_create_is_answered() {
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, joined(ME));
    assert_eq!([0, 1, 2].map(|at| drive.machine.node(at)), [Some(node(0)), Some(node(1)), None]);
}

#[test]
fn multi_lock_is_not_downgraded() {
    let mut drive = Drive::hold();
    drive.feed(Event::Downgrade);
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![]));
}

#[test]
fn watches_own_requires_grant_and_every_watch() {
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 1, Record::Empty));
    assert!(drive.machine.held_node().is_some() && !drive.machine.watches_own());
    drive.answer(0, watch(0, 4), own(0));
    assert!(!drive.machine.watches_own());
    drive.answer(1, watch(1, 9), own(1));
    assert!(drive.machine.watches_own());

    // The contender is the head of each queue and watches its znodes, but the multi-lock is not
    // granted yet.
    let mut drive = Drive::wait();
    drive.release_predecessor();
    assert!(!drive.machine.watches_own());
}

#[test]
fn is_waiting_requires_a_watched_predecessor() {
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, joined(ME));
    assert!(!drive.machine.is_waiting());

    let mut drive = Drive::wait();
    assert!(drive.machine.is_waiting() && !drive.machine.is_delaying());
    drive.feed(Event::SessionOver(SessionEnd::Expired));
    assert!(!drive.machine.is_waiting());
}

#[test]
fn is_delaying_until_the_delay_ends() {
    let mut drive = Drive::start_with(|config| config.delay = 50);
    drive.answer(0, Request::JoinAll, joined(ME));
    assert!(!drive.machine.is_delaying());
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 1, Record::Empty));
    assert!(drive.machine.is_delaying());
    drive.wake();
    assert!(!drive.machine.is_delaying());
}

#[test]
fn release_or_timeout_starts_leaving() {
    let mut drive = Drive::hold();
    assert!(!drive.machine.is_leaving() && !drive.machine.is_over());
    drive.feed(Event::Release(HolderState::Released));
    assert!(drive.machine.is_leaving() && !drive.machine.is_over());
    drive.answer(0, release_all(), DONE);
    assert!(drive.machine.is_over());

    let mut drive = Drive::start();
    drive.lose_connection();
    assert!(!drive.machine.is_leaving());
    drive.feed(Event::TimedOut);
    assert!(drive.machine.is_leaving() && !drive.machine.is_over());
}

#[test]
fn irrelevant_events_change_nothing() {
    let mut drive = Drive::start();
    let asked = drive.pending();
    drive.feed(Event::Start);
    assert_eq!(drive.pending(), asked);

    // A waiter does not rely on the lease, so nothing is lost and nothing is checked.
    let mut drive = Drive::wait();
    for event in [Event::Start, Event::LeaseLost, Event::LeaseRenewed, Event::Release(HolderState::Released)]
    {
        drive.feed(event);
        assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![]));
    }
}

#[test]
fn timeout_does_not_affect_multi_holder() {
    let mut drive = Drive::hold();
    drive.feed(Event::TimedOut);
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![]));
    assert!(drive.machine.held_node().is_some());
    drive.feed(Event::Release(HolderState::Released));
    drive.feed(Event::Cancel);
    drive.answer(0, release_all(), DONE);
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
    // Later events do not affect a contender that has ended.
    for event in [Event::TimedOut, Event::Cancel, Event::SessionOver(SessionEnd::Expired)] {
        drive.feed(event);
        assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![]));
    }
}

#[test]
fn cancel_after_unseen_grant_writes_no_marker() {
    let mut drive = Drive::hold();
    drive.feed(Event::Cancel);
    for at in [0, 1] {
        drive.answer(at, Request::Delete(node(at)), DONE);
    }
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

#[test]
fn session_expiry_after_cancel_reports_no_failure() {
    let mut drive = Drive::hold();
    drive.feed(Event::Cancel);
    drive.feed(Event::SessionOver(SessionEnd::Expired));
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

#[test]
fn losing_one_znode_fails_whole_acquire() {
    let mut drive = Drive::wait();
    // The contender is already the head of the first queue. Watch 0 is on its own znode there.
    drive.feed(Event::Fired { watch: WatchId(0), deleted: true });
    let reported = drive.take_reported();
    assert!(reported.contains(&Action::Failed(Reason::Broken)), "{reported:?}");
    assert_eq!(drive.pending(), [(1, Request::Sync), (1, Request::Exists(node(1)))]);
}

#[test]
fn previous_combines_markers_of_all_locks() {
    for (first, second, previous) in [
        (HolderState::Released, HolderState::Released, Previous::Clean),
        (HolderState::Released, HolderState::Panicked, Previous::Crashed),
        (HolderState::Broken, HolderState::Released, Previous::Unknown),
        (HolderState::Broken, HolderState::Panicked, Previous::Crashed),
    ] {
        let mut drive = Drive::start();
        drive.answer(0, Request::JoinAll, joined(ME));
        for (at, left, before) in [(0, first, 3), (1, second, 8)] {
            let record = Record::Marker(Marker { state: left, ..marker(at, before) });
            drive.answer(at, Request::ReadDirectory, directory(at, ME, 1, record));
        }
        assert_eq!(drive.take_reported(), [granted(previous)], "{first:?}, {second:?}");
    }
}

#[test]
fn worst_release_outcome_is_reported() {
    let refused = ReleaseOutcome::Refused(RequestFailure::Refused(Refusal::Denied));
    let lost = ReleaseOutcome::Lost(Loss::Broken);
    for (so_far, now, told) in [
        (None, ReleaseOutcome::Clean, ReleaseOutcome::Clean),
        (Some(refused), ReleaseOutcome::Clean, refused),
        (Some(ReleaseOutcome::Clean), refused, refused),
        (Some(lost), refused, lost),
        (Some(refused), lost, lost),
    ] {
        assert_eq!(worse_outcome(so_far, now), told);
    }
}

/// The first queue was read before the second one changed. So the reads show no moment at which
/// both znodes existed.
#[test]
fn changed_directory_makes_the_grant_verify() {
    let reader = |at| Node { prefix: Prefix::Read, ..node(at) };
    for (pzxid, verifies) in [(ME, false), (Zxid(60), true)] {
        let mut drive = Drive::start_with(|config| config.kind = Kind::Read);
        drive.answer(0, Request::JoinAll, Ok(Reply::AllJoined(vec![reader(0), reader(1)])));
        for (at, pzxid) in [(0, ME), (1, pzxid)] {
            drive.answer(at, Request::List, Ok(Reply::Children { names: vec![reader(at).name()], pzxid }));
            drive.answer(at, Request::ReadDirectory, directory(at, pzxid, 1, Record::Empty));
        }
        let is_granted = drive.take_reported().iter().any(|told| matches!(told, Action::Granted(_)));
        assert_eq!(is_granted, !verifies);
        let is_pending = |at| drive.pending().contains(&(at, Request::Exists(reader(at))));
        assert_eq!([0, 1].map(is_pending), [verifies; 2]);
    }
}

#[test]
fn lost_verification_is_repeated() {
    let mut drive = Drive::wait();
    drive.release_predecessor();
    drive.answer(0, Request::Exists(node(0)), own(0));
    drive.answer(1, Request::Exists(node(1)), Err(RequestFailure::Unknown));
    drive.wake();
    drive.answer(0, Request::Exists(node(0)), own(0));
    drive.answer(1, Request::Exists(node(1)), own(1));
    assert_eq!(drive.take_reported(), [granted(Previous::Unknown)]);
}
