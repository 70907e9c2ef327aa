//! Each rule is needed: with the rule a search finds no violation, and without it the search finds one.

use zoolock_core::{Rule, Rules};

use super::locks::{
    CLEAN, CRASHED, DOWNGRADE, ENDS, EXCLUSION, NOTHING_LEFT, OWN_ONLY, PROGRESS, PROMPT, RECORD, TAKEN_BACK,
};
use super::plan::Plan::{Mutex, Next, Permits, Read, Upgrade, Write, WriteThenRead};
use super::scenario::Scenario;
use super::{expect_no_violation, expect_violation};

/// Searches a scenario without a rule, and then with it.
pub(crate) fn is_needed(rule: Rule, property: &str, scenario: Scenario) {
    expect_violation(&format!("{rule:?}"), property, scenario.clone().rules(Rules::without(rule)));
    expect_no_violation(scenario);
}

fn two(faults: &[&str]) -> Scenario {
    Scenario::mutexes(2).with(faults)
}

fn three(faults: &[&str]) -> Scenario {
    Scenario::mutexes(3).with(faults)
}

fn crossed(faults: &[&str]) -> Scenario {
    Scenario::over(&[&[0, 1], &[1, 0]]).with(faults)
}

fn beside_one(faults: &[&str]) -> Scenario {
    Scenario::over(&[&[0, 1], &[1]]).with(faults)
}

#[test]
fn marker_of_this_directory() {
    // Number 2 waits for 1, which gives up. The record was copied from another directory, and says that number 1 there
    // released the lock.
    is_needed(Rule::MarkerOfThisDirectory, EXCLUSION, three(&["cancel"]).in_a_copy());
}

#[test]
fn alone_by_pzxid() {
    // Our znode is deleted between our create and our read. The one child is the holder's.
    is_needed(Rule::AloneByPzxid, EXCLUSION, two(&["break"]));
}

#[test]
fn own_node_after_directory() {
    // Our znode is deleted while we wait. Then the holder releases, and its marker names us as the next.
    is_needed(Rule::OwnNodeAfterDirectory, EXCLUSION, two(&["break"]));
}

#[test]
fn identity_by_czxid() {
    // The reply to our delete is lost, and the directory is reaped. When we read, the name is another contender's.
    is_needed(Rule::IdentityByCzxid, OWN_ONLY, two(&["disconnect", "reap"]));
}

#[test]
fn release_without_record() {
    // An operator overwrites the record. So the release is refused, and the znode stays.
    is_needed(Rule::ReleaseWithoutRecord, NOTHING_LEFT, two(&["scribble"]));
    is_needed(Rule::ReleaseWithoutRecord, PROGRESS, two(&["scribble"]));
}

#[test]
fn no_blind_delete() {
    // The reply to our delete is lost, and the directory is reaped. The second delete hits the next owner of the name.
    is_needed(Rule::NoBlindDelete, OWN_ONLY, two(&["disconnect", "reap"]));
}

#[test]
fn retire_near_the_end() {
    // A contender with a negative number is granted. Then a create gets the last number again, which sorts before the
    // negative one.
    let scenario = || two(&["negative number"]).near_the_end(4, 4);
    is_needed(Rule::RetireNearTheEnd, EXCLUSION, scenario());
    is_needed(Rule::RetireNearTheEnd, ENDS, scenario());
}

// ---- look-ahead ----

#[test]
fn leave_aloud() {
    // An operator overwrites the record, so the release is refused. The successor does not read that record.
    is_needed(Rule::LeaveAloud, RECORD, two(&["scribble"]).looking_ahead());
}

#[test]
fn ahead_with_own_node() {
    // Our znode is deleted, and then the predecessor releases.
    is_needed(Rule::AheadWithOwnNode, EXCLUSION, two(&["break"]).looking_ahead());
}

#[test]
fn ahead_by_proof() {
    // The predecessor gives up, and a reader before it holds.
    let behind_a_reader = three(&["cancel"]).plans(&[Read, Mutex, Mutex]);
    is_needed(Rule::AheadByProof, EXCLUSION, behind_a_reader.looking_ahead());
}

#[test]
fn ahead_untracked() {
    // A waiter behind a contender that tracks crashes is granted, writes no `held` marker, and dies.
    is_needed(Rule::AheadUntracked, CLEAN, three(&["crash"]).looking_ahead().with_one_that_tracks());
}

#[test]
fn ahead_on_one_connection() {
    // Both znodes are deleted, and the waiter receives the event of the predecessor's first.
    is_needed(Rule::AheadOnOneConnection, EXCLUSION, two(&["disconnect", "break"]).looking_ahead());
}

