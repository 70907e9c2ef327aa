//! The read/write lock.

use zoolock_tests::on_both_arms;

use crate::interop::make::Make::{Java, NewKazoo, Ours};
use crate::interop::queue::{available, prepare, role, share};
use crate::interop::referee::violation;

on_both_arms!(ours_under_two_namings_and_curators, |place| async move {
    let roles = [
        role(Ours, "read@native", 1),
        role(Ours, "write@native", 1),
        role(Ours, "read@curator", 1),
        role(Ours, "write@curator", 1),
        role(Java, "curator-read", 1),
        role(Java, "curator-write", 1),
    ];
    share(&place, "ours_under_two_namings_and_curators", &roles).await;
});

on_both_arms!(ours_named_as_kazoos_and_kazoos, |place| async move {
    let roles = [
        role(Ours, "read@kazoo", 1),
        role(Ours, "write@kazoo", 1),
        role(NewKazoo, "read", 1),
        role(NewKazoo, "write", 1),
    ];
    share(&place, "ours_named_as_kazoos_and_kazoos", &roles).await;
});

// Curator 5.4 lets a writer in that queued before the downgrade (CURATOR-621), of whatever make.
on_both_arms!(a_curator_that_reads_on_after_writing_is_overtaken, |place| async move {
    let roles = [role(Ours, "write@native", 2), role(Java, "curator-downgrade-read", 1)];
    if !available(&roles, "a_curator_that_reads_on_after_writing_is_overtaken", &place) {
        return;
    }
    prepare(&place).await;
    let said = violation(&place, &roles).await;
    assert!(said.contains("violation: ") && said.contains("beside us is "), "{said}");
});
