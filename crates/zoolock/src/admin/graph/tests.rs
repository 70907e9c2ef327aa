use super::*;
use zoolock_core::Zxid;

use crate::admin::kinds::Family;
use crate::base::unix_time::time_at;

/// Returns the token of an owner's contender.
fn token(owner: &str, number: usize) -> Ticket {
    let of_owner = owner.bytes().fold(0, |sum, byte| sum * 256 + i64::from(byte));
    Ticket::new(0, Zxid(of_owner * 100 + number as i64))
}

fn entry(number: usize, owner: &str, role: Role) -> Entry {
    Entry {
        node: format!("lock-{number:010}"),
        family: Family::Native,
        role,
        weight: 1,
        token: Some(token(owner, number)),
        since: Some(time_at(1_000 + number as u64)),
        owner: (!owner.is_empty()).then(|| owner.to_owned()),
        owner_kind: if owner.is_empty() { OwnerKind::Unknown } else { OwnerKind::Task },
        ..Entry::default()
    }
}

fn lock(path: &str, holders: &[Entry], waiters: &[Entry]) -> Snapshot {
    Snapshot {
        holder: holders.first().cloned(),
        beside: holders.get(1..).unwrap_or_default().to_vec(),
        waiters: waiters.to_vec(),
        waiting: waiters.len(),
        ..Snapshot::unused(path.to_owned())
    }
}

fn alone(number: usize, owner: &str) -> Entry {
    entry(number, owner, Role::Exclusive)
}

fn permit(number: usize, owner: &str) -> Entry {
    entry(number, owner, Role::Permit)
}

/// Returns three locks whose three owners are in a deadlock, and one more owner that waits behind them.
fn nested() -> [Snapshot; 3] {
    [
        lock("/locks/a", &[alone(0, "ann")], &[alone(7, "cid")]),
        lock("/locks/b", &[alone(2, "bob")], &[alone(5, "ann"), alone(9, "dan")]),
        lock("/locks/c", &[alone(3, "cid")], &[alone(6, "bob")]),
    ]
}

#[test]
fn deadlock_names_owners_locks_and_break_target() {
    let graph = WaitGraph::of(&nested());
    let deadlocks = graph.deadlocks();
    assert_eq!((deadlocks.len(), deadlocks[0].owners, deadlocks[0].behind), (1, 3, 1));
    let cycle = deadlocks[0].edges.iter().map(|edge| {
        assert!(edge.holds.granted && !edge.waits_for.granted);
        assert_eq!(edge.owner, edge.holds.entry.owner);
        (edge.owner.as_deref().expect("known"), edge.holds.lock.as_str(), edge.waits_for.lock.as_str())
    });
    let expected =
        [("ann", "/locks/a", "/locks/b"), ("bob", "/locks/b", "/locks/c"), ("cid", "/locks/c", "/locks/a")];
    assert_eq!(cycle.collect::<Vec<_>>(), expected);
    let cut = deadlocks[0].to_break.as_ref().expect("every holder has a token");
    assert_eq!(
        (cut.lock.as_str(), cut.token),
        ("/locks/c", token("cid", 3)),
        "the lock that was acquired last"
    );
    let parties: Vec<_> = graph.owners.iter().map(|party| (party.owner.as_deref(), party.stuck)).collect();
    assert_eq!(parties, ["ann", "cid", "bob", "dan"].map(|name| (Some(name), true)));
}

#[test]
fn break_target_notices_the_loss() {
    let mut locks = nested();
    for entry in locks[2].holder.iter_mut().chain(&mut locks[0].waiters) {
        entry.owner_kind = OwnerKind::Session;
    }
    let deadlocks = WaitGraph::of(&locks).deadlocks();
    assert_eq!(deadlocks[0].to_break.as_ref().expect("two owners notice a loss").lock, "/locks/b");
}

