//! The referee itself: clients that do not see each other are caught.

use std::time::Duration;

use tokio::time::timeout;
use zoolock_tests::{Place, on_both_arms};

use crate::interop::make::Make::{Java, Kazoo, NewKazoo};
use crate::interop::make::Role;
use crate::interop::queue::{available, prepare, reports, role, sections, start};

const BOUND: Duration = Duration::from_secs(40);

/// Lets them go on until the referee has seen something.
async fn caught(place: &Place, name: &str, roles: &[Role], what: &str) {
    if !available(roles, name, place) {
        return;
    }
    prepare(place).await;
    let said = violation(place, roles).await;
    assert!(said.contains("violation: ") && said.contains(what), "{said}");
}

/// What the referee has seen at last.
pub(crate) async fn violation(place: &Place, roles: &[Role]) -> String {
    // Those who do not see each other may also wait for each other, if numbers are the same: then they begin anew.
    for _ in 0..3 {
        if let Some(said) = seen(place, roles, 0).await {
            return said;
        }
    }
    panic!("they were not inside together, and stood still three times");
}

/// What the referee has seen while each contender had so many sections (none: while they went on); `None` where they stand
/// still.
async fn seen(place: &Place, roles: &[Role], sections: usize) -> Option<String> {
    match start(place, roles, sections).await {
        Ok(mut peers) => {
            for peer in &mut peers {
                // One may have been caught before the others begin.
                let _ = peer.tell("go").await;
            }
            let reports = timeout(BOUND, reports(peers)).await.ok()?;
            Some(reports.err().map_or_else(|| "nothing".to_owned(), |failure| failure.to_string()))
        }
        Err(failure) => Some(failure.to_string()),
    }
}

on_both_arms!(two_alone_are_seen, |place| async move {
    let roles = [role(Java, "curator-mutex", 2), role(Kazoo, "lock", 2)];
    caught(&place, "two_alone_are_seen", &roles, "somebody else is alone inside").await;
});

on_both_arms!(a_reader_beside_a_writer_is_seen, |place| async move {
    let roles = [role(Java, "curator-write", 1), role(NewKazoo, "read", 2)];
    caught(&place, "a_reader_beside_a_writer_is_seen", &roles, "beside us is ").await;
});

on_both_arms!(a_permit_too_many_is_seen, |place| async move {
    // kazoo counts Curator's two directories.
    let roles = [role(Java, "curator-semaphore:1:1", 2), role(Kazoo, "semaphore:3", 2)];
    caught(&place, "a_permit_too_many_is_seen", &roles, "permits of 1 are taken").await;
});

on_both_arms!(a_claim_to_more_permits_is_seen, |place| async move {
    let roles = [role(Java, "curator-semaphore:3:1", 3), role(Java, "curator-semaphore:5:1", 2)];
    if !available(&roles, "a_claim_to_more_permits_is_seen", &place) {
        return;
    }
    prepare(&place).await;
    // In no more sections than those have who claim what there is.
    let said = seen(&place, &roles, sections(&roles)).await.expect("they go on");
    assert!(said.contains("violation: ") && said.contains(" permits of 3 are taken"), "{said}");
});
