//! Records when each node was usable, and when the links of the workers were broken. The judge uses
//! this record to decide whether a lock was lost although a node could have kept it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zoolock_client::{Host, Os, RequestSession, SessionConfig};
use zoolock_tests::lock;
use zoolock_wire::Request;

use crate::clock::now;

/// The session timeout of the probes.
const SESSION: Duration = Duration::from_secs(8);
/// The longest time that a usable node takes to confirm a write.
const IN_TIME: Duration = Duration::from_millis(200);
/// The pause between two probes.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest time that a usable node takes to open a session.
const OPENED: Duration = Duration::from_secs(1);

/// A span of time, as two values of [`now`].
pub(crate) type TimeSpan = (i64, i64);

/// The spans in which each node was usable, and in which the link of each worker to each node was
/// broken.
#[derive(Default)]
pub(crate) struct UsableSpans {
    /// The spans in which each node was usable, by node.
    pub(crate) usable: Vec<Vec<TimeSpan>>,
    /// The spans in which each link was broken, by worker and node.
    pub(crate) broken: Vec<Vec<Vec<TimeSpan>>>,
}

impl UsableSpans {
    /// Returns a node that was usable, and that the worker reached, for the whole span.
    pub(crate) fn usable_node(&self, worker: usize, span: TimeSpan) -> Option<usize> {
        let broken = self.broken.get(worker)?;
        let is_whole = |node: &usize| {
            self.usable[*node].iter().any(|(from, to)| *from <= span.0 && span.1 <= *to)
                && !broken[*node].iter().any(|(from, to)| *from < span.1 && span.0 < *to)
        };
        (0..self.usable.len()).find(is_whole)
    }
}

/// A prober of all nodes. It probes with writes until it is dropped.
pub(crate) struct Prober {
    usable: Arc<Mutex<Vec<Vec<TimeSpan>>>>,
    probing: Vec<JoinHandle<()>>,
}

impl Prober {
    pub(crate) fn start(nodes: &[SocketAddr]) -> Prober {
        let usable = Arc::new(Mutex::new(vec![Vec::new(); nodes.len()]));
        let probing = nodes.iter().enumerate().map(|(node, addr)| {
            let host = Host::Tcp { name: addr.ip().to_string(), port: addr.port() };
            tokio::spawn(probe(node, host, usable.clone()))
        });
        Prober { probing: probing.collect(), usable }
    }

    /// Returns the spans in which each node was usable.
    pub(crate) fn usable(&self) -> Vec<Vec<TimeSpan>> {
        lock(&self.usable).clone()
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.probing.iter().for_each(JoinHandle::abort);
    }
}

async fn probe(node: usize, host: Host, usable: Arc<Mutex<Vec<Vec<TimeSpan>>>>) {
    // This write changes nothing, but only a quorum can confirm it.
    let write = Request::Multi(vec![Request::Check { path: "/".to_owned(), version: -1 }]);
    loop {
        sleep(PAUSE).await;
        let platform = Os::with_runtime(&tokio::runtime::Handle::current());
        let opening = RequestSession::open(SessionConfig::new(SESSION), vec![host.clone()], platform);
        let Ok(Ok(requests)) = timeout(OPENED, opening).await else { continue };
        let mut is_first = true;
        loop {
            let sent = now();
            match timeout(IN_TIME, requests.call(&write)).await {
                // After a pause of this process, a late reply may be ready together with its time limit, so the clock
                // decides.
                Ok(Ok(_)) if now() - sent <= i64::try_from(IN_TIME.as_nanos()).unwrap_or(i64::MAX) => {}
                _ => break,
            }
            extend_usable_span(&mut lock(&usable)[node], sent, is_first);
            is_first = false;
            sleep(PAUSE).await;
        }
    }
}

/// Records that a probe that was sent at `sent` was answered in time. The first answer on a session begins a new span.
fn extend_usable_span(spans: &mut Vec<TimeSpan>, sent: i64, is_first: bool) {
    match spans.last_mut().filter(|_| !is_first) {
        Some(span) => span.1 = sent,
        None => spans.push((sent, sent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_must_be_usable_and_reachable_all_the_time() {
        let reach = UsableSpans {
            usable: vec![vec![(0, 10), (20, 40)], vec![(0, 15)]],
            broken: vec![vec![vec![(30, 35)], vec![(2, 3)]]],
        };
        assert_eq!(reach.usable_node(0, (0, 10)), Some(0));
        assert_eq!(reach.usable_node(0, (5, 12)), Some(1), "node 0 was not usable");
        assert_eq!(reach.usable_node(0, (1, 12)), None, "node 0 not usable, link to node 1 broken");
        assert_eq!(reach.usable_node(0, (21, 30)), Some(0));
        assert_eq!(reach.usable_node(0, (34, 36)), None);
        assert_eq!(reach.usable_node(0, (8, 22)), None, "no probe was answered in between");
        assert_eq!(reach.usable_node(7, (0, 1)), None, "an unknown worker");
    }
}
