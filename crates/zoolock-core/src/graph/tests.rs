use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::ids::Sequence;
use crate::names::{Name, Spelling};
use crate::queue::which_hold;

/// A contender: its owner, the access that it asks for, and its number of permits.
type Asked = (usize, Role, u32);

/// Returns the graph of these queues. The order in each queue determines the holders.
fn graph(queues: &[(u64, &[Asked])]) -> Graph {
    Graph::of(queues.iter().map(|(permits, asked)| queue(*permits, asked)).collect())
}

fn queue(permits: u64, asked: &[Asked]) -> Queue {
    let place =
        |(&(owner, role, weight), holds)| QueuePosition { owner, role, weight, holds, upgrades: None };
    Queue { permits: Some(permits), places: asked.iter().zip(holding(permits, asked)).map(place).collect() }
}

/// Returns which contenders hold, as an observer outside the queue computes it.
fn holding(permits: u64, asked: &[Asked]) -> Vec<bool> {
    let name = |(at, &(_, role, weight)): (usize, &Asked)| Name {
        spelling: Spelling::Lock,
        role,
        weight,
        sequence: Sequence(i32::try_from(at).expect("position fits in i32")),
    };
    let names: Vec<Name> = asked.iter().enumerate().map(name).collect();
    which_hold(&names, |_| false, u32::try_from(permits).ok())
}

const X: Role = Role::Exclusive;
const R: Role = Role::Shared;
const U: Role = Role::Upgradable;
const P: Role = Role::Permit;

fn owners(graph: &Graph) -> Vec<Vec<usize>> {
    graph.deadlocks().into_iter().map(|knot| knot.owners).collect()
}

/// Returns the owners of each cycle. Each owner waits for the next owner.
fn cycles(graph: &Graph) -> Vec<Vec<usize>> {
    let cycle = |knot: DeadlockCycle| knot.cycle.iter().map(|step| step.owner).collect();
    graph.deadlocks().into_iter().map(cycle).collect()
}

#[test]
fn three_nested_locks_deadlock() {
    let nested = graph(&[
        (0, &[(0, X, 1), (2, X, 1)]),
        (0, &[(1, X, 1), (0, X, 1)]),
        (0, &[(2, X, 1), (1, X, 1), (3, X, 1)]),
    ]);
    assert_eq!(nested.stuck(), [0, 1, 2, 3]);
    let deadlocks = nested.deadlocks();
    assert_eq!(cycles(&nested), [[0, 1, 2]]);
    assert_eq!(
        (&deadlocks[0].owners, deadlocks[0].behind),
        (&vec![0, 1, 2], 1),
        "one owner waits behind the deadlock"
    );
    let steps: Vec<_> = deadlocks[0].cycle.iter().map(|step| (step.queue, step.place, step.behind)).collect();
    assert_eq!(steps, [(1, 1, 0), (2, 1, 0), (0, 1, 0)]);
}

#[test]
fn contender_waits_for_excluding_predecessors() {
    let all = [(0, R, 1), (1, U, 1), (2, X, 1), (3, R, 1), (4, U, 1), (5, X, 1)];
    let all = graph(&[(0, &all)]);
    let waits = |place| all.waits_for(0, place).collect::<Vec<_>>();
    assert_eq!([waits(0), waits(1), waits(2)], [vec![], vec![], vec![0, 1]]);
    assert_eq!([waits(3), waits(4), waits(5)], [vec![2], vec![1, 2], vec![0, 1, 2, 3, 4]]);
}

#[test]
fn chain_is_no_deadlock() {
    let chain =
        graph(&[(0, &[(0, X, 1), (1, X, 1)]), (0, &[(1, X, 1), (2, X, 1)]), (0, &[(2, X, 1), (3, X, 1)])]);
    assert_eq!(chain.stuck(), Vec::<usize>::new());
    assert_eq!(chain.deadlocks(), []);
}

