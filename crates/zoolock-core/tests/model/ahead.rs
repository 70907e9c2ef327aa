//! Those who look ahead, and are granted by the going of the one before them.

use zoolock_core::Rule;

use crate::plan::Plan::{Mutex, Read, Write, WriteThenRead};
use crate::scenario::{Budget, CHEAP, FAULTS, Scenario};
use crate::{fault, is_needed, lock, long, nothing_is_found_in, pairs};

fn ahead(clients: u8, faults: &[&str]) -> Scenario {
    let faults: Vec<_> = faults.iter().map(|name| fault(name)).collect();
    Scenario::with(clients, &faults).looking_ahead()
}

#[test]
fn when_nothing_goes_wrong() {
    let undisturbed =
        |clients| Scenario::new(&format!("{clients} contenders"), clients, Budget::NONE).looking_ahead();
    let searched = [
        undisturbed(2).rounds(2),
        undisturbed(2).rounds(3),
        undisturbed(3),
        undisturbed(4),
        undisturbed(3).rounds(2),
        undisturbed(3).without_directory(),
        undisturbed(3).with_one_that_tracks(),
        undisturbed(3).with_one_that_reads(),
        undisturbed(4).with_one_that_reads(),
        undisturbed(2).rounds(2).with_one_that_reads(),
        undisturbed(3).watching_late(),
        undisturbed(3).kinds(&[Read, Mutex, Mutex]),
        undisturbed(3).kinds(&[Write, Mutex, Mutex]),
        undisturbed(4).kinds(&[WriteThenRead, Mutex, Mutex]),
    ];
    nothing_is_found_in("looking ahead, undisturbed", searched);
}

#[test]
fn among_three_with_any_fault() {
    let faults = FAULTS.map(|fault| Scenario::with(3, &[fault]).looking_ahead());
    let mut searched = faults.to_vec();
    let two_rounds = if long() { &FAULTS[..] } else { &FAULTS[..CHEAP] };
    searched.extend(two_rounds.iter().map(|fault| Scenario::with(2, &[*fault]).rounds(2).looking_ahead()));
    let one_tracks = |fault| Scenario::with(3, &[fault]).with_one_that_tracks().looking_ahead();
    searched.extend(FAULTS[..CHEAP].iter().copied().map(one_tracks));
    let one_reads = |fault| Scenario::with(3, &[fault]).with_one_that_reads().looking_ahead();
    searched.extend(FAULTS[..CHEAP].iter().copied().map(one_reads));
    nothing_is_found_in("looking ahead, three, one fault", searched);
}

#[test]
fn among_two_with_any_two_faults() {
    let faults = pairs(&FAULTS).map(|pair| Scenario::with(2, &pair).looking_ahead());
    nothing_is_found_in("looking ahead, two, two faults", faults);
}

#[test]
fn among_three_when_somebody_writes_over_the_record() {
    let others = ["cancel", "crash", "panic", "break", "scribble"];
    let searched = others.map(|other| ahead(3, &["scribble", other]));
    nothing_is_found_in("looking ahead, three, a record written over", searched);
}

#[test]
fn without_a_word_of_a_holder_that_leaves_no_marker_the_model_finds_a_violation() {
    // Its release is refused since somebody has written over the record, and the next one does not look.
    is_needed(Rule::LeaveAloud, lock::RECORD, ahead(2, &["scribble"]));
}

#[test]
fn without_a_watch_on_the_own_node_the_model_finds_a_violation() {
    // Our node is deleted, and then the one before us releases.
    is_needed(Rule::AheadWithOwnNode, lock::EXCLUSION, ahead(2, &["break"]));
}

#[test]
fn without_proof_the_model_finds_a_violation() {
    // The one before us gives up, and a reader before that one holds.
    let behind_a_reader = ahead(3, &["cancel"]).kinds(&[Read, Mutex, Mutex]);
    is_needed(Rule::AheadByProof, lock::EXCLUSION, behind_a_reader);
}

#[test]
fn without_regard_for_those_who_track_crashes_the_model_finds_a_violation() {
    // It begins without a word behind one that tracks them, and crashes.
    is_needed(Rule::AheadUntracked, lock::CLEAN, ahead(3, &["crash"]).with_one_that_tracks());
}

#[test]
fn without_a_new_start_on_a_new_connection_the_model_finds_a_violation() {
    // Both nodes are gone, and it hears of the other one first.
    is_needed(Rule::AheadOnOneConnection, lock::EXCLUSION, ahead(2, &["disconnect", "break"]));
}
