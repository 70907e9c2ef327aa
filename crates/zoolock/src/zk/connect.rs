//! Diagnoses a failed connection, so that the error can name the cause.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use zoolock_client::{DialError, DialFailure, Host, SocketPath};

use crate::base::error::Error;
use crate::base::path::ConnectString;
use crate::zk::session::{OpenError, Opening};
use crate::zk::transport::Transport;

/// Maximum time to diagnose one host.
const MAX_DIAGNOSIS: Duration = Duration::from_secs(2);
/// Maximum part of that time to connect.
const CONNECT: Duration = Duration::from_secs(1);

/// The diagnosis of one host.
struct Finding {
    what: String,
    /// Set if the host refuses the client's identity.
    refuses: bool,
    /// Set if a server runs there that may speak ZooKeeper's protocol.
    runs: bool,
}

/// The kind of server that answers a client of ZooKeeper's protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    ZooKeeper,
    Other,
}

/// Returns the error of a session that was not opened within this timeout. With `gave_up`, an unreachable server ended the
/// attempt before that time: each server was tried once.
pub(crate) async fn explain(
    connect: &ConnectString,
    opening: &Opening,
    timeout: Duration,
    gave_up: bool,
    error: OpenError,
) -> Error {
    let transport = &opening.transport;
    let within = match error {
        OpenError::Unreachable(_) if gave_up => None,
        _ => Some(timeout),
    };
    match error {
        OpenError::Denied => Error::Denied { subject: connect.endpoints(), message: transport.refusal() },
        // A failed handshake needs a diagnosis.
        OpenError::Unreachable(errors) if !transport.has_tls() => not_reached(connect, within, &errors),
        _ => match transport.trouble() {
            Some(trouble) => {
                Error::unavailable(connect.endpoints(), format!("{} ({trouble})", no_session(within)))
            }
            None => diagnose(connect, within, transport).await,
        },
    }
}

/// Returns the error of a dial that reached no host.
fn not_reached(connect: &ConnectString, within: Option<Duration>, errors: &[DialError]) -> Error {
    let one_runs = errors.iter().any(|error| error.failure == DialFailure::HungUp);
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    unreachable(connect, within, &errors.join("; "), one_runs)
}

/// Tries each host separately, and returns an error that describes them.
async fn diagnose(connect: &ConnectString, within: Option<Duration>, transport: &Transport) -> Error {
    let mut findings = Vec::new();
    let (mut all_refuse, mut one_runs) = (true, false);
    for host in connect.hosts() {
        let diagnosis = async {
            match host {
                Host::Tcp { name, port } => diagnose_host(name, *port, transport).await,
                Host::Unix(path) => diagnose_socket(path).await,
            }
        };
        let found = tokio::time::timeout(MAX_DIAGNOSIS, diagnosis).await;
        let found = found.unwrap_or_else(|_| Finding::running("connects, but does not answer"));
        all_refuse &= found.refuses;
        one_runs |= found.runs;
        findings.push(format!("{host}: {}", found.what));
    }
    let findings = findings.join("; ");
    if all_refuse {
        return Error::Denied {
            subject: connect.endpoints(),
            message: format!("{} ({findings})", no_session(within)),
        };
    }
    unreachable(connect, within, &findings, one_runs)
}

/// Describes the failure. Names the time only if the attempt has used it up.
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

impl Finding {
    fn new(what: impl Into<String>) -> Finding {
        Finding { what: what.into(), refuses: false, runs: false }
    }

    /// Adds the owner of a socket, if that is another user: the embedded server serves its own user and root.
    fn with_owner(mut self, socket: &std::path::Path) -> Finding {
        let owner = std::fs::metadata(socket).ok().map(|metadata| metadata.uid());
        if let Some(owner) = owner.filter(|&owner| owner != rustix::process::geteuid().as_raw()) {
            self.what.push_str(&format!(
                "; the socket belongs to user {owner}, and the embedded server accepts only its own user"
            ));
        }
        self
    }

    fn running(what: impl Into<String>) -> Finding {
        Finding { runs: true, ..Finding::new(what) }
    }
}

