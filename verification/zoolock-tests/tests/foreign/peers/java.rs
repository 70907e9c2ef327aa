//! Locks of Java clients alone: Curator, and the recipe that comes with ZooKeeper.

use zoolock_tests::{on_both_servers, tree};

use crate::clients::Library::Java;
use crate::interop::contenders::{LOCK, assert_shared_fairly, contend, create_parent, role};

on_both_servers!(curator_mutexes_exclude_each_other, |place| async move {
    // A multi-lock acquires a mutex that only multi-locks use, and then the mutex of the other
    // contenders.
    assert_shared_fairly(&place, &[role(Java, "curator-mutex", 4), role(Java, "curator-multi", 2)]).await;
});

on_both_servers!(curator_readers_and_writers_exclude_each_other, |place| async move {
    assert_shared_fairly(&place, &[role(Java, "curator-read", 4), role(Java, "curator-write", 2)]).await;
});

on_both_servers!(curator_semaphore_keeps_its_size, |place| async move {
    if !Java.or_skip(&place) {
        return;
    }
    create_parent(&place).await;
    let roles = [role(Java, "curator-semaphore:3:1", 4), role(Java, "curator-semaphore:3:2", 1)];
    contend(&place, &roles).await;
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
    for part in ["leases", "locks"] {
        tree::assert_no_contenders(&place.connect_string(), &format!("{LOCK}/{part}")).await;
    }
    place.assert_no_watches().await;
});

on_both_servers!(zookeeper_write_locks_exclude_each_other, |place| async move {
    assert_shared_fairly(&place, &[role(Java, "write-lock", 4)]).await;
});
