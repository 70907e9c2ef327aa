//! Bugs of others, each as a switch: the machine without a rule, or a world whose clients do what theirs do.
//!
//! `docs/BUGS.md` lists them all, with those that are only rules; what it says is checked here.

use zoolock_core::names::Naming::WriteLock;
use zoolock_core::{Rule, Rules};

use crate::lock::{self, Lock};
use crate::plan::Plan::{Mutex, Write, WriteThenRead};
use crate::scenario::{Budget, Scenario};
use crate::{fault, is_needed, nothing_is_found, table};

/// What clients do in a world with a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bug {
    /// Nobody cleans up after one that gives up while its create is under way.
    DropsWhoIsJoining,
    /// Nobody cleans up after one that gives up while it waits.
    DropsWhoWaits,
    /// A delete whose reply was lost counts as done, where it cleans up after a waiter.
    CleansUpOnce,
    /// The same where a holder releases.
    ReleasesOnce,
    /// Contenders are compared by their whole names.
    SortsWholeNames,
    /// All of a session share one node.
    OneNodeForASession,
    /// A writer that becomes a reader gets a number of its own.
    DowngradesToTheEnd,
    /// Whoever unwinds releases as if nothing had happened.
    UnwindsAsReleased,
    /// Watches do not survive a lost connection.
    ForgetsWatches,
    /// The number in the queue is the token.
    TokenIsTheNumber,
    /// Where nothing is known of the holder before, it is said to have released.
    UnknownIsClean,
    /// An acquisition whose session is over goes on in the next one, and tells nobody.
    GoesOnInTheNextSession,
}

impl Bug {
    pub(crate) const ALL: [Bug; 12] = [
        Bug::DropsWhoIsJoining,
        Bug::DropsWhoWaits,
        Bug::CleansUpOnce,
        Bug::ReleasesOnce,
        Bug::SortsWholeNames,
        Bug::OneNodeForASession,
        Bug::DowngradesToTheEnd,
        Bug::UnwindsAsReleased,
        Bug::ForgetsWatches,
        Bug::TokenIsTheNumber,
        Bug::UnknownIsClean,
        Bug::GoesOnInTheNextSession,
    ];
}

fn two(faults: &[&str]) -> Scenario {
    Scenario::with(2, &faults.iter().map(|name| fault(name)).collect::<Vec<_>>())
}

/// Searches a world with the bug, and then the same without.
fn is_caught(bug: Bug, property: &'static str, scenario: Scenario) {
    finds(&format!("{bug:?}"), property, scenario.clone().with_bug(bug));
    nothing_is_found(scenario);
}

/// Searches until the property is violated, in as few steps as it takes.
pub(crate) fn finds(switch: &str, property: &'static str, scenario: Scenario) {
    let name = scenario.name.clone();
    let found = table::shortest(&Lock(scenario), property);
    let found = found.unwrap_or_else(|| panic!("{name}: nothing is found without {switch}"));
    let (steps, states) = (found.steps, found.states);
    println!("{switch}, {name}: violated `{property}` by {} steps, {states} states", steps.len());
    println!("  {steps:?}");
    table::check_steps(switch, steps.len());
}

#[test]
fn every_rule_and_every_bug_is_listed() {
    let rules = Rule::ALL.iter().map(|rule| format!("{rule:?}"));
    table::lists(rules.chain(Bug::ALL.iter().map(|bug| format!("{bug:?}"))));
}

#[test]
fn whatever_is_listed_is_there() {
    table::names_tests_that_exist("model", Some("bugs::"));
}

// ---- a create whose reply was lost ----

#[test]
fn the_phantom_of_a_lost_reply() {
    is_needed(Rule::SearchAfterLostReply, lock::PROGRESS, two(&["disconnect"]));
}

#[test]
fn no_barrier_before_the_search() {
    is_needed(Rule::CreateBeforeSearch, lock::PROGRESS, two(&["disconnect"]));
}

