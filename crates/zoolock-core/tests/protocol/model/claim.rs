//! Searches with callers that take their grants late, or never.

use zoolock_core::names::Naming;

use super::expect_no_violation_in;
use super::plan::Plan::{Mutex, Permits, Read, Upgradable, Upgrade, Write, WriteThenRead};
use super::scenario::{FAULTS, Scenario};
use crate::long;

fn two(fault: &str) -> Scenario {
    Scenario::mutexes(2).with(&["forget", fault])
}

/// Returns the faults that are searched beside a caller that forgets its grant.
fn faults() -> impl Iterator<Item = &'static str> {
    let usual = ["cancel", "lapse", "break", "disconnect", "crash"];
    FAULTS.into_iter().filter(move |fault| long() || usual.contains(fault))
}

#[test]
fn mutexes() {
    let three = Scenario::mutexes(3).with(&["forget"]);
    let again = Scenario::mutexes(2).with(&["forget", "forget"]).rounds(2);
    let fault = faults().map(two);
    expect_no_violation_in(fault.chain([three.clone(), three.watching_late(), again]));
}

#[test]
fn mutexes_that_look_ahead() {
    let fault = faults().map(|fault| two(fault).looking_ahead());
    let three = Scenario::mutexes(3).with(&["forget"]).looking_ahead();
    expect_no_violation_in(fault.chain([three]));
}

#[test]
fn mutexes_that_track_crashes() {
    expect_no_violation_in(faults().map(|fault| two(fault).tracking()));
}

#[test]
fn other_kinds() {
    let permits = [1, 1, 2].map(|take| Permits { take, size: 2 });
    let kinds: [&[_]; 6] = [
        &permits,
        &[Write, Read, Write],
        &[Read, Upgrade(0), Read],
        &[Upgradable, Upgrade(0), Read],
        &[WriteThenRead, Read],
        &[Mutex, Read],
    ];
    let kind = kinds.map(|plans| Scenario::of(plans).with(&["forget"]));
    let tracked = Scenario::of(&[Read, Upgrade(0), Write]).with(&["forget"]).tracking();
    let curator = Scenario::mutexes(2).with(&["forget"]).named(&[Naming::Curator; 2]);
    expect_no_violation_in(kind.into_iter().chain([tracked, curator]));
}

#[test]
fn several_locks() {
    let crossed = |faults: &[&str]| Scenario::over(&[&[0, 1], &[1, 0]]).with(faults);
    expect_no_violation_in([
        crossed(&["forget"]),
        crossed(&["forget"]).tracking(),
        crossed(&["forget", "break"]),
        crossed(&["forget"]).watching_late(),
    ]);
}
