//! Contenders that are called as clients of other makes call theirs, and so list where others compute.

use zoolock_core::names::Naming::{self, Curator, Kazoo, Native, WriteLock};

use crate::plan::Plan::{self, Mutex, Read, Upgradable, Upgrade, Write, WriteThenRead};
use crate::scenario::{Budget, CHEAP, FAULTS, Fault, Scenario};
use crate::{long, nothing_is_found_in};

fn undisturbed(clients: &[Plan], namings: &[Naming]) -> Scenario {
    Scenario::new(", undisturbed", 0, Budget::NONE).kinds(clients).named(namings)
}

fn with(clients: &[Plan], namings: &[Naming], fault: Fault) -> Scenario {
    Scenario::with(0, &[fault]).kinds(clients).named(namings)
}

#[test]
fn when_nothing_goes_wrong() {
    let searched = [
        undisturbed(&[Mutex, Mutex, Mutex], &[Native, Curator, WriteLock]),
        undisturbed(&[Mutex, Mutex, Mutex], &[Curator, Curator, Native]),
        undisturbed(&[Mutex, Read, Write], &[Kazoo, Kazoo, Kazoo]),
        undisturbed(&[Read, Write, Read], &[Native, Curator, Curator]),
        undisturbed(&[WriteThenRead, WriteThenRead], &[Curator, Native]).rounds(2),
        undisturbed(&[WriteThenRead, Read], &[Kazoo, Kazoo]).rounds(2),
        undisturbed(&[Read, Upgrade(0), Read], &[Curator, Curator, Native]),
        undisturbed(&[Read, Upgrade(0), Write], &[Kazoo, Kazoo, Kazoo]),
        undisturbed(&[Mutex, Mutex], &[WriteLock, Curator]).without_directory().rounds(2),
        // Those who do not see each other: whoever comes later is refused, or they would both be in.
        undisturbed(&[Mutex, Mutex, Mutex], &[Curator, Kazoo, Native]),
        undisturbed(&[Upgradable, Write], &[Native, Curator]),
    ];
    nothing_is_found_in("namings, undisturbed", searched);
}

#[test]
fn with_any_fault() {
    let kinds: [(&[Plan], &[Naming]); 4] = [
        (&[Mutex, Mutex], &[Curator, Native]),
        (&[Mutex, Mutex], &[WriteLock, WriteLock]),
        (&[WriteThenRead, Read], &[Curator, Curator]),
        (&[Read, Upgrade(0), Write], &[Kazoo, Kazoo, Kazoo]),
    ];
    let faults = if long() { &FAULTS[..] } else { &FAULTS[..CHEAP] };
    let searched = kinds
        .iter()
        .flat_map(|(plans, namings)| faults.iter().map(move |fault| with(plans, namings, *fault)));
    let mut searched: Vec<_> = searched.collect();
    searched.extend(FAULTS.map(|fault| with(&[Mutex, Mutex], &[Curator, Native], fault).tracking()));
    nothing_is_found_in("namings, one fault", searched);
}
