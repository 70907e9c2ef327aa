//! A model of the multi-lock: the machine of the product, beside plain mutexes, in a world that does its worst.
//!
//! Each scenario is searched to the end: every order of what happens, and every place where the faults of its budget
//! can strike. `ZOOLOCK_LONG=1` searches wider. Two rules of [`zoolock_core::Rule`] are the multi-lock's own; without
//! either of them the model finds what goes wrong.
//!
//! * `tree.rs`, `server.rs`: the service.
//! * `world.rs`, `faults.rs`: clients, connections, followers that lag.
//! * `ghost.rs`: the observer who knows a violation when it happens.
//! * `locks.rs`: what can happen, and what must never be.
//! * `scenario.rs`: who wants what, and how often what goes wrong.
//! * `walk.rs`: the same at random, longer and with more of everything.
//!
//! What is not modelled: a refusal for good (ACL, quota), throttling, locks of other kinds and families, and a
//! directory whose numbers have come to their very end.

mod faults;
mod ghost;
mod locks;
mod scenario;
mod server;
#[path = "../shared/mod.rs"]
mod shared;
#[path = "../table/mod.rs"]
mod table;
mod tree;
mod walk;
mod world;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};
use zoolock_core::{Rule, Rules};

use locks::Locks;
use scenario::{Budget, FAULTS, Scenario};

/// A search makes and drops states, and does little else.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn long() -> bool {
    std::env::var_os("ZOOLOCK_LONG").is_some()
}

/// Searches all of a scenario and finds nothing.
fn nothing_is_found(scenario: Scenario) -> usize {
    let begun = Instant::now();
    let name = scenario.name.clone();
    let checker =
        Locks(scenario).checker().finish_when(HasDiscoveries::AnyFailures).threads(1).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, {depth} deep, {:.1?}", begun.elapsed());
    for (property, path) in checker.discoveries() {
        if checker.discovery_classification(property).to_string() == "counterexample" {
            panic!("{name}: violated `{property}` by {:?}", path.into_actions());
        }
    }
    assert!(checker.discovery(locks::HELD).is_some(), "{name}: nobody ever holds several");
    assert!(checker.discovery(locks::ALL_OVER).is_some(), "{name}: the search does not get anywhere");
    states
}

/// Searches many small scenarios.
fn nothing_is_found_in(what: &str, scenarios: impl IntoIterator<Item = Scenario>) {
    let begun = Instant::now();
    let states: Vec<usize> = scenarios.into_iter().map(nothing_is_found).collect();
    let total: usize = states.iter().sum();
    println!("== {what}: {} scenarios, {total} states, {:.1?}", states.len(), begun.elapsed());
}

/// Two who name the same locks in opposite orders.
const CROSSED: &[&[usize]] = &[&[0, 1], &[1, 0]];
/// A plain mutex beside a multi-lock.
const BESIDE_ONE: &[&[usize]] = &[&[0, 1], &[1]];
/// Each shares a lock with each, in a ring.
const RING: &[&[usize]] = &[&[0, 1], &[1, 2], &[2, 0]];

/// With each of the faults, once.
fn one_fault(wants: &'static [&'static [usize]]) -> impl Iterator<Item = Scenario> {
    FAULTS.into_iter().map(|fault| Scenario::with(wants, &[fault.0]))
}

/// With two of the faults, or twice the same. `costly`: those that come in any order with everything, too.
fn two_faults(wants: &'static [&'static [usize]], costly: bool) -> impl Iterator<Item = Scenario> {
    let pairs = (0..FAULTS.len()).flat_map(|i| (i..FAULTS.len()).map(move |j| [FAULTS[i].0, FAULTS[j].0]));
    let cheap =
        |pair: &[&str; 2]| !["cancel", "disconnect", "lapse"].iter().any(|fault| pair.contains(fault));
    pairs.filter(move |pair| costly || cheap(pair)).map(|pair| Scenario::with(wants, &pair))
}

mod with_all_rules_nothing_is_found {
    use super::*;

