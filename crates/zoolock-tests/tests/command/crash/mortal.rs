//! Sessions that nobody keeps alive: what has been seen to go never comes back.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use zoolock_server::wire::{Reply, Request};
use zoolock_tests::{Failure, Result};

use crate::crash::client::{Alive, Client, Dead, Ticket};
use crate::crash::model::{EPHEMERAL, Write};
use crate::crash::worker::LONG_MS;

/// The shortest that a server with our tick grants.
const SHORT_MS: i32 = 100;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);
const PARENT: &str = "/mortal";

#[derive(Debug, Default)]
pub(crate) struct Mortals {
    made: u64,
    /// With a path, which may be there or not.
    waiting: Vec<(String, Ticket)>,
    /// Seen not to be there; never again.
    gone: BTreeSet<String>,
    /// The sessions of these.
    over: Vec<Ticket>,
    pub(crate) seen_to_expire: u64,
}

impl Mortals {
    /// Begins sessions, leaves them, and watches them end, until the server is gone.
    pub(crate) async fn work(&mut self, addr: SocketAddr) {
        let _: Alive<()> = self.live(addr).await;
    }

    async fn live(&mut self, addr: SocketAddr) -> Alive<()> {
        let mut observer = Client::begin(addr, LONG_MS, 0).await?;
        let create = |path: &str, flags| Write::Create { path: path.to_owned(), data: Bytes::new(), flags };
        observer.call(create(PARENT, 0).request()).await?;
        loop {
            for _ in 0..3 {
                let mut client = Client::begin(addr, SHORT_MS, 0).await?;
                self.made += 1;
                let path = format!("{PARENT}/{}", self.made);
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
                self.gone.insert(path);
                self.over.push(ticket);
            }
        }
    }

    /// After a restart.
    pub(crate) async fn check(&mut self, addr: SocketAddr, reader: &mut Client) -> Result<()> {
        let dead = |Dead| Failure::new("the server is gone while nobody kills it");
        let request = Request::GetChildren2 { path: PARENT.into(), watch: false };
        let children = match reader.call(request).await.map_err(dead)?.1 {
            Reply::ChildrenStat { children, .. } => children,
            _ => Vec::new(),
        };
        let there: BTreeSet<String> = children.iter().map(|name| format!("{PARENT}/{name}")).collect();
        if let Some(path) = there.intersection(&self.gone).next() {
            return Err(Failure::new(format!("{path} is back, which had been seen to be gone")));
        }
        let known: BTreeSet<String> = self.waiting.iter().map(|(path, _)| path.clone()).collect();
        if let Some(path) = there.difference(&known).next() {
            return Err(Failure::new(format!("{path} is there, and nobody made it")));
        }
        let (waiting, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(path, _)| there.contains(path));
        // What was not there for this reader is not there for anybody. It may never have been, so its session may.
        (self.waiting, _) = (waiting, self.gone.extend(gone.into_iter().map(|(path, _)| path)));
        // The newest, whose end is the youngest in the log, and some older one.
        let count = self.over.len();
        let older = (self.made as usize).checked_rem(count);
        for ticket in older.into_iter().chain(count.saturating_sub(3)..count).map(|index| &self.over[index]) {
            assert_gone(addr, ticket).await?;
        }
        Ok(())
    }
}

pub(crate) async fn assert_gone(addr: SocketAddr, ticket: &Ticket) -> Result<()> {
    match Client::resume(addr, LONG_MS, 0, ticket).await {
        Ok(None) | Err(Dead) => Ok(()),
        Ok(Some(_)) => Err(Failure::new(format!("session {:#x} is back, which was over", ticket.session))),
    }
}
