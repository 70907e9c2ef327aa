//! Bugs of other libraries, each as a switch: the machine without a rule, or a world whose clients have the bug.
//!
//! `docs/BUGS.md` lists them all, and the bugs of `rules.rs`. The numbers of steps there are checked here.

use zoolock_core::names::Naming::WriteLock;
use zoolock_core::{Rule, Rules};

use super::locks::{CLEAN, DOWNGRADE, ENDS, EXCLUSION, NOTHING_LEFT, PROGRESS, TOKENS};
use super::plan::Plan::{Mutex, Next, Write, WriteThenRead};
use super::rules::is_needed;
use super::scenario::Scenario;
use super::{expect_no_violation, expect_violation};

/// A bug that all clients of a world have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bug {
    /// A client that gives up while its create is under way leaves its znode.
    DropsWhoIsJoining,
    /// A client that gives up while it waits leaves its znode.
    DropsWhoWaits,
    /// A waiter's delete whose reply was lost counts as done.
    CleansUpOnce,
    /// A holder's delete whose reply was lost counts as done.
    ReleasesOnce,
    /// Contenders are compared by their whole names.
    SortsWholeNames,
    /// All clients of a session share one znode.
    OneNodeForASession,
    /// A writer that becomes a reader gets a new number at the end of the queue.
    DowngradesToTheEnd,
    /// A holder that unwinds writes that it released.
    UnwindsAsReleased,
    /// Watches do not survive a lost connection.
    ForgetsWatches,
    /// The sequence number is the token.
    TokenIsTheNumber,
    /// A previous holder of which nothing is known is reported as released.
    UnknownIsClean,
    /// An acquisition goes on after the end of its session in the next one, and does not report the end.
    GoesOnInTheNextSession,
    /// If a release and the next create are refused together, both are told the error of the part that failed.
    OneErrorForBoth,
}

impl Bug {
    pub(crate) const ALL: [Bug; 13] = [
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
        Bug::OneErrorForBoth,
    ];
}

fn two(faults: &[&str]) -> Scenario {
    Scenario::mutexes(2).with(faults)
}

/// Searches a world with the bug, and then the same without.
fn is_caught(bug: Bug, property: &'static str, scenario: Scenario) {
    expect_violation(&format!("{bug:?}"), property, scenario.clone().with_bug(bug));
    expect_no_violation(scenario);
}

// ---- a create whose reply was lost ----

#[test]
fn the_phantom_of_a_lost_reply() {
    is_needed(Rule::SearchAfterLostReply, PROGRESS, two(&["disconnect"]));
}

#[test]
fn no_barrier_before_the_search() {
    is_needed(Rule::CreateBeforeSearch, PROGRESS, two(&["disconnect"]));
}

#[test]
fn curator_498_and_604_the_node_of_the_session_before() {
    // The reply to the create is lost, and the session with it. In the next one a follower still lists the znode.
    let scenario = || two(&["lapse"]).with_bug(Bug::GoesOnInTheNextSession);
    let weakened = scenario().rules(Rules::without(Rule::CreateBeforeSearch));
    expect_violation("GoesOnInTheNextSession", EXCLUSION, weakened);
    // A second create shows the outcome of the first.
    expect_no_violation(scenario());
}

#[test]
fn refusal_without_the_leader_is_no_barrier() {
    is_needed(Rule::BarrierPassesLeader, NOTHING_LEFT, two(&["disconnect", "deny"]));
}

#[test]
fn release_and_create_share_an_error() {
    // An operator writes over the record, so the release is refused, and the create with it.
    let scenario = Scenario::of(&[Mutex, Next(0)]).with(&["scribble"]).merging();
    is_caught(Bug::OneErrorForBoth, ENDS, scenario);
}

// ---- clean-up ----

#[test]
fn the_cancelled_lock_of_the_client_crate() {
    is_caught(Bug::DropsWhoIsJoining, NOTHING_LEFT, two(&["cancel"]));
}

#[test]
fn curator_600_a_waiter_that_is_interrupted_leaves_its_node() {
    is_caught(Bug::DropsWhoWaits, NOTHING_LEFT, two(&["cancel"]));
}

#[test]
fn kazoo_732_a_clean_up_that_fails_is_forgotten() {
    is_caught(Bug::CleansUpOnce, NOTHING_LEFT, two(&["cancel", "disconnect"]));
}

#[test]
fn curator_1193_a_release_that_fails_is_forgotten() {
    is_caught(Bug::ReleasesOnce, NOTHING_LEFT, two(&["disconnect"]));
    is_caught(Bug::ReleasesOnce, PROGRESS, two(&["disconnect"]));
}

// ---- waiting ----

#[test]
fn write_lock_and_the_predecessor_that_vanished() {
    is_needed(Rule::LookWhenGone, PROGRESS, two(&[]));
}

#[test]
fn the_predecessor_that_only_gave_up() {
    is_needed(Rule::LookAfterWait, EXCLUSION, Scenario::mutexes(3).with(&["cancel"]));
}

#[test]
fn a_watch_that_was_lost_with_the_connection() {
    let scenario = two(&["disconnect"]).with_bug(Bug::ForgetsWatches);
    let weakened = scenario.clone().rules(Rules::without(Rule::LookAfterReconnect));
    expect_violation("ForgetsWatches", PROGRESS, weakened.clone());
    expect_violation("LookAfterReconnect", PROGRESS, weakened);
    expect_no_violation(scenario);
}

#[test]
fn etcd_11456_granted_after_its_own_lease_had_gone() {
    is_needed(Rule::GrantOnLease, EXCLUSION, two(&["lapse"]));
}

// ---- the order ----

#[test]
fn zookeeper_2931_whole_names_are_sorted() {
    // A session with a lower id queues later, and takes itself for the head of the queue.
    let scenario = two(&[]).named(&[WriteLock, WriteLock]);
    is_caught(Bug::SortsWholeNames, EXCLUSION, scenario);
}

#[test]
fn two_handles_on_one_session() {
    is_caught(Bug::OneNodeForASession, EXCLUSION, two(&[]));
}

#[test]
fn curator_1138_a_writer_comes_between() {
    let scenario = Scenario::of(&[WriteThenRead, Write]);
    is_caught(Bug::DowngradesToTheEnd, DOWNGRADE, scenario);
}

// ---- what is said ----

#[test]
fn whoever_unwinds_is_said_to_have_released() {
    is_caught(Bug::UnwindsAsReleased, CLEAN, two(&["panic"]));
}

#[test]
fn nothing_known_is_taken_for_a_release() {
    // The holder dies, and the directory with the record of its beginning is deleted.
    let scenario = two(&["crash", "reap"]).tracking();
    is_caught(Bug::UnknownIsClean, CLEAN, scenario);
}

#[test]
fn the_number_in_the_queue_as_the_token() {
    let scenario = Scenario::of(&[Mutex, Mutex]).with(&["reap"]);
    is_caught(Bug::TokenIsTheNumber, TOKENS, scenario);
}
