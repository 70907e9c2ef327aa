//! A model of acquisitions: the product's machines, on servers and connections with every fault.
//!
//! Each scenario is searched to the end: every order of steps, and every point at which a fault of its budget can strike.
//! The rules of [`zoolock_core::Rule`] are shown to be needed: with any one of them switched off, the model finds a
//! violation.
//!
//! The world:
//! * `tree.rs`, `server.rs`: the servers, with any number of lock directories.
//! * `world.rs`: clients and connections. `faults.rs`: faults, and followers.
//! * `ghost.rs`: the observer that recognises a violation. `holds.rs`: which contenders may hold.
//! * `locks.rs`: the steps and the properties.
//! * `scenario.rs`, `plan.rs`: the faults, and what each client acquires.
//!
//! The searches:
//! * `single.rs`: mutexes. `kinds.rs`: all other kinds.
//! * `namings.rs`: contenders with the names of other client libraries. `ahead.rs`: look-ahead.
//! * `several.rs`: several locks at once. `merged.rs`: throttled requests, and releases that are merged with a create.
//! * `rules.rs`, `bugs.rs`: the violations without a rule, and those of clients with a bug.
//! * `walk.rs`: random walks.
//!
//! The model has no permanent refusals (ACL, quota), and no clients of other libraries: a client with their names runs our
//! machine. No client connects to a server that is behind what the client has seen, because ZooKeeper refuses such a
//! connection.

mod ahead;
pub(crate) mod bugs;
mod faults;
mod ghost;
mod holds;
mod kinds;
mod locks;
mod merged;
mod namings;
mod plan;
mod rules;
mod scenario;
mod server;
mod several;
mod shared;
mod single;
mod tree;
mod walk;
mod world;

use std::time::Instant;

use locks::Locks;
use scenario::Scenario;

use crate::search;

/// Searches all of a scenario. Returns the number of states.
fn expect_no_violation(scenario: Scenario) -> usize {
    search::expect_no_violation(&scenario.name.clone(), Locks(scenario))
}

/// Searches many scenarios.
fn expect_no_violation_in(scenarios: impl IntoIterator<Item = Scenario>) {
    let begun = Instant::now();
    let states: Vec<usize> = scenarios.into_iter().map(expect_no_violation).collect();
    let total: usize = states.iter().sum();
    println!("== {} scenarios, {total} states, {:.1?}", states.len(), begun.elapsed());
}

/// Searches for the shortest violation of the property.
fn expect_violation(switch: &str, property: &str, scenario: Scenario) {
    search::expect_violation(switch, &scenario.name.clone(), property, &Locks(scenario));
}
