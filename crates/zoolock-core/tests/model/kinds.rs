//! Readers, writers, permits, and those who say that they have begun.

use zoolock_core::{Record, Rule};

use crate::plan::Plan::{self, Mutex, Permits, Read, Upgradable, Upgrade, Write, WriteThenRead};
use crate::scenario::{Budget, CHEAP, FAULTS, Fault, Scenario};
use crate::{fault, is_needed, lock, long, nothing_is_found_in, pairs};

fn undisturbed(clients: &[Plan]) -> Scenario {
    Scenario::new(", undisturbed", 0, Budget::NONE).kinds(clients)
}

fn with(clients: &[Plan], faults: &[&str]) -> Scenario {
    with_faults(clients, &faults.iter().map(|name| fault(name)).collect::<Vec<_>>())
}

fn with_faults(clients: &[Plan], faults: &[Fault]) -> Scenario {
    Scenario::with(0, faults).kinds(clients)
}

/// Each of them with each fault.
fn each<'a>(clients: &'a [&'a [Plan]], faults: &'a [Fault]) -> impl Iterator<Item = Scenario> + 'a {
    clients.iter().flat_map(move |clients| faults.iter().map(move |fault| with_faults(clients, &[*fault])))
}

/// What three can be searched with in a minute.
fn affordable() -> &'static [Fault] {
    if long() { &FAULTS } else { &FAULTS[..CHEAP] }
}

fn permits(take: u32) -> Plan {
    Permits { take, size: 2 }
}

fn resized(clients: &[Plan], faults: &[&str]) -> Scenario {
    let mut scenario = with(clients, faults).of_size(2);
    scenario.budget.resizes += 1;
    scenario.name += ", resized";
    scenario
}

#[test]
fn readers_and_writers_when_nothing_goes_wrong() {
    let searched = [
        undisturbed(&[Read, Write, Read]),
        undisturbed(&[Read, Read, Write]),
        undisturbed(&[Read, WriteThenRead, Write]),
        undisturbed(&[WriteThenRead, WriteThenRead]).rounds(2),
        undisturbed(&[Mutex, Read, Write]),
        undisturbed(&[Upgradable, Upgradable, Read]),
        undisturbed(&[Upgradable, Read, Write]),
        undisturbed(&[Read, Read, Write]).without_directory(),
        undisturbed(&[Read, Write]).rounds(2),
    ];
    nothing_is_found_in("readers and writers, undisturbed", searched);
}

#[test]
fn readers_and_writers_with_any_fault() {
    let three: [&[Plan]; 1] = [&[Read, Write, Read]];
    let two: [&[Plan]; 2] = [&[WriteThenRead, Write], &[Upgradable, Read]];
    let searched = each(&three, affordable()).chain(each(&two, &FAULTS));
    nothing_is_found_in("readers and writers, one fault", searched);
}

#[test]
fn those_who_upgrade() {
    let mut searched = vec![
        undisturbed(&[Read, Upgrade(0), Read, Upgrade(2)]),
        undisturbed(&[Upgradable, Upgrade(0), Read, Upgrade(2)]),
        undisturbed(&[Upgradable, Upgrade(0), Upgradable]),
        undisturbed(&[Read, Upgrade(0), Write]),
        undisturbed(&[WriteThenRead, Upgrade(0), Write]),
        undisturbed(&[Upgradable, Upgrade(0), Read, Write]),
    ];
    searched.extend(each(&[&[Read, Upgrade(0), Read], &[Read, Upgrade(0), Write]], affordable()));
    if long() {
        searched.push(with(&[Read, Upgrade(0), Write, Read], &["cancel"]));
    }
    nothing_is_found_in("those who upgrade", searched);
}

#[test]
fn semaphores() {
    let one_each = [permits(1), permits(1), permits(1)];
    let (few, many) = ([permits(1), permits(2)], [permits(1), permits(1), permits(2)]);
    let mut searched = vec![
        undisturbed(&one_each),
        undisturbed(&many).of_size(2),
        undisturbed(&few).rounds(2),
        undisturbed(&few).without_directory(),
        resized(&few, &[]),
        resized(&one_each, &[]),
        undisturbed(&[permits(1), Mutex]),
        undisturbed(&[permits(1), Read]),
    ];
    searched.extend(each(&[&few], &FAULTS));
    nothing_is_found_in("semaphores", searched);
}

