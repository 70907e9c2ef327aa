//! What a test looks for at its end: nodes, watches, tasks that nobody took away.

use std::time::Duration;

use zoolock::Zoolock;
use zoolock_tests::{Place, tree};

use super::common::{directory, until_quiet};

/// The number of background tasks of a session at rest.
pub(crate) async fn settle(zl: &Zoolock) -> usize {
    let mut least = zl.background_tasks();
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        least = least.min(zl.background_tasks());
    }
    least
}

/// Waits until nobody stands at the lock, nothing is watched, and the background is as quiet as it was.
pub(crate) async fn assert_none(place: &Place, zl: &Zoolock, tasks: usize, name: &str) {
    tree::assert_no_contenders(&place.addr(), &directory(place, name)).await;
    place.server().assert_no_watches().await;
    until_quiet(zl, tasks).await;
}
