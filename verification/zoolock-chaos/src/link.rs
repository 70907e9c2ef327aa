//! A link from a client to a node: a proxy, and the record of the spans in which it was broken.

use std::net::SocketAddr;
use std::sync::Mutex;

use zoolock_tests::proxy::LinkFault;
use zoolock_tests::{Proxy, lock};

use crate::Outcome;
use crate::clock::now;
use crate::usable_spans::TimeSpan;

/// The time in nanoseconds for which a link counts as broken after its connections were closed.
const CUT: i64 = 200_000_000;

/// A link. Dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct Link {
    proxy: Proxy,
    /// The spans in which the link was broken. The last span has no end while the link is broken.
    broken: Mutex<Vec<(i64, Option<i64>)>>,
}

impl Link {
    /// Opens a link to a node.
    pub(crate) async fn open(node: SocketAddr) -> Outcome<Self> {
        Ok(Link { proxy: Proxy::start(&node.to_string()).await?, broken: Mutex::default() })
    }

    /// Returns the address of the link, as `host:port`.
    pub(crate) fn addr(&self) -> String {
        self.proxy.addr()
    }

    pub(crate) fn set_fault(&self, fault: LinkFault) {
        let mut broken = lock(&self.broken);
        match broken.last_mut().filter(|(_, until)| until.is_none()) {
            Some((_, until)) if fault == LinkFault::default() => *until = Some(now()),
            None if fault != LinkFault::default() => broken.push((now(), None)),
            _ => {}
        }
        self.proxy.set_fault(fault);
    }

    /// Returns the spans in which the link was broken.
    pub(crate) fn broken_spans(&self) -> Vec<TimeSpan> {
        let broken = lock(&self.broken);
        broken.iter().map(|(from, until)| (*from, until.unwrap_or(i64::MAX))).collect()
    }

    /// Closes all connections. New ones are accepted.
    pub(crate) async fn close_connections(&self) {
        self.record_cut();
        self.proxy.close_connections().await;
    }

    fn record_cut(&self) {
        let at = now();
        let mut broken = lock(&self.broken);
        // The cut is inserted before a fault that continues, because that fault must stay the last
        // one in the list.
        let place = broken.iter().position(|(_, until)| until.is_none()).unwrap_or(broken.len());
        broken.insert(place, (at, Some(at + CUT)));
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.proxy.open_connections()
    }

    /// Waits until bytes of a client are forwarded.
    pub(crate) async fn wait_until_forwarded(&self) {
        let before = self.proxy.counts().bytes_to_server;
        self.proxy.until("bytes of the client", |stats| stats.total.bytes_to_server > before).await;
    }
}
