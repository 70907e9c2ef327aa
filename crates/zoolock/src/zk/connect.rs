//! Diagnoses a failed connection, so that the error can name the cause.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use zoolock_client::{DialError, DialFailure, Endpoint, Host, SocketPath};

use crate::base::error::Error;
use crate::base::path::ConnectString;
use crate::zk::hello::{ServerGreeting, probe_zookeeper};
use crate::zk::session::{SessionOpenError, SessionParameters};
use crate::zk::transport::Transport;

/// Maximum time to diagnose one address.
const MAX_DIAGNOSIS: Duration = Duration::from_secs(2);
/// Maximum time to resolve a name, and to connect to one address as a part of `MAX_DIAGNOSIS`.
const CONNECT: Duration = Duration::from_secs(1);

/// The diagnosis of one address of a host.
struct HostDiagnosis {
    what: String,
    /// Set if the host refuses the client's identity.
    refuses: bool,
    /// Set if a server runs on the host, and may speak ZooKeeper's protocol.
    runs: bool,
}

/// Returns the error of a session that was not opened within `timeout`. `gave_up`: set if the attempt tried each server
/// once, and may have ended before the timeout.
pub(crate) async fn connect_error(
    connect: &ConnectString,
    parameters: &SessionParameters,
    timeout: Duration,
    gave_up: bool,
    error: SessionOpenError,
) -> Error {
    let transport = &parameters.transport;
    let within = match error {
        SessionOpenError::Unreachable(_) if gave_up => None,
        _ => Some(timeout),
    };
    match error {
        SessionOpenError::Denied => {
            Error::Denied { subject: connect.endpoints(), message: transport.refusal() }
        }
        // Without TLS, the dial errors name the cause. A failed TLS handshake needs a diagnosis.
        SessionOpenError::Unreachable(errors) if !transport.has_tls() => {
            not_reached(connect, within, &errors)
        }
        _ => match transport.local_problem() {
            Some(trouble) => {
                Error::unavailable(connect.endpoints(), format!("{} ({trouble})", no_session(within)))
            }
            None => diagnose(connect, within, parameters).await,
        },
    }
}

/// Returns the error of a dial that reached no host.
fn not_reached(connect: &ConnectString, within: Option<Duration>, errors: &[DialError]) -> Error {
    let one_runs = errors.iter().any(|error| error.failure == DialFailure::HungUp);
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    unreachable(connect, within, &errors.join("; "), one_runs)
}

/// Tries all addresses of all hosts at once, and returns an error that describes the diagnoses.
async fn diagnose(
    connect: &ConnectString,
    within: Option<Duration>,
    parameters: &SessionParameters,
) -> Error {
    let transport = &parameters.transport;
    let platform = parameters.tasks.platform();
    let diagnoses = connect.hosts().iter().map(async |host| {
        let resolved = timeout(CONNECT, platform.resolve(host)).await;
        let unresolved = |_| Err("the name does not resolve in time; does a name server answer?".to_owned());
        let endpoints = match resolved.unwrap_or_else(unresolved) {
            Ok(endpoints) => endpoints,
            Err(why) => return vec![(host.to_string(), HostDiagnosis::new(why))],
        };
        let diagnoses = endpoints.iter().map(async |endpoint| {
            let found = timeout(MAX_DIAGNOSIS, diagnose_endpoint(endpoint, transport)).await;
            let silent = |_| HostDiagnosis::running("connects, but does not answer");
            (endpoint.to_string(), found.unwrap_or_else(silent))
        });
        join_all(diagnoses).await
    });
    let found: Vec<_> = join_all(diagnoses).await.into_iter().flatten().collect();
    let one_runs = found.iter().any(|(_, found)| found.runs);
    let findings: Vec<String> = found.iter().map(|(at, found)| format!("{at}: {}", found.what)).collect();
    let findings = findings.join("; ");
    if found.iter().all(|(_, found)| found.refuses) {
        return Error::Denied {
            subject: connect.endpoints(),
            message: format!("{} ({findings})", no_session(within)),
        };
    }
    unreachable(connect, within, &findings, one_runs)
}

/// Describes the failure. `within`: the timeout, if the attempt has used it up.
fn no_session(within: Option<Duration>) -> String {
    within.map_or("no session".to_owned(), |timeout| format!("no session within {timeout:?}"))
}

fn unreachable(connect: &ConnectString, within: Option<Duration>, findings: &str, one_runs: bool) -> Error {
    let advice = if one_runs {
        "check the server's log, or raise the connect timeout"
    } else {
        "check the address, and that the server runs"
    };
    Error::unavailable(connect.endpoints(), format!("{} ({findings}); {advice}", no_session(within)))
}

impl HostDiagnosis {
    fn new(what: impl Into<String>) -> HostDiagnosis {
        HostDiagnosis { what: what.into(), refuses: false, runs: false }
    }

