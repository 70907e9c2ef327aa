//! Searches with acquisitions of several locks at once, beside single locks.

use super::locks::{Locks, PROGRESS};
use super::plan::Plan::{self, Inside, Mutex, Read};
use super::scenario::{FAULTS, Scenario, pairs};
use super::{expect_no_violation, expect_no_violation_in, expect_violation};
use crate::{long, search};

/// Two clients that name the same locks in opposite orders.
const CROSSED: &[&[usize]] = &[&[0, 1], &[1, 0]];
/// A single mutex beside a multi-lock.
const BESIDE_ONE: &[&[usize]] = &[&[0, 1], &[1]];
/// Three clients. Any two of them share one lock.
const RING: &[&[usize]] = &[&[0, 1], &[1, 2], &[2, 0]];

/// The faults that are searched alone and in pairs: [`FAULTS`], and a request to release.
const WITH_REVOKE: [&str; 11] = {
    let [a, b, c, d, e, f, g, h, i, j] = FAULTS;
    [a, b, c, d, e, f, g, h, "revoke", i, j]
};

fn crossed(faults: &[&str]) -> Scenario {
    Scenario::over(CROSSED).with(faults)
}

fn beside_one(faults: &[&str]) -> Scenario {
    Scenario::over(BESIDE_ONE).with(faults)
}

fn ring(faults: &[&str]) -> Scenario {
    Scenario::over(RING).with(faults)
}

#[test]
fn without_faults() {
    expect_no_violation_in([
        crossed(&[]),
        crossed(&[]).without_directory().rounds(2),
        crossed(&[]).tracking().rounds(2),
        ring(&[]),
        Scenario::over(&[&[0, 1], &[1, 0], &[0]]),
        Scenario::over(&[&[0, 1, 2], &[2, 1, 0]]),
    ]);
}

#[test]
fn two_with_any_fault() {
    expect_no_violation_in(WITH_REVOKE.map(|fault| crossed(&[fault])));
}

#[test]
fn two_with_two_faults() {
    let chosen = [["lag", "break"], ["crash", "reap"], ["panic", "scribble"], ["remove", "revoke"]];
    let searched = if long() { pairs(&WITH_REVOKE).collect() } else { chosen.to_vec() };
    expect_no_violation_in(searched.iter().map(|pair| crossed(pair)));
}

#[test]
fn beside_a_mutex_with_any_two_faults() {
    // The following faults can strike between any two steps, so they cost most.
    let costly =
        |pair: &[&str; 2]| pair.iter().any(|fault| ["cancel", "disconnect", "lapse"].contains(fault));
    let searched = pairs(&WITH_REVOKE).filter(|pair| long() || !costly(pair));
    expect_no_violation_in(searched.map(|pair| beside_one(&pair)));
}

#[test]
fn ring_with_any_fault() {
    let faults = if long() { &WITH_REVOKE[..] } else { &["lag", "panic"] };
    expect_no_violation_in(faults.iter().map(|fault| ring(&[fault])));
}

#[test]
fn lost_connections() {
    let mut searched = vec![
        beside_one(&["disconnect"]).reports_disconnects(),
        beside_one(&["disconnect", "break"]),
        beside_one(&["disconnect", "remove"]).reports_disconnects(),
    ];
    if long() {
        searched.push(beside_one(&["disconnect", "disconnect"]).reports_disconnects());
        searched.push(beside_one(&["disconnect", "disconnect"]));
        searched.push(crossed(&["disconnect", "disconnect"]));
    }
    expect_no_violation_in(searched);
}

#[test]
fn last_client_tries_without_waiting() {
    expect_no_violation_in(WITH_REVOKE.map(|fault| crossed(&[fault]).trying()));
}

#[test]
fn readers() {
    let one_reads = |scenario: Scenario| {
        let plans: [[Plan; 2]; 2] = [[Read, Mutex], [Mutex, Read]];
        plans.map(|plans| scenario.clone().plans(&plans))
    };
    let mut searched: Vec<_> = WITH_REVOKE.iter().flat_map(|fault| one_reads(beside_one(&[fault]))).collect();
    if long() {
        searched.extend(WITH_REVOKE.iter().flat_map(|fault| one_reads(crossed(&[fault]))));
    }
    searched.push(ring(&[]).plans(&[Read, Mutex, Read]));
    expect_no_violation_in(searched);
}

#[test]
fn tracked_crashes() {
    expect_no_violation_in(WITH_REVOKE.map(|fault| beside_one(&[fault]).tracking()));
}

#[test]
fn names_that_repeat() {
    let mut searched = vec![crossed(&["remove"]).numbered(1), beside_one(&["remove"]).numbered(1).rounds(2)];
    if long() {
        searched.push(crossed(&["remove", "remove"]).numbered(1));
        searched.push(ring(&["remove"]).numbered(1));
    }
    expect_no_violation_in(searched);
}

#[test]
fn end_of_the_numbers() {
    let one = ["lag", "crash", "break", "reap"].map(|fault| crossed(&[fault]).near_the_end(1, 99));
    // The last number is refused while another contender has it.
    let full = |scenario: Scenario| Scenario { retire_from: 5, ..scenario.near_the_end(5, 5) };
    let full =
        [crossed(&[]), beside_one(&["crash"]), beside_one(&["lag"]), beside_one(&["disconnect"])].map(full);
    expect_no_violation_in(
        one.into_iter().chain([beside_one(&["disconnect"]).near_the_end(2, 99)]).chain(full),
    );
}

/// Searches two clients that each acquire one lock, and then a second lock while they hold the
/// first. If the clients acquire the locks in opposite orders, they deadlock.
#[test]
fn one_after_another_deadlocks() {
    let nested = |wants| Scenario::over(wants).plans(&[Mutex, Inside(0), Mutex, Inside(2)]);
    expect_violation("OneAfterAnother", PROGRESS, nested(&[&[0], &[1], &[1], &[0]]));
    expect_no_violation(nested(&[&[0], &[1], &[0], &[1]]));
    expect_no_violation(crossed(&[]));
}

/// With `ZOOLOCK_LONG=1` this search has more than ten million states.
#[test]
fn three_clients_want_two_locks() {
    let faults: &[&str] = if long() { &["break", "lag"] } else { &["lag"] };
    let scenario = Scenario::over(&[&[0, 1], &[1, 0], &[0, 1]]).with(faults);
    let states = search::expect_no_violation_in_depth(&scenario.name.clone(), Locks(scenario));
    assert!(!long() || states >= 10_000_000, "{states} states are too few");
}
