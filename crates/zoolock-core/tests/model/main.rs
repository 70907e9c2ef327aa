//! A model of every lock in one directory: the machine of the product, in a world that does its worst.
//!
//! Each scenario is searched to the end: every order of what happens, and every place where the faults of its budget
//! can strike. `ZOOLOCK_LONG=1` searches wider. The rules of [`zoolock_core::Rule`] are shown to be needed: without
//! any one of them the model finds what goes wrong.
//!
//! * `tree.rs`, `server.rs`: the service.
//! * `world.rs`: clients and connections; `faults.rs`: what goes wrong with them, and followers that lag.
//! * `ghost.rs`: the observer who knows a violation when it happens; `tenure.rs`: who may be in, who was in alone.
//! * `lock.rs`: what can happen, and what must never be.
//! * `scenario.rs`: how often what goes wrong; `plan.rs`: and for whom.
//! * `kinds.rs`: the searches for all but the mutex, which are here.
//! * `ahead.rs`: the searches among those who look further ahead than they need to.
//! * `namings.rs`: the searches among contenders that are called as others call theirs.
//! * `bugs.rs`: what others do wrong, and that it is found.
//! * `walk.rs`: the same at random, longer and with more of everything.
//!
//! What is not modelled: a refusal for good (ACL, quota), throttling, clients of other makes (whoever
//! is called as they are is still one of ours), and a client that
//! falls back to a server which has not seen what it saw before (ZooKeeper refuses such a connection).

mod ahead;
mod bugs;
mod faults;
mod ghost;
mod kinds;
mod lock;
mod namings;
mod plan;
mod scenario;
mod server;
#[path = "../shared/mod.rs"]
mod shared;
#[path = "../table/mod.rs"]
mod table;
mod tenure;
mod tree;
mod walk;
mod world;

use std::ops::Range;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};
use zoolock_core::{Rule, Rules};

use lock::Lock;
use scenario::{Budget, CHEAP, FAULTS, Fault, Scenario};

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
        Lock(scenario).checker().finish_when(HasDiscoveries::AnyFailures).threads(1).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, {depth} deep, {:.1?}", begun.elapsed());
    for (property, path) in checker.discoveries() {
        if checker.discovery_classification(property).to_string() == "counterexample" {
            panic!("{name}: violated `{property}` by {:?}", path.into_actions());
        }
    }
    assert!(checker.discovery(lock::ALL_OVER).is_some(), "{name}: the search does not get anywhere");
    states
}

/// Searches many small scenarios.
fn nothing_is_found_in(what: &str, scenarios: impl IntoIterator<Item = Scenario>) {
    let begun = Instant::now();
    let states: Vec<usize> = scenarios.into_iter().map(nothing_is_found).collect();
    let total: usize = states.iter().sum();
    println!("== {what}: {} scenarios, {total} states, {:.1?}", states.len(), begun.elapsed());
}

fn pairs(faults: &[Fault]) -> impl Iterator<Item = [Fault; 2]> {
    faults.iter().enumerate().flat_map(|(i, &one)| faults[i..].iter().map(move |&other| [one, other]))
}

fn fault(name: &str) -> Fault {
    FAULTS.into_iter().find(|fault| fault.0 == name).expect("the name of a fault")
}

mod with_all_rules_nothing_is_found {
    use super::*;

    #[test]
    fn when_nothing_goes_wrong() {
        let undisturbed = |clients| Scenario::new(&format!("{clients} contenders"), clients, Budget::NONE);
        let searched =
            [undisturbed(3), undisturbed(4), undisturbed(3).without_directory(), undisturbed(3).rounds(2)];
        nothing_is_found_in("undisturbed", searched);
    }

    #[test]
    fn among_three_with_any_fault() {
        nothing_is_found_in("three, one fault", FAULTS.map(|fault| Scenario::with(3, &[fault])));
    }

