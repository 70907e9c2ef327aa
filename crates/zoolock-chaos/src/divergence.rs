//! Checks whether the nodes agree, and restarts a node that does not.

use std::time::Duration;

use crate::Outcome;
use crate::ensemble::{Ensemble, NODES};
use crate::tree;

/// Checks whether the nodes agree. Restarts a node that does not, without data, so that it copies the leader's.
/// Returns a description of each such node.
///
/// Observed with ZooKeeper 3.8.0 under load, when a follower lost its leader or came back: znodes existed on one node
/// only. Direct questions to each node showed this. ZOOKEEPER-4712 and ZOOKEEPER-4785 describe such bugs; which one
/// it was is not known. No client can be right there.
pub(crate) async fn restart_diverged_nodes(
    ensemble: &mut Ensemble,
    patience: Duration,
) -> Outcome<Vec<String>> {
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
        let difference = format!("node {} differs from the others at {path}", odd + 1);
        eprintln!("     ZooKeeper itself: {difference}; it restarts without data");
        diverged.push(difference);
        ensemble.wipe(odd).await?;
        ensemble.wait_until_whole(patience).await?;
    }
    Ok(diverged)
}