    /// Adds the owner of the socket to the finding, if the owner is another user. The embedded server serves only its
    /// own user and root.
    fn with_foreign_owner(mut self, socket: &std::path::Path) -> HostDiagnosis {
        let owner = std::fs::metadata(socket).ok().map(|metadata| metadata.uid());
        if let Some(owner) = owner.filter(|&owner| owner != rustix::process::geteuid().as_raw()) {
            self.what.push_str(&format!(
                "; the socket belongs to user {owner}, and the embedded server accepts only its own user"
            ));
        }
        self
    }

    fn running(what: impl Into<String>) -> HostDiagnosis {
        HostDiagnosis { runs: true, ..HostDiagnosis::new(what) }
    }
}

async fn diagnose_endpoint(endpoint: &Endpoint, transport: &Transport) -> HostDiagnosis {
    match (&endpoint.host, endpoint.address) {
        (Host::Unix(path), _) => diagnose_socket(path).await,
        (host, Some(address)) => diagnose_address(host.name(), address, transport).await,
        (_, None) => HostDiagnosis::new("the name has no address"),
    }
}

async fn diagnose_socket(path: &std::path::Path) -> HostDiagnosis {
    let connected = match SocketPath::new(path) {
        Ok(path) => UnixStream::connect(&path).await,
        Err(error) => Err(error),
    };
    match connected {
        Ok(mut stream) => {
            let causes =
                "does it run as another user, or is it at its limit of connections (--max-connections)?";
            match probe_zookeeper(&mut stream).await {
                Err(error) => describe_answer(Err(error), causes).with_foreign_owner(path),
                answer => describe_answer(answer, causes),
            }
        }
        Err(error) => HostDiagnosis::new(format!("cannot connect ({error})")),
    }
}

/// Describes the answer of a host. `hang_up`: the probable causes if the host closes the connection without an answer.
fn describe_answer(answer: std::io::Result<ServerGreeting>, hang_up: &str) -> HostDiagnosis {
    match answer {
        Ok(ServerGreeting::ZooKeeper) => {
            HostDiagnosis::running("speaks ZooKeeper, but opened no session in time; see its log")
        }
        Ok(ServerGreeting::Other) => HostDiagnosis::new("something answers, but it does not speak ZooKeeper"),
        Err(error) => HostDiagnosis::running(format!(
            "accepts the connection, and closes it without an answer ({error}); {hang_up}"
        )),
    }
}

#[cfg_attr(not(feature = "tls"), allow(unused_variables))]
async fn diagnose_address(host: &str, address: SocketAddr, transport: &Transport) -> HostDiagnosis {
    let hang_up = "is it at its limit of connections (maxClientCnxns, or --max-connections of `zoolock serve`), or without a leader?";
    let connect = async || match timeout(CONNECT, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) if zoolock_client::closes_at_once(&error) => Err(describe_answer(Err(error), hang_up)),
        Ok(Err(error)) => Err(HostDiagnosis::new(format!("cannot connect ({error})"))),
        Err(_) => Err(HostDiagnosis::new("does not answer; does a firewall drop the packets?")),
    };
    let mut stream = match connect().await {
        Ok(stream) => stream,
        Err(finding) => return finding,
    };
    #[cfg(feature = "tls")]
    if let Some(certificates) = &transport.certificates {
        use crate::zk::tls::TlsFinding;
        return match crate::zk::tls::diagnose(certificates, host, stream).await {
            TlsFinding::Other(what) => HostDiagnosis::new(what),
            TlsFinding::Refuses(what) => HostDiagnosis { refuses: true, ..HostDiagnosis::new(what) },
            TlsFinding::Plain => {
                let plainly = match connect().await {
                    Ok(mut stream) => probe_zookeeper(&mut stream).await.ok(),
                    Err(_) => None,
                };
                HostDiagnosis::new(match plainly {
                    Some(ServerGreeting::ZooKeeper) => {
                        "speaks ZooKeeper without TLS; name its port for TLS, or leave TLS out (`--cacert`)"
                    }
                    _ => {
                        "hangs up on TLS; is it the right port, or is the server at its limit of connections \
                         (maxClientCnxns)?"
                    }
                })
            }
        };
    }
    let answer = probe_zookeeper(&mut stream).await;
    #[cfg(feature = "tls")]
    if !matches!(answer, Ok(ServerGreeting::ZooKeeper)) && crate::zk::tls::speaks_tls(host, address).await {
        return HostDiagnosis::new("speaks TLS; give the CA certificate (`--cacert`)");
    }
    describe_answer(answer, hang_up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_follows_the_kind_of_failure() {
        let connect = ConnectString::parse("zk1,zk2").expect("two hosts");
        let advice = |second: DialFailure| {
            let of = |host: &Host, failure| {
                let endpoint = Endpoint { host: host.clone(), address: None };
                DialError { endpoint, failure, message: "fails".to_owned() }
            };
            let errors =
                [of(&connect.hosts()[0], DialFailure::NotConnected), of(&connect.hosts()[1], second)];
            not_reached(&connect, None, &errors).to_string()
        };
        let advised = advice(DialFailure::NotConnected);
        assert!(advised.contains("zk1:2181: fails; zk2:2181: fails"), "{advised}");
        assert!(advised.ends_with("check the address, and that the server runs"), "{advised}");
        assert!(advice(DialFailure::HungUp).contains("check the server's log"));
    }
}