#[test]
fn those_who_say_that_they_have_begun() {
    let clients: [&[Plan]; 3] = [&[Mutex, Mutex], &[WriteThenRead, Read], &[Write, Read]];
    let mut searched: Vec<_> = each(&clients, &FAULTS).map(Scenario::tracking).collect();
    searched.extend(each(&clients[..2], &FAULTS).map(|scenario| scenario.tracking().delaying()));
    if long() {
        searched.push(with(&[Read, Upgrade(0), Write], &["cancel", "disconnect"]).tracking());
    }
    nothing_is_found_in("tracking crashes", searched);
}

#[test]
fn among_two_of_other_kinds_with_any_two_faults() {
    let kinds: [&[Plan]; 5] = [
        &[Upgradable, Read],
        &[Read, Upgrade(0)],
        &[Write, Read],
        &[permits(1), permits(2)],
        &[WriteThenRead, Write],
    ];
    let (kinds, faults) = if long() { (&kinds[..], &FAULTS[..]) } else { (&kinds[..3], &FAULTS[..CHEAP]) };
    let searched = kinds.iter().flat_map(|kinds| pairs(faults).map(|pair| with_faults(kinds, &pair)));
    nothing_is_found_in("two of other kinds, two faults", searched);
}

#[test]
fn when_names_of_other_kinds_repeat() {
    let kinds: [&[Plan]; 3] = [&[WriteThenRead, Write], &[Read, Upgrade(0), Read], &[permits(1), permits(2)]];
    let faults =
        [["disconnect", "remove"], ["disconnect", "reap"], ["disconnect", "break"], ["lapse", "remove"]];
    let faults = if long() { &faults[..] } else { &faults[..2] };
    let kinds = if long() { &kinds[..] } else { &kinds[..1] };
    let searched = kinds.iter().flat_map(|kinds| faults.iter().map(move |pair| with(kinds, pair)));
    nothing_is_found_in("names repeat", searched);
}

#[test]
fn without_readers_leave_no_marker_the_model_finds_a_violation() {
    // Two read; the one right before the writer leaves first, and its marker names the writer as the next.
    is_needed(Rule::ReadersLeaveNoMarker, lock::EXCLUSION, undisturbed(&[Read, Read, Write]));
}

#[test]
fn without_grant_is_told_the_model_finds_a_violation() {
    is_needed(Rule::GrantIsTold, lock::PROMPT, undisturbed(&[permits(1), permits(1), permits(2)]));
}

#[test]
fn without_size_of_that_moment_the_model_finds_a_violation() {
    // Listed as one that does not fit; deleted; and then the semaphore is made larger, as large as we think that it is.
    let searched = resized(&[permits(2), Permits { take: 1, size: 3 }], &["break"]);
    is_needed(Rule::SizeOfThatMoment, lock::EXCLUSION, searched);
}

#[test]
fn without_downgrade_in_place_the_model_finds_a_violation() {
    // The directory is made again, and there another writer has the number of the one that becomes a reader.
    let searched = with(&[WriteThenRead, Mutex, Write], &["remove"]);
    let directory = Some((Record::Empty, 1));
    is_needed(Rule::DowngradeInPlace, lock::DOWNGRADE, Scenario { directory, ..searched });
}

#[test]
fn without_held_with_own_node_the_model_finds_a_violation() {
    is_needed(Rule::HeldWithOwnNode, lock::CRASHED, with(&[Mutex, Mutex, Mutex], &["break"]).tracking());
}

#[test]
fn without_crashed_after_deletion_the_model_finds_a_violation() {
    // The reader looks again after a lost reply: the writer has begun, says the record; it releases; it is not listed.
    is_needed(Rule::CrashedAfterDeletion, lock::CRASHED, with(&[Mutex, Read], &["disconnect"]).tracking());
}

#[test]
fn without_undo_what_is_there_the_model_finds_a_violation() {
    // The reader is gone, and the writer between the two has begun; then the upgrade takes back its beginning.
    let searched = with(&[Read, Upgrade(0), Write], &["cancel"]).tracking();
    is_needed(Rule::UndoWhatIsThere, lock::TAKEN_BACK, searched);
}
