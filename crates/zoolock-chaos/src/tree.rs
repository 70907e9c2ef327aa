//! Looks at the lock nodes past all links, and does to them what an operator or an intruder may do.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use zookeeper_client::{Client, Error};
use zoolock_tests::Failure;
use zoolock_tests::raw_client::{self, Ticket, password_on_apache};

use crate::Outcome;

/// Where the locks are.
pub(crate) const ROOT: &str = "/locks";
const PATIENCE: Duration = Duration::from_secs(10);

/// A node of a contender.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) path: String,
    pub(crate) czxid: i64,
    pub(crate) session: i64,
}

/// Opens a session with whoever serves.
pub(crate) async fn connect(addresses: &str) -> Outcome<Client> {
    let connecting = Client::connector().with_session_timeout(PATIENCE).connect(addresses);
    Ok(timeout(PATIENCE, connecting).await??)
}

/// All nodes of contenders, as the leader knows them now.
pub(crate) async fn contenders(client: &Client) -> Outcome<Vec<Contender>> {
    client.sync(ROOT).await?;
    let mut found = Vec::new();
    for lock in children(client, ROOT).await? {
        let lock = format!("{ROOT}/{lock}");
        let paths: Vec<String> =
            children(client, &lock).await?.into_iter().map(|name| format!("{lock}/{name}")).collect();
        // Asked all at once, as they come and go.
        let asked: Vec<_> = paths.iter().map(|path| client.check_stat(path)).collect();
        for (path, stat) in paths.iter().zip(asked) {
            // Persistent ones are marks, not contenders.
            if let Some(stat) = stat.await?
                && stat.ephemeral_owner > 0
            {
                let (path, czxid, session) = (path.clone(), stat.czxid, stat.ephemeral_owner);
                found.push(Contender { path, czxid, session });
            }
        }
    }
    Ok(found)
}

/// A node of the ensemble whose tree is not that of the two others, and what it is seen by. None may be broken.
pub(crate) async fn odd_one_out(nodes: &[String]) -> Outcome<Option<(usize, String)>> {
    let mut clients = Vec::new();
    let mut paths = BTreeSet::new();
    for node in nodes {
        let client = connect(node).await?;
        paths.extend(contenders(&client).await?.into_iter().map(|contender| contender.path));
        clients.push(client);
    }
    for path in paths {
        let mut seen = Vec::new();
        // Contenders come and go; none of them does so for so long.
        for _ in 0..8 {
            seen.clear();
            for client in &clients {
                // In one flight: answers come in the order of what was asked.
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

/// Deletes a lock with all that is in it, as often as it takes: its contenders make it anew.
pub(crate) async fn remove(client: &Client, lock: &str) -> Outcome<()> {
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
    // Its contenders are quicker; each of them was deleted many times over.
    Ok(())
}

/// Attaches to a session of another client on Apache ZooKeeper, whose password follows from its id. Then closes the
/// session, or keeps its connection for a second.
pub(crate) async fn take_over(node: SocketAddr, session: i64, close: bool) -> Outcome<()> {
    let ticket = Ticket { session, password: password_on_apache(session) };
    let attack = async {
        let taken = raw_client::Client::resume(node, 8_000, 0, &ticket).await.map_err(Failure::from)?;
        let Some(mut client) = taken.filter(|client| client.ticket.session == session) else {
            return Err("the session had ended before it was taken over".into());
        };
        if close {
            client.close().await.map_err(Failure::from)?;
        } else {
            sleep(Duration::from_secs(1)).await;
        }
        Outcome::Ok(())
    };
    timeout(PATIENCE, attack).await?
}

async fn children(client: &Client, path: &str) -> Outcome<Vec<String>> {
    match client.list_children(path).await {
        Ok(children) => Ok(children),
        Err(Error::NoNode) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
