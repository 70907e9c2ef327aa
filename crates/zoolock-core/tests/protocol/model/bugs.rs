//! Bugs of other libraries and of our own drafts, each as a switch: the acquisition's state machine
//! without a rule, or a world whose clients have the bug.
//!
//! `docs/BUGS.md` lists all these bugs, and those of `rules.rs`. `expect_violation` checks that
//! each violation takes as many steps as that file says.

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
    /// A client that gives up while its create is under way does not delete its znode.
    DropsWhoIsJoining,
    /// A client that gives up while it waits does not delete its znode.
    DropsWhoWaits,
    /// A waiter's delete whose reply was lost counts as done.
    CleansUpOnce,
    /// A holder's delete whose reply was lost counts as done.
    ReleasesOnce,
    /// Contenders are compared by their whole names.
    SortsWholeNames,
    /// All clients of a session share one znode.
    OneNodeForASession,
    /// A waiter that gives up leaves a release marker, as a holder does.
    WaiterLeavesMarker,
    /// A writer that becomes a reader gets a new number at the end of the queue.
    DowngradesToTheEnd,
    /// A holder that unwinds from a panic writes that it released.
    UnwindsAsReleased,
    /// The client does not set its watches again after a lost connection.
    ForgetsWatches,
    /// The sequence number is the token.
    TokenIsTheNumber,
    /// A previous holder of which nothing is known is reported as `Clean`.
    UnknownIsClean,
    /// After the end of its session, an acquisition continues in the next session, and does not
    /// report the end.
    GoesOnInTheNextSession,
    /// The release of one acquisition and the create of the next can be sent as one transaction. If
    /// one of the two is refused, the other gets the same error as its own answer.
    OneErrorForBoth,
    /// A session does not look for znodes that no acquisition knows.
    KeepsStrays,
}

impl Bug {
    pub(crate) const ALL: [Bug; 15] = [
        Bug::DropsWhoIsJoining,
        Bug::DropsWhoWaits,
        Bug::CleansUpOnce,
        Bug::ReleasesOnce,
        Bug::SortsWholeNames,
        Bug::OneNodeForASession,
        Bug::WaiterLeavesMarker,
        Bug::DowngradesToTheEnd,
        Bug::UnwindsAsReleased,
        Bug::ForgetsWatches,
        Bug::TokenIsTheNumber,
        Bug::UnknownIsClean,
        Bug::GoesOnInTheNextSession,
        Bug::OneErrorForBoth,
        Bug::KeepsStrays,
    ];
}

fn two(faults: &[&str]) -> Scenario {
    Scenario::mutexes(2).with(faults)
}

/// Searches a scenario with the bug, and checks that a state violates the property. Then searches
/// it without the bug, and checks that no state violates any property.
fn is_caught(bug: Bug, property: &'static str, scenario: Scenario) {
    expect_violation(&format!("{bug:?}"), property, scenario.clone().with_bug(bug));
    expect_no_violation(scenario);
}

// ---- a create whose reply was lost ----

#[test]
fn lost_create_reply_leaves_phantom_znode() {
    is_needed(Rule::SearchAfterLostReply, PROGRESS, two(&["disconnect"]));
}

#[test]
fn search_without_barrier_misses_late_create() {
    is_needed(Rule::CreateBeforeSearch, PROGRESS, two(&["disconnect"]));
}

#[test]
fn curator_498_and_604_znode_of_previous_session() {
    // The client loses the reply to its create, and then its session expires. In the next session,
    // a follower still lists the znode of the expired session.
    let scenario = || two(&["lapse"]).with_bug(Bug::GoesOnInTheNextSession);
    let weakened = scenario().rules(Rules::without(Rule::CreateBeforeSearch));
    expect_violation("GoesOnInTheNextSession", EXCLUSION, weakened);
    // A second create is a barrier, so the search after it shows the outcome of the first.
    expect_no_violation(scenario());
}

#[test]
fn create_arrives_after_the_search() {
    is_caught(Bug::KeepsStrays, NOTHING_LEFT, two(&["disconnect", "retake"]));
}