#[test]
fn curator_498_and_604_the_node_of_the_session_before() {
    // The reply to the create is lost, and the session with it. In the next one a follower still lists the node.
    let scenario = || two(&["lapse"]).with_bug(Bug::GoesOnInTheNextSession);
    let weakened = scenario().rules(Rules::without(Rule::CreateBeforeSearch));
    finds("GoesOnInTheNextSession", lock::EXCLUSION, weakened);
    // Whoever creates again first sees what has become of the first.
    nothing_is_found(scenario());
}

// ---- clean-up ----

#[test]
fn the_cancelled_lock_of_the_client_crate() {
    is_caught(Bug::DropsWhoIsJoining, lock::NOTHING_LEFT, two(&["cancel"]));
}

#[test]
fn curator_600_a_waiter_that_is_interrupted_leaves_its_node() {
    is_caught(Bug::DropsWhoWaits, lock::NOTHING_LEFT, two(&["cancel"]));
}

#[test]
fn kazoo_732_a_clean_up_that_fails_is_forgotten() {
    is_caught(Bug::CleansUpOnce, lock::NOTHING_LEFT, two(&["cancel", "disconnect"]));
}

#[test]
fn curator_1193_a_release_that_fails_is_forgotten() {
    is_caught(Bug::ReleasesOnce, lock::NOTHING_LEFT, two(&["disconnect"]));
    is_caught(Bug::ReleasesOnce, lock::PROGRESS, two(&["disconnect"]));
}

// ---- waiting ----

#[test]
fn write_lock_and_the_predecessor_that_vanished() {
    is_needed(Rule::LookWhenGone, lock::PROGRESS, two(&[]));
}

#[test]
fn the_predecessor_that_only_gave_up() {
    is_needed(Rule::LookAfterWait, lock::EXCLUSION, Scenario::with(3, &[fault("cancel")]));
}

#[test]
fn a_watch_that_was_lost_with_the_connection() {
    let scenario = two(&["disconnect"]).with_bug(Bug::ForgetsWatches);
    let weakened = scenario.clone().rules(Rules::without(Rule::LookAfterReconnect));
    finds("ForgetsWatches", lock::PROGRESS, weakened.clone());
    finds("LookAfterReconnect", lock::PROGRESS, weakened);
    nothing_is_found(scenario);
}

#[test]
fn etcd_11456_granted_after_its_own_lease_had_gone() {
    is_needed(Rule::GrantOnLease, lock::EXCLUSION, two(&["lapse"]));
}

// ---- the order ----

#[test]
fn zookeeper_2931_whole_names_are_sorted() {
    // A session with a lower number comes later, and takes itself for the first.
    let scenario = two(&[]).named(&[WriteLock, WriteLock]);
    is_caught(Bug::SortsWholeNames, lock::EXCLUSION, scenario);
}

#[test]
fn two_handles_on_one_session() {
    is_caught(Bug::OneNodeForASession, lock::EXCLUSION, two(&[]));
}

#[test]
fn curator_1138_a_writer_comes_between() {
    let scenario = Scenario::new(", undisturbed", 0, Budget::NONE).kinds(&[WriteThenRead, Write]);
    is_caught(Bug::DowngradesToTheEnd, lock::DOWNGRADE, scenario);
}

// ---- what is said ----

#[test]
fn whoever_unwinds_is_said_to_have_released() {
    is_caught(Bug::UnwindsAsReleased, lock::CLEAN, two(&["panic"]));
}

#[test]
fn nothing_known_is_taken_for_a_release() {
    // The holder dies, and the directory with the record of its beginning goes.
    let scenario = two(&["crash", "reap"]).tracking();
    is_caught(Bug::UnknownIsClean, lock::CLEAN, scenario);
}

#[test]
fn the_number_in_the_queue_as_the_token() {
    let scenario = Scenario::with(0, &[fault("reap")]).kinds(&[Mutex, Mutex]);
    is_caught(Bug::TokenIsTheNumber, lock::TOKENS, scenario);
}
