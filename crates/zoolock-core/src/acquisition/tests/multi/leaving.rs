//! Release, loss of the lock, and cancellation.

use super::*;

#[test]
fn refused_joint_release_continues_per_znode() {
    let mut drive = Drive::hold();
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(0, release_all(), Err(RequestFailure::BadVersion));
    for at in [0, 1] {
        drive.answer(at, Request::Sync, DONE);
        drive.answer(at, Request::Exists(node(at)), own(at));
    }
    // Another client overwrote the record of the first directory, so our znode there is deleted
    // without a marker.
    drive.answer(0, release(0), Err(RequestFailure::BadVersion));
    drive.answer(1, release(1), DONE);
    assert_eq!(drive.take_reported(), []);
    drive.answer(0, Request::Sync, DONE);
    drive.answer(0, Request::Exists(node(0)), own(0));
    drive.answer(0, Request::Withdraw(node(0)), DONE);
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

#[test]
fn release_ends_the_pause_before_the_own_watch() {
    let mut drive = Drive::start_with(|config| config.watch_own_after = 5);
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 1, Record::Empty));
    drive.feed(Event::Release(HolderState::Released));
    drive.wake();
    assert_eq!(drive.pending(), [(0, release_all())]);
}

#[test]
fn missing_znode_does_not_block_other_releases() {
    let mut drive = Drive::hold();
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(0, release_all(), NO_NODE);
    drive.answer(0, Request::Sync, DONE);
    // The directory was recreated, and our name belongs to another contender.
    drive.answer(0, Request::Exists(node(0)), theirs(Zxid(70)));
    drive.answer(1, Request::Sync, DONE);
    drive.answer(1, Request::Exists(node(1)), own(1));
    drive.answer(1, release(1), DONE);
    assert_eq!(
        drive.take_reported(),
        [Action::Released(ReleaseOutcome::Lost(Loss::Broken)), Action::Finished]
    );
}

/// Answers the requests that release each znode by itself, after a check of the znode.
fn expect_clean_release_of_each_znode(mut drive: Drive) {
    for at in [0, 1] {
        drive.answer(at, Request::Sync, DONE);
        drive.answer(at, Request::Exists(node(at)), own(at));
        drive.answer(at, release(at), DONE);
    }
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

#[test]
fn lost_joint_release_is_retried_per_znode() {
    let mut drive = Drive::hold();
    drive.feed(Event::Release(HolderState::Released));
    drive.lose_connection();
    expect_clean_release_of_each_znode(drive);
}

#[test]
fn own_deletion_event_during_release_is_clean() {
    let mut drive = Drive::hold();
    drive.feed(Event::Release(HolderState::Released));
    drive.feed(Event::Fired { watch: WatchId(0), deleted: true });
    drive.lose_connection();
    drive.answer(1, Request::Sync, DONE);
    drive.answer(1, Request::Exists(node(1)), NO_NODE);
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

#[test]
fn disconnected_release_checks_each_znode() {
    let mut drive = Drive::hold();
    drive.feed(Event::Disconnected);
    drive.feed(Event::Release(HolderState::Released));
    let look = |at| [(at, Request::Sync), (at, Request::Exists(node(at)))];
    assert_eq!(drive.pending(), [look(0), look(1)].concat());
    // The release is still clean.
    expect_clean_release_of_each_znode(drive);
}

#[test]
fn one_lost_znode_reports_single_loss() {
    let mut drive = Drive::hold();
    drive.feed(Event::Fired { watch: WatchId(0x100), deleted: true });
    assert_eq!(drive.take_reported(), [Action::Lost(Loss::Broken)]);
    assert_eq!(drive.machine.held_node(), None);
    drive.feed(Event::Fired { watch: WatchId(0), deleted: true });
    drive.feed(Event::LeaseLost);
    assert_eq!(drive.take_reported(), []);
    drive.feed(Event::Release(HolderState::Released));
    assert_eq!(
        drive.take_reported(),
        [Action::Released(ReleaseOutcome::Lost(Loss::Broken)), Action::Finished]
    );

    let mut drive = Drive::hold();
    drive.feed(Event::Fired { watch: WatchId(0x100), deleted: true });
    drive.feed(Event::Release(HolderState::Released));
    // The work of the holder was not protected by all locks, so the marker is not a clean release.
    let marker = Marker { state: HolderState::Broken, ..marker(0, NUMBERS[0]) };
    drive.answer(0, Request::Release { node: node(0), marker, version: Some(3) }, DONE);
    let lost = Action::Lost(Loss::Broken);
    assert_eq!(
        drive.take_reported(),
        [lost, Action::Released(ReleaseOutcome::Lost(Loss::Broken)), Action::Finished]
    );
}

#[test]
fn lease_loss_is_reported_once_and_znodes_checked() {
    let mut drive = Drive::hold();
    drive.feed(Event::LeaseLost);
    assert!(drive.take_reported().contains(&Action::Lost(Loss::Unreachable)));
    assert_eq!(drive.take_reported(), []);
    drive.feed(Event::Release(HolderState::Released));
    for at in [0, 1] {
        drive.answer(at, Request::Sync, DONE);
        drive.answer(at, Request::Exists(node(at)), own(at));
        drive.answer(at, Request::Withdraw(node(at)), DONE);
    }
    assert_eq!(
        drive.take_reported(),
        [Action::Released(ReleaseOutcome::Lost(Loss::Unreachable)), Action::Finished]
    );
}

#[test]
fn early_revocation_is_reported_once_after_grant() {
    let revoked = || {
        let flags = NodeFlags { granted: false, revoked: true, untracked: true };
        Ok(Reply::Node { czxid: ME, owner: SESSION, version: 1, flags })
    };
    let mut drive = Drive::wait();
    drive.feed(Event::Fired { watch: WatchId(0), deleted: false });
    drive.answer(0, another_watch(0, 4), revoked());
    assert_eq!(drive.take_reported(), []);
    drive.release_predecessor();
    drive.answer(0, Request::Exists(node(0)), own(0));
    drive.answer(1, Request::Exists(node(1)), own(1));
    assert_eq!(drive.take_reported(), [granted(Previous::Unknown), Action::Revoked]);
    drive.feed(Event::Fired { watch: WatchId(0x100), deleted: false });
    drive.answer(1, another_watch(1, 9), revoked());
    assert_eq!(drive.take_reported(), []);
}

#[test]
fn timed_out_partial_head_writes_no_marker() {
    let mut drive = Drive::wait();
    drive.feed(Event::TimedOut);
    let unwatched = Action::Unwatch(WatchId(0x100));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::TimedOut), unwatched]);
    for lock_index in [0, 1] {
        drive.answer(lock_index, Request::Sync, DONE);
        drive.answer(lock_index, Request::Exists(node(lock_index)), own(lock_index));
        drive.answer(lock_index, Request::Delete(node(lock_index)), DONE);
    }
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

