//! [`decide`] against plain rules, for every small queue there is; and whether everybody is granted in the end who asks
//! again when what it watches changes.

use zoolock_core::Sequence;
use zoolock_core::names::Names;
use zoolock_core::names::Prefix::{self, Lock, Permit, Read, Upgradable, Write};
use zoolock_core::queue::{Asker, Decision, decide};

/// Who stands in the queue, from the front.
#[derive(Clone, Copy, Debug, PartialEq)]
struct One {
    prefix: Prefix,
    number: i32,
    /// The number of the reader that wants to write.
    from: Option<i32>,
}

impl One {
    fn name(&self) -> String {
        self.prefix.name(Sequence(self.number))
    }
}

/// Every queue of these, up to so many, at even numbers and in no order.
fn queues(of: &[Prefix], most: usize) -> Vec<Vec<One>> {
    let mut all: Vec<Vec<One>> = vec![Vec::new()];
    let mut last = all.clone();
    for place in 0..most {
        let longer = |queue: &Vec<One>| {
            let with = |&prefix: &Prefix| {
                let one = One { prefix, number: 2 * place as i32, from: None };
                [queue.clone(), vec![one]].concat()
            };
            of.iter().map(with).collect::<Vec<_>>()
        };
        last = last.iter().flat_map(longer).collect();
        all.extend(last.clone());
    }
    all
}

fn ask(queue: &[One], me: &One, size: u32) -> Decision {
    let mut names: Vec<String> = queue.iter().map(One::name).collect();
    // Listings come in no order, and with other things in between.
    let by = me.number as usize % names.len().max(1);
    names.rotate_left(by);
    names.push("config".to_owned());
    let asker = match (me.prefix, me.from) {
        (_, Some(from)) => {
            let reader = queue.iter().find(|one| one.number == from).map_or(Read, |one| one.prefix);
            Asker::Upgrade { prefix: reader, sequence: Sequence(from) }
        }
        (Permit(_), None) => Asker::Permits { size },
        _ => Asker::Lock,
    };
    decide(&names, me.prefix, Sequence(me.number), asker, Names::default())
}

fn exclude_each_other(one: Prefix, other: Prefix) -> bool {
    one.is_exclusive() || other.is_exclusive() || (one == Upgradable && other == Upgradable)
}

/// The plain rule.
fn is_free(queue: &[One], me: &One, size: u32) -> bool {
    let before = || queue.iter().filter(|one| one.number < me.number);
    let weight = |one: &One| if let Permit(weight) = one.prefix { weight } else { 0 };
    match (me.prefix, me.from) {
        (_, Some(from)) => {
            let Some(reader) = queue.iter().find(|one| one.number == from) else { return false };
            let waits_for_it = |one: &One| exclude_each_other(one.prefix, reader.prefix) && one.number > from;
            before().all(|one| one.number == from || waits_for_it(one))
        }
        (Permit(take), None) => before().map(weight).sum::<u32>() + take <= size,
        (prefix, None) => before().all(|one| !exclude_each_other(one.prefix, prefix)),
    }
}

const LOCKS: [Prefix; 4] = [Lock, Write, Read, Upgradable];
const PERMITS: [Prefix; 3] = [Permit(1), Permit(2), Permit(3)];

#[test]
fn a_lock_is_held_if_nobody_before_excludes_and_else_the_nearest_who_does_is_waited_for() {
    for queue in queues(&LOCKS, 5) {
        for me in &queue {
            let in_the_way = |one: &&One| one.number < me.number && exclude_each_other(one.prefix, me.prefix);
            let expected = match queue.iter().rev().find(in_the_way) {
                Some(one) => Decision::WaitFor(one.name()),
                None => Decision::Held,
            };
            assert_eq!(ask(&queue, me, 0), expected, "{me:?} of {queue:?}");
        }
    }
}

#[test]
fn permits_are_held_if_they_fit_and_else_one_waiter_watches_the_children_and_each_other_the_one_before() {
    for size in 3..6 {
        for queue in queues(&PERMITS, 5) {
            let mut waiting = queue.iter().filter(|me| !is_free(&queue, me, size));
            let first = waiting.next();
            for me in &queue {
                let place = queue.iter().position(|one| one == me).expect("it is one of them");
                let expected = match is_free(&queue, me, size) {
                    true => Decision::Held,
                    false if Some(me) == first => Decision::Next,
                    false => Decision::WaitFor(queue[place - 1].name()),
                };
                // One that fits behind one that does not: nobody goes before those who came first.
                let fits = expected == Decision::Held;
                assert!(!fits || first.is_none_or(|first| me.number < first.number));
                assert_eq!(ask(&queue, me, size), expected, "{me:?} of {queue:?}, size {size}");
            }
        }
    }
}