    #[test]
    fn among_three_with_two_faults() {
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
        let chosen = chosen.map(|names| names.map(fault)).to_vec();
        let searched = if long() { pairs(&FAULTS).collect() } else { chosen };
        nothing_is_found_in("three, two faults", searched.iter().map(|pair| Scenario::with(3, pair)));
    }

    #[test]
    fn among_two_with_any_two_faults() {
        nothing_is_found_in("two, two faults", pairs(&FAULTS).map(|pair| Scenario::with(2, &pair)));
    }

    #[test]
    fn among_two_who_watch_late_with_any_two_faults() {
        let searched = pairs(&FAULTS).map(|pair| Scenario::with(2, &pair).watching_late());
        nothing_is_found_in("two who watch late, two faults", searched);
    }

    #[test]
    fn among_two_who_come_again_with_any_two_faults() {
        let faults = if long() { &FAULTS[..] } else { &FAULTS[..CHEAP] };
        nothing_is_found_in("two, twice", pairs(faults).map(|pair| Scenario::with(2, &pair).rounds(2)));
    }

    #[test]
    fn when_names_repeat() {
        let searched = [["disconnect", "remove"], ["disconnect", "reap"], ["lapse", "remove"]];
        let mut searched: Vec<_> =
            searched.into_iter().map(|names| Scenario::with(2, &names.map(fault))).collect();
        searched.push(Scenario::with(2, &["disconnect", "lag", "remove"].map(fault)));
        searched.push(Scenario::with(2, &["disconnect", "lag", "reap"].map(fault)));
        searched.push(Scenario::with(2, &["disconnect", "break", "reap"].map(fault)));
        searched.push(Scenario::with(2, &["disconnect", "scribble", "remove"].map(fault)));
        searched.push(Scenario::with(2, &[fault("disconnect")]).rounds(2));
        searched.push(Scenario::with(2, &[fault("disconnect")]).without_directory());
        nothing_is_found_in("names repeat", searched);
    }

    #[test]
    fn when_a_directory_is_a_copy() {
        let mut searched = vec![Scenario::with(3, &[fault("cancel")]).in_a_copy()];
        searched.push(Scenario::with(2, &["cancel", "disconnect"].map(fault)).in_a_copy());
        for clients in [2, 3] {
            let budget = Budget { removals: 1, copies: 1, ..Budget::NONE };
            let name = format!("{clients} contenders, deleted and copied back");
            searched.push(Scenario::new(&name, clients, budget).rounds(if clients == 2 { 3 } else { 1 }));
        }
        nothing_is_found_in("copies", searched);
    }

    #[test]
    fn when_somebody_only_tries() {
        let searched = FAULTS.map(|fault| Scenario::with(2, &[fault]).trying());
        nothing_is_found_in("trying", searched);
    }

    #[test]
    fn at_the_end_of_the_numbers() {
        let polls = if long() { 2 } else { 0 };
        let end = |clients, next, fault: Fault| {
            let mut scenario = Scenario::with(clients, &[fault]).near_the_end(next);
            scenario.budget.negatives = 1;
            scenario.budget.polls = polls;
            scenario
        };
        let mut searched = Vec::new();
        for fault in FAULTS {
            searched.extend([end(2, 1, fault), end(2, 4, fault)]);
        }
        for next in if long() { [1, 2, 4] } else { [0, 1, 2] } {
            searched.push(end(3, next, Fault("nothing else", |_| {})));
        }
        // The first create gets a good number, its reply is lost, that of the second too, and the third is refused.
        let disconnects = Fault("two disconnects", |b| b.disconnects += 2);
        searched.push(Scenario { retire_from: 4, ..end(2, 2, disconnects) });
        nothing_is_found_in("end of the numbers", searched);
    }

