//! Four-letter words, which a server answers without a session.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use zoolock::Tls;
use zoolock_client::{SocketPath, resolve};

/// Maximum time to connect, and maximum time to wait for the answer after that.
const PATIENCE: Duration = Duration::from_secs(3);

/// The reason why a server did not answer a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// No connection can be opened, for this reason.
    Unreachable(String),
    /// TLS fails, for this reason.
    Tls(String),
    /// The server does not answer this word.
    Refused,
    /// The answer is longer than the limit.
    TooLong,
}

/// A connection to a server.
enum WordStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Connects to an address of the form HOST:PORT or `unix:PATH`.
async fn connect(address: &str) -> io::Result<WordStream> {
    if let Some(path) = address.strip_prefix("unix:") {
        let path = SocketPath::new(Path::new(path))?;
        return UnixStream::connect(&path).await.map(WordStream::Unix);
    }
    let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or(io::ErrorKind::InvalidInput)?;
    let addresses = resolve(host.trim_matches(['[', ']']), port).await.map_err(io::Error::other)?;
    TcpStream::connect(&*addresses).await.map(WordStream::Tcp)
}

/// Sends a four-letter word to a server, and returns the answer. Fails if the answer has more than
/// `max_bytes` bytes. Uses TLS over TCP only.
pub(super) async fn ask_word(
    address: &str,
    tls: Option<&Tls>,
    word: &str,
    max_bytes: usize,
) -> Result<String, NoAnswer> {
    let connected = timeout(PATIENCE, connect(address)).await;
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if zoolock_client::closes_at_once(&error) => return Err(NoAnswer::Refused),
        Ok(Err(error)) => return Err(NoAnswer::Unreachable(error.to_string())),
        Err(_) => return Err(NoAnswer::Unreachable(format!("no connection within {PATIENCE:?}"))),
    };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut answer = Vec::new();
    let asked = async {
        match (stream, tls) {
            (WordStream::Unix(stream), _) => exchange_word(stream, word, max_bytes, &mut answer).await,
            (WordStream::Tcp(stream), None) => exchange_word(stream, word, max_bytes, &mut answer).await,
            (WordStream::Tcp(stream), Some(tls)) => {
                exchange_word(tls.start_tls(host, stream).await?, word, max_bytes, &mut answer).await
            }
        }
    };
    let ended = timeout(PATIENCE, asked).await;
    if answer.len() > max_bytes {
        return Err(NoAnswer::TooLong);
    }
    // If the server closes the connection early, or sends nothing, it does not answer this word.
    match ended {
        Ok(Ok(())) if !answer.is_empty() => {}
        // Some servers close a TLS connection without `close_notify`. The client sees that as an
        // error after the answer.
        Ok(Err(_)) if !answer.is_empty() && tls.is_some() => {}
        Ok(Err(error)) => {
            let trouble = tls.and_then(|tls| tls.describe_tls_error(host, &error));
            return Err(trouble.map_or(NoAnswer::Refused, NoAnswer::Tls));
        }
        _ => return Err(NoAnswer::Refused),
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let refused = answer.contains("is not executed because it is not in the whitelist");
    if refused { Err(NoAnswer::Refused) } else { Ok(answer) }
}

async fn exchange_word(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    word: &str,
    max_bytes: usize,
    answer: &mut Vec<u8>,
) -> std::io::Result<()> {
    stream.write_all(word.as_bytes()).await?;
    stream.flush().await?;
    stream.take(max_bytes as u64 + 1).read_to_end(answer).await.map(|_| ())
}

/// A server's version and state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerVersion {
    /// The version as the server prints it, without the date.
    version: String,
    /// `standalone`, `leader`, `follower`, `observer` or `read-only`, if the answer contains it.
    pub(super) mode: Option<String>,
    /// Number of open connections, including the connection of this request.
    pub(super) connections: Option<u32>,
}

impl ServerVersion {
    /// Reads the answer to `srvr`.
    pub(super) fn of_srvr(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        Self::new(field("Zookeeper version: ")?, field("Mode: "), field("Connections: "))
    }

    /// Reads the answer to `mntr`.
    pub(super) fn of_mntr(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        Self::new(field("zk_version")?, field("zk_server_state"), field("zk_num_alive_connections"))
    }