#[test]
fn reader_outside_the_cycle_is_no_member() {
    // Owners 0 and 1 read. Owner 2 waits for both of them, and holds the lock for which owner 0
    // waits.
    let all = graph(&[(0, &[(0, R, 1), (1, R, 1), (2, X, 1)]), (0, &[(2, X, 1), (0, X, 1)])]);
    assert_eq!(owners(&all), [[0, 2]]);
    // A reader behind a waiting writer waits for that writer.
    let behind = graph(&[(0, &[(0, R, 1), (1, X, 1), (2, R, 1)]), (0, &[(2, X, 1), (0, X, 1)])]);
    assert_eq!(cycles(&behind), [[0, 2, 1]]);
}

#[test]
fn free_permit_holder_prevents_deadlock() {
    // Owner 0 waits for the lock of owner 1, and owner 1 waits for a permit. But owner 2 has the
    // other permit, and does not wait.
    let open = graph(&[(0, &[(1, X, 1), (0, X, 1)]), (2, &[(0, P, 1), (2, P, 1), (1, P, 1)])]);
    assert_eq!(open.deadlocks(), []);
    let closed = graph(&[(0, &[(1, X, 1), (0, X, 1), (2, X, 1)]), (2, &[(0, P, 1), (2, P, 1), (1, P, 1)])]);
    assert_eq!(owners(&closed), [[0, 1, 2]]);
}

#[test]
fn cycle_behind_a_deadlock_is_not_reported() {
    // Owner 2 is in a deadlock with owner 3. Without that deadlock, owner 1 would get the permit of
    // owner 2, and then owner 0 would get the lock of owner 1.
    let both = graph(&[
        (0, &[(1, X, 1), (0, X, 1)]),
        (2, &[(0, P, 1), (2, P, 1), (1, P, 1)]),
        (0, &[(2, X, 1), (3, X, 1)]),
        (0, &[(3, X, 1), (2, X, 1)]),
    ]);
    assert_eq!(both.stuck(), [0, 1, 2, 3]);
    let deadlocks = both.deadlocks();
    assert_eq!((deadlocks.len(), &deadlocks[0].owners, deadlocks[0].behind), (1, &vec![2, 3], 2));
}

