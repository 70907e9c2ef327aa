//! Coming, being looked for after a lost reply, and a directory whose numbers run out, by hand.

use super::*;

const DENIED: Failure = Failure::Refused(Refusal::Denied);

/// A create was lost, and the next one is under way.
fn in_doubt(retire_from: Sequence) -> Drive {
    let mut drive = Drive::start_with(Mode::Wait, retire_from);
    drive.answer(Request::Join, Err(Failure::Unknown));
    drive.answer(Request::ReadDirectory, Err(Failure::Unknown));
    drive.wake();
    drive
}

fn doubting() -> Drive {
    in_doubt(Sequence::RETIRE_FROM)
}

fn found(nodes: &[Node]) -> Result<Reply, Failure> {
    Ok(Reply::Mine(nodes.to_vec()))
}

#[test]
fn whoever_gave_up_before_a_create_that_was_not_carried_out_does_not_make_it_again() {
    let mut drive = Drive::start();
    drive.feed(Event::Cancel);
    drive.answer(Request::Join, Err(Failure::Throttled));
    drive.answer(Request::ReadDirectory, Err(Failure::Throttled));
    assert_eq!(drive.asked(), [Request::Sleep(10)]);
    drive.wake();
    assert_eq!((drive.said(), drive.asked()), (vec![Action::Over], vec![]));
}

#[test]
fn what_was_refused_is_told_when_nothing_was_found() {
    let mut drive = doubting();
    drive.answer(Request::Join, Err(DENIED));
    drive.answer(Request::FindMine, Err(Failure::NoNode));
    assert_eq!(drive.said(), [Action::Failed(Reason::Refused(DENIED)), Action::Over]);
}

#[test]
fn where_it_may_not_look_it_keeps_what_its_last_create_brought() {
    let mut drive = doubting();
    drive.answer(Request::Join, Ok(Reply::Joined(node(6, 26))));
    drive.answer(Request::FindMine, Err(DENIED));
    assert_eq!(drive.machine.node(), Some(node(6, 26)));
}

#[test]
fn a_place_near_the_end_is_left_also_when_it_was_searched_for() {
    let (last, mut drive) = (node(101, 26), in_doubt(Sequence(100)));
    drive.answer(Request::Join, Ok(Reply::Joined(last)));
    drive.answer(Request::FindMine, found(&[last]));
    assert_eq!(drive.asked(), [Request::Delete(last), Request::ReadDirectory]);

    // The counter sticks there.
    let mut drive = doubting();
    drive.answer(Request::Join, Err(Failure::NodeExists));
    drive.answer(Request::FindMine, found(&[]));
    assert_eq!(drive.asked(), [Request::ReadDirectory]);
}

/// It has left a directory that is full of others.
fn retiring(mode: Mode) -> Drive {
    let last = node(100, 20);
    let mut drive = Drive::start_with(mode, Sequence(100));
    drive.answer(Request::Join, Ok(Reply::Joined(last)));
    drive.answer(Request::ReadDirectory, Ok(directory(last.czxid, 2, Record::Empty)));
    drive.answer(Request::Delete(last), Ok(Reply::Done));
    assert_eq!(drive.asked(), [Request::ReadDirectory]);
    drive
}

#[test]
fn a_directory_that_is_gone_meanwhile_is_joined_again_and_one_that_is_refused_is_told() {
    let mut drive = retiring(Mode::Wait);
    drive.answer(Request::ReadDirectory, Err(Failure::NoNode));
    assert_eq!(drive.asked()[0], Request::Join);

    let mut drive = retiring(Mode::Wait);
    drive.answer(Request::ReadDirectory, Err(DENIED));
    assert_eq!(drive.said(), [Action::Failed(Reason::Refused(DENIED)), Action::Over]);
}

#[test]
fn one_that_does_not_get_empty_is_tried_again_after_a_while() {
    let mut drive = retiring(Mode::Wait);
    let mut looks = 0;
    while drive.asked()[0] == Request::ReadDirectory {
        looks += 1;
        assert!(looks < 30, "it waits for ever");
        drive.answer(Request::ReadDirectory, Ok(directory(Zxid(21), 1, Record::Empty)));
        drive.wake_if_it_pauses();
    }
    assert_eq!((looks, drive.asked()[0].clone()), (21, Request::Join));
}

impl Drive {
    fn wake_if_it_pauses(&mut self) {
        if self.sent.iter().any(|(_, request)| matches!(request, Request::Sleep(_))) {
            self.wake();
        }
    }
}

/// It is being deleted: who keeps it holds what will be gone.
#[test]
fn a_node_on_its_way_out_is_none_to_be_found() {
    let (last, me) = (node(100, 20), node(0, 40));
    let mut drive = Drive::start_with(Mode::Wait, Sequence(100));
    drive.answer(Request::Join, Ok(Reply::Joined(last)));
    drive.answer(Request::ReadDirectory, Ok(directory(last.czxid, 2, Record::Empty)));
    // Its delete is still under way.
    let delete = drive.sent.remove(0);
    assert_eq!(delete.1, Request::Delete(last));
    drive.answer(Request::ReadDirectory, Err(Failure::NoNode));
    drive.answer(Request::Join, Err(Failure::Unknown));
    drive.answer(Request::ReadDirectory, Err(Failure::Unknown));
    drive.wake();
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::FindMine, found(&[last, me]));
    assert_eq!(drive.machine.node(), Some(me));
}

#[test]
fn only_what_a_leader_decides_is_decided() {
    for (failure, decided) in [
        (Failure::NoNode, true),
        (Failure::NodeExists, true),
        (Failure::NotEmpty, true),
        (Failure::BadVersion, true),
        (Failure::Unknown, false),
        (Failure::Throttled, false),
        (DENIED, false),
    ] {
        assert_eq!(failure.is_decided(), decided, "{failure:?}");
    }
}

#[test]
fn of_several_on_their_way_out_each_is_looked_at_for_itself() {
    let nodes = [node(4, 20), node(5, 21), node(6, 26)];
    let mut drive = doubting();
    drive.feed(Event::Cancel);
    drive.answer(Request::Join, Ok(Reply::Joined(nodes[2])));
    drive.answer(Request::FindMine, found(&nodes));
    assert_eq!(drive.asked(), nodes.map(Request::Delete));
    drive.answer(Request::Delete(nodes[0]), Err(Failure::Unknown));
    drive.answer(Request::Delete(nodes[1]), Err(Failure::Unknown));
    drive.answer(Request::Delete(nodes[2]), Ok(Reply::Done));
    let looks = [nodes[0], nodes[1]].map(|node| [Request::Sync, Request::Exists(node)]);
    assert_eq!(drive.asked(), looks.concat());
    // What was not known of the first says nothing of the second.
    drive.answer(Request::Sync, Err(Failure::Throttled));
    drive.answer(Request::Exists(nodes[0]), Err(Failure::NoNode));
    drive.answer(Request::Sync, Ok(Reply::Done));
    drive.answer(Request::Exists(nodes[1]), Ok(mine(nodes[1])));
    assert!(drive.asked().contains(&Request::Delete(nodes[1])), "{:?}", drive.asked());
    drive.wake();
    drive.sent.retain(|(_, request)| !matches!(request, Request::Sync));
    drive.answer(Request::Delete(nodes[1]), Ok(Reply::Done));
    assert_eq!(drive.said(), []);
    drive.answer(Request::Exists(nodes[0]), Err(Failure::NoNode));
    assert_eq!(drive.said(), [Action::Over]);
}
