//! Tests [`decide`] against simple rules, for every small queue. Also tests that every contender is granted
//! in the end, if it lists the queue again when its watch fires.

use zoolock_core::Sequence;
use zoolock_core::names::Names;
use zoolock_core::names::Prefix::{self, Lock, Permit, Read, Upgradable, Write};
use zoolock_core::queue::{Claim, QueueDecision, decide, is_waiting};

/// A contender in the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Queued {
    prefix: Prefix,
    number: i32,
    /// For an upgrade: the sequence number of its reader.
    from: Option<i32>,
}

impl Queued {
    fn name(&self) -> String {
        self.prefix.name(Sequence(self.number))
    }
}

/// Returns every queue of these prefixes up to a length of `max_length`. The sequence numbers are even.
fn queues(of: &[Prefix], max_length: usize) -> Vec<Vec<Queued>> {
    let mut all: Vec<Vec<Queued>> = vec![Vec::new()];
    let mut last = all.clone();
    for place in 0..max_length {
        let longer = |queue: &Vec<Queued>| {
            let with = |&prefix: &Prefix| {
                let one = Queued { prefix, number: 2 * place as i32, from: None };
                [queue.clone(), vec![one]].concat()
            };
            of.iter().map(with).collect::<Vec<_>>()
        };
        last = last.iter().flat_map(longer).collect();
        all.extend(last.clone());
    }
    all
}

fn ask(queue: &[Queued], me: &Queued, size: u32) -> QueueDecision {
    let mut names: Vec<String> = queue.iter().map(Queued::name).collect();
    // Real listings have no order, and also contain children that are not contenders'.
    let by = me.number as usize % names.len().max(1);
    names.rotate_left(by);
    names.push("config".to_owned());
    let claim = match (me.prefix, me.from) {
        (_, Some(from)) => {
            let reader = queue.iter().find(|one| one.number == from).map_or(Read, |one| one.prefix);
            Claim::Upgrade { prefix: reader, sequence: Sequence(from) }
        }
        (Permit(_), None) => Claim::Permits { size },
        _ => Claim::Lock,
    };
    decide(&names, me.prefix, Sequence(me.number), claim, Names::default())
}

fn exclude_each_other(one: Prefix, other: Prefix) -> bool {
    one.is_exclusive() || other.is_exclusive() || (one == Upgradable && other == Upgradable)
}

/// Returns whether the contender may hold, by simple rules. The tests compare [`decide`] with this
/// function. A lock needs that no predecessor excludes it. Permits must fit beside those of all
/// predecessors. An upgrade needs its reader in the queue, and every other predecessor must wait
/// for that reader.
fn is_free(queue: &[Queued], me: &Queued, size: u32) -> bool {
    let before = || queue.iter().filter(|one| one.number < me.number);
    let weight = |one: &Queued| if let Permit(weight) = one.prefix { weight } else { 0 };
    match (me.prefix, me.from) {
        (_, Some(from)) => {
            let Some(reader) = queue.iter().find(|one| one.number == from) else { return false };
            let waits_for_it =
                |one: &Queued| exclude_each_other(one.prefix, reader.prefix) && one.number > from;
            before().all(|one| one.number == from || waits_for_it(one))
        }
        (Permit(take), None) => before().map(weight).sum::<u32>() + take <= size,
        (prefix, None) => before().all(|one| !exclude_each_other(one.prefix, prefix)),
    }
}

const LOCKS: [Prefix; 4] = [Lock, Write, Read, Upgradable];
const PERMITS: [Prefix; 3] = [Permit(1), Permit(2), Permit(3)];

#[test]
fn lock_waits_for_nearest_excluding_predecessor() {
    for queue in queues(&LOCKS, 5) {
        for me in &queue {
            let excludes_me =
                |one: &&Queued| one.number < me.number && exclude_each_other(one.prefix, me.prefix);
            let expected = match queue.iter().rev().find(excludes_me) {
                Some(one) => QueueDecision::WaitFor(one.name()),
                None => QueueDecision::Held,
            };
            assert_eq!(ask(&queue, me, 0), expected, "{me:?} of {queue:?}");
            waits_as_decided(&queue, &expected, 0);
        }
    }
}

