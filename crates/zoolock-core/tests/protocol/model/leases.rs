//! Searches for permits in the layouts of other client libraries, where all children count. A client that takes one
//! holds a lock meanwhile. That lock has a queue of its own, which this world does not have: here the clients take
//! permits one after the other.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};
use zoolock_core::names::Naming::{self, Curator, Kazoo};

use super::finds_nothing_in;
use super::locks::{EXCLUSION, Locks, OWN_ONLY, PROGRESS};
use super::plan::Plan::{self, Lease};
use super::scenario::{CHEAP, FAULTS, Scenario, pairs};
use crate::long;

const ONE: Plan = Lease { size: 1 };
const OF_TWO: Plan = Lease { size: 2 };

/// Number of faults with which three clients can be searched in half a minute.
const FEW: usize = 4;

fn named(naming: Naming, plans: &[Plan]) -> Scenario {
    Scenario::of(plans).named(&vec![naming; plans.len()])
}

fn both(plans: &[Plan], change: impl Fn(Scenario) -> Scenario) -> [Scenario; 2] {
    [Curator, Kazoo].map(|naming| change(named(naming, plans)))
}

#[test]
fn without_faults() {
    let mut searched = Vec::new();
    searched.extend(both(&[ONE, ONE, ONE], |scenario| scenario));
    searched.extend(both(&[OF_TWO, OF_TWO, OF_TWO], |scenario| scenario));
    searched.extend(both(&[OF_TWO, OF_TWO, OF_TWO], Scenario::without_directory));
    searched.extend(both(&[ONE, ONE], Scenario::trying));
    searched.push(named(Curator, &[ONE, ONE]).rounds(2));
    searched.push(named(Curator, &[ONE, ONE]).near_the_end(3, 4));
    searched.push(named(Kazoo, &[OF_TWO, OF_TWO, OF_TWO]).with(&["resize", "resize"]));
    finds_nothing_in(searched);
}

#[test]
fn any_fault() {
    let mut searched: Vec<Scenario> =
        FAULTS.iter().flat_map(|fault| both(&[ONE, ONE], |scenario| scenario.with(&[fault]))).collect();
    for fault in if long() { &FAULTS[..] } else { &FAULTS[..FEW] } {
        searched.extend(both(&[OF_TWO, OF_TWO, OF_TWO], |scenario| scenario.with(&[fault])));
    }
    finds_nothing_in(searched);
}

#[test]
fn two_with_any_two_faults() {
    let faults = if long() { &FAULTS[..] } else { &FAULTS[..CHEAP] };
    let names_repeat = ["remove", "reap", "break"].map(|other| ["disconnect", other]);
    let searched = pairs(faults).chain(names_repeat);
    finds_nothing_in(searched.flat_map(|pair| both(&[ONE, ONE], |scenario| scenario.with(&pair))));
}

/// It is the count after the create that keeps too many out.
#[test]
fn without_the_guard_two_wait_but_never_too_many_hold() {
    for naming in [Curator, Kazoo] {
        for faults in [&[][..], &["lag"], &["lag", "cancel"], &["break"], &["lapse"]] {
            let scenario = named(naming, &[ONE, ONE]).with(faults).unguarded();
            let name = scenario.name.clone();
            let until = HasDiscoveries::AllOf(BTreeSet::from(["none has this name"]));
            let checker = Locks(scenario).checker().finish_when(until).threads(1).spawn_bfs().join();
            assert!(checker.discovery(PROGRESS).is_some(), "{name}: no client is stuck");
            for property in [EXCLUSION, OWN_ONLY] {
                assert!(checker.discovery(property).is_none(), "{name}: violated `{property}`");
            }
        }
    }
}
