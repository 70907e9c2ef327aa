//! Reads the znodes of the locks, and attacks them as an operator or an intruder could.
//!
//! The connections of this module bypass the links that the drills break.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use zookeeper_client::{Client, Error};
use zoolock_tests::TestFailure;
use zoolock_tests::raw_client::{self, SessionTicket, password_on_apache};
use zoolock_tests::tree::children;

use crate::Outcome;

/// The root of the locks.
pub(crate) const ROOT: &str = "/locks";
const PATIENCE: Duration = Duration::from_secs(10);

/// A contender's znode.
#[derive(Clone, Debug)]
pub(crate) struct ContenderZnode {
    pub(crate) path: String,
    pub(crate) czxid: i64,
    pub(crate) session: i64,
}

/// Opens a session with one of the servers.
pub(crate) async fn connect(addresses: &str) -> Outcome<Client> {
    Ok(timeout(PATIENCE, zoolock_tests::tree::connect(addresses)).await??)
}

/// Returns the znodes of all contenders after a `sync` with the leader.
pub(crate) async fn contenders(client: &Client) -> Outcome<Vec<ContenderZnode>> {
    client.sync(ROOT).await?;
    let mut found = Vec::new();
    for lock in children(client, ROOT).await? {
        let lock = format!("{ROOT}/{lock}");
        let paths: Vec<String> =
            children(client, &lock).await?.into_iter().map(|name| format!("{lock}/{name}")).collect();
        // The requests are in flight together, because contenders change quickly.
        let asked: Vec<_> = paths.iter().map(|path| client.check_stat(path)).collect();
        for (path, stat) in paths.iter().zip(asked) {
            // Persistent znodes are markers, not contenders.
            if let Some(stat) = stat.await?
                && stat.ephemeral_owner > 0
            {
                let (path, czxid, session) = (path.clone(), stat.czxid, stat.ephemeral_owner);
                found.push(ContenderZnode { path, czxid, session });
            }
        }
    }
    Ok(found)
}

/// Returns the server whose tree differs from those of the two others, with a path that differs. All servers must run.
pub(crate) async fn find_diverged_node(nodes: &[String]) -> Outcome<Option<(usize, String)>> {
    let mut clients = Vec::new();
    let mut paths = BTreeSet::new();
    for node in nodes {
        let client = connect(node).await?;
        paths.extend(contenders(&client).await?.into_iter().map(|contender| contender.path));
        clients.push(client);
    }
    for path in paths {
        let mut seen = Vec::new();
        // A difference that a change of contenders causes does not last for eight reads.
        for _ in 0..8 {
            seen.clear();
            for client in &clients {
                // Both requests are sent at once. A server answers in the order of the requests, so
                // the stat is read after the sync.
                let (sync, stat) = (client.sync(ROOT), client.check_stat(&path));
                sync.await?;
                seen.push(stat.await?.map(|stat| stat.czxid));
            }
            if seen.windows(2).all(|two| two[0] == two[1]) {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        let alone = |one: &usize| seen.iter().filter(|other| **other == seen[*one]).count() == 1;
        let odd: Vec<usize> = (0..seen.len()).filter(alone).collect();
        if let [odd] = odd[..] {
            return Ok(Some((odd, path)));
        }
    }
    Ok(None)
}

/// Deletes a lock directory and its children. Repeats the deletion for at most two seconds, because
/// contenders create these znodes again.
pub(crate) async fn delete_lock_directory(client: &Client, lock: &str) -> Outcome<()> {
    let path = format!("{ROOT}/{lock}");
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        for name in children(client, &path).await? {
            match client.delete(&format!("{path}/{name}"), None).await {
                Ok(()) | Err(Error::NoNode | Error::NotEmpty) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match client.delete(&path, None).await {
            Err(Error::NotEmpty) => {}
            Ok(()) | Err(Error::NoNode) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    // The contenders create znodes faster than this loop deletes them. Each contender has lost its
    // znode many times, so the fault has had its effect.
    Ok(())
}

/// Attaches to a session of another client on Apache ZooKeeper, where the password of a session
/// follows from its id. Then closes the session if `close` is true, and otherwise keeps the
/// connection for a second.
pub(crate) async fn take_over(node: SocketAddr, session: i64, close: bool) -> Outcome<()> {
    let ticket = SessionTicket { session, password: password_on_apache(session) };
    let attack = async {
        let taken = raw_client::RawClient::attach_session(node, 8_000, 0, &ticket)
            .await
            .map_err(TestFailure::from)?;
        let Some(mut client) = taken.filter(|client| client.ticket.session == session) else {
            return Err("the session had ended before it was taken over".into());
        };
        if close {
            client.close().await.map_err(TestFailure::from)?;
        } else {
            sleep(Duration::from_secs(1)).await;
        }
        Outcome::Ok(())
    };
    timeout(PATIENCE, attack).await?
}
