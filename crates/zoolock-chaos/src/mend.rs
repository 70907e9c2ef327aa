//! Looks whether the nodes agree, and lets one that does not begin anew.

use std::time::Duration;

use crate::Outcome;
use crate::ensemble::{Ensemble, NODES};
use crate::tree;

/// Looks whether the nodes agree, and lets one that does not begin anew from the leader's data. Says which did.
///
/// ZooKeeper 3.8.0 under load, with a follower that has lost its leader or comes back: seen here, znodes on one node only,
/// after direct questions to each. ZOOKEEPER-4712 and ZOOKEEPER-4785 describe such; which it was is not known. No
/// client can be right there.
pub(crate) async fn mend(ensemble: &mut Ensemble, patience: Duration) -> Outcome<Vec<String>> {
    let nodes: Vec<String> = (0..NODES).map(|node| ensemble.client_addr(node).to_string()).collect();
    let mut diverged = Vec::new();
    for _ in 0..NODES {
        let (odd, path) = match tree::odd_one_out(&nodes).await {
            Ok(None) => break,
            Ok(Some(odd)) => odd,
            Err(error) => {
                eprintln!("not looked whether the nodes agree: {error}");
                break;
            }
        };
        let alone = format!("node {} is alone with its view of {path}", odd + 1);
        eprintln!("     ZooKeeper itself: {alone}; it begins anew");
        diverged.push(alone);
        ensemble.wipe(odd).await?;
        ensemble.whole(patience).await?;
    }
    Ok(diverged)
}
