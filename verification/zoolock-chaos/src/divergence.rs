//! Checks whether all nodes have the same znodes, and restarts a node that differs.

use std::time::Duration;

use crate::Outcome;
use crate::ensemble::{Ensemble, NODES};
use crate::tree;

/// Checks whether all nodes have the same contenders. Deletes the data of a node that differs, and
/// restarts it, so that it copies the data of the leader. Returns a description of each such node.
///
/// Nodes of ZooKeeper 3.8.0 differed under load when a follower lost its leader or came back: reads from each node
/// found znodes that existed on one node only. ZOOKEEPER-4712 and ZOOKEEPER-4785 describe such bugs, and either may be
/// the cause. No client can work correctly on such an ensemble.
pub(crate) async fn restart_diverged_nodes(
    ensemble: &mut Ensemble,
    patience: Duration,
) -> Outcome<Vec<String>> {
    let nodes: Vec<String> = (0..NODES).map(|node| ensemble.client_addr(node).to_string()).collect();
    let mut diverged = Vec::new();
    for _ in 0..NODES {
        let (odd, path) = match tree::find_diverged_node(&nodes).await {
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