#[test]
fn owner_does_not_wait_for_its_earlier_session() {
    let at = |number: usize, session: u64, pid: u32| Entry {
        session: Some(session),
        pid: Some(pid),
        host: Some("web1".to_owned()),
        ..alone(number, "ann")
    };
    let deadlocks = |first: Entry, second: Entry| {
        let mut lock = lock("/locks/a", &[first], &[second]);
        lock.mark_superseded();
        (lock.holder.as_ref().expect("held").is_superseded, WaitGraph::of(&[lock]).deadlocks().len())
    };
    assert_eq!(deadlocks(at(0, 7, 1), at(1, 8, 1)), (true, 0), "the process has a new session");
    assert_eq!(deadlocks(at(0, 7, 1), at(1, 7, 1)), (false, 1), "it acquires twice");
    assert_eq!(deadlocks(at(0, 7, 1), at(1, 8, 2)), (false, 1), "another process of the owner waits");
}

#[test]
fn equal_names_of_different_kinds_are_different_owners() {
    let mut locks = nested();
    locks[2].holder.as_mut().expect("held").owner_kind = OwnerKind::Owner;
    assert!(WaitGraph::of(&locks).deadlocks().is_empty());
}

#[test]
fn unreadable_contenders_are_separate_owners() {
    let locks = [
        lock("/locks/a", &[alone(0, "")], &[alone(1, "ann")]),
        lock("/locks/b", &[alone(0, "ann")], &[alone(1, "")]),
    ];
    let graph = WaitGraph::of(&locks);
    assert!(graph.deadlocks().is_empty());
    assert_eq!(graph.owners.len(), 3);
    assert_eq!(graph.why("/locks/b").end, ChainEnd::Unknown);
}

#[test]
fn upgrading_reader_does_not_wait_for_itself() {
    let reader = Entry { id: Some("7".to_owned()), ..entry(0, "ann", Role::Shared) };
    let writer = Entry { id: Some("8".to_owned()), reader_id: Some("7".to_owned()), ..alone(2, "ann") };
    let other = entry(1, "bob", Role::Shared);
    let locks = [lock("/locks/a", &[reader.clone(), other], std::slice::from_ref(&writer))];
    assert!(WaitGraph::of(&locks).deadlocks().is_empty());
    // A reader that acquires the write lock separately waits for itself.
    let locks = [lock("/locks/a", &[reader], &[Entry { reader_id: None, ..writer }])];
    let deadlocks = WaitGraph::of(&locks).deadlocks();
    assert_eq!((deadlocks.len(), deadlocks[0].edges.len()), (1, 1));
}

#[test]
fn semaphore_of_unknown_size_is_no_deadlock() {
    let held_by = |second: &str, permits| {
        let semaphore = lock("/locks/s", &[permit(0, "ann"), permit(1, second)], &[permit(2, "bob")]);
        let other = lock("/locks/x", &[alone(0, "bob")], &[alone(1, "ann")]);
        WaitGraph::of(&[Snapshot { permits, ..semaphore }, other])
    };
    assert!(held_by("cid", Some(2)).deadlocks().is_empty());
    assert_eq!(held_by("ann", Some(2)).deadlocks().len(), 1);
    assert_eq!(held_by("ann", Some(2)).why("/locks/x").end, ChainEnd::Circle);
    let unsure = held_by("ann", None);
    assert!(unsure.deadlocks().is_empty() && unsure.owners.iter().all(|owner| !owner.stuck));
    assert_eq!(unsure.why("/locks/x").end, ChainEnd::Unsure);
    // No permit is held at the moment: the waiter may be about to get one.
    let next = [lock("/locks/s", &[], &[permit(2, "bob")]), lock("/locks/x", &[alone(0, "bob")], &[])];
    assert_eq!(WaitGraph::of(&next).why("/locks/x").end, ChainEnd::Unsure);
}