/// Checks whether the contender that `decision` names waits, by its own decision.
fn waits_as_decided(queue: &[Queued], decision: &QueueDecision, size: u32) {
    let QueueDecision::WaitFor(before) = decision else { return };
    let names: Vec<String> = queue.iter().map(Queued::name).collect();
    let predecessor = queue.iter().find(|one| one.name() == *before).expect("predecessor is queued");
    let waits = ask(queue, predecessor, size) != QueueDecision::Held;
    assert_eq!(is_waiting(&names, before), waits, "{before} of {queue:?}, size {size}");
}

#[test]
fn one_permit_waiter_watches_the_children() {
    for size in 3..6 {
        for queue in queues(&PERMITS, 5) {
            let mut waiting = queue.iter().filter(|me| !is_free(&queue, me, size));
            let first = waiting.next();
            for me in &queue {
                let place = queue.iter().position(|one| one == me).expect("contender is in its queue");
                let expected = match is_free(&queue, me, size) {
                    true => QueueDecision::Held,
                    false if Some(me) == first => QueueDecision::WatchChildren,
                    false => QueueDecision::WaitFor(queue[place - 1].name()),
                };
                // No contender whose permits fit is behind a contender whose permits do not fit.
                let fits = expected == QueueDecision::Held;
                assert!(!fits || first.is_none_or(|first| me.number < first.number));
                assert_eq!(ask(&queue, me, size), expected, "{me:?} of {queue:?}, size {size}");
                waits_as_decided(&queue, &expected, size);
            }
        }
    }
}

/// The function under test.
type Decide = fn(&[Queued], &Queued, u32) -> QueueDecision;

/// A simulation of contenders that wait with watches. No request and no event is lost.
struct Watches {
    decide: Decide,
    queue: Vec<Queued>,
    size: u32,
    states: Vec<(i32, State)>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Held,
    /// Watches the contender of that name, until that contender leaves or writes that its permits
    /// were granted.
    Watches(String),
    WatchesChildren,
    /// The upgrade was refused because another reader goes first.
    Outranked,
}

impl Watches {
    fn new(decide: Decide, queue: Vec<Queued>, size: u32) -> Result<Watches, String> {
        let mut all = Watches { decide, queue: Vec::new(), size, states: Vec::new() };
        for one in queue {
            all.queue.push(one);
            all.ask_again(one);
            all.wake_watchers(None)?;
        }
        Ok(all)
    }

    fn state(&self, number: i32) -> Option<&State> {
        self.states.iter().find(|(of, _)| *of == number).map(|(_, state)| state)
    }

    fn ask_again(&mut self, one: Queued) {
        let before = |name: &str| self.queue.iter().find(|other| other.name() == name);
        let state = match (self.decide)(&self.queue, &one, self.size) {
            QueueDecision::Held => State::Held,
            QueueDecision::WatchChildren => State::WatchesChildren,
            QueueDecision::WaitFor(name) => {
                let before = before(&name).expect("predecessor is queued");
                // The request that sets the watch also reads the data of the predecessor's znode,
                // which says whether the predecessor was granted.
                let granted =
                    matches!(one.prefix, Permit(_)) && self.state(before.number) == Some(&State::Held);
                if granted { State::WatchesChildren } else { State::Watches(name) }
            }
            QueueDecision::Outranked => State::Outranked,
            decision => panic!("{one:?} of {:?}: {decision:?}", self.queue),
        };
        let changed = self.state(one.number) != Some(&state);
        self.states.retain(|(of, _)| *of != one.number);
        self.states.push((one.number, state.clone()));
        if changed && state == State::Held && matches!(one.prefix, Permit(_)) {
            self.wake(&State::Watches(one.name()));
        }
    }

    fn wake(&mut self, watching: &State) {
        let woken: Vec<i32> = self.states.iter().filter(|(_, s)| s == watching).map(|(of, _)| *of).collect();
        for one in self.queue.clone().into_iter().filter(|one| woken.contains(&one.number)) {
            self.ask_again(one);
        }
    }

    /// Fires the watches after a contender has queued, or after the contender `gone` has left. Then
    /// checks which contenders hold.
    fn wake_watchers(&mut self, gone: Option<Queued>) -> Result<(), String> {
        if let Some(one) = gone {
            self.wake(&State::Watches(one.name()));
        }
        self.wake(&State::WatchesChildren);
        self.check()
    }

