//! Searches with contenders that have the names of other client libraries. Such contenders list the
//! queue to find their predecessor.

use zoolock_core::names::Naming::{self, Curator, Kazoo, Native, WriteLock};

use super::expect_no_violation_in;
use super::plan::Plan::{self, Mutex, Read, Upgradable, Upgrade, Write, WriteThenRead};
use super::scenario::{CHEAP, FAULTS, Scenario};
use crate::long;

fn named(plans: &[Plan], namings: &[Naming]) -> Scenario {
    Scenario::of(plans).named(namings)
}

#[test]
fn without_faults() {
    expect_no_violation_in([
        named(&[Mutex, Mutex, Mutex], &[Native, Curator, WriteLock]),
        named(&[Mutex, Mutex, Mutex], &[Curator, Curator, Native]),
        named(&[Mutex, Read, Write], &[Kazoo, Kazoo, Kazoo]),
        named(&[Read, Write, Read], &[Native, Curator, Curator]),
        named(&[WriteThenRead, WriteThenRead], &[Curator, Native]).rounds(2),
        named(&[WriteThenRead, Read], &[Kazoo, Kazoo]).rounds(2),
        named(&[Read, Upgrade(0), Read], &[Curator, Curator, Native]),
        named(&[Read, Upgrade(0), Write], &[Kazoo, Kazoo, Kazoo]),
        named(&[Mutex, Mutex], &[WriteLock, Curator]).without_directory().rounds(2),
        // In the next two scenarios, contenders of different families do not see each other's
        // znodes. The later contender must be refused, because otherwise both would hold.
        named(&[Mutex, Mutex, Mutex], &[Curator, Kazoo, Native]),
        named(&[Upgradable, Write], &[Native, Curator]),
    ]);
}

#[test]
fn any_fault() {
    let kinds: [(&[Plan], &[Naming]); 4] = [
        (&[Mutex, Mutex], &[Curator, Native]),
        (&[Mutex, Mutex], &[WriteLock, WriteLock]),
        (&[WriteThenRead, Read], &[Curator, Curator]),
        (&[Read, Upgrade(0), Write], &[Kazoo, Kazoo, Kazoo]),
    ];
    let faults = if long() { &FAULTS[..] } else { &FAULTS[..CHEAP] };
    let searched = kinds
        .iter()
        .flat_map(|(plans, namings)| faults.iter().map(move |fault| named(plans, namings).with(&[fault])));
    let tracking = |fault: &&str| named(&[Mutex, Mutex], &[Curator, Native]).with(&[fault]).tracking();
    expect_no_violation_in(searched.chain(FAULTS.iter().map(tracking)));
}
