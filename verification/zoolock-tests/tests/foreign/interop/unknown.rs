//! Mutexes shared with clients of unknown libraries: every znode whose name ends in a sequence
//! number is a contender.

use zoolock_tests::on_both_servers;

use crate::clients::Library::{Aiozk, Java, Kazoo, Zoolock};
use crate::interop::contenders::{assert_shared_fairly, role};

on_both_servers!(native_mutexes_share_with_aiozk, |place| async move {
    assert_shared_fairly(&place, &[role(Zoolock, "mutex@native", 2), role(Aiozk, "lock", 2)]).await;
});

// In this test, the znode names of aiozk and kazoo have no format that zoolock knows. All libraries order them by their
// sequence numbers.
on_both_servers!(four_libraries_share_one_queue, |place| async move {
    let roles = [
        role(Zoolock, "mutex@native", 2),
        role(Aiozk, "lock-number", 1),
        role(Kazoo, "lock-number", 1),
        role(Java, "curator-mutex", 1),
    ];
    assert_shared_fairly(&place, &roles).await;
});
