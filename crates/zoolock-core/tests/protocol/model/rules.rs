//! Tests that each rule is needed: with the rule a search finds no violation, and without the rule
//! the search finds one.

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
    // Contender 2 waits for contender 1, which gives up. The record was copied from another
    // directory, and says that number 1 released the lock there. So contender 2 is granted, while
    // contender 0 holds.
    is_needed(Rule::MarkerOfThisDirectory, EXCLUSION, three(&["cancel"]).in_a_copy());
}

#[test]
fn alone_by_pzxid() {
    // A contender's znode is deleted between the contender's create and its read of the directory.
    // The only child then is the holder's znode, and the contender takes it for its own.
    is_needed(Rule::AloneByPzxid, EXCLUSION, two(&["break"]));
}

#[test]
fn own_node_after_directory() {
    // A waiter's znode is deleted. Then its predecessor, the holder, releases, and the release
    // marker grants the lock to that waiter.
    is_needed(Rule::OwnNodeAfterDirectory, EXCLUSION, two(&["break"]));
}

#[test]
fn identity_by_czxid() {
    // The reply to a delete is lost, and the empty directory is deleted and created again. When the
    // contender reads its znode, the name belongs to another contender's znode. The contender
    // deletes that znode.
    is_needed(Rule::IdentityByCzxid, OWN_ONLY, two(&["disconnect", "reap"]));
}

#[test]
fn claim_in_time() {
    is_needed(Rule::ClaimInTime, PROGRESS, two(&["forget"]));
}

#[test]
fn release_without_record() {
    // An operator overwrites the record. So the release is refused, and the znode stays.
    is_needed(Rule::ReleaseWithoutRecord, NOTHING_LEFT, two(&["scribble"]));
    is_needed(Rule::ReleaseWithoutRecord, PROGRESS, two(&["scribble"]));
}

#[test]
fn no_blind_delete() {
    // The reply to a delete is lost, and the empty directory is deleted and created again. A second
    // delete hits another contender's znode of the same name.
    is_needed(Rule::NoBlindDelete, OWN_ONLY, two(&["disconnect", "reap"]));
}

#[test]
fn retire_near_the_end() {
    // A contender with a negative number is granted. Then a create gets the last number, which
    // sorts before the negative number. So the contender of that create is granted, too.
    let scenario = || two(&["negative number"]).near_the_end(4, 4);
    is_needed(Rule::RetireNearTheEnd, EXCLUSION, scenario());
    is_needed(Rule::RetireNearTheEnd, ENDS, scenario());
}

// ---- look-ahead ----

#[test]
fn leave_aloud() {
    // An operator overwrites the record, so the release is refused. The successor does not read
    // that record, and overwrites it.
    is_needed(Rule::LeaveAloud, RECORD, two(&["scribble"]).looking_ahead());
}

#[test]
fn ahead_with_own_node() {
    // The waiter's znode is deleted. Then the predecessor releases, and the deletion of its znode
    // grants the lock to the waiter.
    is_needed(Rule::AheadWithOwnNode, EXCLUSION, two(&["break"]).looking_ahead());
}

#[test]
fn ahead_by_proof() {
    // The predecessor gives up, while a reader before it holds. The waiter takes the deletion of
    // the predecessor's znode for its grant.
    let behind_a_reader = three(&["cancel"]).plans(&[Read, Mutex, Mutex]);
    is_needed(Rule::AheadByProof, EXCLUSION, behind_a_reader.looking_ahead());
}

#[test]
fn ahead_untracked() {
    // A waiter behind a contender that tracks crashes is granted, writes no `held` marker, and
    // dies. The next holder finds the older release marker, and reports `Clean`.
    is_needed(Rule::AheadUntracked, CLEAN, three(&["crash"]).looking_ahead().with_one_that_tracks());
}

#[test]
fn ahead_on_one_connection() {
    // The znodes of the predecessor and of the waiter are deleted. After a reconnect, the waiter
    // receives the event of the predecessor's znode first.
    is_needed(Rule::AheadOnOneConnection, EXCLUSION, two(&["disconnect", "break"]).looking_ahead());
}

// ---- other kinds, tracked crashes ----

#[test]
fn readers_leave_no_marker() {
    // Two readers hold, and a writer waits. The reader directly before the writer releases first,
    // and its marker grants the lock to the writer.
    is_needed(Rule::ReadersLeaveNoMarker, EXCLUSION, Scenario::of(&[Read, Read, Write]));
}

#[test]
fn grant_is_told() {
    let permits = [1, 1, 2].map(|take| Permits { take, size: 2 });
    is_needed(Rule::GrantIsTold, PROMPT, Scenario::of(&permits));
}

