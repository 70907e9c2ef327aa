//! Permits in the layouts of others, by hand.

use super::*;
use crate::layout::Layout;
use crate::names::Naming;
use crate::record::Size;

const ID: ContenderId = ContenderId(1);
const OTHER: ContenderId = ContenderId(2);

fn start(naming: Naming, mode: Mode, size: u32) -> Drive {
    let names = Names { naming, kazoo_pattern: false };
    let machine = Contender::new(Config { names, mode, ..config(Kind::Lease { size }) });
    let mut drive = Drive { machine, sent: Vec::new(), said: Vec::new(), lease: true };
    drive.feed(Event::Start);
    drive
}

fn curator(id: ContenderId, sequence: i32, czxid: i64) -> Node {
    Node { prefix: Prefix::CuratorLease(id), sequence: Sequence(sequence), czxid: Zxid(czxid) }
}

fn kazoo(id: ContenderId, czxid: i64) -> Node {
    Node { prefix: Prefix::KazooLease(id), sequence: Sequence(0), czxid: Zxid(czxid) }
}

/// Answers one flight of looking.
fn look(drive: &mut Drive, me: Node, listing: Request, names: &[String], record: Record) {
    drive.answer(listing, Ok(children(names.to_vec())));
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, names.len() as u32, record)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
}

#[test]
fn whoever_does_not_fit_watches_the_children_until_it_does() {
    let (me, other) = (curator(ID, 4, 20), curator(OTHER, 3, 19));
    let mut drive = start(Naming::Curator, Mode::Wait, 1);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    let both = [me.name(), other.name()];
    drive.answer(Request::List, Ok(children(both.to_vec())));
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 2, Record::Empty)));
    for id in [0, 1] {
        look(&mut drive, me, Request::WatchChildren(WatchId(id)), &both, Record::Empty);
        assert_eq!((drive.said(), drive.sent.len()), (Vec::new(), 0));
        drive.feed(Event::Fired { watch: WatchId(id), deleted: false });
    }
    look(&mut drive, me, Request::WatchChildren(WatchId(0)), &both[..1], Record::Empty);
    assert_eq!(drive.said(), [Action::Unwatch(WatchId(0)), granted(me, Previous::Unknown)]);
    drive.feed(Event::Release(Left::Released));
    drive.answer(Request::Watch { name: me.name(), watch: WatchId(0) }, Ok(mine(me)));
    drive.answer(Request::Delete(me), Ok(Reply::Done));
    assert_eq!(drive.said().last(), Some(&Action::Over));
}

#[test]
fn whoever_only_tries_takes_its_node_away_again() {
    let me = kazoo(ID, 20);
    let mut drive = start(Naming::Kazoo, Mode::Try, 1);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::List, Ok(children(vec![me.name(), kazoo(OTHER, 19).name()])));
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 2, Record::Leases(1))));
    assert_eq!(drive.said(), [Action::Failed(Reason::Busy)]);
    drive.answer(Request::Delete(me), Ok(Reply::Done));
    assert_eq!(drive.said(), [Action::Over]);
}

#[test]
fn a_name_without_a_number_that_exists_after_a_lost_reply_is_ours() {
    let me = kazoo(ID, 20);
    let mut drive = start(Naming::Kazoo, Mode::Wait, 1);
    drive.answer(Request::Join, Err(Failure::Unknown));
    drive.sent.retain(|(_, request)| matches!(request, Request::Sleep(_)));
    drive.wake();
    drive.answer(Request::Join, Err(Failure::NodeExists));
    drive.answer(Request::FindMine, Ok(Reply::Mine(vec![me])));
    look(&mut drive, me, Request::List, &[me.name()], Record::Leases(1));
    assert_eq!(drive.said(), [granted(me, Previous::Unknown)]);
}

#[test]
fn one_whose_name_existed_and_is_gone_again_comes_again() {
    let mut drive = start(Naming::Kazoo, Mode::Wait, 1);
    drive.answer(Request::Join, Err(Failure::Unknown));
    drive.sent.retain(|(_, request)| matches!(request, Request::Sleep(_)));
    drive.wake();
    drive.answer(Request::Join, Err(Failure::NodeExists));
    drive.answer(Request::FindMine, Ok(Reply::Mine(Vec::new())));
    assert!(drive.sent.iter().any(|(_, request)| *request == Request::Join));
    assert_eq!(drive.said(), []);
}

#[test]
fn what_numbers_leases_have_does_not_matter() {
    for sequence in [i32::MAX, i32::MIN, -1] {
        let me = curator(ID, sequence, 20);
        let mut drive = start(Naming::Curator, Mode::Wait, 1);
        drive.answer(Request::Join, Ok(Reply::Joined(me)));
        drive.answer(Request::List, Ok(children(vec![me.name()])));
        drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 1, Record::Empty)));
        assert_eq!(drive.said(), [granted(me, Previous::Unknown)]);
    }
}

