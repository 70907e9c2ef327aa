//! The servers of an ensemble, and the order in which a session dials them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::SaslStep;
use crate::host::{DialFailure, Host};
use crate::platform::{ConnectError, Platform, Stream};
use crate::race::race;
use crate::sasl::{SaslClient, SaslExchange};

/// The reason why a server could not be reached.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{host}: {message}")]
pub struct DialError {
    /// The server.
    pub host: Host,
    /// The kind of the failure.
    pub failure: DialFailure,
    /// The problem, in lower case.
    pub message: String,
}

/// The TLS and SASL settings of one dial.
#[derive(Clone)]
pub(crate) struct Security {
    pub(crate) mechanism: Option<Arc<dyn SaslClient>>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Arc<tokio_rustls::rustls::ClientConfig>>,
}

impl Security {
    /// Returns settings without TLS.
    pub(crate) fn new(mechanism: Option<Arc<dyn SaslClient>>) -> Security {
        Security {
            mechanism,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

/// The servers, in a random order that is fixed when the session starts.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    /// The position of the server to try first, unless that server was reached last.
    next: usize,
    /// The position of the server that was reached last.
    last_reached: Option<usize>,
}

impl Hosts {
    /// Shuffles the servers, so that the processes of a fleet spread over them.
    pub(crate) fn new(mut hosts: Vec<Host>, platform: &dyn Platform) -> Hosts {
        for last in (1..hosts.len()).rev() {
            let other = usize::try_from(platform.random() % (last as u64 + 1)).unwrap_or(0);
            hosts.swap(last, other);
        }
        Hosts { hosts, next: 0, last_reached: None }
    }

    /// Returns the servers in the order in which this dial tries them. The next dial starts one server later. The
    /// server that was reached last comes at the end, or at the start with `same_first`. With `avoid_last_reached` it
    /// is left out.
    pub(crate) fn next_dial_order(
        &mut self,
        avoid_last_reached: bool,
        same_first: bool,
    ) -> Vec<(usize, Host)> {
        let count = self.hosts.len();
        let order = (0..count).map(|step| (self.next + step) % count);
        let others: Vec<usize> = order.filter(|at| self.last_reached != Some(*at)).collect();
        if let Some(first) = others.first() {
            self.next = (first + 1) % count;
        }
        let last = self.last_reached.filter(|_| !avoid_last_reached);
        let first = last.filter(|_| same_first);
        let order = first.into_iter().chain(others).chain(last.filter(|_| !same_first));
        order.map(|at| (at, self.hosts[at].clone())).collect()
    }

    /// Returns the server at this position.
    pub(crate) fn host(&self, at: usize) -> &Host {
        &self.hosts[at]
    }

    /// Records the server that was reached: the next dial starts with the server after it.
    pub(crate) fn record_reached(&mut self, at: usize) {
        self.last_reached = Some(at);
        self.next = (at + 1) % self.hosts.len().max(1);
    }
}

/// A new stream to a server.
pub(crate) struct Dialed {
    /// The position of the server in the list of hosts.
    pub(crate) at: usize,
    pub(crate) stream: Box<dyn Stream>,
    /// The SASL exchange and its first token.
    pub(crate) sasl: Option<(Box<dyn SaslExchange>, SaslStep)>,
}

/// Connects to the servers of a round until one accepts. If SASL is used, a server counts only if
/// there is a token for it.
///
/// Tries each server alone for `head_start`. After that, also tries the next server, while the
/// earlier attempts go on. If the newest attempt fails, tries the next server at once.
///
/// # Errors
/// All attempts failed. The list has the error of each server.
pub(crate) async fn dial(
    round: Vec<(usize, Host)>,
    head_start: Duration,
    security: Security,
    platform: Arc<dyn Platform>,
) -> Result<Dialed, Vec<DialError>> {
    let attempts = round.into_iter().map(|(at, host)| {
        let (security, platform) = (security.clone(), platform.clone());
        async move {
            let reached = connect_to_host(at, &host, head_start, security, &*platform).await;
            reached.map_err(|ConnectError { failure, message }| DialError { host, failure, message })
        }
    });
    race(attempts, head_start).await
}

/// Connects to a server, and computes the first SASL token. TLS is used on TCP only.
///
/// It may take long to fetch a Kerberos ticket. So the ticket is fetched before the session leaves
/// its old connection. The time to connect is limited: if a server does not accept, there must be
/// time left for the ticket of the next server.
async fn connect_to_host(
    at: usize,
    host: &Host,
    head_start: Duration,
    security: Security,
    platform: &dyn Platform,
) -> Result<Dialed, ConnectError> {
    let connecting = connect_with_tls(host, head_start, &security, platform);
    let Some(mechanism) = &security.mechanism else {
        return Ok(Dialed { at, stream: connecting.await?, sasl: None });
    };
    let limit = (head_start * 5).max(SHORTEST_CONNECT);
    let late = |_| ConnectError::new(DialFailure::NotConnected, "accepts no connection in time");
    let stream = timeout(limit, connecting).await.map_err(late)??;
    let mut exchange = mechanism.start_exchange(host.name());
    match exchange.step(None).await {
        SaslStep::NoToken => {
            Err(ConnectError::new(DialFailure::NotSecured, "there is no SASL token for this server"))
        }
        step => Ok(Dialed { at, stream, sasl: Some((exchange, step)) }),
    }
}

async fn connect_with_tls(
    host: &Host,
    head_start: Duration,
    #[cfg_attr(not(feature = "tls"), allow(unused_variables))] security: &Security,
    platform: &dyn Platform,
) -> Result<Box<dyn Stream>, ConnectError> {
    let stream = platform.connect(host, head_start).await?;
    #[cfg(feature = "tls")]
    if let (Host::Tcp { name, .. }, Some(config)) = (host, security.tls.clone()) {
        let shaken = crate::tls::tls_handshake(config, name, stream).await;
        return shaken.map_err(|message| ConnectError::new(DialFailure::NotSecured, message));
    }
    Ok(stream)
}

/// The minimum time limit of connecting to a server, if a SASL token is computed afterwards.
const SHORTEST_CONNECT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    async fn hosts(count: u16) -> Hosts {
        let platform = crate::Os::with_runtime(&tokio::runtime::Handle::current());
        Hosts::new((0..count).map(|port| Host::Tcp { name: "zk".to_owned(), port }).collect(), &*platform)
    }

    #[tokio::test]
    async fn each_round_has_all_servers_and_starts_at_another() {
        let mut hosts = hosts(3).await;
        let firsts: Vec<usize> = (0..6).map(|_| hosts.next_dial_order(false, false)[0].0).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
        assert_eq!(hosts.next_dial_order(false, false).len(), 3);
    }

    #[tokio::test]
    async fn server_reached_last_is_tried_last() {
        let mut hosts = hosts(3).await;
        let (at, _) = hosts.next_dial_order(false, false)[1].clone();
        hosts.record_reached(at);
        let firsts: Vec<usize> = (0..4)
            .map(|_| {
                let round = hosts.next_dial_order(false, false);
                assert_eq!((round.len(), round[2].0), (3, 1));
                round[0].0
            })
            .collect();
        assert!(firsts == [2, 0, 2, 0], "the other servers take turns: {firsts:?}");
        // A move to another server leaves out the server that was reached last.
        let others: Vec<usize> = hosts.next_dial_order(true, false).iter().map(|(at, _)| *at).collect();
        assert!(others.len() == 2 && !others.contains(&1), "{others:?}");
        assert_eq!(hosts.next_dial_order(false, true)[0].0, 1, "the same server is tried first");
    }
}
