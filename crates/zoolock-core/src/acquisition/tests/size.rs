//! The cost of an acquisition in memory.

use super::*;

#[test]
fn machine_is_small() {
    assert!(size_of::<Machine>() <= 528, "a machine has {} bytes", size_of::<Machine>());
}

/// The caller's buffer for actions and the acquisition's state machine have enough room for a lock
/// without contention.
#[test]
fn fast_path_allocates_nothing() {
    let me = node(4, 20);
    let config = Config { watch_own_after: 5, ..config(Kind::Mutex) };
    let mut machine = Machine::new(config, 1);
    let mut actions = Vec::with_capacity(4);
    let answers = [Ok(Reply::Joined(me)), Ok(directory(me.czxid, 1, Record::Empty))];
    let steps = allocation_counter::measure(|| {
        machine.step(Event::Start, true, &mut actions);
        for answer in answers {
            let at = actions.iter().position(|action| matches!(action, Action::Send(..)));
            let Some(Action::Send(id, _)) = at.map(|at| actions.remove(at)) else {
                panic!("a request is sent");
            };
            machine.step(Event::Answer(id, answer), true, &mut actions);
        }
        let granted = |action: &Action| matches!(action, Action::Granted(_));
        assert!(actions.iter().any(granted));
        actions.clear();
        machine.step(Event::Release(HolderState::Released), true, &mut actions);
        assert!(matches!(actions[..], [Action::Send(_, Request::Release { .. })]));
    });
    assert_eq!(steps.count_total, 0, "{steps:?}");
}
