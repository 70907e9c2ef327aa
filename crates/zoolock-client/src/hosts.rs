//! The servers of an ensemble, and the order in which a session dials them.
//!
//! The addresses of one name may be different servers, as those of a headless service in Kubernetes. So a session dials
//! endpoints, each a host with one address: a server that is silent or hangs up does not hide others of its name.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::timeout;

use crate::SaslStep;
use crate::host::{DialFailure, Endpoint, Host};
use crate::platform::{ConnectError, LookupFuture, Platform, Stream};
use crate::race::race;
use crate::sasl::{SaslClient, SaslExchange};

/// The reason why a server could not be reached.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{endpoint}: {message}")]
pub struct DialError {
    /// The server, or the name that did not resolve.
    pub endpoint: Endpoint,
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

/// The endpoints of an ensemble, in the order in which they were tried. The driver and its dial share them.
///
/// Each dial looks up all hosts. A look-up goes on after the end of its dial, so that a later dial gets the answer of a
/// slow name server. Until then, the addresses of the last look-up stay known.
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    platform: Arc<dyn Platform>,
    /// The look-ups under way, at most one for each host.
    lookups: Vec<(Host, LookupFuture)>,
    /// The errors of the last look-ups.
    lookup_errors: Vec<DialError>,
    endpoints: Vec<KnownEndpoint>,
    /// The endpoint that was reached last. The dial tries it first if `reached_first` is set, and otherwise last.
    reached: Option<Endpoint>,
    reached_first: bool,
    /// The endpoint of the last attach. It stays known if a look-up leaves it out, because the answer may be wrong.
    attached: Option<Endpoint>,
}

struct KnownEndpoint {
    endpoint: Endpoint,
    /// Set if the current dial has tried the endpoint, or must avoid it.
    is_tried: bool,
    /// Set from the start of an attempt until it fails, or until a server has answered ([`Hosts::forget_silent`]). So it stays
    /// set if the server was silent or closed the connection. A dial then tries the endpoint after others.
    is_silent: bool,
    /// The number of dials that try the endpoint after others that may answer. It is set at the loss of a connection with an
    /// old write without a reply, because that server may confirm nothing, and an attach to a server that hangs can let the
    /// leader accept the write minutes later. Each dial counts it down, because the other servers may attach the session and
    /// confirm no write. The next attach or refusal at the endpoint clears it.
    late_write_dials: u8,
}