/// What becomes of one that finds this record, alone in the directory.
fn alone_with(naming: Naming, record: Record) -> (Vec<Action>, Vec<Request>) {
    let me = if naming == Naming::Kazoo { kazoo(ID, 20) } else { curator(ID, 1, 20) };
    let mut drive = start(naming, Mode::Wait, 5);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::List, Ok(children(vec![me.name()])));
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 1, record)));
    (drive.said(), drive.sent.into_iter().map(|(_, request)| request).collect())
}

#[test]
fn the_size_is_agreed_as_kazoo_does_it_and_with_curator_not_at_all() {
    let failed = |record| match alone_with(Naming::Kazoo, record).0.as_slice() {
        [Action::Failed(reason)] => Some(*reason),
        [Action::Granted(_)] => None,
        said => panic!("{said:?}"),
    };
    assert_eq!(failed(Record::Leases(5)), None);
    assert_eq!(failed(Record::Leases(4)), Some(Reason::OtherSize(4)));
    assert_eq!(failed(Record::Foreign), None);
    assert_eq!(failed(Record::Marker(released(3))), Some(Reason::OtherKind));
    let of = |directory| Record::Semaphore(crate::record::Size { directory, permits: 5 });
    assert_eq!(failed(of(DIRECTORY)), Some(Reason::OtherKind));
    assert_eq!(failed(of(Zxid(2))), None, "of a directory that is gone");
    let (said, sent) = alone_with(Naming::Kazoo, Record::Empty);
    let size = crate::record::Size { directory: DIRECTORY, permits: 5 };
    assert_eq!((said, sent), (Vec::new(), vec![Request::WriteSize { size, version: 3 }]));
    for record in [Record::Empty, Record::Foreign] {
        let (said, _) = alone_with(Naming::Curator, record);
        assert!(matches!(said.as_slice(), [Action::Granted(_)]), "{record:?}: {said:?}");
    }
}

#[test]
fn a_semaphore_of_others_is_refused_by_all_that_are_something_else() {
    let listing = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let lease = kazoo(OTHER, 19).name();
    let (curators, kazoos) = (listing(&["locks", "leases"]), vec![lease]);
    for (others, record, layout) in
        [(curators, Record::Empty, Layout::Curator), (kazoos, Record::Leases(5), Layout::Kazoo)]
    {
        for kind in [Kind::Read, Kind::Write, Kind::Permits { take: 1, size: 5 }] {
            let machine = Contender::new(config(kind));
            let prefix = machine.config.prefix();
            let me = Node { prefix, sequence: Sequence(4), czxid: Zxid(20) };
            let mut drive = Drive { machine, sent: Vec::new(), said: Vec::new(), lease: true };
            drive.feed(Event::Start);
            drive.answer(Request::Join, Ok(Reply::Joined(me)));
            drive.answer(Request::List, Ok(children([&[me.name()][..], &others].concat())));
            drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 3, record)));
            assert_eq!(drive.said(), [Action::Failed(Reason::OtherLayout(layout))], "{kind:?}");
        }
        let me = kazoo(ID, 20);
        let mut drive = start(Naming::Kazoo, Mode::Wait, 5);
        drive.answer(Request::Join, Ok(Reply::Joined(me)));
        drive.answer(Request::List, Ok(children([&[me.name()][..], &others].concat())));
        drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 3, record)));
        match layout {
            Layout::Curator => assert_eq!(drive.said(), [Action::Failed(Reason::OtherLayout(layout))]),
            Layout::Kazoo => assert_eq!(drive.said(), [granted(me, Previous::Unknown)]),
        }
    }
}

/// It is another kind of lock that lives there only where it lives in this very directory.
#[test]
fn what_is_said_of_a_directory_that_is_gone_does_not_keep_kazoo_away() {
    let me = kazoo(ID, 20);
    let size = |directory| Record::Semaphore(Size { directory, permits: 1 });
    let marker = |directory| Record::Marker(Marker { directory, ..released(3) });
    for (record, refused) in
        [(size(DIRECTORY), true), (size(Zxid(9)), false), (marker(DIRECTORY), true), (marker(Zxid(9)), false)]
    {
        let mut drive = start(Naming::Kazoo, Mode::Wait, 1);
        drive.answer(Request::Join, Ok(Reply::Joined(me)));
        drive.answer(Request::List, Ok(children(vec![me.name()])));
        drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 1, record)));
        let is_refused = drive.said().contains(&Action::Failed(Reason::OtherKind));
        assert_eq!(is_refused, refused, "{record:?}");
    }
}
