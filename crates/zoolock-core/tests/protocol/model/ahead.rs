//! Searches with look-ahead: the deletion of its predecessor grants a waiter the lock, without
//! another read.

use super::expect_no_violation_in;
use super::plan::Plan::{Mutex, Read, Write, WriteThenRead};
use super::scenario::{CHEAP, FAULTS, Scenario, pairs};
use crate::long;

fn mutexes(clients: usize) -> Scenario {
    Scenario::mutexes(clients).looking_ahead()
}

#[test]
fn without_faults() {
    expect_no_violation_in([
        mutexes(2).rounds(2),
        mutexes(2).rounds(3),
        mutexes(3),
        mutexes(4),
        mutexes(3).rounds(2),
        mutexes(3).without_directory(),
        mutexes(3).with_one_that_tracks(),
        mutexes(3).with_one_that_reads(),
        mutexes(4).with_one_that_reads(),
        mutexes(2).rounds(2).with_one_that_reads(),
        mutexes(3).watching_late(),
        mutexes(3).plans(&[Read, Mutex, Mutex]),
        mutexes(3).plans(&[Write, Mutex, Mutex]),
        mutexes(4).plans(&[WriteThenRead, Mutex, Mutex]),
    ]);
}

#[test]
fn three_with_any_fault() {
    let two_rounds = if long() { &FAULTS[..] } else { &FAULTS[..CHEAP] };
    let cheap = FAULTS[..CHEAP].iter();
    let searched = FAULTS.iter().map(|fault| mutexes(3).with(&[fault]));
    let searched = searched.chain(two_rounds.iter().map(|fault| mutexes(2).with(&[fault]).rounds(2)));
    let searched =
        searched.chain(cheap.clone().map(|fault| mutexes(3).with(&[fault]).with_one_that_tracks()));
    expect_no_violation_in(
        searched.chain(cheap.map(|fault| mutexes(3).with(&[fault]).with_one_that_reads())),
    );
}

#[test]
fn two_with_any_two_faults() {
    expect_no_violation_in(pairs(&FAULTS).map(|pair| mutexes(2).with(&pair)));
}

#[test]
fn three_with_a_foreign_record() {
    let others = ["cancel", "crash", "panic", "break", "scribble"];
    expect_no_violation_in(others.map(|other| mutexes(3).with(&["scribble", other])));
}