    fn new(version: &str, mode: Option<&str>, connections: Option<&str>) -> Option<Self> {
        let version = version.split(',').next()?.trim();
        let mode = mode.map(|mode| mode.trim().to_owned());
        let connections = connections.and_then(|count| count.trim().parse().ok());
        (!version.is_empty()).then(|| Self { version: version.to_owned(), mode, connections })
    }

    /// Returns the version of `zoolock serve`. Returns `None` for another server.
    pub(super) fn zoolock_version(&self) -> Option<&str> {
        self.version.split_once("-zoolock-").map(|(_, version)| version)
    }

    /// Returns the release of ZooKeeper. For `zoolock serve`, this is the release whose behaviour
    /// it has.
    pub(super) fn release(&self) -> &str {
        self.version.split('-').next().unwrap_or_default()
    }

    /// Returns the release as three numbers.
    pub(super) fn numbers(&self) -> Option<(u32, u32, u32)> {
        let mut numbers = self.release().split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// Returns a description for messages.
    pub(super) fn description(&self) -> String {
        let mode = self.mode.as_deref().map_or_else(String::new, |mode| format!(", {mode}"));
        match self.zoolock_version() {
            Some(version) => format!("zoolock {version}{mode}; behaves as ZooKeeper {}", self.release()),
            None => format!("ZooKeeper {}{mode}", self.release()),
        }
    }
}

/// Reads the answer to `conf`.
pub(super) fn parse_configuration(text: &str) -> HashMap<&str, &str> {
    text.lines().filter_map(|line| line.trim().split_once('=')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRVR: &str = "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25 08:49 UTC\n\
                        Latency min/avg/max: 0/0.3/8\nReceived: 12\nConnections: 7\nMode: follower\nNode count: 5\n";
    const MNTR: &str = "zk_version\t3.8.0-zoolock-0.1.0, built on 1970-01-01 00:00 UTC\nzk_server_state\tstandalone\n\
         zk_num_alive_connections\t3\n";

    #[test]
    fn version_and_mode_are_parsed() {
        let apache = ServerVersion::of_srvr(SRVR).expect("srvr has a version");
        assert_eq!((apache.zoolock_version(), apache.numbers()), (None, Some((3, 8, 0))));
        assert_eq!(apache.description(), "ZooKeeper 3.8.0, follower");
        let ours = ServerVersion::of_mntr(MNTR).expect("mntr has a version");
        assert_eq!((apache.connections, ours.connections), (Some(7), Some(3)));
        assert_eq!(ours.description(), "zoolock 0.1.0, standalone; behaves as ZooKeeper 3.8.0");
        assert_eq!(
            ServerVersion::of_srvr("This ZooKeeper instance is not currently serving requests\n"),
            None
        );
    }

    #[test]
    fn conf_answer_is_parsed() {
        let read = parse_configuration("clientPort=2181\ntickTime=2000\nsyncLimit=5\nnonsense\n");
        assert_eq!((read.get("tickTime"), read.get("syncLimit")), (Some(&"2000"), Some(&"5")));
        assert_eq!(read.get("nonsense"), None);
    }

    #[tokio::test]
    async fn refused_word_differs_from_unreachable_server() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let answers = ["", "dump is not executed because it is not in the whitelist.\n", "imok", "too much"];
        let serving = tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.expect("a client");
                let mut word = [0; 4];
                stream.read_exact(&mut word).await.expect("a word");
                stream.write_all(answer.as_bytes()).await.expect("the client reads");
            }
        });
        assert_eq!(ask_word(&address, None, "dump", 100).await, Err(NoAnswer::Refused));
        assert_eq!(ask_word(&address, None, "dump", 100).await, Err(NoAnswer::Refused));
        assert_eq!(ask_word(&address, None, "ruok", 4).await, Ok("imok".to_owned()));
        assert_eq!(ask_word(&address, None, "dump", 4).await, Err(NoAnswer::TooLong));
        serving.await.expect("no panic");
        assert!(matches!(ask_word(&address, None, "ruok", 4).await, Err(NoAnswer::Unreachable(_))));
    }
}
