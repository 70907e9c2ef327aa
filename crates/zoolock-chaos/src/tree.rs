//! Looks at the lock nodes past all links, and does to them what an operator or an intruder may do.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use zookeeper_client::{Client, Error};

use crate::Outcome;

/// Where the locks are.
pub(crate) const ROOT: &str = "/locks";
const PATIENCE: Duration = Duration::from_secs(10);
/// What ZooKeeper makes its passwords of.
const SECRET: i64 = 0xB341_5C00;

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

/// Connects as the session of somebody else, whose number anybody can read. Then closes it, or stays a while.
pub(crate) async fn take_over(node: std::net::SocketAddr, session: i64, close: bool) -> Outcome<()> {
    let mut hello = Vec::new();
    hello.extend(0_i32.to_be_bytes());
    hello.extend(0_i64.to_be_bytes());
    hello.extend(8_000_i32.to_be_bytes());
    hello.extend(session.to_be_bytes());
    hello.extend(16_i32.to_be_bytes());
    hello.extend(password(session));
    hello.push(0);
    let talk = async {
        let mut stream = TcpStream::connect(node).await?;
        stream.write_all(&(hello.len() as u32).to_be_bytes()).await?;
        stream.write_all(&hello).await?;
        let mut answer = [0; 20];
        stream.read_exact(&mut answer).await?;
        let [_, _, _, _, _, _, _, _, _, _, _, _, its @ ..] = answer;
        if i64::from_be_bytes(its) != session {
            return Err("the session was over before it was taken".into());
        }
        if close {
            // Length, xid, closeSession.
            stream.write_all(&[0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5]).await?;
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await?;
        } else {
            sleep(Duration::from_secs(1)).await;
        }
        Outcome::Ok(())
    };
    timeout(PATIENCE, talk).await?
}

/// As `ZooKeeperServer.generatePasswd` does it: sixteen bytes of `java.util.Random`.
fn password(session: i64) -> [u8; 16] {
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = ((session ^ SECRET) as u64 ^ 0x5_DEEC_E66D) & MASK;
    let mut bytes = [0; 16];
    for four in bytes.chunks_mut(4) {
        seed = seed.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & MASK;
        four.copy_from_slice(&((seed >> 16) as u32).to_le_bytes());
    }
    bytes
}

async fn children(client: &Client, path: &str) -> Outcome<Vec<String>> {
    match client.list_children(path).await {
        Ok(children) => Ok(children),
        Err(Error::NoNode) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