    #[test]
    fn when_nothing_goes_wrong() {
        let undisturbed = |wants| Scenario::new(wants, Budget::default());
        let searched = [
            undisturbed(CROSSED),
            undisturbed(CROSSED).one_missing().rounds(2),
            undisturbed(CROSSED).tracking().rounds(2),
            undisturbed(RING),
            undisturbed(&[&[0, 1], &[1, 0], &[0]]),
            undisturbed(&[&[0, 1, 2], &[2, 1, 0]]),
        ];
        nothing_is_found_in("undisturbed", searched);
    }

    #[test]
    fn among_two_with_any_fault() {
        nothing_is_found_in("crossed, one fault", one_fault(CROSSED));
    }

    #[test]
    fn among_two_with_two_faults() {
        let chosen = [["lag", "break"], ["crash", "reap"], ["panic", "scribble"], ["remove", "revoke"]];
        let chosen = chosen.map(|pair| Scenario::with(CROSSED, &pair)).into_iter();
        let searched: Vec<_> = if long() { two_faults(CROSSED, true).collect() } else { chosen.collect() };
        nothing_is_found_in("crossed, two faults", searched);
    }

    #[test]
    fn beside_a_mutex_with_any_two_faults() {
        nothing_is_found_in("beside one, two faults", two_faults(BESIDE_ONE, long()));
    }

    #[test]
    fn among_three() {
        let chosen = ["lag", "panic"].map(|fault| Scenario::with(RING, &[fault])).into_iter();
        let searched: Vec<_> = if long() { one_fault(RING).collect() } else { chosen.collect() };
        nothing_is_found_in("ring, one fault", searched);
    }

    #[test]
    fn when_a_connection_is_lost_twice() {
        let lost = |also: &[&str]| Scenario::with(BESIDE_ONE, &[&["disconnect"], also].concat());
        let mut searched = vec![lost(&[]).told_offline(), lost(&["break"]), lost(&["remove"]).told_offline()];
        if long() {
            searched.extend([lost(&["disconnect"]).told_offline(), lost(&["disconnect"])]);
            searched.push(Scenario::with(CROSSED, &["disconnect", "disconnect"]));
        }
        nothing_is_found_in("disconnected", searched);
    }

    #[test]
    fn when_somebody_only_tries() {
        nothing_is_found_in("trying", one_fault(CROSSED).map(Scenario::trying));
    }

    #[test]
    fn among_readers() {
        let readers =
            |scenario: Scenario| [scenario.clone().reading(&[true, false]), scenario.reading(&[false, true])];
        let mut searched: Vec<_> = one_fault(BESIDE_ONE).flat_map(readers).collect();
        if long() {
            searched.extend(one_fault(CROSSED).flat_map(readers));
        }
        searched.push(Scenario::new(RING, Budget::default()).reading(&[true, false, true]));
        nothing_is_found_in("readers", searched);
    }

    #[test]
    fn where_crashes_are_tracked() {
        nothing_is_found_in("tracked", one_fault(BESIDE_ONE).map(Scenario::tracking));
    }

    #[test]
    fn where_names_repeat() {
        let removed = |wants| Scenario::with(wants, &["remove"]);
        let mut searched = vec![removed(CROSSED).numbered(1), removed(BESIDE_ONE).numbered(1).rounds(2)];
        if long() {
            searched.push(Scenario::with(CROSSED, &["remove", "remove"]).numbered(1));
            searched.push(removed(RING).numbered(1));
        }
        nothing_is_found_in("names repeat", searched);
    }

    #[test]
    fn near_the_end_of_the_numbers() {
        let faults = ["lag", "crash", "break", "reap"];
        let one = faults.map(|fault| Scenario::with(CROSSED, &[fault]).near_the_end(1));
        let lost = Scenario::with(BESIDE_ONE, &["disconnect"]).near_the_end(2);
        nothing_is_found_in("end of the numbers", one.into_iter().chain([lost]));
    }

    #[test]
    fn on_long_random_walks() {
        let walks = if long() { 3_000_000 } else { 60_000 };
        let first =
            std::env::var("ZOOLOCK_SEED").ok().map(|seed| seed.parse().expect("ZOOLOCK_SEED is a number"));
        let (first, walks) = first.map_or((0, walks), |seed: u64| (seed, 1));
        let begun = Instant::now();
        let steps: usize = (first..first + walks).map(walk::walk).sum();
        println!(
            "random walks: seeds {first} to {}, {steps} steps, {:.1?}",
            first + walks - 1,
            begun.elapsed()
        );
    }
}

