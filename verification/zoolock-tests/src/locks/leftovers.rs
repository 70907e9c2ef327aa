//! Checks at the end of a test that it left no znodes, no watches and no tasks.

use std::time::Duration;

use crate::{Place, tree};
use zoolock::Zoolock;

use super::{directory, until_quiet};

/// Returns the number of background tasks of an idle client: the minimum that was seen within half
/// a second.
pub async fn idle_background_tasks(zl: &Zoolock) -> usize {
    let mut least = zl.background_tasks();
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        least = least.min(zl.background_tasks());
    }
    least
}

/// Waits until the lock has no contender, the server has no watch, and the client has at most `tasks` background tasks.
pub async fn assert_none(place: &Place, zl: &Zoolock, tasks: usize, name: &str) {
    tree::assert_no_contenders(&place.addr(), &directory(place, name)).await;
    place.assert_no_watches().await;
    until_quiet(zl, tasks).await;
}
