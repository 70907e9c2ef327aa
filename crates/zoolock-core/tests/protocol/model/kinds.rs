//! Searches with readers, writers and permits, and with contenders that track crashes.

use super::expect_no_violation_in;
use super::plan::Plan::{self, Mutex, Permits, Read, Upgradable, Upgrade, Write, WriteThenRead};
use super::scenario::{CHEAP, FAULTS, Scenario, pairs};
use crate::long;

/// Returns the scenarios that combine each of these plans with each fault.
fn with_each_fault(
    plans: &'static [&'static [Plan]],
    faults: &'static [&'static str],
) -> impl Iterator<Item = Scenario> {
    plans.iter().flat_map(move |plans| faults.iter().map(move |fault| Scenario::of(plans).with(&[fault])))
}

/// Returns the faults of searches with three clients: the cheap ones, or all with `ZOOLOCK_LONG=1`.
fn faults_for_three_clients() -> &'static [&'static str] {
    if long() { &FAULTS } else { &FAULTS[..CHEAP] }
}

const ONE: Plan = Permits { take: 1, size: 2 };
const BOTH: Plan = Permits { take: 2, size: 2 };

#[test]
fn readers_and_writers_without_faults() {
    expect_no_violation_in([
        Scenario::of(&[Read, Write, Read]),
        Scenario::of(&[Read, Read, Write]),
        Scenario::of(&[Read, WriteThenRead, Write]),
        Scenario::of(&[WriteThenRead, WriteThenRead]).rounds(2),
        Scenario::of(&[Mutex, Read, Write]),
        Scenario::of(&[Upgradable, Upgradable, Read]),
        Scenario::of(&[Upgradable, Read, Write]),
        Scenario::of(&[Read, Read, Write]).without_directory(),
        Scenario::of(&[Read, Write]).rounds(2),
    ]);
}

#[test]
fn readers_and_writers_with_any_fault() {
    let two = with_each_fault(&[&[WriteThenRead, Write], &[Upgradable, Read]], &FAULTS);
    expect_no_violation_in(with_each_fault(&[&[Read, Write, Read]], faults_for_three_clients()).chain(two));
}

#[test]
fn upgrades() {
    let mut searched = vec![
        Scenario::of(&[Read, Upgrade(0), Read, Upgrade(2)]),
        Scenario::of(&[Upgradable, Upgrade(0), Read, Upgrade(2)]),
        Scenario::of(&[Upgradable, Upgrade(0), Upgradable]),
        Scenario::of(&[Read, Upgrade(0), Write]),
        Scenario::of(&[WriteThenRead, Upgrade(0), Write]),
        Scenario::of(&[Upgradable, Upgrade(0), Read, Write]),
    ];
    searched.extend(with_each_fault(
        &[&[Read, Upgrade(0), Read], &[Read, Upgrade(0), Write]],
        faults_for_three_clients(),
    ));
    if long() {
        searched.push(Scenario::of(&[Read, Upgrade(0), Write, Read]).with(&["cancel"]));
    }
    expect_no_violation_in(searched);
}

#[test]
fn semaphores() {
    let searched = [
        Scenario::of(&[ONE, ONE, ONE]),
        Scenario::of(&[ONE, ONE, BOTH]).of_size(2),
        Scenario::of(&[ONE, BOTH]).rounds(2),
        Scenario::of(&[ONE, BOTH]).without_directory(),
        Scenario::of(&[ONE, BOTH]).of_size(2).with(&["resize"]),
        Scenario::of(&[ONE, ONE, ONE]).of_size(2).with(&["resize"]),
        Scenario::of(&[ONE, Mutex]),
        Scenario::of(&[ONE, Read]),
    ];
    expect_no_violation_in(searched.into_iter().chain(with_each_fault(&[&[ONE, BOTH]], &FAULTS)));
}

#[test]
fn tracked_crashes() {
    let tracking = with_each_fault(&[&[Mutex, Mutex], &[WriteThenRead, Read], &[Write, Read]], &FAULTS);
    let delaying = with_each_fault(&[&[Mutex, Mutex], &[WriteThenRead, Read]], &FAULTS);
    let mut searched: Vec<_> = tracking.map(Scenario::tracking).collect();
    searched.extend(delaying.map(|scenario| scenario.tracking().delaying()));
    if long() {
        searched.push(Scenario::of(&[Read, Upgrade(0), Write]).with(&["cancel", "disconnect"]).tracking());
    }
    expect_no_violation_in(searched);
}

#[test]
fn two_with_any_two_faults() {
    let kinds: [&[Plan]; 5] =
        [&[Upgradable, Read], &[Read, Upgrade(0)], &[Write, Read], &[ONE, BOTH], &[WriteThenRead, Write]];
    let (kinds, faults) = if long() { (&kinds[..], &FAULTS[..]) } else { (&kinds[..3], &FAULTS[..CHEAP]) };
    expect_no_violation_in(
        kinds.iter().flat_map(|plans| pairs(faults).map(|pair| Scenario::of(plans).with(&pair))),
    );
}

#[test]
fn names_that_repeat() {
    let kinds: [&[Plan]; 3] = [&[WriteThenRead, Write], &[Read, Upgrade(0), Read], &[ONE, BOTH]];
    let faults =
        [["disconnect", "remove"], ["disconnect", "reap"], ["disconnect", "break"], ["lapse", "remove"]];
    let (kinds, faults) = if long() { (&kinds[..], &faults[..]) } else { (&kinds[..1], &faults[..2]) };
    expect_no_violation_in(
        kinds.iter().flat_map(|plans| faults.iter().map(move |pair| Scenario::of(plans).with(pair))),
    );
}
