//! Sessions without pings, which expire. An ephemeral znode whose deletion a client has seen must never exist again.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use zoolock_tests::raw_client::{RawClient, ServerGone, ServerResult, SessionTicket};
use zoolock_tests::{Result, TestFailure};
use zoolock_wire::{Reply, Request};

use crate::crash::model::{EPHEMERAL, Write};
use crate::crash::worker::LONG_MS;

/// The shortest session timeout that the server grants: two ticks.
const SHORT_MS: i32 = 100;
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(5);
const PARENT: &str = "/mortal";

/// The sessions that expire, and their ephemeral znodes.
#[derive(Debug, Default)]
pub(crate) struct Mortals {
    created: u64,
    /// Sessions whose expiry no client has seen yet, each with the path of its znode.
    waiting: Vec<(String, SessionTicket)>,
    /// Paths whose deletion a client has seen.
    deleted: BTreeSet<String>,
    /// Sessions whose expiry a client has seen.
    expired: Vec<SessionTicket>,
    pub(crate) seen_to_expire: u64,
}

impl Mortals {
    /// Opens sessions, disconnects, and waits for their expiry, until the server ends.
    pub(crate) async fn work(&mut self, addr: SocketAddr) {
        let _: ServerResult<()> = self.work_until_dead(addr).await;
    }

    async fn work_until_dead(&mut self, addr: SocketAddr) -> ServerResult<()> {
        let mut observer = RawClient::open_session(addr, LONG_MS, 0).await?;
        let create = |path: &str, flags| Write::Create { path: path.to_owned(), data: Bytes::new(), flags };
        observer.call(create(PARENT, 0).request()).await?;
        loop {
            for _ in 0..3 {
                let mut client = RawClient::open_session(addr, SHORT_MS, 0).await?;
                self.created += 1;
                let path = format!("{PARENT}/{}", self.created);
                self.waiting.push((path.clone(), client.ticket.clone()));
                client.call(create(&path, EPHEMERAL).request()).await?;
            }
            while let Some((path, _)) = self.waiting.first() {
                let (header, _) = observer.call(Request::Exists { path: path.clone(), watch: false }).await?;
                if header.err == 0 {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                let (path, ticket) = self.waiting.remove(0);
                self.seen_to_expire += 1;
                self.deleted.insert(path);
                self.expired.push(ticket);
            }
        }
    }

    /// Checks after a restart that no deleted znode and no expired session exists again.
    pub(crate) async fn check(&mut self, addr: SocketAddr, reader: &mut RawClient) -> Result<()> {
        let request = Request::GetChildren2 { path: PARENT.into(), watch: false };
        let children = match reader.call(request).await?.1 {
            Reply::ChildrenStat { children, .. } => children,
            _ => Vec::new(),
        };
        let existing: BTreeSet<String> = children.iter().map(|name| format!("{PARENT}/{name}")).collect();
        if let Some(path) = existing.intersection(&self.deleted).next() {
            return Err(TestFailure::new(format!(
                "{path} exists again after a client has seen its deletion"
            )));
        }
        let known: BTreeSet<String> = self.waiting.iter().map(|(path, _)| path.clone()).collect();
        if let Some(path) = existing.difference(&known).next() {
            return Err(TestFailure::new(format!("{path} exists, and no client created it")));
        }
        let (waiting, deleted): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(path, _)| existing.contains(path));
        // The reader has now seen that these paths do not exist, so they must never exist again.
        // But their sessions do not count as expired. The znodes may never have been created, and
        // then the sessions can still exist.
        self.waiting = waiting;
        self.deleted.extend(deleted.into_iter().map(|(path, _)| path));
        // Check the three newest sessions, whose expiry is the latest in the log, and one older
        // session.
        let count = self.expired.len();
        let older = (self.created as usize).checked_rem(count);
        for ticket in
            older.into_iter().chain(count.saturating_sub(3)..count).map(|index| &self.expired[index])
        {
            check_session_ended(addr, ticket).await?;
        }
        Ok(())
    }
}

/// Checks that a session that has ended does not exist on the server.
pub(crate) async fn check_session_ended(addr: SocketAddr, ticket: &SessionTicket) -> Result<()> {
    match RawClient::attach_session(addr, LONG_MS, 0, ticket).await {
        Ok(None) | Err(ServerGone) => Ok(()),
        Ok(Some(_)) => {
            Err(TestFailure::new(format!("session {:#x} exists again after its end", ticket.session)))
        }
    }
}