    fn leave(&mut self, one: Queued) -> Result<(), String> {
        self.queue.retain(|other| *other != one);
        self.states.retain(|(of, _)| *of != one.number);
        self.wake_watchers(Some(one))
    }

    /// Checks that each contender holds if and only if [`is_free`] allows it.
    fn check(&self) -> Result<(), String> {
        for one in &self.queue {
            let held = self.state(one.number) == Some(&State::Held);
            if held != is_free(&self.queue, one, self.size) {
                return Err(format!("{one:?} of {:?}: {:?}", self.queue, self.states));
            }
        }
        Ok(())
    }
}

/// Lets all contenders leave, in every order: holders release, and waiters give up. `left`: the
/// contenders that have left so far. Returns the number of orders.
fn in_every_order(
    decide: Decide,
    queue: &[Queued],
    size: u32,
    left: &mut Vec<Queued>,
) -> Result<usize, String> {
    if left.len() == queue.len() {
        return Ok(1);
    }
    let mut orders = 0;
    for one in queue {
        if left.contains(one) {
            continue;
        }
        left.push(*one);
        let mut all = Watches::new(decide, queue.to_vec(), size)?;
        left.iter().try_for_each(|one| all.leave(*one))?;
        orders += in_every_order(decide, queue, size, left)?;
        left.pop();
    }
    Ok(orders)
}

/// Runs `in_every_order` for every small queue of these prefixes. Returns the number of all orders.
fn in_every_order_of(decide: Decide, prefixes: &[Prefix], size: u32) -> Result<usize, String> {
    let orders = |queue: Vec<Queued>| in_every_order(decide, &queue, size, &mut Vec::new());
    queues(prefixes, 4).into_iter().map(orders).sum()
}

#[test]
fn contenders_are_granted_in_every_order() {
    let orders = in_every_order_of(ask, &LOCKS, 0).expect("every contender is granted when the lock is free");
    let permits =
        in_every_order_of(ask, &PERMITS, 3).expect("every contender is granted when its permits fit");
    println!("{orders} orders of locks, {permits} of permits");
}

/// Returns every queue in which one holding reader upgrades, with its writer queued last, and every queue in
/// which a second reader then upgrades, too.
fn upgrades(max_length: usize) -> impl Iterator<Item = Vec<Queued>> {
    let number = 2 * max_length as i32;
    let one_more = move |queue: Vec<Queued>, number: i32| {
        let wants = |one: &Queued| {
            let reads = matches!(one.prefix, Read | Upgradable) && is_free(&queue, one, 0);
            let already = queue.iter().any(|other| other.from == Some(one.number));
            reads && !already
        };
        let with = |one: &Queued| {
            [queue.clone(), vec![Queued { prefix: Write, number, from: Some(one.number) }]].concat()
        };
        queue.iter().filter(|one| wants(one)).map(with).collect::<Vec<_>>()
    };
    queues(&LOCKS, max_length).into_iter().flat_map(move |queue| {
        let once = one_more(queue, number);
        let twice: Vec<_> = once.iter().flat_map(|queue| one_more(queue.clone(), number + 1)).collect();
        [once, twice].concat()
    })
}

