//! Read/write locks shared with other client libraries.

use zoolock_tests::on_both_servers;

use crate::clients::Library::{Java, NewKazoo, Zoolock};
use crate::interop::contenders::{assert_shared_fairly, role};
use crate::interop::violations::assert_violation;

on_both_servers!(two_namings_share_with_curator, |place| async move {
    let roles = [
        role(Zoolock, "read@native", 1),
        role(Zoolock, "write@native", 1),
        role(Zoolock, "read@curator", 1),
        role(Zoolock, "write@curator", 1),
        role(Java, "curator-read", 1),
        role(Java, "curator-write", 1),
    ];
    assert_shared_fairly(&place, &roles).await;
});

on_both_servers!(kazoo_naming_shares_with_kazoo, |place| async move {
    let roles = [
        role(Zoolock, "read@kazoo", 1),
        role(Zoolock, "write@kazoo", 1),
        role(NewKazoo, "read", 1),
        role(NewKazoo, "write", 1),
    ];
    assert_shared_fairly(&place, &roles).await;
});

// In Curator 5.4, the reader of a downgraded lock is queued behind the writers that already wait.
// So after the downgrade, a waiting writer of any library acquires the lock beside the reader
// (CURATOR-621).
on_both_servers!(downgraded_curator_reader_is_overtaken, |place| async move {
    let roles = [role(Zoolock, "write@native", 2), role(Java, "curator-downgrade-read", 1)];
    assert_violation(&place, &roles, "Shared").await;
});
