//! Looks at the tree from outside, through a session of its own that watches nothing.

use std::time::Duration;

use zookeeper_client::{Client, Error, Stat};

use crate::wait::eventually;
use crate::{Failure, Result};

/// How long what was let go may take to be gone.
const BOUND: Duration = Duration::from_secs(15);

/// ZooKeeper marks containers in the field that names the owner of an ephemeral node.
const CONTAINER: i64 = i64::MIN;

/// Opens a session of the plain client, whose own errors say what happened.
///
/// # Errors
/// When the server does not answer within the session timeout.
pub async fn connect(addr: &str) -> Result<Client> {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(10));
    connector
        .connect(addr)
        .await
        .map_err(|error| Failure::during(format_args!("connecting to {addr}"), error))
}

/// Lists all nodes below `path`, sorted; empty where `path` is missing. `/zookeeper` is left out.
///
/// # Errors
/// When the server cannot be asked.
pub async fn descendants(addr: &str, path: &str) -> Result<Vec<String>> {
    let client = connect(addr).await?;
    Ok(walk(&client, path).await?.into_iter().map(|(path, _)| path).collect())
}

/// Lists the ephemeral nodes below `path`, of every session, sorted.
///
/// # Errors
/// When the server cannot be asked.
pub async fn ephemerals(addr: &str, path: &str) -> Result<Vec<String>> {
    let client = connect(addr).await?;
    living(&client, path).await
}

/// Waits until lock directory `dir` is empty or gone.
///
/// # Panics
/// When somebody is still there after 15 s.
pub async fn assert_no_contenders(addr: &str, dir: &str) {
    assert_contenders(addr, dir, 0).await;
}

/// Waits until exactly `count` nodes stand in lock directory `dir`.
///
/// # Panics
/// When that is not so after 15 s.
pub async fn assert_contenders(addr: &str, dir: &str, count: usize) {
    let looked = async {
        let client = connect(addr).await?;
        let look = async || match children(&client, dir).await? {
            found if found.len() == count => Ok(()),
            found => Err(Failure::new(format!("{} in {dir}: {}", found.len(), found.join(", ")))),
        };
        eventually(&format!("{count} contenders are there"), BOUND, look).await
    };
    if let Err(failure) = looked.await {
        panic!("{failure}");
    }
}

/// Waits until no ephemeral node of any session is left below `path`.
///
/// # Panics
/// When one is still there after 15 s.
pub async fn assert_no_ephemerals(addr: &str, path: &str) {
    let looked = async {
        let client = connect(addr).await?;
        let look = async || match living(&client, path).await?.as_slice() {
            [] => Ok(()),
            left => Err(Failure::new(format!("{} left below {path}: {}", left.len(), left.join(", ")))),
        };
        eventually("every ephemeral node goes", BOUND, look).await
    };
    if let Err(failure) = looked.await {
        panic!("{failure}");
    }
}

async fn living(client: &Client, path: &str) -> Result<Vec<String>> {
    let nodes = walk(client, path).await?;
    Ok(nodes.into_iter().filter(|(_, stat)| is_ephemeral(stat)).map(|(path, _)| path).collect())
}

async fn walk(client: &Client, path: &str) -> Result<Vec<(String, Stat)>> {
    let mut found = Vec::new();
    let mut unseen = vec![path.to_owned()];
    while let Some(parent) = unseen.pop() {
        for name in children(client, &parent).await? {
            let child = format!("{}/{name}", parent.trim_end_matches('/'));
            if child == "/zookeeper" {
                continue;
            }
            let stat = client.check_stat(&child).await.map_err(|error| Failure::during(&child, error))?;
            // Gone between the two looks.
            let Some(stat) = stat else { continue };
            unseen.push(child.clone());
            found.push((child, stat));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

async fn children(client: &Client, path: &str) -> Result<Vec<String>> {
    match client.list_children(path).await {
        Ok(mut children) => {
            children.sort();
            Ok(children)
        }
        Err(Error::NoNode) => Ok(Vec::new()),
        Err(error) => Err(Failure::during(format_args!("listing {path}"), error)),
    }
}

/// Containers and, by their highest byte, nodes with a time to live have no owner.
fn is_ephemeral(stat: &Stat) -> bool {
    let owner = stat.ephemeral_owner;
    owner != 0 && owner != CONTAINER && owner >> 56 != -1
}
