//! Grants that the caller does not take.

use super::*;

const ME: Node = Node { prefix: Prefix::Lock, sequence: Sequence(4), czxid: Zxid(20) };
const CLAIM: u32 = 3000;
const AFTER: u32 = 5;

/// Returns a sole contender that was granted the lock, and has not taken the grant.
fn unclaimed(config: Config) -> Drive {
    let mut drive = Drive::with(Machine::new(Config { claim_timeout: CLAIM, ..config }, 1));
    drive.claims = false;
    drive.feed(Event::Start);
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 1, Record::Empty)));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);
    drive
}

#[test]
fn unclaimed_grant_is_given_back() {
    let mut drive = unclaimed(config(Kind::Mutex));
    assert_eq!(drive.pending(), [watch(4, 0), Request::Sleep(CLAIM)]);
    drive.answer(watch(4, 0), Ok(mine(ME)));
    drive.wake();
    assert_eq!(drive.take_reported(), [Action::Unclaimed(None)]);
    drive.answer(Request::Delete(ME), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Finished]);
    assert_eq!(drive.sent, []);
}

#[test]
fn claimed_grant_stays() {
    let mut drive = unclaimed(config(Kind::Mutex));
    drive.feed(Event::Claimed);
    drive.wake();
    assert_eq!(drive.take_reported(), []);
    drive.feed(Event::Release(HolderState::Released));
    assert_eq!(drive.pending(), [watch(4, 0), release(ME)]);
}

#[test]
fn grant_that_is_claimed_during_the_pause_needs_no_second_timer() {
    let mut drive = unclaimed(Config { watch_own_after: AFTER, ..config(Kind::Mutex) });
    assert_eq!(drive.pending(), [Request::Sleep(AFTER)]);
    drive.feed(Event::Claimed);
    drive.wake();
    assert_eq!(drive.pending(), [watch(4, 0)]);
}

#[test]
fn claim_timeout_counts_from_the_end_of_the_pause() {
    let mut drive = unclaimed(Config { watch_own_after: AFTER, ..config(Kind::Mutex) });
    drive.wake();
    assert_eq!(drive.pending(), [watch(4, 0), Request::Sleep(CLAIM)]);
    // A failed read does not start the time anew.
    drive.answer(watch(4, 0), Err(RequestFailure::Unknown));
    assert_eq!(drive.pending(), [Request::Sleep(CLAIM), Request::Sleep(10)]);
}

#[test]
fn unclaimed_grant_restores_the_record() {
    let mut drive = Drive::with(Machine::new(
        Config { claim_timeout: CLAIM, tracks_crashes: true, ..config(Kind::Mutex) },
        1,
    ));
    drive.claims = false;
    drive.feed(Event::Start);
    let crashed = Marker { state: HolderState::Held, tracked: true, ..released(3) };
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 1, Record::Marker(crashed))));
    let held = Marker { sequence: ME.sequence, ..crashed };
    drive.answer(Request::Hold { node: Some(ME), marker: held, version: 3 }, Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Crashed)]);
    drive.answer(watch(4, 0), Ok(mine(ME)));
    drive.wake();
    assert_eq!(drive.take_reported(), [Action::Unclaimed(None)]);
    // The next holder learns of the crash.
    drive.answer(Request::Release { node: ME, marker: crashed, version: Some(4) }, Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

#[test]
fn lost_grant_is_given_back_and_not_reported_as_lost() {
    let lose: [(Event, Loss, &[Request]); 3] = [
        (Event::LeaseLost, Loss::Unreachable, &[Request::Sync, Request::Exists(ME)]),
        (fired(0, true), Loss::Broken, &[]),
        (Event::SessionOver(SessionEnd::Expired), Loss::SessionOver(SessionEnd::Expired), &[]),
    ];
    for (event, loss, expected) in lose {
        let mut drive = unclaimed(config(Kind::Mutex));
        drive.answer(watch(4, 0), Ok(mine(ME)));
        drive.feed(event);
        drive.sent.retain(|(_, request)| !matches!(request, Request::Sleep(_)));
        let mut reported = drive.take_reported();
        reported.retain(|action| !matches!(action, Action::Unwatch(_)));
        assert_eq!(
            (reported[0].clone(), drive.pending()),
            (Action::Unclaimed(Some(loss)), expected.to_vec())
        );
        for request in expected {
            let reply = if *request == Request::Sync { Reply::Done } else { theirs() };
            drive.answer(request.clone(), Ok(reply));
        }
        reported.extend(drive.take_reported());
        assert_eq!(reported, [Action::Unclaimed(Some(loss)), Action::Finished]);
    }
}

#[test]
fn claim_without_a_lease_gives_the_grant_back() {
    let mut drive = unclaimed(config(Kind::Mutex));
    drive.lease = false;
    drive.feed(Event::Claimed);
    assert_eq!(drive.take_reported(), [Action::Unclaimed(Some(Loss::Unreachable))]);
    drive.feed(Event::Claimed);
    drive.feed(Event::Cancel);
    drive.feed(Event::Release(HolderState::Released));
    assert_eq!(drive.take_reported(), []);
}