impl Hosts {
    /// Returns the hosts without endpoints. A host that is listed twice counts once, because the number of servers decides
    /// how soon a session leaves one of them.
    pub(crate) fn new(listed: Vec<Host>, platform: Arc<dyn Platform>) -> Hosts {
        let mut hosts: Vec<Host> = Vec::new();
        for host in listed {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        let (lookups, lookup_errors, endpoints) = (Vec::new(), Vec::new(), Vec::new());
        let (reached, reached_first, attached) = (None, false, None);
        Hosts { hosts, platform, lookups, lookup_errors, endpoints, reached, reached_first, attached }
    }

    /// Begins a dial, and returns the number of servers. The dial leaves out the endpoint that was reached last
    /// if `avoid_reached` is set, and begins with it if `reached_first` is set.
    pub(crate) fn begin_dial(&mut self, avoid_reached: bool, reached_first: bool) -> usize {
        self.reached_first = reached_first;
        for known in &mut self.endpoints {
            known.is_tried = avoid_reached && self.reached.as_ref() == Some(&known.endpoint);
            known.late_write_dials = known.late_write_dials.saturating_sub(1);
        }
        let cx = &mut Context::from_waker(Waker::noop());
        let _ = self.poll_lookups(cx);
        for host in &self.hosts {
            if self.lookups.iter().all(|(looked_up, _)| looked_up != host) {
                self.lookups.push((host.clone(), self.platform.resolve(host)));
            }
        }
        // An IP address is known at once.
        let _ = self.poll_lookups(cx);
        self.count_servers()
    }

    /// Returns the number of servers that the known endpoints may be. A server may have an IPv4 and an IPv6 address, so the
    /// addresses of a host count in one of the two families only.
    fn count_servers(&self) -> usize {
        let of_host = |host: &Host| {
            let of_host = self.endpoints.iter().filter(|known| known.endpoint.host == *host);
            let is_ipv6 =
                |known: &&KnownEndpoint| known.endpoint.address.is_some_and(|address| address.is_ipv6());
            let (all, ipv6) = (of_host.clone().count(), of_host.filter(is_ipv6).count());
            ipv6.max(all - ipv6)
        };
        self.hosts.iter().map(of_host).sum()
    }

    /// Records that an endpoint was reached. Returns the number of servers.
    pub(crate) fn record_reached(&mut self, endpoint: &Endpoint) -> usize {
        self.reached = Some(endpoint.clone());
        // The next dial tries this endpoint after all others, because this dial may have begun attempts at others later, and
        // has cut those attempts short.
        self.endpoints.sort_by_key(|known| known.endpoint == *endpoint);
        self.count_servers()
    }

    /// Records that the session was attached on the endpoint that was reached last.
    pub(crate) fn record_attached(&mut self) {
        self.attached.clone_from(&self.reached);
        for known in &mut self.endpoints {
            if self.attached.as_ref() == Some(&known.endpoint) {
                known.late_write_dials = 0;
            }
        }
        self.forget_silent();
    }

    /// Forgets which servers were silent. Called when a server has answered, because the dial that ends then may not have
    /// waited long enough to know that the others are silent.
    pub(crate) fn forget_silent(&mut self) {
        self.endpoints.iter_mut().for_each(|known| known.is_silent = false);
    }

    /// Records that the server at an endpoint has not answered a write whose connection is lost. It may still carry it out.
    pub(crate) fn record_late_write(&mut self, endpoint: &Endpoint) {
        let lost = self.endpoints.iter_mut().filter(|known| known.endpoint == *endpoint);
        lost.for_each(|known| known.late_write_dials = LATE_WRITE_DIALS);
    }

    /// Records that an attempt to connect failed. A server that refuses hardly hangs, because the system accepts connections
    /// for a server that hangs. Another failure may have its cause in this process or its network.
    fn record_failed(&mut self, endpoint: &Endpoint, failure: DialFailure) {
        for known in self.endpoints.iter_mut().filter(|known| known.endpoint == *endpoint) {
            known.is_silent = false;
            if matches!(failure, DialFailure::Refused | DialFailure::HungUp) {
                known.late_write_dials = 0;
            }
        }
    }

    /// Records the answers of look-ups. Returns `Pending` while a look-up is under way.
    fn poll_lookups(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut lookups = std::mem::take(&mut self.lookups);
        lookups.retain_mut(|(host, lookup)| {
            let answer = lookup.as_mut().poll(cx);
            answer.map(|answer| self.record_lookup(host, answer)).is_pending()
        });
        self.lookups = lookups;
        if self.lookups.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Replaces the endpoints of a host, unless the look-up failed.
    fn record_lookup(&mut self, host: &Host, answer: Result<Vec<Endpoint>, String>) {
        self.lookup_errors.retain(|error| error.endpoint.host != *host);
        let listed = match answer {
            Ok(listed) if !listed.is_empty() => listed,
            answer => {
                let message = answer.err().unwrap_or_else(|| "the name has no address".to_owned());
                let endpoint = Endpoint { host: host.clone(), address: None };
                let failure = DialFailure::NotConnected;
                return self.lookup_errors.push(DialError { endpoint, failure, message });
            }
        };
        self.endpoints.retain(|KnownEndpoint { endpoint, .. }| {
            endpoint.host != *host || listed.contains(endpoint) || self.attached.as_ref() == Some(endpoint)
        });
        for endpoint in listed {
            if self.endpoints.iter().all(|known| known.endpoint != endpoint) {
                // The random position spreads the processes of a fleet over the servers.
                let position = self.platform.random() % (self.endpoints.len() as u64 + 1);
                let new = KnownEndpoint { endpoint, is_tried: false, is_silent: false, late_write_dials: 0 };
                self.endpoints.insert(usize::try_from(position).unwrap_or(0), new);
            }
        }
    }

    /// Takes the next endpoint of the dial, or `None` if all were tried. Waits for look-ups only if the session was
    /// never attached, because any other session knows an address, and soon dials again.
    fn poll_next_endpoint(&mut self, cx: &mut Context<'_>) -> Poll<Option<Endpoint>> {
        let looked_up = self.poll_lookups(cx);
        let is_reached = |known: &KnownEndpoint| self.reached.as_ref() == Some(&known.endpoint);
        let order = |known: &KnownEndpoint| {
            (is_reached(known) != self.reached_first, known.is_silent, known.late_write_dials > 0)
        };
        let untried = self.endpoints.iter().enumerate().filter(|(_, known)| !known.is_tried);
        let Some((at, _)) = untried.min_by_key(|(_, known)| order(known)) else {
            return if self.attached.is_none() { looked_up.map(|()| None) } else { Poll::Ready(None) };
        };
        let mut known = self.endpoints.remove(at);
        let endpoint = known.endpoint.clone();
        (known.is_tried, known.is_silent) = (true, true);
        self.endpoints.push(known);
        Poll::Ready(Some(endpoint))
    }
}

/// Locks the endpoints.
pub(crate) fn lock(hosts: &Mutex<Hosts>) -> MutexGuard<'_, Hosts> {
    hosts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new stream to a server.
pub(crate) struct Dialed {
    pub(crate) endpoint: Endpoint,
    pub(crate) stream: Box<dyn Stream>,
    /// The SASL exchange and its first token.
    pub(crate) sasl: Option<(Box<dyn SaslExchange>, SaslStep)>,
}

/// Connects to endpoints until one accepts. If SASL is used, an endpoint counts only if there is a token for it.
///
/// Tries each endpoint alone for `head_start`. After that, also tries the next endpoint, while the earlier attempts go
/// on. If the newest attempt fails, tries the next endpoint at once.
///
/// # Errors
/// All attempts failed. The list has the error of each endpoint, and of each name that did not resolve.
pub(crate) async fn dial(
    hosts: Arc<Mutex<Hosts>>,
    head_start: Duration,
    security: Security,
) -> Result<Dialed, Vec<DialError>> {
    let platform = lock(&hosts).platform.clone();
    // The look-ups have a head start, because a known address may belong to another server by now.
    let _ = timeout(RESOLUTION_DELAY, poll_fn(|cx| lock(&hosts).poll_lookups(cx))).await;
    let attempt = |endpoint: Endpoint| {
        let (hosts, security, platform) = (hosts.clone(), security.clone(), platform.clone());
        async move {
            let reached = connect_to_endpoint(&endpoint, head_start, security, &*platform).await;
            reached.map_err(|ConnectError { failure, message }| {
                lock(&hosts).record_failed(&endpoint, failure);
                DialError { endpoint, failure, message }
            })
        }
    };
    let next = || poll_fn(|cx| lock(&hosts).poll_next_endpoint(cx));
    let reached = race(next, attempt, head_start).await;
    reached.map_err(|errors| errors.into_iter().chain(lock(&hosts).lookup_errors.clone()).collect())
}

/// Connects to a server, and computes the first SASL token. TLS is used on TCP only.
///
/// The token is computed before the session leaves its old connection, because it may take long to fetch a Kerberos
/// ticket. With SASL, the time to connect is limited, because the ticket of the next server needs time, too, if this server
/// does not accept.
async fn connect_to_endpoint(
    endpoint: &Endpoint,
    head_start: Duration,
    security: Security,
    platform: &dyn Platform,
) -> Result<Dialed, ConnectError> {
    let connecting = connect_with_tls(endpoint, &security, platform);
    let Some(mechanism) = &security.mechanism else {
        return Ok(Dialed { endpoint: endpoint.clone(), stream: connecting.await?, sasl: None });
    };
    let limit = (head_start * 5).max(SHORTEST_CONNECT);
    let late = |_| ConnectError::new(DialFailure::NotConnected, "does not complete the connection in time");
    let stream = timeout(limit, connecting).await.map_err(late)??;
    let mut exchange = mechanism.start_exchange(endpoint.host.name());
    match exchange.step(None).await {
        SaslStep::NoToken => {
            Err(ConnectError::new(DialFailure::NotSecured, "there is no SASL token for this server"))
        }
        step => Ok(Dialed { endpoint: endpoint.clone(), stream, sasl: Some((exchange, step)) }),
    }
}

async fn connect_with_tls(
    endpoint: &Endpoint,
    #[cfg_attr(not(feature = "tls"), allow(unused_variables))] security: &Security,
    platform: &dyn Platform,
) -> Result<Box<dyn Stream>, ConnectError> {
    let stream = platform.connect(endpoint).await?;
    #[cfg(feature = "tls")]
    if let (Host::Tcp { name, .. }, Some(config)) = (&endpoint.host, security.tls.clone()) {
        let shaken = crate::tls::tls_handshake(config, name, stream).await;
        return shaken.map_err(|message| ConnectError::new(DialFailure::NotSecured, message));
    }
    Ok(stream)
}

/// The value of `late_write_dials` after the loss of a connection. The endpoint comes later in five dials, because the next
/// dial counts down before it begins.
const LATE_WRITE_DIALS: u8 = 6;

/// The minimum time limit of connecting to a server, if a SASL token is computed afterwards.
const SHORTEST_CONNECT: Duration = Duration::from_millis(500);

/// The time for which a dial waits for its look-ups before it uses addresses of earlier look-ups (RFC 8305).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
