//! Searches with mutexes in one directory.

use super::expect_no_violation_in;
use super::scenario::{CHEAP, FAULTS, Scenario, pairs};
use crate::long;

fn three(faults: &[&str]) -> Scenario {
    Scenario::mutexes(3).with(faults)
}

fn two(faults: &[&str]) -> Scenario {
    Scenario::mutexes(2).with(faults)
}

#[test]
fn without_faults() {
    let mutexes = Scenario::mutexes;
    expect_no_violation_in([mutexes(3), mutexes(4), mutexes(3).without_directory(), mutexes(3).rounds(2)]);
}

#[test]
fn three_with_any_fault() {
    expect_no_violation_in(FAULTS.map(|fault| three(&[fault])));
}

#[test]
fn three_with_two_faults() {
    let chosen = [
        ["cancel", "cancel"],
        ["cancel", "lag"],
        ["cancel", "reap"],
        ["lag", "remove"],
        ["lag", "break"],
        ["lag", "lag"],
        ["crash", "reap"],
        ["scribble", "panic"],
    ];
    let searched = if long() { pairs(&FAULTS).collect() } else { chosen.to_vec() };
    expect_no_violation_in(searched.iter().map(|pair| three(pair)));
}

#[test]
fn two_with_any_two_faults() {
    expect_no_violation_in(pairs(&FAULTS).map(|pair| two(&pair)));
}

#[test]
fn two_that_watch_late_with_any_two_faults() {
    expect_no_violation_in(pairs(&FAULTS).map(|pair| two(&pair).watching_late()));
}

#[test]
fn two_in_two_rounds_with_any_two_faults() {
    let faults = if long() { &FAULTS[..] } else { &FAULTS[..CHEAP] };
    expect_no_violation_in(pairs(faults).map(|pair| two(&pair).rounds(2)));
}

#[test]
fn names_that_repeat() {
    let faults: [&[&str]; 7] = [
        &["disconnect", "remove"],
        &["disconnect", "reap"],
        &["lapse", "remove"],
        &["disconnect", "lag", "remove"],
        &["disconnect", "lag", "reap"],
        &["disconnect", "break", "reap"],
        &["disconnect", "scribble", "remove"],
    ];
    let again = [two(&["disconnect"]).rounds(2), two(&["disconnect"]).without_directory()];
    expect_no_violation_in(faults.map(two).into_iter().chain(again));
}

#[test]
fn server_owns_the_session_again() {
    let retake = || two(&["disconnect", "retake"]);
    let mut searched = vec![retake().watching_late(), retake().looking_ahead(), retake().tracking()];
    let others: &[&str] = if long() {
        searched.push(retake().rounds(2));
        &["cancel", "lag", "crash", "panic", "break", "scribble"]
    } else {
        &["lag", "panic"]
    };
    searched.extend(others.iter().map(|fault| retake().with(&[fault])));
    expect_no_violation_in(searched);
}

#[test]
fn copied_directories() {
    expect_no_violation_in([
        three(&["cancel"]).in_a_copy(),
        two(&["cancel", "disconnect"]).in_a_copy(),
        two(&["remove", "copy"]).rounds(3),
        three(&["remove", "copy"]),
    ]);
}

#[test]
fn last_client_tries_without_waiting() {
    expect_no_violation_in(FAULTS.map(|fault| two(&[fault]).trying()));
}

#[test]
fn end_of_the_numbers_with_a_lasting_child() {
    let mutexes = Scenario::mutexes;
    let end = |scenario: Scenario| scenario.near_the_end(1, 2).with_lasting_child();
    let tries = ["cancel", "lag", "remove", "disconnect"].map(|fault| end(two(&[fault]).trying()));
    let waits = [end(mutexes(1)), end(mutexes(1).with(&["remove", "lag"])), end(two(&[]))];
    // Without the end of the numbers, such a child changes nothing.
    let usual = FAULTS[..CHEAP].iter().map(|fault| two(&[fault]).with_lasting_child());
    expect_no_violation_in(waits.into_iter().chain(tries).chain(usual));
}

#[test]
fn end_of_the_numbers() {
    let polls: &[&str] = if long() { &["poll", "poll"] } else { &[] };
    let end =
        |scenario: Scenario, next: i32| scenario.with(&["negative number"]).with(polls).near_the_end(next, 4);
    let mut searched = Vec::new();
    for fault in FAULTS {
        searched.extend([end(two(&[fault]), 1), end(two(&[fault]), 4)]);
    }
    for next in if long() { [1, 2, 4] } else { [0, 1, 2] } {
        searched.push(end(three(&[]), next));
    }
    // The first create gets a valid number. The replies to the first and the second create are
    // lost, and the third create is refused.
    searched.push(Scenario { retire_from: 4, ..end(two(&["disconnect", "disconnect"]), 2) });
    expect_no_violation_in(searched);
}
