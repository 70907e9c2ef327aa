//! Reads the tree through a separate session that sets no watches.

use std::time::Duration;

use zookeeper_client::{Client, Error, Stat};

use crate::wait::retry_until_ok;
use crate::{Result, TestFailure};

/// Time limit for the deletion of the znodes that a test no longer needs.
const BOUND: Duration = Duration::from_secs(15);

/// The `ephemeralOwner` that ZooKeeper gives to containers.
const CONTAINER: i64 = i64::MIN;

/// Opens a session of the plain ZooKeeper client.
///
/// # Errors
/// Fails if the server does not answer within the session timeout.
pub async fn connect(addr: &str) -> Result<Client> {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(10));
    connector
        .connect(addr)
        .await
        .map_err(|error| TestFailure::during(format_args!("connecting to {addr}"), error))
}

/// Lists all znodes below `path`, sorted, without `/zookeeper`. The list is empty if `path` does not exist.
///
/// # Errors
/// Fails if the server does not answer.
pub async fn descendants(addr: &str, path: &str) -> Result<Vec<String>> {
    let client = connect(addr).await?;
    Ok(list_with_stats(&client, path).await?.into_iter().map(|(path, _)| path).collect())
}

/// Lists the ephemeral znodes of all sessions below `path`, sorted.
///
/// # Errors
/// Fails if the server does not answer.
pub async fn ephemerals(addr: &str, path: &str) -> Result<Vec<String>> {
    let client = connect(addr).await?;
    list_ephemerals(&client, path).await
}

/// Waits until lock directory `dir` is empty or deleted.
///
/// # Panics
/// Panics if the directory still has a contender after 15 s.
pub async fn assert_no_contenders(addr: &str, dir: &str) {
    assert_contenders(addr, dir, 0).await;
}

/// Waits until lock directory `dir` has exactly `count` znodes.
///
/// # Panics
/// Panics if the directory has another number of znodes after 15 s.
pub async fn assert_contenders(addr: &str, dir: &str, count: usize) {
    let checked = async {
        let client = connect(addr).await?;
        let check = async || match children(&client, dir).await? {
            found if found.len() == count => Ok(()),
            found => Err(TestFailure::new(format!("it has {}: {}", found.len(), found.join(", ")))),
        };
        retry_until_ok(&format!("{count} contenders in {dir}"), BOUND, check).await
    };
    if let Err(failure) = checked.await {
        panic!("{failure}");
    }
}

/// Waits until no ephemeral znode of any session exists below `path`.
///
/// # Panics
/// Panics if an ephemeral znode still exists after 15 s.
pub async fn assert_no_ephemerals(addr: &str, path: &str) {
    let checked = async {
        let client = connect(addr).await?;
        let check = async || match list_ephemerals(&client, path).await?.as_slice() {
            [] => Ok(()),
            left => Err(TestFailure::new(format!("{} left below {path}: {}", left.len(), left.join(", ")))),
        };
        retry_until_ok("every ephemeral znode is deleted", BOUND, check).await
    };
    if let Err(failure) = checked.await {
        panic!("{failure}");
    }
}

async fn list_ephemerals(client: &Client, path: &str) -> Result<Vec<String>> {
    let znodes = list_with_stats(client, path).await?;
    Ok(znodes.into_iter().filter(|(_, stat)| is_ephemeral(stat)).map(|(path, _)| path).collect())
}

async fn list_with_stats(client: &Client, path: &str) -> Result<Vec<(String, Stat)>> {
    let mut found = Vec::new();
    let mut unlisted = vec![path.to_owned()];
    while let Some(parent) = unlisted.pop() {
        for name in children(client, &parent).await? {
            let child = format!("{}/{name}", parent.trim_end_matches('/'));
            if child == "/zookeeper" {
                continue;
            }
            let stat = client.check_stat(&child).await.map_err(|error| TestFailure::during(&child, error))?;
            // Without a stat, the znode was deleted after it was listed.
            let Some(stat) = stat else { continue };
            unlisted.push(child.clone());
            found.push((child, stat));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Lists the children of a znode, sorted. The list is empty if the znode does not exist.
///
/// # Errors
/// Fails if the server does not answer.
pub async fn children(client: &Client, path: &str) -> Result<Vec<String>> {
    match client.list_children(path).await {
        Ok(mut children) => {
            children.sort();
            Ok(children)
        }
        Err(Error::NoNode) => Ok(Vec::new()),
        Err(error) => Err(TestFailure::during(format_args!("listing {path}"), error)),
    }
}

/// Returns whether a znode is ephemeral.
///
/// The `ephemeralOwner` of a container, or of a znode with a time to live, is no session id. For a
/// znode with a time to live, its highest byte is 0xFF.
fn is_ephemeral(stat: &Stat) -> bool {
    let owner = stat.ephemeral_owner;
    owner != 0 && owner != CONTAINER && owner >> 56 != -1
}
