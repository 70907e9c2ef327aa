//! A model of acquisitions. Each client runs the library's state machine. The servers, the
//! connections and their faults are simulated.
//!
//! A scenario says how often each fault strikes. Its search visits every order of steps, and lets
//! each fault strike at every point where it can. The tests also show that every rule of
//! [`zoolock_core::Rule`] is needed: if one rule is switched off, a search finds a violation.
//!
//! The world:
//! * `tree.rs`, `server.rs`: the servers, with any number of lock directories.
//! * `world.rs`: clients and connections. `faults.rs`: faults, and followers.
//! * `ghost.rs`: records the history of each client, and recognises violations. `holds.rs`: records
//!   the exclusive holds, and checks which contenders hold together.
//! * `locks.rs`: the steps and the properties.
//! * `scenario.rs`, `plan.rs`: the faults, and the lock that each client acquires.
//!
//! The searches:
//! * `single.rs`: mutexes. `kinds.rs`: all other kinds.
//! * `namings.rs`: contenders with the names of other client libraries. `ahead.rs`: look-ahead.
//! * `claim.rs`: callers that do not take their grants.
//! * `several.rs`: several locks at once. `merged.rs`: throttled requests, and releases that are merged with a create.
//! * `rules.rs`, `bugs.rs`: searches that must find a violation, because a rule is switched off or
//!   all clients have a bug.
//! * `walk.rs`: random walks.
//!
//! In the model the leader never refuses a request because of an ACL or a quota. Only the connected
//! server does that, and only for a create. The model has no clients of other libraries: a client
//! with the names of such a library runs our machine. No client connects to a server whose last
//! zxid is below the last zxid that the client has received, because ZooKeeper refuses such a
//! connection.

mod ahead;
pub(crate) mod bugs;
mod claim;
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

/// Searches all states of a scenario, and checks that no state violates a property. Returns the
/// number of states.
fn expect_no_violation(scenario: Scenario) -> usize {
    search::expect_no_violation(&scenario.name.clone(), Locks(scenario))
}

/// Searches all states of each scenario, and checks that no state violates a property. Prints the
/// number of states and the time.
fn expect_no_violation_in(scenarios: impl IntoIterator<Item = Scenario>) {
    let begun = Instant::now();
    let states: Vec<usize> = scenarios.into_iter().map(expect_no_violation).collect();
    let total: usize = states.iter().sum();
    println!("== {} scenarios, {total} states, {:.1?}", states.len(), begun.elapsed());
}

/// Searches for the shortest violation of the property, and checks its length against
/// `docs/BUGS.md`. `switch`: the name of the rule or bug in that file.
fn expect_violation(switch: &str, property: &str, scenario: Scenario) {
    search::expect_violation(switch, &scenario.name.clone(), property, &Locks(scenario));
}
