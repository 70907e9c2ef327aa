//! The semaphore.

use zoolock_tests::on_both_arms;

use crate::interop::make::Make::{Java, Kazoo, Ours};
use crate::interop::queue::{role, share};

on_both_arms!(ours_named_as_curators_and_curators, |place| async move {
    // Of Curator's one alone takes two: they take one after the other, and could each wait for the other's.
    let roles = [
        role(Ours, "semaphore:3:1@curator-semaphore", 2),
        role(Ours, "semaphore:3:2@curator-semaphore", 1),
        role(Java, "curator-semaphore:3:1", 2),
        role(Java, "curator-semaphore:3:2", 1),
    ];
    share(&place, "ours_named_as_curators_and_curators", &roles).await;
});

on_both_arms!(ours_named_as_kazoos_and_kazoos, |place| async move {
    let roles = [
        role(Ours, "semaphore:2:1@kazoo", 2),
        role(Ours, "semaphore:2:2@kazoo", 1),
        role(Kazoo, "semaphore:2", 2),
    ];
    share(&place, "ours_named_as_kazoos_and_kazoos", &roles).await;
});
