//! Where nobody may write or delete: all goes with the session.

use super::*;
use crate::record::Size;

fn start(kind: Kind) -> Drive {
    start_with(Config { hardened: true, ..config(kind) })
}

fn start_with(config: Config) -> Drive {
    let mut drive =
        Drive { machine: Contender::new(config), sent: Vec::new(), said: Vec::new(), lease: true };
    drive.feed(Event::Start);
    drive
}

#[test]
fn a_hardened_lock_is_let_go_by_the_end_of_the_session() {
    let me = node(4, 20);
    let mut drive = start(Kind::Mutex);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 1, Record::Empty)));
    assert_eq!(drive.said(), [granted(me, Previous::Unknown)]);
    drive.sent.clear();
    drive.feed(Event::Release(Left::Released));
    assert!(drive.sent.is_empty() && drive.said().is_empty(), "{:?}", drive.sent);
    assert!(drive.machine.is_leaving() && !drive.machine.is_over());
    drive.feed(Event::SessionOver(SessionEnd::Closed));
    let over = Departed::Lost(Loss::SessionOver(SessionEnd::Closed));
    assert_eq!(drive.said(), [Action::Released(over), Action::Over]);
}

#[test]
fn a_waiter_of_a_hardened_lock_gives_up_with_its_session() {
    let me = node(4, 20);
    let mut drive = start(Kind::Mutex);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
    drive.answer(watch(3, 0), Ok(theirs()));
    drive.feed(Event::TimedOut);
    assert_eq!(drive.said(), [Action::Failed(Reason::TimedOut), Action::Unwatch(WatchId(0))]);
    assert!(drive.sent.is_empty(), "{:?}", drive.sent);
    drive.feed(Event::SessionOver(SessionEnd::Closed));
    assert_eq!(drive.said(), [Action::Over]);
}

/// Whoever may create may create whatever name, also the one right before ours; what is younger than we is not the one
/// that was there when we came.
#[test]
fn a_forged_name_right_before_us_grants_nothing_when_it_goes() {
    let me = node(7, 20);
    let mut drive = start_with(Config { hardened: true, looks_ahead: true, ..config(Kind::Mutex) });
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    // Two were there: we, and a holder with a number far below.
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
    let says = Says { untracked: true, ..Says::default() };
    let forged = Reply::Node { czxid: Zxid(25), owner: SessionId(8), version: 0, says };
    drive.answer(watch(6, 0), Ok(forged));
    drive.answer(Request::WatchOwn { node: me, watch: WatchId(1) }, Ok(mine(me)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    drive.feed(fired(0, true));
    let held = |said: &Action| matches!(said, Action::Granted(_));
    assert!(!drive.said().iter().any(held), "two hold");
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(26), 2, Record::Empty)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    let names = ["lock-0000000003", "lock-0000000007"].map(str::to_owned).to_vec();
    drive.answer(Request::List, Ok(children(names)));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(26), 2, Record::Empty)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    assert_eq!(drive.machine.waiting_for(), Some("lock-0000000003"));
    assert!(!drive.said().iter().any(held), "two hold");
}

/// None of them can be deleted, and each takes a permit from others for as long as it is there.
#[test]
fn whoever_stands_twice_for_hardened_permits_leaves_with_its_session() {
    let permit = |sequence, czxid| Node {
        prefix: Prefix::Permit(1),
        sequence: Sequence(sequence),
        czxid: Zxid(czxid),
    };
    let (lost, me) = (permit(3, 19), permit(4, 20));
    let found_after_a_lost_reply = |kind, found: Vec<Node>| {
        let mut drive = start(kind);
        drive.answer(Request::Join, Err(Failure::Unknown));
        // The readings that went out with it are answered to nobody.
        drive.sent.retain(|(_, request)| matches!(request, Request::Sleep(_)));
        drive.wake();
        drive.answer(Request::Join, Ok(Reply::Joined(me)));
        drive.answer(Request::FindMine, Ok(Reply::Mine(found)));
        drive
    };
    let permits = Kind::Permits { take: 1, size: 2 };
    let mut drive = found_after_a_lost_reply(permits, vec![lost, me]);
    assert_eq!(drive.said(), [Action::Failed(Reason::Doubled)]);
    assert!(drive.sent.is_empty(), "{:?}", drive.sent);
    assert!(drive.machine.is_leaving() && !drive.machine.is_over(), "it goes with the session");
    drive.feed(Event::SessionOver(SessionEnd::Closed));
    assert_eq!(drive.said(), [Action::Over]);
    // The create whose reply was lost was never done.
    let mut drive = found_after_a_lost_reply(permits, vec![me]);
    assert!(drive.said().is_empty());
    assert!(!drive.machine.is_leaving());
}

#[test]
fn those_who_wait_for_hardened_permits_watch_the_children_since_nobody_says_that_it_was_granted() {
    let size = Record::Semaphore(Size { directory: Size::WITH_THE_DIRECTORY, permits: 2 });
    let me = Node { prefix: Prefix::Permit(1), sequence: Sequence(4), czxid: Zxid(20) };
    let mut drive = start(Kind::Permits { take: 1, size: 2 });
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    let names = ["permit-2-0000000002", "permit-1-0000000003", "permit-1-0000000004"];
    drive.answer(Request::List, Ok(children(names.map(str::to_owned).to_vec())));
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 3, size)));
    // Not the one before us, which says nothing.
    drive.answer(Request::WatchChildren(WatchId(0)), Ok(children(names.map(str::to_owned).to_vec())));
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 3, size)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    drive.feed(fired(0, false));
    drive.answer(
        Request::WatchChildren(WatchId(1)),
        Ok(children(names[1..].iter().map(|n| (*n).to_owned()).collect())),
    );
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 2, size)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    assert!(drive.said().contains(&granted(me, Previous::Unknown)));
    let says_so = |request: &Request| matches!(request, Request::SayGranted { .. });
    assert!(!drive.sent.iter().any(|(_, request)| says_so(request)), "nobody may write there");
}

#[test]
fn a_hardened_directory_is_not_deleted_at_the_end_of_its_numbers() {
    let me = node(9, 20);
    let mut drive = start_with(Config { hardened: true, retire_from: Sequence(9), ..config(Kind::Mutex) });
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    assert_eq!(drive.said(), [Action::Failed(Reason::Exhausted)]);
    drive.feed(Event::SessionOver(SessionEnd::Closed));
    assert_eq!(drive.said(), [Action::Over]);
    // Nor where somebody has put a node there that has the next one.
    let mut drive = start(Kind::Mutex);
    drive.answer(Request::Join, Err(Failure::NodeExists));
    assert!(drive.said().contains(&Action::Failed(Reason::Exhausted)));
}