#[test]
fn why_follows_waiting_owners() {
    let ends = |graph: &WaitGraph, path: &str| {
        let why = graph.why(path);
        let owners = why.chain.iter().map(|link| link.owner.clone().expect("known")).collect::<Vec<_>>();
        (owners.join(" "), why.end)
    };
    let locks = [
        lock("/locks/a", &[entry(0, "eve", Role::Shared), entry(1, "ann", Role::Shared)], &[]),
        lock("/locks/b", &[alone(2, "bob")], &[alone(5, "ann"), alone(6, "eve")]),
        lock("/locks/c", &[alone(3, "cid")], &[alone(6, "bob")]),
        lock("/locks/d", &[], &[]),
    ];
    let graph = WaitGraph::of(&locks);
    assert_eq!(ends(&graph, "/locks/a"), ("eve bob cid".to_owned(), ChainEnd::Working));
    assert_eq!(graph.why("/locks/a").chain[0].beside, 1);
    assert_eq!(graph.why("/locks/a").chain[1].beside, 1, "ann is queued before eve");
    assert_eq!(ends(&graph, "/locks/d"), (String::new(), ChainEnd::Free));
    assert_eq!(ends(&graph, "/locks/e"), (String::new(), ChainEnd::Free));
    assert_eq!(ends(&WaitGraph::of(&nested()), "/locks/b"), ("bob cid ann bob".to_owned(), ChainEnd::Circle));
}

#[test]
fn why_names_first_waiters_and_break_target() {
    let graph = WaitGraph::of(&nested());
    let why = graph.why("/locks/b");
    let waiters: Vec<_> = why.waiters.iter().map(|waiter| waiter.owner.as_deref()).collect();
    assert_eq!((why.waiting, waiters), (2, vec![Some("ann"), Some("dan")]));
    let target = |to_break: &Option<BreakTarget>| to_break.as_ref().map(|target| target.token);
    assert_eq!(target(&why.to_break), target(&graph.deadlocks()[0].to_break));
    assert!(why.to_break.is_some());
    let waiters: Vec<_> = (1..6).map(|number| alone(number, &format!("owner {number}"))).collect();
    let why = WaitGraph::of(&[lock("/locks/a", &[alone(0, "ann")], &waiters)]).why("/locks/a");
    assert_eq!((why.waiting, why.waiters.len(), why.to_break.is_none()), (5, 3, true));
}

#[test]
fn why_ends_at_too_large_request() {
    let greedy = Entry { weight: 3, ..entry(0, "ann", Role::Permit) };
    let semaphore = Snapshot { permits: Some(2), ..lock("/locks/s", &[], &[greedy]) };
    let locks = [lock("/locks/a", &[alone(0, "ann")], &[]), semaphore];
    let why = WaitGraph::of(&locks).why("/locks/a");
    assert_eq!((why.chain.len(), why.end), (1, ChainEnd::Permits));
}

#[test]
fn contender_missing_from_one_read_is_dropped() {
    let [a, ..] = nested();
    let same = present_in_both(&a, a.clone());
    assert_eq!((same.holder.map(|entry| entry.node), same.waiting), (a.holder.clone().map(|e| e.node), 1));
    // Contender 7 is a new znode with the same name, and contender 8 is only in the second read.
    let again = Entry { token: Some(token("another", 7)), ..alone(7, "cid") };
    let now = present_in_both(&a, lock("/locks/a", &[alone(0, "ann")], &[again, alone(8, "dan")]));
    assert!(now.holder.is_some() && now.waiters.is_empty() && now.waiting == 0);
}

#[test]
fn foreign_threads_of_one_session_are_no_cycle() {
    let thread = |number: usize| Entry { owner_kind: OwnerKind::Session, ..alone(number, "jvm") };
    let one = WaitGraph::of(&[lock("/locks/a", &[thread(0)], &[thread(1)])]);
    assert_eq!(one.deadlocks().len(), 0);
    assert_eq!(one.why("/locks/a").end, ChainEnd::Working);
    let across = [
        lock("/locks/a", &[thread(0)], &[alone(1, "ann")]),
        lock("/locks/b", &[alone(2, "ann")], &[thread(3)]),
    ];
    assert_eq!(WaitGraph::of(&across).deadlocks().len(), 1);
}