/// Searches a scenario with and without a rule: the property holds with it and is violated without.
fn is_needed(rule: Rule, property: &'static str, scenario: Scenario) {
    finds(&format!("{rule:?}"), property, scenario.clone().rules(Rules::without(rule)));
    nothing_is_found(scenario);
}

/// Searches until the property is violated, in as few steps as it takes.
fn finds(switch: &str, property: &'static str, scenario: Scenario) {
    let name = scenario.name.clone();
    let found = table::shortest(&Locks(scenario), property);
    let found = found.unwrap_or_else(|| panic!("{name}: nothing is found without {switch}"));
    let (steps, states) = (found.steps, found.states);
    println!("{switch}, {name}: violated `{property}` by {} steps, {states} states", steps.len());
    println!("  {steps:?}");
    table::check_steps(switch, steps.len());
}

#[test]
fn whatever_is_listed_is_there() {
    table::names_tests_that_exist("multi", Some("bugs::"));
}

/// Who takes one lock and then the other, and somebody who does it the other way round.
#[test]
fn one_after_another_the_model_finds_a_violation() {
    let nested = |wants| Scenario::new(wants, Budget::default()).inside(&[None, Some(0), None, Some(2)]);
    finds("OneAfterAnother", locks::PROGRESS, nested(&[&[0], &[1], &[1], &[0]]));
    nothing_is_found(nested(&[&[0], &[1], &[0], &[1]]));
    nothing_is_found(Scenario::new(CROSSED, Budget::default()));
}

/// Three clients and two locks, in more than ten million states with `ZOOLOCK_LONG=1`. They are searched in depth, which
/// keeps next to nothing of them.
#[test]
fn among_three_clients_and_two_locks_nothing_is_found() {
    let begun = Instant::now();
    let faults: &[&str] = if long() { &["break", "lag"] } else { &["lag"] };
    let scenario = Scenario::with(&[&[0, 1], &[1, 0], &[0, 1]], faults);
    let name = scenario.name.clone();
    let checker =
        Locks(scenario).checker().finish_when(HasDiscoveries::AnyFailures).threads(1).spawn_dfs().join();
    let states = checker.unique_state_count();
    println!("{name}: {states} distinct states, {:.1?}", begun.elapsed());
    for (property, path) in checker.discoveries() {
        if checker.discovery_classification(property).to_string() == "counterexample" {
            panic!("{name}: violated `{property}` by {:?}", path.into_actions());
        }
    }
    assert!(checker.discovery(locks::HELD).is_some(), "nobody ever holds several");
    assert!(!long() || states >= 10_000_000, "{states} distinct states are too few");
}

#[test]
fn without_verify_all_the_model_finds_a_violation() {
    // One node is granted, the watch on it is lost with the connection, and it is deleted while another is waited for.
    let scenario = Scenario::with(BESIDE_ONE, &["disconnect", "break"]);
    is_needed(Rule::VerifyAll, locks::ALL_FIRST, scenario);
    // A reader comes first in its second queue while it looks around; its first directory is gone by then.
    let scenario = Scenario::with(BESIDE_ONE, &["remove"]).reading(&[true, false]);
    is_needed(Rule::VerifyAll, locks::ALL_FIRST, scenario);
}

#[test]
fn without_release_the_rest_the_model_finds_a_violation() {
    // One node is deleted, or one record written over, while the release is under way.
    for fault in ["break", "scribble"] {
        is_needed(Rule::ReleaseTheRest, locks::NOTHING_LEFT, Scenario::with(CROSSED, &[fault]));
        is_needed(Rule::ReleaseTheRest, locks::PROGRESS, Scenario::with(BESIDE_ONE, &[fault]));
    }
}

#[test]
fn without_wait_for_older_the_model_finds_a_violation() {
    // A directory is made again before number 1 has looked: it takes the new 0 for the one before it, which waits for
    // it in the other queue.
    is_needed(Rule::WaitForOlder, locks::PROGRESS, Scenario::with(CROSSED, &["remove"]).numbered(1));
}
