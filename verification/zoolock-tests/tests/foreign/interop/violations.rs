//! Violations that the judge must find.

use std::time::Duration;

use tokio::time::timeout;
use zoolock_tests::{Place, on_both_servers};

use crate::clients::Library::{Java, Kazoo, NewKazoo};
use crate::interop::contenders::{
    Role, available, create_parent, role, run, run_until_violation, sections_each,
};

/// Lets the contenders run until the judge finds a violation that contains `expected`.
pub(crate) async fn assert_violation(place: &Place, roles: &[Role], expected: &str) {
    if !available(roles, place) {
        return;
    }
    create_parent(place).await;
    let found = run_until_violation(place, roles).await;
    assert!(found.contains("violation: ") && found.contains(expected), "{found}");
}

on_both_servers!(two_exclusive_holders_are_found, |place| async move {
    let roles = [role(Java, "curator-mutex", 2), role(Kazoo, "lock", 2)];
    assert_violation(&place, &roles, "share Exclusive beside").await;
});

on_both_servers!(reader_beside_writer_is_found, |place| async move {
    let roles = [role(Java, "curator-write", 1), role(NewKazoo, "read", 2)];
    assert_violation(&place, &roles, "Shared").await;
});

on_both_servers!(excess_permit_is_found, |place| async move {
    // kazoo counts Curator's two directories (`leases` and `locks`) as two of its three leases.
    let roles = [role(Java, "curator-semaphore:1:1", 2), role(Kazoo, "semaphore:3", 2)];
    assert_violation(&place, &roles, "size: 1 } beside").await;
});

on_both_servers!(excess_permit_of_larger_semaphore_is_found, |place| async move {
    let roles = [role(Java, "curator-semaphore:3:1", 3), role(Java, "curator-semaphore:5:1", 2)];
    if !available(&roles, &place) {
        return;
    }
    create_parent(&place).await;
    // In some runs, by chance, the contenders of the larger semaphore never use its two extra
    // permits.
    for _ in 0..5 {
        let ended = timeout(Duration::from_secs(60), run(&place, &roles, Some(sections_each(&roles)))).await;
        if let Err(found) = ended.expect("the contenders make progress") {
            let found = found.to_string();
            assert!(found.contains("violation: ") && found.contains("size: 3 } beside"), "{found}");
            return;
        }
    }
    panic!("the judge found no excess permit");
});
