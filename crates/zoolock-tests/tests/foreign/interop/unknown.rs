//! Mutexes shared with clients of unknown libraries: every znode whose name ends in a sequence
//! number is a contender.

use zoolock_tests::on_both_arms;

use crate::clients::Library::{Aiozk, Java, Kazoo, Zoolock};
use crate::interop::contenders::{role, share};

on_both_arms!(native_mutexes_share_with_aiozk, |place| async move {
    share(&place, &[role(Zoolock, "mutex@native", 2), role(Aiozk, "lock", 2)]).await;
});

// In this test, the znode names of aiozk and kazoo have no format that zoolock knows. All libraries order them by their
// sequence numbers.
on_both_arms!(four_libraries_share_one_queue, |place| async move {
    let roles = [
        role(Zoolock, "mutex@native", 2),
        role(Aiozk, "lock-number", 1),
        role(Kazoo, "lock-number", 1),
        role(Java, "curator-mutex", 1),
    ];
    share(&place, &roles).await;
});
