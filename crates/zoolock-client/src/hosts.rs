//! The servers of an ensemble, and the order in which a session dials them.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::driver::Stream;

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A host name or an IP address, and a port.
    Tcp {
        /// The name or the address, without brackets.
        name: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Host {
    /// Returns the name or the address, without the port.
    fn name(&self) -> &str {
        match self {
            Host::Tcp { name, .. } => name,
            Host::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Tcp { name, port } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Host::Tcp { name, port } => write!(f, "{name}:{port}"),
            Host::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The reason why a server could not be reached.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{host}: {message}")]
pub struct DialError {
    /// The server.
    pub host: Host,
    /// The problem, in lower case.
    pub message: String,
}

/// The TLS settings of one dial.
#[derive(Clone, Default)]
pub(crate) struct Security {
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<std::sync::Arc<tokio_rustls::rustls::ClientConfig>>,
}

/// The servers, in a random order that is fixed when the session starts.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    /// The first server to try. It is never the server that failed last.
    next: usize,
    last_reached: Option<usize>,
}

impl Hosts {
    /// Shuffles the servers, so that the processes of a fleet spread over them.
    pub(crate) fn new(mut hosts: Vec<Host>) -> Hosts {
        for last in (1..hosts.len()).rev() {
            let other = usize::try_from(random() % (last as u64 + 1)).unwrap_or(0);
            hosts.swap(last, other);
        }
        Hosts { hosts, next: 0, last_reached: None }
    }

    /// Returns the servers in the order of this dial. The next dial starts one further. `elsewhere` leaves out the server
    /// that was reached last.
    pub(crate) fn round(&mut self, elsewhere: bool) -> Vec<(usize, Host)> {
        let count = self.hosts.len();
        let order = (0..count).map(|step| (self.next + step) % count);
        let wanted = order.filter(|at| !elsewhere || self.last_reached != Some(*at));
        let round = wanted.map(|at| (at, self.hosts[at].clone())).collect();
        self.next = (self.next + 1) % count.max(1);
        round
    }

    /// Records the server that was reached: the next dial starts behind it. Returns its name.
    pub(crate) fn reached(&mut self, at: usize) -> &str {
        self.last_reached = Some(at);
        self.next = (at + 1) % self.hosts.len().max(1);
        self.hosts[at].name()
    }
}

/// Returns a random number. The standard library seeds its hash maps from the operating system.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Connects to the first server of a round that accepts.
///
/// Each server gets `head_start` before the next one is tried beside it. After a refusal, the next one is tried at once.
/// Names are resolved on each call.
///
/// # Errors
/// No server accepts. The errors are those of all servers.
pub(crate) async fn dial(
    round: Vec<(usize, Host)>,
    head_start: Duration,
    security: Security,
) -> Result<(usize, Stream), Vec<DialError>> {
    let attempts = round.into_iter().map(|(at, host)| {
        let security = security.clone();
        async move {
            let reached = reach(&host, head_start, security).await;
            reached.map(|stream| (at, stream)).map_err(|message| DialError { host, message })
        }
    });
    race(attempts, head_start).await
}

/// Connects to a server, racing its addresses (RFC 8305). TLS is for TCP alone.
#[cfg_attr(not(feature = "tls"), allow(unused_variables))]
async fn reach(host: &Host, head_start: Duration, security: Security) -> Result<Stream, String> {
    match host {
        Host::Unix(path) => {
            let stream = UnixStream::connect(path).await;
            stream.map(Stream::Unix).map_err(|error| format!("cannot connect ({error})"))
        }
        Host::Tcp { name, port } => {
            let addresses: Vec<_> = match tokio::net::lookup_host((name.as_str(), *port)).await {
                Ok(addresses) => addresses.collect(),
                Err(error) => return Err(format!("unknown host ({error})")),
            };
            let connected = race(addresses.into_iter().map(TcpStream::connect), head_start).await;
            let stream = connected.map_err(|errors| match errors.first() {
                Some(error) => format!("cannot connect ({error})"),
                None => "the name has no address".to_owned(),
            })?;
            // A request never waits for the acknowledgement of the previous one.
            stream.set_nodelay(true).map_err(|error| format!("cannot set TCP_NODELAY ({error})"))?;
            #[cfg(feature = "tls")]
            if let Some(config) = security.tls {
                return crate::tls::shake_hands(config, name, stream).await;
            }
            Ok(Stream::Tcp(stream))
        }
    }
}

/// Runs attempts until one succeeds. The next one starts when the newest one fails, or when its head start ends.
async fn race<T, E>(
    attempts: impl Iterator<Item: Future<Output = Result<T, E>> + Send + 'static>,
    head_start: Duration,
) -> Result<T, Vec<E>>
where
    T: Send + 'static,
    E: Send + 'static,
{
    let mut running = JoinSet::new();
    let mut errors = Vec::new();
    for (newest, attempt) in attempts.enumerate() {
        running.spawn(async move { (newest, attempt.await) });
        let wait = timeout(head_start, async {
            while let Some(ended) = running.join_next().await {
                match ended {
                    Ok((_, Ok(reached))) => return Some(reached),
                    Ok((failed, Err(error))) => {
                        errors.push(error);
                        if failed == newest {
                            return None;
                        }
                    }
                    Err(_) => {}
                }
            }
            None
        });
        if let Ok(Some(reached)) = wait.await {
            return Ok(reached);
        }
    }
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok((_, Ok(reached))) => return Ok(reached),
            Ok((_, Err(error))) => errors.push(error),
            Err(_) => {}
        }
    }
    Err(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: u16) -> Hosts {
        Hosts::new((0..count).map(|port| Host::Tcp { name: "zk".to_owned(), port }).collect())
    }

    #[test]
    fn each_round_has_all_servers_and_starts_at_another() {
        let mut hosts = hosts(3);
        let firsts: Vec<usize> = (0..6).map(|_| hosts.round(false)[0].0).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
        assert_eq!(hosts.round(false).len(), 3);
    }

    #[test]
    fn server_that_failed_is_not_first() {
        let mut hosts = hosts(3);
        let (at, _) = hosts.round(false)[1].clone();
        hosts.reached(at);
        assert_eq!(hosts.round(false).last().map(|(at, _)| *at), Some(1));
        // A move away from it does not try it at all.
        let elsewhere: Vec<usize> = hosts.round(true).iter().map(|(at, _)| *at).collect();
        assert!(elsewhere.len() == 2 && !elsewhere.contains(&1), "{elsewhere:?}");
    }

    #[test]
    fn hosts_are_shown_as_they_are_written() {
        let shown = |host: Host| host.to_string();
        assert_eq!(shown(Host::Tcp { name: "::1".to_owned(), port: 2181 }), "[::1]:2181");
        assert_eq!(shown(Host::Tcp { name: "zk".to_owned(), port: 2181 }), "zk:2181");
        assert_eq!(shown(Host::Unix("/run/zk".into())), "unix:/run/zk");
    }
}
