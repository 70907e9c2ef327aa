//! Searches with requests that the connected server refuses by itself. Also searches with releases
//! that are merged into one transaction with the next create of the session.

use super::expect_no_violation_in;
use super::plan::Plan::{self, Mutex, Next, Permits, Read, Upgrade, Write, WriteThenRead};
use super::scenario::{FAULTS, Scenario};
use crate::long;

/// Returns the pairs of this fault with each of [`FAULTS`].
fn beside_each(fault: &'static str) -> impl Iterator<Item = [&'static str; 2]> {
    FAULTS.iter().map(move |other| [fault, other])
}

#[test]
fn throttled_mutexes() {
    let twice = ["throttle", "throttle"];
    let mut searched = vec![
        Scenario::mutexes(3).with(&["throttle"]),
        Scenario::mutexes(2).with(&twice),
        Scenario::mutexes(2).with(&twice).without_directory(),
        Scenario::mutexes(2).with(&["throttle", "disconnect"]),
        Scenario::mutexes(2).with(&["throttle"]).rounds(2).looking_ahead(),
        Scenario::mutexes(2).with(&["throttle"]).near_the_end(1, 4),
        Scenario::over(&[&[0, 1], &[1, 0]]).with(&["throttle"]),
    ];
    searched.extend(beside_each("throttle").map(|pair| Scenario::mutexes(2).with(&pair)));
    searched.extend(beside_each("deny").map(|pair| Scenario::mutexes(2).with(&pair)));
    let thrice = |[one, other]: [&'static str; 2]| Scenario::mutexes(2).with(&["throttle", one, other]);
    searched.extend(["lag", "reap"].map(|fault| thrice(["disconnect", fault])));
    if long() {
        searched.extend(beside_each("disconnect").map(thrice));
        searched.extend(beside_each("throttle").map(|pair| Scenario::mutexes(3).with(&pair)));
    }
    expect_no_violation_in(searched);
}

#[test]
fn throttled_other_kinds() {
    let (one, both) = (Permits { take: 1, size: 2 }, Permits { take: 2, size: 2 });
    let kinds: [&[Plan]; 4] =
        [&[Read, Write, Read], &[WriteThenRead, Write], &[Read, Upgrade(0), Write], &[one, both]];
    let twice = kinds[1..].iter().map(|plans| Scenario::of(plans).with(&["throttle", "throttle"]));
    let once = kinds.iter().map(|plans| Scenario::of(plans).with(&["throttle"]));
    let tracking = Scenario::of(&[Mutex, Mutex]).with(&["throttle", "crash"]).tracking();
    expect_no_violation_in(once.chain(twice).chain([tracking]));
}

#[test]
fn merged_releases() {
    let one = || Scenario::of(&[Mutex, Next(0)]).merging();
    let beside = || Scenario::of(&[Mutex, Next(0), Mutex]).merging();
    let mut searched = vec![
        one().rounds(3),
        beside(),
        beside().rounds(2),
        beside().looking_ahead(),
        beside().tracking(),
        one().rounds(2).near_the_end(1, 4).with(&["negative number"]),
        Scenario::of(&[Mutex, Next(0), Mutex, Next(2)]).merging(),
        Scenario::of(&[Write, Next(0), Read]).merging(),
    ];
    searched.extend(FAULTS.iter().map(|fault| one().rounds(2).with(&[fault])));
    searched.extend(FAULTS.iter().map(|fault| beside().with(&[fault])));
    if long() {
        searched.extend(beside_each("disconnect").map(|pair| beside().with(&pair)));
    }
    searched.extend(beside_each("disconnect").map(|pair| one().with(&pair)));
    searched.extend(beside_each("throttle").map(|pair| one().with(&pair)));
    expect_no_violation_in(searched);
}
