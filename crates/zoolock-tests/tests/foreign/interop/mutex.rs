//! The mutex.

use zoolock_tests::on_both_arms;

use crate::interop::make::Make::{Java, Kazoo, Ours};
use crate::interop::queue::{role, share};

on_both_arms!(ours_and_curators, |place| async move {
    let roles = [role(Ours, "mutex@native", 2), role(Java, "curator-mutex", 2)];
    share(&place, "ours_and_curators", &roles).await;
});

on_both_arms!(ours_under_two_namings_and_curators, |place| async move {
    let roles =
        [role(Ours, "mutex@native", 2), role(Ours, "mutex@curator", 2), role(Java, "curator-mutex", 2)];
    share(&place, "ours_under_two_namings_and_curators", &roles).await;
});

on_both_arms!(ours_and_kazoos_with_the_pattern, |place| async move {
    let roles = [role(Ours, "mutex@native+pattern", 2), role(Kazoo, "lock-pattern", 2)];
    share(&place, "ours_and_kazoos_with_the_pattern", &roles).await;
});

on_both_arms!(ours_named_as_kazoos_and_kazoos, |place| async move {
    let roles = [role(Ours, "mutex@kazoo", 2), role(Kazoo, "lock", 2)];
    share(&place, "ours_named_as_kazoos_and_kazoos", &roles).await;
});

on_both_arms!(ours_named_as_write_locks_and_write_locks, |place| async move {
    let roles = [role(Ours, "mutex@write-lock", 2), role(Java, "write-lock", 2)];
    share(&place, "ours_named_as_write_locks_and_write_locks", &roles).await;
});

on_both_arms!(ours_and_write_locks, |place| async move {
    let roles = [role(Ours, "mutex@native", 2), role(Java, "write-lock", 2)];
    share(&place, "ours_and_write_locks", &roles).await;
});
