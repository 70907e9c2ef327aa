//! Permits in the layouts of others, where all children count. Whoever takes one holds a lock meanwhile, which is a queue
//! of its own and is not in this world but for what it is good for: one takes after the other.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};
use zoolock_core::names::Naming::{self, Curator, Kazoo};

use crate::lock::{EXCLUSION, Lock, OWN_ONLY, PROGRESS};
use crate::plan::Plan::{self, Lease};
use crate::scenario::{Budget, CHEAP, FAULTS, Scenario};
use crate::{fault, long, nothing_is_found_in, pairs};

const ONE: Plan = Lease { size: 1 };
const OF_TWO: Plan = Lease { size: 2 };

/// What three can be searched with in half a minute.
const FEW: usize = 4;

fn all(naming: Naming, clients: &[Plan], scenario: Scenario) -> Scenario {
    scenario.kinds(clients).named(&vec![naming; clients.len()])
}

fn undisturbed() -> Scenario {
    Scenario::new(", undisturbed", 0, Budget::NONE)
}

fn both(clients: &[Plan], scenario: Scenario) -> [Scenario; 2] {
    [Curator, Kazoo].map(|naming| all(naming, clients, scenario.clone()))
}

fn resized(clients: &[Plan]) -> Scenario {
    let mut scenario = all(Kazoo, clients, undisturbed());
    scenario.budget.resizes = 2;
    scenario.name += ", resized";
    scenario
}

#[test]
fn when_nothing_goes_wrong() {
    let mut searched = Vec::new();
    searched.extend(both(&[ONE, ONE, ONE], undisturbed()));
    searched.extend(both(&[OF_TWO, OF_TWO, OF_TWO], undisturbed()));
    searched.extend(both(&[OF_TWO, OF_TWO, OF_TWO], undisturbed().without_directory()));
    searched.extend(both(&[ONE, ONE], undisturbed().trying()));
    searched.push(all(Curator, &[ONE, ONE], undisturbed().rounds(2)));
    searched.push(all(Curator, &[ONE, ONE], undisturbed().near_the_end(3)));
    searched.push(resized(&[OF_TWO, OF_TWO, OF_TWO]));
    nothing_is_found_in("leases, undisturbed", searched);
}

#[test]
fn with_any_fault() {
    let mut searched: Vec<Scenario> = Vec::new();
    for fault in FAULTS {
        searched.extend(both(&[ONE, ONE], Scenario::with(0, &[fault])));
    }
    let faults = if long() { &FAULTS[..] } else { &FAULTS[..FEW] };
    for fault in faults {
        searched.extend(both(&[OF_TWO, OF_TWO, OF_TWO], Scenario::with(0, &[*fault])));
    }
    nothing_is_found_in("leases, one fault", searched);
}

#[test]
fn among_two_with_any_two_faults() {
    let faults = if long() { &FAULTS[..] } else { &FAULTS[..CHEAP] };
    let mut searched: Vec<Scenario> =
        pairs(faults).flat_map(|pair| both(&[ONE, ONE], Scenario::with(0, &pair))).collect();
    for other in ["remove", "reap", "break"] {
        searched.extend(both(&[ONE, ONE], Scenario::with(0, &["disconnect", other].map(fault))));
    }
    nothing_is_found_in("leases, two faults", searched);
}

/// It is the counting after the create that keeps too many out.
#[test]
fn without_the_guard_two_may_wait_for_each_other_but_never_too_many_hold() {
    for naming in [Curator, Kazoo] {
        for faults in [&[][..], &["lag"], &["lag", "cancel"], &["break"], &["lapse"]] {
            let faults: Vec<_> = faults.iter().map(|name| fault(name)).collect();
            let scenario = all(naming, &[ONE, ONE], Scenario::with(0, &faults)).unguarded();
            let name = scenario.name.clone();
            let until = HasDiscoveries::AllOf(BTreeSet::from(["none has this name"]));
            let checker = Lock(scenario).checker().finish_when(until).threads(1).spawn_bfs().join();
            assert!(checker.discovery(PROGRESS).is_some(), "{name}: nobody is stuck");
            for property in [EXCLUSION, OWN_ONLY] {
                assert!(checker.discovery(property).is_none(), "{name}: violated `{property}`");
            }
        }
    }
}