#[test]
fn size_of_that_moment() {
    // The second contender lists the queue, and its permit does not fit. Then its znode is deleted,
    // and the semaphore grows to the size that the contender asked for. The contender reads this
    // size after the listing, and is granted.
    let permits = [Permits { take: 2, size: 2 }, Permits { take: 1, size: 3 }];
    let scenario = Scenario::of(&permits).of_size(2).with(&["break", "resize"]);
    is_needed(Rule::SizeOfThatMoment, EXCLUSION, scenario);
}

#[test]
fn downgrade_in_place() {
    // The directory is deleted and created again. In the new directory another writer has the
    // sequence number of the writer that becomes a reader. The downgrade replaces that other
    // writer's znode.
    let scenario = Scenario::of(&[WriteThenRead, Mutex, Write]).with(&["remove"]).numbered(1);
    is_needed(Rule::DowngradeInPlace, DOWNGRADE, scenario);
}

#[test]
fn held_with_own_node() {
    is_needed(Rule::HeldWithOwnNode, CRASHED, three(&["break"]).tracking());
}

#[test]
fn crashed_after_deletion() {
    // The reader reads again after a lost reply. The record has the holder's `held` marker. Then
    // the holder releases, and the later listing does not show the holder's znode. So the reader
    // takes the release for a crash.
    let scenario = Scenario::of(&[Mutex, Read]).with(&["disconnect"]).tracking();
    is_needed(Rule::CrashedAfterDeletion, CRASHED, scenario);
}

#[test]
fn undo_what_is_there() {
    // The upgrade gives up. Before its clean-up is carried out, the reader releases, and the writer
    // that is queued between the reader and the upgrade writes its `held` marker. Then the clean-up
    // restores the record from before the upgrade's own marker, and so overwrites the writer's
    // marker.
    let scenario = Scenario::of(&[Read, Upgrade(0), Write]).with(&["cancel"]).tracking();
    is_needed(Rule::UndoWhatIsThere, TAKEN_BACK, scenario);
}

// ---- several locks ----

#[test]
fn verify_all() {
    // The multi-lock is the head of one queue, and the watch on its znode there is lost with the
    // connection. That znode is deleted during the wait for the other lock.
    is_needed(Rule::VerifyAll, EXCLUSION, beside_one(&["disconnect", "break"]));
    // A reader of two locks reads its first queue, and is the head there. The first directory is
    // deleted, and then the reader becomes the head of its second queue. Only after that does the
    // reader read the second queue. So there was no moment at which it was the head of both.
    is_needed(Rule::VerifyAll, EXCLUSION, beside_one(&["remove"]).plans(&[Read, Mutex]));
}

#[test]
fn begin_together() {
    // The multi-lock is the head of one queue, waits in another queue, and dies. The third client
    // queues when the second client releases. It finds the multi-lock's `held` marker, and takes
    // the multi-lock for a holder that crashed.
    let scenario = Scenario::over(&[&[0, 1], &[1], &[0]]).plans(&[Mutex, Mutex, Next(1)]);
    is_needed(Rule::BeginTogether, CRASHED, scenario.with(&["crash"]).tracking());
}

#[test]
fn read_after_wait() {
    // An operator deletes the directory of a waiter, and the directory is created again. When the
    // waiter gives up, the name of its znode belongs to another contender's znode.
    let faults = &["remove", "cancel"];
    let one = Scenario::of(&[Mutex, Mutex, Next(0)]).with(faults).numbered(1);
    is_needed(Rule::ReadAfterWait, OWN_ONLY, one);
    // The multi-lock is the head of one queue, and waits in the other. The directory of the first
    // queue is deleted and created again. When the multi-lock gives up, the name of its znode there
    // belongs to another contender's znode.
    let several = Scenario::over(&[&[0, 1], &[1], &[0]]).plans(&[Mutex, Mutex, Next(1)]);
    is_needed(Rule::ReadAfterWait, OWN_ONLY, several.with(faults).watching_late());
}

#[test]
fn release_the_rest() {
    // One znode is deleted, or one record overwritten, while the release is under way. So the
    // server refuses the transaction that releases both locks.
    for fault in ["break", "scribble"] {
        is_needed(Rule::ReleaseTheRest, NOTHING_LEFT, crossed(&[fault]));
        is_needed(Rule::ReleaseTheRest, PROGRESS, beside_one(&[fault]));
    }
}

#[test]
fn wait_for_older() {
    // A directory is deleted and created again before contender 1 has read it. Contender 1 takes
    // the znode with number 0 in the new directory for its predecessor. The contender with that
    // znode waits for contender 1 in the other queue.
    is_needed(Rule::WaitForOlder, PROGRESS, crossed(&["remove"]).numbered(1));
}