/// The event is not kept for the open flight, because that flight has not set the watch.
#[test]
fn deleted_znode_fails_acquire_during_another_flight() {
    let mut drive = Drive::wait();
    drive.feed(Event::Fired { watch: WatchId(0x100), deleted: true });
    drive.answer(1, Request::ReadDirectory, directory(1, Zxid(60), 2, Record::Empty));
    drive.answer(1, Request::Exists(node(1)), own(1));
    let names = vec![node(1).name(), Prefix::Lock.name(Sequence(7))];
    drive.answer(1, Request::List, Ok(Reply::Children { names, pzxid: Zxid(60) }));
    drive.feed(Event::Fired { watch: WatchId(0), deleted: true });
    assert!(drive.take_reported().contains(&Action::Failed(Reason::Broken)));
}

#[test]
fn waiter_behind_younger_znode_checks_its_own() {
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 2, Record::Empty));
    drive.answer(1, watch(1, 8), theirs(Zxid(60)));
    // The younger znode is that of a writer that has downgraded: its reader's znode has the same
    // number. So the waiter continues to wait.
    drive.answer(1, Request::Exists(node(1)), own(1));
    assert_eq!(drive.take_reported(), []);
    drive.feed(Event::Reconnected);
    drive.answer(1, another_watch(1, 8), theirs(Zxid(60)));
    // This time the directory was recreated, without the waiter's znode.
    drive.answer(1, Request::Exists(node(1)), NO_NODE);
    assert!(drive.take_reported().contains(&Action::Failed(Reason::Broken)));
}

#[test]
fn session_expiry_is_reported_once_in_every_phase() {
    let over = SessionEnd::Expired;
    let failed = vec![Action::Failed(Reason::SessionOver(over)), Action::Finished];
    let mut verifying = Drive::wait();
    verifying.release_predecessor();
    let mut pausing = Drive::start();
    pausing.lose_connection();
    for mut drive in [Drive::start(), Drive::wait(), verifying, pausing, in_doubt()] {
        drive.take_reported();
        drive.feed(Event::SessionOver(over));
        assert_eq!(drive.take_reported(), failed);
    }

    let mut holding = Drive::hold();
    holding.feed(Event::SessionOver(over));
    assert_eq!(holding.take_reported(), [Action::Lost(Loss::SessionOver(over))]);
    holding.feed(Event::Release(HolderState::Released));
    let lost = Action::Released(ReleaseOutcome::Lost(Loss::SessionOver(over)));
    assert_eq!(holding.take_reported(), [lost.clone(), Action::Finished]);

    let mut releasing = Drive::hold();
    releasing.feed(Event::Release(HolderState::Released));
    releasing.feed(Event::SessionOver(over));
    assert_eq!(releasing.take_reported(), [lost.clone(), Action::Finished]);

    let mut release = Drive::hold();
    release.feed(Event::Release(HolderState::Released));
    release.lose_connection();
    release.feed(Event::SessionOver(over));
    assert_eq!(release.take_reported(), [lost, Action::Finished]);

    let mut gone = Drive::start();
    gone.feed(Event::TimedOut);
    gone.take_reported();
    gone.feed(Event::SessionOver(over));
    assert_eq!(gone.take_reported(), [Action::Finished]);
}

#[test]
fn refused_create_fails_unless_earlier_create_succeeded() {
    let refused = RequestFailure::Refused(Refusal::Denied);
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, Err(refused));
    drive.lose_connection();
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Refused(refused)), Action::Finished]);

    // The barrier create is refused, but an earlier create succeeded: its znodes are kept.
    let mut drive = Drive::start();
    drive.lose_connection();
    drive.wake();
    drive.answer(0, Request::JoinAll, Err(refused));
    drive.answer(0, Request::FindMine, Ok(Reply::Mine(vec![node(0)])));
    drive.answer(1, Request::FindMine, Ok(Reply::Mine(vec![node(1)])));
    assert_eq!(drive.pending()[1], (0, Request::Exists(node(0))));
    assert_eq!(drive.take_reported(), []);
}