/// How a place in the queue is found.
type Decide = fn(&[One], &One, u32) -> Decision;

/// The protocol of who watches whom, with nothing going wrong.
struct Watching {
    decide: Decide,
    queue: Vec<One>,
    size: u32,
    states: Vec<(i32, State)>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Held,
    /// Until it goes, or says that it was granted.
    Watches(String),
    WatchesChildren,
    /// It was told that others go before it.
    Told,
}

impl Watching {
    fn new(decide: Decide, queue: Vec<One>, size: u32) -> Result<Watching, String> {
        let mut all = Watching { decide, queue: Vec::new(), size, states: Vec::new() };
        for one in queue {
            all.queue.push(one);
            all.ask_again(one);
            all.after_a_change(None)?;
        }
        Ok(all)
    }

    fn state(&self, number: i32) -> Option<&State> {
        self.states.iter().find(|(of, _)| *of == number).map(|(_, state)| state)
    }

    fn ask_again(&mut self, one: One) {
        let before = |name: &str| self.queue.iter().find(|other| other.name() == name);
        let state = match (self.decide)(&self.queue, &one, self.size) {
            Decision::Held => State::Held,
            Decision::Next => State::WatchesChildren,
            Decision::WaitFor(name) => {
                let before = before(&name).expect("whom it waits for is there");
                // Its data is read with the watch.
                let granted =
                    matches!(one.prefix, Permit(_)) && self.state(before.number) == Some(&State::Held);
                if granted { State::WatchesChildren } else { State::Watches(name) }
            }
            Decision::Outranked => State::Told,
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

    /// A child has come, or this one has gone.
    fn after_a_change(&mut self, gone: Option<One>) -> Result<(), String> {
        if let Some(one) = gone {
            self.wake(&State::Watches(one.name()));
        }
        self.wake(&State::WatchesChildren);
        self.check()
    }

    fn leave(&mut self, one: One) -> Result<(), String> {
        self.queue.retain(|other| *other != one);
        self.states.retain(|(of, _)| *of != one.number);
        self.after_a_change(Some(one))
    }

    /// Whoever is free to go has gone, and nobody else.
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

/// Everybody leaves, in every order: holders when they have done, waiters because they give up.
fn in_every_order(decide: Decide, queue: &[One], size: u32, left: &mut Vec<One>) -> Result<usize, String> {
    if left.len() == queue.len() {
        return Ok(1);
    }
    let mut orders = 0;
    for one in queue {
        if left.contains(one) {
            continue;
        }
        left.push(*one);
        let mut all = Watching::new(decide, queue.to_vec(), size)?;
        left.iter().try_for_each(|one| all.leave(*one))?;
        orders += in_every_order(decide, queue, size, left)?;
        left.pop();
    }
    Ok(orders)
}

/// The same for every small queue of these.
fn in_every_order_of(decide: Decide, prefixes: &[Prefix], size: u32) -> Result<usize, String> {
    let orders = |queue: Vec<One>| in_every_order(decide, &queue, size, &mut Vec::new());
    queues(prefixes, 4).into_iter().map(orders).sum()
}

#[test]
fn in_whatever_order_they_leave_everybody_is_granted_as_soon_as_it_may() {
    let orders = in_every_order_of(ask, &LOCKS, 0).expect("everybody may go when it is free");
    let permits = in_every_order_of(ask, &PERMITS, 3).expect("everybody may go when they fit");
    println!("{orders} orders of locks, {permits} of permits");
}

/// Every queue in which one of those who hold as a reader wants to write, and comes last with that; and then another.
fn upgrades(most: usize) -> impl Iterator<Item = Vec<One>> {
    let number = 2 * most as i32;
    let one_more = move |queue: Vec<One>, number: i32| {
        let wants = |one: &One| {
            let reads = matches!(one.prefix, Read | Upgradable) && is_free(&queue, one, 0);
            let already = queue.iter().any(|other| other.from == Some(one.number));
            reads && !already
        };
        let with =
            |one: &One| [queue.clone(), vec![One { prefix: Write, number, from: Some(one.number) }]].concat();
        queue.iter().filter(|one| wants(one)).map(with).collect::<Vec<_>>()
    };
    queues(&LOCKS, most).into_iter().flat_map(move |queue| {
        let once = one_more(queue, number);
        let twice: Vec<_> = once.iter().flat_map(|queue| one_more(queue.clone(), number + 1)).collect();
        [once, twice].concat()
    })
}

#[test]
fn who_upgrades_holds_alone_whoever_gives_up() {
    for queue in upgrades(4) {
        for me in queue.iter().filter(|one| one.from.is_some()) {
            if ask(&queue, me, 0) != Decision::Held {
                continue;
            }
            // Any of the others may give up, any number of them; nobody else may hold then but its own reader.
            for gone in 0..1u32 << queue.len() {
                let stays =
                    |at: usize, one: &One| gone & (1 << at) == 0 || one == me || Some(one.number) == me.from;
                let kept = queue.iter().enumerate().filter(|(at, one)| stays(*at, one)).map(|(_, one)| *one);
                let kept: Vec<One> = kept.collect();
                for other in kept.iter().filter(|one| *one != me && Some(one.number) != me.from) {
                    if other.from.is_some_and(|from| kept.iter().all(|one| one.number != from)) {
                        continue;
                    }
                    assert_ne!(ask(&kept, other, 0), Decision::Held, "{other:?} beside {me:?} of {kept:?}");
                }
            }
        }
    }
}

#[test]
fn who_waits_for_whom_has_an_end() {
    assert_eq!(who_waits_for_itself(ask), None);
}

fn who_waits_for_itself(decide: Decide) -> Option<String> {
    for queue in upgrades(4) {
        for one in &queue {
            let mut at = *one;
            for step in 0.. {
                if step > 2 * queue.len() {
                    return Some(format!("{one:?} of {queue:?} waits for itself"));
                }
                let next = match decide(&queue, &at, 0) {
                    Decision::WaitFor(name) => queue.iter().find(|one| one.name() == name),
                    // A reader leaves when it has written.
                    Decision::Held => queue.iter().find(|one| one.from == Some(at.number)),
                    // It withdraws.
                    Decision::Outranked => None,
                    decision => panic!("{at:?} of {queue:?}: {decision:?}"),
                };
                let Some(next) = next else { break };
                at = *next;
            }
        }
    }
    None
}

/// The same questions, answered as others do.
mod bugs {
    use super::*;

    fn is_caught(decide: Decide, prefixes: &[Prefix], size: u32) {
        let found = in_every_order_of(decide, prefixes, size).expect_err("nothing is found");
        println!("{found}");
    }

    #[test]
    fn kazoo_649_readers_wait_for_later_writers() {
        let decide: Decide = |queue, me, size| {
            let last = queue.iter().rev().find(|one| one.prefix.is_exclusive());
            match last {
                Some(writer) if me.prefix == Read => Decision::WaitFor(writer.name()),
                _ => ask(queue, me, size),
            }
        };
        is_caught(decide, &[Read, Write], 0);
    }

    #[test]
    fn whoever_fits_goes_first() {
        // A small one overtakes a large one, which may then wait for ever.
        let decide: Decide = |queue, me, size| {
            let weight = |one: &One| if let Permit(weight) = one.prefix { weight } else { 0 };
            let fits = |one: &&One| is_free(queue, one, size);
            let held: u32 = queue.iter().filter(|one| one != &me).filter(fits).map(weight).sum();
            match ask(queue, me, size) {
                Decision::WaitFor(_) | Decision::Next if held + weight(me) <= size => Decision::Held,
                decision => decision,
            }
        };
        is_caught(decide, &PERMITS, 3);
    }

    #[test]
    fn every_waiter_watches_the_first() {
        // Whoever gives up in between is not seen, and neither is the last that stands in the way.
        let decide: Decide = |queue, me, size| match ask(queue, me, size) {
            Decision::WaitFor(_) => Decision::WaitFor(queue[0].name()),
            decision => decision,
        };
        is_caught(decide, &[Read, Write], 0);
    }

    #[test]
    fn two_readers_that_want_to_write_wait_for_each_other() {
        let decide: Decide = |queue, me, size| {
            let reads = |one: &&One| !one.prefix.is_exclusive() && Some(one.number) != me.from;
            match ask(queue, me, size) {
                Decision::Outranked => {
                    let other = queue.iter().find(reads);
                    other.map_or(Decision::Outranked, |other| Decision::WaitFor(other.name()))
                }
                decision => decision,
            }
        };
        println!("{}", who_waits_for_itself(decide).expect("nothing is found"));
    }

    #[test]
    fn permits_are_taken_one_by_one() {
        // Each wants both of two permits, and stands in the queue with the first before it asks for the second.
        let two = [0, 1, 2, 3].map(|place| One { prefix: Permit(1), number: 2 * place, from: None });
        // The first two came from two clients.
        let holds = |one: &One| ask(&two, one, 2) == Decision::Held;
        assert_eq!(two.map(|one| holds(&one)), [true, true, false, false]);
        // All or none: one of them goes.
        let both = [0, 1].map(|place| One { prefix: Permit(2), number: 2 * place, from: None });
        assert_eq!(ask(&both, &both[0], 2), Decision::Held);
    }
}