#[test]
fn split_component_is_reduced_again() {
    // Owners 0 to 4 are on one cycle. Without 5 and 6, owner 4 could continue. Then 2 and 3 are a
    // deadlock of their own. Without 2 and 3, owners 0 and 1 could continue, too.
    let three = graph(&[
        (0, &[(1, X, 1), (0, X, 1)]),
        (2, &[(0, P, 1), (2, P, 1), (1, P, 1)]),
        (0, &[(2, X, 1), (3, X, 1)]),
        (0, &[(3, X, 1), (2, X, 1)]),
        (0, &[(4, X, 1), (3, X, 1)]),
        (2, &[(0, P, 1), (5, P, 1), (4, P, 1)]),
        (0, &[(5, X, 1), (6, X, 1)]),
        (0, &[(6, X, 1), (5, X, 1)]),
    ]);
    assert_eq!(three.stuck(), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(owners(&three), [[2, 3], [5, 6]]);
}

#[test]
fn separate_deadlocks_are_reported_separately() {
    let two = graph(&[
        (0, &[(0, X, 1), (1, X, 1)]),
        (0, &[(1, X, 1), (0, X, 1)]),
        (0, &[(2, X, 1), (3, X, 1)]),
        (0, &[(3, X, 1), (2, X, 1)]),
    ]);
    assert_eq!(owners(&two), [[0, 1], [2, 3]]);
}

#[test]
fn owner_can_deadlock_with_itself() {
    for twice in [&[(0, X, 1), (0, X, 1)][..], &[(0, R, 1), (0, X, 1)], &[(0, U, 1), (0, U, 1)]] {
        let alone = graph(&[(0, twice)]);
        assert_eq!(cycles(&alone), [[0]]);
    }
    assert_eq!(graph(&[(0, &[(0, R, 1), (0, R, 1)])]).stuck(), Vec::<usize>::new());
    assert_eq!(graph(&[(2, &[(0, P, 1), (0, P, 1)])]).stuck(), Vec::<usize>::new());
    assert_eq!(cycles(&graph(&[(2, &[(0, P, 1), (0, P, 2)])])), [[0]]);
}

#[test]
fn oversized_permit_request_is_stuck_without_deadlock() {
    let alone = graph(&[(2, &[(0, P, 3), (1, P, 1)])]);
    assert_eq!((alone.stuck(), alone.deadlocks()), (vec![0, 1], vec![]));
}

#[test]
fn upgrade_waits_only_for_other_readers() {
    // Owners 0 and 1 read, and owner 2 waits to write. Owner 0 upgrades, and goes before owner 2.
    let upgrading = |of_one: &[Asked]| {
        let mut queue = queue(0, &[(0, R, 1), (1, R, 1), (2, X, 1), (0, X, 1)]);
        queue.places[3].upgrades = Some(0);
        let mut other = vec![(3, X, 1)];
        other.extend(of_one);
        Graph::of(vec![queue, self::queue(0, &other)])
    };
    assert_eq!(upgrading(&[]).stuck(), Vec::<usize>::new());
    // Owner 1 waits for a lock that owner 0 holds.
    let mut stuck = upgrading(&[(1, X, 1)]).queues().to_vec();
    stuck[1].places[0].owner = 0;
    assert_eq!(cycles(&Graph::of(stuck)), [[0, 1]]);
}

#[test]
fn writer_waits_behind_deadlocked_upgrades() {
    let place = |owner, role, holds, upgrades| QueuePosition { owner, role, weight: 1, holds, upgrades };
    let places = vec![
        place(0, R, true, None),
        place(1, R, true, None),
        place(2, X, false, None),
        place(0, X, false, Some(0)),
        place(1, X, false, Some(1)),
    ];
    let deadlocks = Graph::of(vec![Queue { permits: None, places }]).deadlocks();
    assert_eq!((deadlocks.len(), &deadlocks[0].owners, deadlocks[0].behind), (1, &vec![0, 1], 1));
}

#[test]
fn long_queue_yields_short_cycle() {
    // The holder waits for the lock of an owner that is behind all ten thousand others.
    let mut long: Vec<(usize, Role, u32)> = (0..10_000).map(|owner| (owner, X, 1)).collect();
    long.push((10_000, X, 1));
    let graph = graph(&[(0, &long), (0, &[(10_000, X, 1), (0, X, 1)])]);
    let deadlocks = graph.deadlocks();
    assert_eq!((deadlocks.len(), deadlocks[0].owners.len()), (1, 10_001));
    assert_eq!(deadlocks[0].cycle.iter().map(|step| step.owner).collect::<Vec<_>>(), [0, 10_000]);
}

#[test]
fn unknown_semaphore_size_proves_no_deadlock() {
    let queues = |permits| {
        let semaphore = Queue { permits, ..queue(1, &[(0, P, 1), (1, P, 1)]) };
        Graph::of(vec![semaphore, queue(0, &[(1, X, 1), (0, X, 1)])])
    };
    assert_eq!(queues(Some(1)).deadlocks().len(), 1);
    assert_eq!((queues(None).deadlocks(), queues(None).stuck()), (vec![], vec![]));
    // Owners that are stuck in another queue are still found.
    let semaphore = Queue { permits: None, ..queue(1, &[(2, P, 1), (1, P, 1)]) };
    let graph =
        Graph::of(vec![semaphore, queue(0, &[(0, X, 1), (1, X, 1)]), queue(0, &[(1, X, 1), (0, X, 1)])]);
    assert_eq!((graph.deadlocks().len(), graph.stuck()), (1, vec![0, 1]));
}

/// A lock: its number of permits, if any, and its contenders.
type Lock = (u64, Vec<(usize, Role, u32)>);

fn lock(owners: usize) -> impl Strategy<Value = Lock> {
    let role = prop_oneof![3 => Just(X), 2 => Just(R), 1 => Just(U)];
    let plain = prop::collection::vec((0..owners, role, Just(1)), 0..5).prop_map(|asked| (0, asked));
    let semaphore = (1..4u64).prop_flat_map(move |permits| {
        let weight = 1..=u32::try_from(permits).expect("permit count fits in u32");
        (Just(permits), prop::collection::vec((0..owners, Just(P), weight), 0..5))
    });
    prop_oneof![2 => plain, 1 => semaphore]
}

/// Returns the owners that can never continue, by a search of all orders. At each step, any owner
/// that holds everything that it asks for can be removed.
fn stuck_in_any_order(locks: &[Lock], members: &BTreeSet<usize>) -> BTreeSet<usize> {
    let queued = |removed: &BTreeSet<usize>| {
        let stays = |asked: &&Asked| members.contains(&asked.0) && !removed.contains(&asked.0);
        let queue = |(permits, asked): &Lock| {
            let asked: Vec<_> = asked.iter().filter(stays).copied().collect();
            let holds = holding(*permits, &asked);
            asked.into_iter().zip(holds)
        };
        locks.iter().flat_map(queue).collect::<Vec<_>>()
    };
    let mut ends = BTreeSet::new();
    let (mut seen, mut next) = (BTreeSet::new(), vec![BTreeSet::new()]);
    while let Some(removed) = next.pop() {
        if !seen.insert(removed.clone()) {
            continue;
        }
        let waits: BTreeSet<usize> =
            queued(&removed).into_iter().filter(|(_, holds)| !holds).map(|((owner, ..), _)| owner).collect();
        let unblocked: Vec<usize> = members
            .iter()
            .copied()
            .filter(|owner| !removed.contains(owner) && !waits.contains(owner))
            .collect();
        if unblocked.is_empty() {
            ends.insert(members.difference(&removed).copied().collect::<BTreeSet<_>>());
        }
        for owner in unblocked {
            let mut removed = removed.clone();
            removed.insert(owner);
            next.push(removed);
        }
    }
    assert_eq!(ends.len(), 1, "the order of removal does not matter");
    ends.pop_first().unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn stuck_owners_match_exhaustive_search(locks in prop::collection::vec(lock(5), 1..5)) {
        let queues = locks.iter().map(|(permits, asked)| queue(*permits, asked)).collect();
        let graph = Graph::of(queues);
        let all_owners: BTreeSet<usize> = (0..5).collect();
        let stuck: BTreeSet<usize> = graph.stuck().into_iter().collect();
        prop_assert_eq!(&stuck, &stuck_in_any_order(&locks, &all_owners));

        let deadlocks = graph.deadlocks();
        let deadlocked: BTreeSet<usize> = deadlocks.iter().flat_map(|knot| knot.owners.iter().copied()).collect();
        prop_assert_eq!(deadlocked.len(), deadlocks.iter().map(|knot| knot.owners.len()).sum::<usize>());
        prop_assert!(deadlocked.is_subset(&stuck));
        for knot in &deadlocks {
            let members = knot.owners.iter().copied().collect();
            prop_assert_eq!(stuck_in_any_order(&locks, &members), members.clone(), "stuck by themselves");
            prop_assert!(knot.behind <= stuck.len() - knot.owners.len());
            for (at, step) in knot.cycle.iter().enumerate() {
                let next = knot.cycle[(at + 1) % knot.cycle.len()];
                let places = &graph.queues()[step.queue].places;
                prop_assert!(members.contains(&step.owner) && step.behind < step.place);
                prop_assert_eq!((places[step.place].owner, places[step.place].holds), (step.owner, false));
                prop_assert_eq!(places[step.behind].owner, next.owner);
            }
            prop_assert!(!knot.cycle.is_empty());
        }
        // Without the owners that are in deadlocks, no other owner is stuck.
        let others = all_owners.difference(&deadlocked).copied().collect();
        prop_assert_eq!(stuck_in_any_order(&locks, &others), BTreeSet::new());
    }
}

#[test]
fn readers_wait_only_for_earlier_writers() {
    let one = graph(&[(0, &[(0, X, 1), (1, R, 1), (2, R, 1), (3, X, 1)])]);
    let waits = |place| one.waits_for(0, place).collect::<Vec<_>>();
    assert_eq!([waits(0), waits(1), waits(2), waits(3)], [vec![], vec![0], vec![0], vec![0, 1, 2]]);
}