// ---- other kinds, tracked crashes ----

#[test]
fn readers_leave_no_marker() {
    // Two readers hold. The one directly before the writer releases first, and its marker names the writer as the next.
    is_needed(Rule::ReadersLeaveNoMarker, EXCLUSION, Scenario::of(&[Read, Read, Write]));
}

#[test]
fn grant_is_told() {
    let permits = [1, 1, 2].map(|take| Permits { take, size: 2 });
    is_needed(Rule::GrantIsTold, PROMPT, Scenario::of(&permits));
}

#[test]
fn size_of_that_moment() {
    // When the contender's permit does not fit, its znode is listed and then deleted. Then the semaphore grows to the size
    // that the contender asked for.
    let permits = [Permits { take: 2, size: 2 }, Permits { take: 1, size: 3 }];
    let scenario = Scenario::of(&permits).of_size(2).with(&["break", "resize"]);
    is_needed(Rule::SizeOfThatMoment, EXCLUSION, scenario);
}

#[test]
fn downgrade_in_place() {
    // The directory is created again. There another writer has the number of the writer that becomes a reader.
    let scenario = Scenario::of(&[WriteThenRead, Mutex, Write]).with(&["remove"]).numbered(1);
    is_needed(Rule::DowngradeInPlace, DOWNGRADE, scenario);
}

#[test]
fn held_with_own_node() {
    is_needed(Rule::HeldWithOwnNode, CRASHED, three(&["break"]).tracking());
}

#[test]
fn crashed_after_deletion() {
    // The reader reads again after a lost reply. The record has the writer's `held` marker. Then the writer releases, and
    // the later listing does not show it.
    let scenario = Scenario::of(&[Mutex, Read]).with(&["disconnect"]).tracking();
    is_needed(Rule::CrashedAfterDeletion, CRASHED, scenario);
}

#[test]
fn undo_what_is_there() {
    // The reader's znode is deleted, and the writer queued between reader and upgrade writes its `held` marker. Then the
    // upgrade gives up, and restores the record from before its own marker.
    let scenario = Scenario::of(&[Read, Upgrade(0), Write]).with(&["cancel"]).tracking();
    is_needed(Rule::UndoWhatIsThere, TAKEN_BACK, scenario);
}

// ---- several locks ----

#[test]
fn verify_all() {
    // The multi-lock is the head of one queue, and the watch on its znode there is lost with the connection. The znode is
    // deleted during the wait for the other lock.
    is_needed(Rule::VerifyAll, EXCLUSION, beside_one(&["disconnect", "break"]));
    // A reader becomes the head of its second queue between its first reads. Before that, its first directory is deleted.
    is_needed(Rule::VerifyAll, EXCLUSION, beside_one(&["remove"]).plans(&[Read, Mutex]));
}

#[test]
fn begin_together() {
    // The multi-lock is the head of one queue, waits in another one and dies. The third client queues when the second one
    // releases.
    let scenario = Scenario::over(&[&[0, 1], &[1], &[0]]).plans(&[Mutex, Mutex, Next(1)]);
    is_needed(Rule::BeginTogether, CRASHED, scenario.with(&["crash"]).tracking());
}

#[test]
fn read_after_wait() {
    // An operator deletes the directory of a waiter, and it is created again. When the waiter gives up, its name belongs to
    // another contender.
    let faults = &["remove", "cancel"];
    let one = Scenario::of(&[Mutex, Mutex, Next(0)]).with(faults).numbered(1);
    is_needed(Rule::ReadAfterWait, OWN_ONLY, one);
    // The multi-lock is the head of one queue, and waits in the other. The directory of the first queue is deleted.
    let several = Scenario::over(&[&[0, 1], &[1], &[0]]).plans(&[Mutex, Mutex, Next(1)]);
    is_needed(Rule::ReadAfterWait, OWN_ONLY, several.with(faults).watching_late());
}

#[test]
fn release_the_rest() {
    // One znode is deleted, or one record overwritten, while the release is under way.
    for fault in ["break", "scribble"] {
        is_needed(Rule::ReleaseTheRest, NOTHING_LEFT, crossed(&[fault]));
        is_needed(Rule::ReleaseTheRest, PROGRESS, beside_one(&[fault]));
    }
}

#[test]
fn wait_for_older() {
    // A directory is created again before number 1 has read. Number 1 takes the new 0 for its predecessor, and the new 0
    // waits for it in the other queue.
    is_needed(Rule::WaitForOlder, PROGRESS, crossed(&["remove"]).numbered(1));
}
