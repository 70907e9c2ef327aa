//! Mutexes shared with other client libraries.

use zoolock_tests::on_both_servers;

use crate::clients::Library::{Java, Kazoo, Zoolock};
use crate::interop::contenders::{assert_shared_fairly, role};

on_both_servers!(native_mutexes_share_with_curator, |place| async move {
    assert_shared_fairly(&place, &[role(Zoolock, "mutex@native", 2), role(Java, "curator-mutex", 2)]).await;
});

on_both_servers!(two_namings_share_with_curator, |place| async move {
    let roles =
        [role(Zoolock, "mutex@native", 2), role(Zoolock, "mutex@curator", 2), role(Java, "curator-mutex", 2)];
    assert_shared_fairly(&place, &roles).await;
});

on_both_servers!(native_mutexes_share_with_kazoo_pattern, |place| async move {
    assert_shared_fairly(&place, &[role(Zoolock, "mutex@native+pattern", 2), role(Kazoo, "lock-pattern", 2)])
        .await;
});

on_both_servers!(kazoo_naming_shares_with_kazoo, |place| async move {
    assert_shared_fairly(&place, &[role(Zoolock, "mutex@kazoo", 2), role(Kazoo, "lock", 2)]).await;
});

on_both_servers!(write_lock_naming_shares_with_write_lock, |place| async move {
    assert_shared_fairly(&place, &[role(Zoolock, "mutex@write-lock", 2), role(Java, "write-lock", 2)]).await;
});

on_both_servers!(native_mutexes_share_with_write_lock, |place| async move {
    assert_shared_fairly(&place, &[role(Zoolock, "mutex@native", 2), role(Java, "write-lock", 2)]).await;
});

// LeaderSelector is a mutex at its path, and so is an election.
on_both_servers!(election_shares_with_leader_selector, |place| async move {
    let roles = [
        role(Zoolock, "election@native", 2),
        role(Java, "curator-selector", 2),
        role(Zoolock, "mutex@native", 1),
    ];
    assert_shared_fairly(&place, &roles).await;
});