    #[test]
    fn on_long_random_walks() {
        let usual = if long() { 0..3_000_000 } else { 0..60_000 };
        let asked = std::env::var("ZOOLOCK_SEED").ok();
        let seeds = asked
            .map_or(usual, |asked| seeds(&asked).expect("ZOOLOCK_SEED is a number, or two with .. between"));
        let shown = seeds.end == seeds.start + 1;
        let begun = Instant::now();
        let steps: usize = seeds.clone().map(|seed| walk::walk(seed, shown)).sum();
        println!("random walks: seeds {seeds:?}, {steps} steps, {:.1?}", begun.elapsed());
    }

    fn seeds(asked: &str) -> Option<Range<u64>> {
        let (first, end) = match asked.split_once("..") {
            Some((first, end)) => (first.parse().ok()?, end.parse().ok()?),
            None => (asked.parse().ok()?, asked.parse::<u64>().ok()? + 1),
        };
        Some(first..end)
    }
}

/// Searches a scenario with and without a rule: the property holds with it and is violated without.
fn is_needed(rule: Rule, property: &'static str, scenario: Scenario) {
    bugs::finds(&format!("{rule:?}"), property, scenario.clone().rules(Rules::without(rule)));
    nothing_is_found(scenario);
}

#[test]
fn without_marker_of_this_directory_the_model_finds_a_violation() {
    // Number 2 waits for 1, which gives up; the record of another directory says that its 1 released the lock.
    let scenario = Scenario::with(3, &[fault("cancel")]).in_a_copy();
    is_needed(Rule::MarkerOfThisDirectory, lock::EXCLUSION, scenario);
}

#[test]
fn without_alone_by_pzxid_the_model_finds_a_violation() {
    // Our node is deleted between our create and our reading; the one child is the holder's.
    is_needed(Rule::AloneByPzxid, lock::EXCLUSION, Scenario::with(2, &[fault("break")]));
}

#[test]
fn without_own_node_after_directory_the_model_finds_a_violation() {
    // Our node is deleted while we wait; then the holder releases, and its marker names us as the next.
    is_needed(Rule::OwnNodeAfterDirectory, lock::EXCLUSION, Scenario::with(2, &[fault("break")]));
}

#[test]
fn without_identity_by_czxid_the_model_finds_a_violation() {
    // Our delete's reply is lost, the directory is reaped, and the name is another's when we look.
    is_needed(Rule::IdentityByCzxid, lock::OWN_ONLY, Scenario::with(2, &["disconnect", "reap"].map(fault)));
}

#[test]
fn without_marker_by_holder_only_the_model_finds_a_violation() {
    // Number 1 gives up and hands the lock to 2, while 0 holds it.
    is_needed(Rule::MarkerByHolderOnly, lock::EXCLUSION, Scenario::with(3, &[fault("cancel")]));
}

#[test]
fn without_release_without_record_the_model_finds_a_violation() {
    // Somebody writes over the record, the release is refused, and the node stays.
    let scenario = || Scenario::with(2, &[fault("scribble")]);
    is_needed(Rule::ReleaseWithoutRecord, lock::NOTHING_LEFT, scenario());
    is_needed(Rule::ReleaseWithoutRecord, lock::PROGRESS, scenario());
}

#[test]
fn without_no_blind_delete_the_model_finds_a_violation() {
    // Our delete's reply is lost, the directory is reaped, and the second delete hits the next owner of the name.
    is_needed(Rule::NoBlindDelete, lock::OWN_ONLY, Scenario::with(2, &["disconnect", "reap"].map(fault)));
}

#[test]
fn without_retire_near_the_end_the_model_finds_a_violation() {
    // A negative number is granted, and then the last number, which is given again, stands before it.
    let scenario = || {
        let mut scenario = Scenario::new("2 contenders, a negative number", 2, Budget::NONE).near_the_end(4);
        scenario.budget.negatives = 1;
        scenario
    };
    is_needed(Rule::RetireNearTheEnd, lock::EXCLUSION, scenario());
    is_needed(Rule::RetireNearTheEnd, lock::ENDS, scenario());
}
