//! The servers of an ensemble, and the order in which a session dials them.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

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

/// The servers, in a random order that is fixed when the session starts.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    /// The first server to try. It is never the server that failed last.
    next: usize,
}

impl Hosts {
    /// Shuffles the servers, so that the processes of a fleet spread over them.
    pub(crate) fn new(mut hosts: Vec<Host>) -> Hosts {
        for last in (1..hosts.len()).rev() {
            let other = usize::try_from(random() % (last as u64 + 1)).unwrap_or(0);
            hosts.swap(last, other);
        }
        Hosts { hosts, next: 0 }
    }

    /// Returns all servers in the order of this dial. The next dial starts one further.
    pub(crate) fn round(&mut self) -> Vec<(usize, Host)> {
        let count = self.hosts.len();
        let order = (0..count).map(|step| (self.next + step) % count);
        let round = order.map(|at| (at, self.hosts[at].clone())).collect();
        self.next = (self.next + 1) % count.max(1);
        round
    }

    /// Records the server that was reached: the next dial starts behind it.
    pub(crate) fn reached(&mut self, at: usize) {
        self.next = (at + 1) % self.hosts.len().max(1);
    }
}

/// Returns a random number. The standard library seeds its hash maps from the operating system.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Connects to the first server of a round that accepts.
///
/// Each server gets `head_start` before the next one is tried as well. A server that refuses does not delay the next one.
/// Names are resolved on each call.
///
/// # Errors
/// No server accepts. The errors are those of all servers.
pub(crate) async fn dial(
    round: Vec<(usize, Host)>,
    head_start: Duration,
) -> Result<(usize, Stream), Vec<DialError>> {
    let mut attempts = JoinSet::new();
    let mut errors = Vec::new();
    for (at, host) in round {
        attempts.spawn(async move {
            let reached = reach(&host).await;
            reached.map(|stream| (at, stream)).map_err(|message| DialError { host, message })
        });
        let wait = timeout(head_start, async {
            while let Some(ended) = attempts.join_next().await {
                match ended {
                    Ok(Ok(reached)) => return Some(reached),
                    Ok(Err(error)) => errors.push(error),
                    Err(_) => {}
                }
            }
            None
        });
        if let Ok(Some(reached)) = wait.await {
            return Ok(reached);
        }
    }
    while let Some(ended) = attempts.join_next().await {
        match ended {
            Ok(Ok(reached)) => return Ok(reached),
            Ok(Err(error)) => errors.push(error),
            Err(_) => {}
        }
    }
    Err(errors)
}

/// Connects to a server, trying its addresses one after the other.
async fn reach(host: &Host) -> Result<Stream, String> {
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
            let mut attempts = JoinSet::new();
            for (at, address) in addresses.into_iter().enumerate() {
                attempts.spawn(async move {
                    // The next address is tried beside one that does not answer (RFC 8305).
                    sleep(ADDRESS_HEAD_START * u32::try_from(at).unwrap_or(u32::MAX)).await;
                    TcpStream::connect(address).await
                });
            }
            let mut problem = "the name has no address".to_owned();
            while let Some(ended) = attempts.join_next().await {
                match ended {
                    Ok(Ok(stream)) => {
                        // A request never waits for the acknowledgement of the previous one.
                        return match stream.set_nodelay(true) {
                            Ok(()) => Ok(Stream::Tcp(stream)),
                            Err(error) => Err(format!("cannot set TCP_NODELAY ({error})")),
                        };
                    }
                    Ok(Err(error)) => problem = format!("cannot connect ({error})"),
                    Err(_) => {}
                }
            }
            Err(problem)
        }
    }
}

/// The time between the starts of connection attempts to two addresses of one name.
const ADDRESS_HEAD_START: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: u16) -> Hosts {
        Hosts::new((0..count).map(|port| Host::Tcp { name: "zk".to_owned(), port }).collect())
    }

    #[test]
    fn each_round_has_all_servers_and_starts_at_another() {
        let mut hosts = hosts(3);
        let firsts: Vec<usize> = (0..6).map(|_| hosts.round()[0].0).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
        assert_eq!(hosts.round().len(), 3);
    }

    #[test]
    fn server_that_failed_is_not_first() {
        let mut hosts = hosts(3);
        let (at, _) = hosts.round()[1].clone();
        hosts.reached(at);
        assert_eq!(hosts.round().last().map(|(at, _)| *at), Some(1));
    }

    #[test]
    fn hosts_are_shown_as_they_are_written() {
        let shown = |host: Host| host.to_string();
        assert_eq!(shown(Host::Tcp { name: "::1".to_owned(), port: 2181 }), "[::1]:2181");
        assert_eq!(shown(Host::Tcp { name: "zk".to_owned(), port: 2181 }), "zk:2181");
        assert_eq!(shown(Host::Unix("/run/zk".into())), "unix:/run/zk");
    }
}