async fn diagnose_socket(path: &std::path::Path) -> Finding {
    let connected = match SocketPath::new(path) {
        Ok(path) => UnixStream::connect(&path).await,
        Err(error) => Err(error),
    };
    match connected {
        Ok(mut stream) => {
            let causes =
                "does it run as another user, or is it at its limit of connections (--max-connections)?";
            match shake_hands(&mut stream).await {
                Err(error) => describe_answer(Err(error), causes).with_owner(path),
                answer => describe_answer(answer, causes),
            }
        }
        Err(error) => Finding::new(format!("cannot connect ({error})")),
    }
}

/// Describes the answer of a host. `hang_up` names the probable causes if it hangs up.
fn describe_answer(answer: std::io::Result<Hello>, hang_up: &str) -> Finding {
    match answer {
        Ok(Hello::ZooKeeper) => Finding::running("speaks ZooKeeper, but opened no session in time"),
        Ok(Hello::Other) => Finding::new("something answers, but it does not speak ZooKeeper"),
        Err(error) => Finding::running(format!(
            "accepts the connection, and closes it without an answer ({error}); {hang_up}"
        )),
    }
}

#[cfg_attr(not(feature = "tls"), allow(unused_variables))]
async fn diagnose_host(host: &str, port: u16, transport: &Transport) -> Finding {
    let addresses = match zoolock_client::resolve(host, port).await {
        Ok(addresses) => addresses,
        Err(why) => return Finding::new(why),
    };
    let hang_up = "is it at its limit of connections (maxClientCnxns, or --max-connections of `zoolock serve`), or without a leader?";
    let connect = async || match tokio::time::timeout(CONNECT, TcpStream::connect(&*addresses)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) if zoolock_client::closes_at_once(&error) => Err(describe_answer(Err(error), hang_up)),
        Ok(Err(error)) => Err(Finding::new(format!("cannot connect ({error})"))),
        Err(_) => Err(Finding::new("does not answer; does a firewall drop the packets?")),
    };
    let mut stream = match connect().await {
        Ok(stream) => stream,
        Err(finding) => return finding,
    };
    #[cfg(feature = "tls")]
    if let Some(certificates) = &transport.certificates {
        use crate::zk::tls::TlsFinding;
        return match crate::zk::tls::diagnose(certificates, host, stream).await {
            TlsFinding::Other(what) => Finding::new(what),
            TlsFinding::Refuses(what) => Finding { refuses: true, ..Finding::new(what) },
            TlsFinding::Plain => {
                let plainly = match connect().await {
                    Ok(mut stream) => shake_hands(&mut stream).await.ok(),
                    Err(_) => None,
                };
                Finding::new(match plainly {
                    Some(Hello::ZooKeeper) => {
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
    let answer = shake_hands(&mut stream).await;
    #[cfg(feature = "tls")]
    if !matches!(answer, Ok(Hello::ZooKeeper)) && crate::zk::tls::speaks_tls(host, &addresses).await {
        return Finding::new("speaks TLS; give the CA certificate (`--cacert`)");
    }
    describe_answer(answer, hang_up)
}

/// Asks to resume a session that cannot exist: a ZooKeeper server refuses it and creates nothing.
pub(crate) async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> std::io::Result<Hello> {
    let mut hello = Vec::with_capacity(49);
    hello.extend_from_slice(&45i32.to_be_bytes());
    hello.extend_from_slice(&0i32.to_be_bytes()); // protocol version
    hello.extend_from_slice(&0i64.to_be_bytes()); // last zxid seen
    hello.extend_from_slice(&6000i32.to_be_bytes()); // timeout
    hello.extend_from_slice(&1i64.to_be_bytes()); // session
    hello.extend_from_slice(&16i32.to_be_bytes());
    hello.extend_from_slice(&[0; 16]); // password
    hello.push(0); // read only
    stream.write_all(&hello).await?;
    stream.flush().await?;
    let length = stream.read_i32().await?;
    // protocol version, timeout, session, password, and from 3.4 on read-only
    Ok(if matches!(length, 36 | 37) { Hello::ZooKeeper } else { Hello::Other })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_follows_the_kind_of_failure() {
        let connect = ConnectString::parse("zk1,zk2").expect("two hosts");
        let advice = |second: DialFailure| {
            let of =
                |host: &Host, failure| DialError { host: host.clone(), failure, message: "fails".to_owned() };
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