#[test]
fn upgraded_reader_holds_alone() {
    for queue in upgrades(4) {
        for me in queue.iter().filter(|one| one.from.is_some()) {
            if ask(&queue, me, 0) != QueueDecision::Held {
                continue;
            }
            // Let any set of the other contenders leave. Then no contender but the upgrade's own
            // reader holds beside the upgrade.
            for gone in 0..1u32 << queue.len() {
                let stays = |at: usize, one: &Queued| {
                    gone & (1 << at) == 0 || one == me || Some(one.number) == me.from
                };
                let kept = queue.iter().enumerate().filter(|(at, one)| stays(*at, one)).map(|(_, one)| *one);
                let kept: Vec<Queued> = kept.collect();
                for other in kept.iter().filter(|one| *one != me && Some(one.number) != me.from) {
                    if other.from.is_some_and(|from| kept.iter().all(|one| one.number != from)) {
                        continue;
                    }
                    assert_ne!(
                        ask(&kept, other, 0),
                        QueueDecision::Held,
                        "{other:?} beside {me:?} of {kept:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn waiting_has_no_cycle() {
    assert_eq!(find_cycle(ask), None);
}

fn find_cycle(decide: Decide) -> Option<String> {
    for queue in upgrades(4) {
        for one in &queue {
            let mut at = *one;
            for step in 0.. {
                if step > 2 * queue.len() {
                    return Some(format!("{one:?} of {queue:?} waits for itself"));
                }
                let next = match decide(&queue, &at, 0) {
                    QueueDecision::WaitFor(name) => queue.iter().find(|one| one.name() == name),
                    // A reader that upgrades releases only after its upgrade, so it waits for its own writer.
                    QueueDecision::Held => queue.iter().find(|one| one.from == Some(at.number)),
                    // An outranked writer gives up, so it waits for no contender.
                    QueueDecision::Outranked => None,
                    decision => panic!("{at:?} of {queue:?}: {decision:?}"),
                };
                let Some(next) = next else { break };
                at = *next;
            }
        }
    }
    None
}

/// Bugs of other libraries: wrong versions of [`decide`], which the tests find.
mod bugs {
    use super::*;

    fn is_caught(decide: Decide, prefixes: &[Prefix], size: u32) {
        let found = in_every_order_of(decide, prefixes, size).expect_err("bug is found");
        println!("{found}");
    }

    #[test]
    fn kazoo_649_readers_wait_for_later_writers() {
        let decide: Decide = |queue, me, size| {
            let last = queue.iter().rev().find(|one| one.prefix.is_exclusive());
            match last {
                Some(writer) if me.prefix == Read => QueueDecision::WaitFor(writer.name()),
                _ => ask(queue, me, size),
            }
        };
        is_caught(decide, &[Read, Write], 0);
    }

    #[test]
    fn small_request_overtakes_large_one() {
        // A small request overtakes a large one, which may then wait for ever.
        let decide: Decide = |queue, me, size| {
            let weight = |one: &Queued| if let Permit(weight) = one.prefix { weight } else { 0 };
            let fits = |one: &&Queued| is_free(queue, one, size);
            let held: u32 = queue.iter().filter(|one| one != &me).filter(fits).map(weight).sum();
            match ask(queue, me, size) {
                QueueDecision::WaitFor(_) | QueueDecision::WatchChildren if held + weight(me) <= size => {
                    QueueDecision::Held
                }
                decision => decision,
            }
        };
        is_caught(decide, &PERMITS, 3);
    }

    #[test]
    fn every_waiter_watches_the_first() {
        // A waiter may be blocked by another contender than the first one. The waiter is not woken
        // when that contender leaves.
        let decide: Decide = |queue, me, size| match ask(queue, me, size) {
            QueueDecision::WaitFor(_) => QueueDecision::WaitFor(queue[0].name()),
            decision => decision,
        };
        is_caught(decide, &[Read, Write], 0);
    }

    #[test]
    fn upgrading_readers_wait_for_each_other() {
        let decide: Decide = |queue, me, size| {
            let reads = |one: &&Queued| !one.prefix.is_exclusive() && Some(one.number) != me.from;
            match ask(queue, me, size) {
                QueueDecision::Outranked => {
                    let other = queue.iter().find(reads);
                    other.map_or(QueueDecision::Outranked, |other| QueueDecision::WaitFor(other.name()))
                }
                decision => decision,
            }
        };
        println!("{}", find_cycle(decide).expect("bug is found"));
    }

    #[test]
    fn permits_are_taken_one_by_one() {
        // Each of two clients wants both of two permits. Each client queues for its second permit
        // after the grant of its first permit.
        let two = [0, 1, 2, 3].map(|place| Queued { prefix: Permit(1), number: 2 * place, from: None });
        // The two clients have one permit each, and wait for each other.
        let holds = |one: &Queued| ask(&two, one, 2) == QueueDecision::Held;
        assert_eq!(two.map(|one| holds(&one)), [true, true, false, false]);
        // If each client asks for both permits at once, one client is granted both.
        let both = [0, 1].map(|place| Queued { prefix: Permit(2), number: 2 * place, from: None });
        assert_eq!(ask(&both, &both[0], 2), QueueDecision::Held);
    }
}