#[test]
fn refusal_without_the_leader_is_no_barrier() {
    is_needed(Rule::BarrierPassesLeader, NOTHING_LEFT, two(&["disconnect", "deny"]));
}

#[test]
fn release_and_create_share_an_error() {
    // An operator overwrites the record, so the release is refused. The create in the same
    // transaction is refused with it.
    let scenario = Scenario::of(&[Mutex, Next(0)]).with(&["scribble"]).merging();
    is_caught(Bug::OneErrorForBoth, ENDS, scenario);
}

// ---- clean-up ----

#[test]
fn client_crate_leaves_znode_of_cancelled_lock() {
    is_caught(Bug::DropsWhoIsJoining, NOTHING_LEFT, two(&["cancel"]));
}

#[test]
fn curator_600_interrupted_waiter_leaves_znode() {
    is_caught(Bug::DropsWhoWaits, NOTHING_LEFT, two(&["cancel"]));
}

#[test]
fn kazoo_732_failed_clean_up_is_forgotten() {
    is_caught(Bug::CleansUpOnce, NOTHING_LEFT, two(&["cancel", "disconnect"]));
}

#[test]
fn curator_1193_failed_release_is_forgotten() {
    is_caught(Bug::ReleasesOnce, NOTHING_LEFT, two(&["disconnect"]));
    is_caught(Bug::ReleasesOnce, PROGRESS, two(&["disconnect"]));
}

#[test]
fn waiter_that_gives_up_leaves_marker() {
    // Contender 1 gives up, and its marker grants the lock to contender 2, while contender 0 holds
    // it.
    is_caught(Bug::WaiterLeavesMarker, EXCLUSION, Scenario::mutexes(3).with(&["cancel"]));
}

// ---- waiting ----

#[test]
fn write_lock_misses_deleted_predecessor() {
    is_needed(Rule::LookWhenGone, PROGRESS, two(&[]));
}

#[test]
fn predecessor_that_gave_up_counts_as_released() {
    is_needed(Rule::LookAfterWait, EXCLUSION, Scenario::mutexes(3).with(&["cancel"]));
}

#[test]
fn watch_is_lost_with_the_connection() {
    let scenario = two(&["disconnect"]).with_bug(Bug::ForgetsWatches);
    let weakened = scenario.clone().rules(Rules::without(Rule::LookAfterReconnect));
    expect_violation("ForgetsWatches", PROGRESS, weakened.clone());
    expect_violation("LookAfterReconnect", PROGRESS, weakened);
    expect_no_violation(scenario);
}

#[test]
fn etcd_11456_granted_after_own_lease_ended() {
    is_needed(Rule::GrantOnLease, EXCLUSION, two(&["lapse"]));
}

// ---- the order of the queue ----

#[test]
fn zookeeper_2931_whole_names_are_sorted() {
    // A contender with a lower session id queues later. Its name sorts first, so that contender
    // takes itself for the head of the queue.
    let scenario = two(&[]).named(&[WriteLock, WriteLock]);
    is_caught(Bug::SortsWholeNames, EXCLUSION, scenario);
}

#[test]
fn two_handles_share_znode_of_one_session() {
    is_caught(Bug::OneNodeForASession, EXCLUSION, two(&[]));
}

#[test]
fn curator_1138_writer_overtakes_downgraded_reader() {
    let scenario = Scenario::of(&[WriteThenRead, Write]);
    is_caught(Bug::DowngradesToTheEnd, DOWNGRADE, scenario);
}

// ---- what the next holder is told ----

#[test]
fn panicking_holder_is_recorded_as_released() {
    is_caught(Bug::UnwindsAsReleased, CLEAN, two(&["panic"]));
}

#[test]
fn unknown_previous_holder_is_reported_as_clean() {
    // The holder dies, and the directory with its `held` marker is deleted.
    let scenario = two(&["crash", "reap"]).tracking();
    is_caught(Bug::UnknownIsClean, CLEAN, scenario);
}

#[test]
fn sequence_number_is_used_as_fencing_token() {
    let scenario = Scenario::of(&[Mutex, Mutex]).with(&["reap"]);
    is_caught(Bug::TokenIsTheNumber, TOKENS, scenario);
}
