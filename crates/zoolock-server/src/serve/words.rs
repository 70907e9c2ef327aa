//! Four-letter words, which operators send on a connection without a session.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use super::metrics::{MetricValue, collect_metrics, java_float};
use super::{GuardedCore, SharedServer};
use crate::core::{ConnId, ConnectionReport, DataWatchCounts};
use crate::word::FourLetterWord;

/// The version to report: the Apache ZooKeeper release that this server imitates, and the version of this crate.
pub(super) const VERSION: &str =
    concat!("3.8.0-zoolock-", env!("CARGO_PKG_VERSION"), ", built on 1970-01-01 00:00 UTC");

/// Words of ZooKeeper that this server does not support. It answers them as ZooKeeper answers a word that is not in the
/// whitelist.
pub(super) const UNSUPPORTED: [&[u8; 4]; 10] =
    [b"cons", b"crst", b"dirs", b"dump", b"gtmk", b"hash", b"srst", b"stmk", b"wchc", b"wchp"];

/// Returns the answer to a word, or `None` if the bytes are the start of a frame. No frame starts
/// with a word: the first four bytes of a frame are its length, and a word would be too large a
/// length.
pub(super) fn answer(shared: &SharedServer, conn: ConnId, input: &[u8]) -> Option<String> {
    let typed: &[u8; 4] = input.first_chunk()?;
    let word = FourLetterWord::ALL.into_iter().find(|word| word.name().as_bytes() == typed);
    if word.is_none() && !UNSUPPORTED.contains(&typed) {
        return None;
    }
    shared.lock().core.count_word(conn, false);
    let answer = match word.filter(|word| shared.timing.words.contains(word)) {
        Some(word) => execute(shared, conn, word),
        None => {
            let word = String::from_utf8_lossy(typed);
            format!("{word} is not executed because it is not in the whitelist.\n")
        }
    };
    shared.lock().core.count_word(conn, true);
    Some(answer)
}

fn execute(shared: &SharedServer, conn: ConnId, word: FourLetterWord) -> String {
    match word {
        FourLetterWord::Ruok => "imok".to_owned(),
        FourLetterWord::Isro => "rw".to_owned(),
        FourLetterWord::Envi => envi(),
        FourLetterWord::Conf => conf(shared),
        FourLetterWord::Mntr => mntr(shared),
        FourLetterWord::Srvr => format!("Zookeeper version: {VERSION}\n{}", server_summary(&shared.lock())),
        FourLetterWord::Stat => {
            let inner = shared.lock();
            let clients = list_connections(&inner, conn);
            format!("Zookeeper version: {VERSION}\nClients:\n{clients}\n{}", server_summary(&inner))
        }
        FourLetterWord::Wchs => {
            let DataWatchCounts { connections, paths, total } = shared.lock().core.data_watch_counts();
            format!("{connections} connections watching {paths} paths\nTotal watches:{total}\n")
        }
    }
}

/// Returns a line for each connection. `sender` is the connection that sent the word.
fn list_connections(inner: &GuardedCore, sender: ConnId) -> String {
    let mut text = String::new();
    for ConnectionReport { conn, received, sent } in inner.core.connections() {
        let Some(peer) = inner.peers.get(&conn) else { continue };
        // This is 1 if the server still reads from the connection. The server no longer reads from
        // the connection that sent the word.
        let open = i32::from(conn != sender);
        let _ = writeln!(text, " /{}[{open}](queued=0,recved={received},sent={sent})", peer.addr);
    }
    text
}

fn server_summary(inner: &GuardedCore) -> String {
    let (stats, latency) = (inner.core.stats(), &inner.latency);
    let mut text = String::new();
    let average = java_float(latency.average());
    let _ = writeln!(text, "Latency min/avg/max: {}/{average}/{}", latency.min, latency.max);
    let _ = writeln!(text, "Received: {}\nSent: {}", stats.received, stats.sent);
    // The connection that sent the word has no session, but is counted, as in ZooKeeper.
    let _ = writeln!(text, "Connections: {}\nOutstanding: 0", stats.connections);
    // ZooKeeper counts the root twice, as "" and as "/".
    let _ = writeln!(text, "Zxid: {:#x}\nMode: standalone\nNode count: {}", stats.zxid, stats.znodes + 1);
    text
}

fn mntr(shared: &SharedServer) -> String {
    let mut text = format!("zk_version\t{VERSION}\nzk_server_state\tstandalone\n");
    for metric in collect_metrics(shared) {
        let _ = match metric.value {
            MetricValue::Whole(value) => writeln!(text, "zk_{}\t{value}", metric.name),
            MetricValue::Fraction(value) => writeln!(text, "zk_{}\t{}", metric.name, java_float(value)),
        };
    }
    text
}

fn envi() -> String {
    let system = rustix::system::uname();
    format!(
        "Environment:\nzookeeper.version={VERSION}\nhost.name={}\nos.name={}\nos.arch={}\nos.version={}\n",
        system.nodename().to_string_lossy(),
        system.sysname().to_string_lossy(),
        system.machine().to_string_lossy(),
        system.release().to_string_lossy(),
    )
}

fn conf(shared: &SharedServer) -> String {
    let conf = &shared.timing.conf;
    let port = |addr: Option<SocketAddr>| addr.map_or(-1, |addr| i32::from(addr.port()));
    let dir = conf.data_dir.as_deref().map_or_else(String::new, |dir| dir.display().to_string());
    let size = conf.data_dir.as_deref().map_or(0, size_of);
    format!(
        "clientPort={}\nsecureClientPort={}\ndataDir={dir}\ndataDirSize={size}\ndataLogDir={dir}\n\
         dataLogSize={size}\ntickTime={}\nmaxClientCnxns={}\nminSessionTimeout={}\nmaxSessionTimeout={}\n\
         clientPortListenBacklog=-1\nserverId=0\n",
        port(conf.addr),
        port(conf.tls_addr),
        shared.timing.tick.as_millis(),
        conf.max_connections_per_address,
        conf.min_timeout_ms,
        conf.max_timeout_ms,
    )
}

/// Returns the total size of the files in a directory, in bytes.
fn size_of(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let sizes = entries.flatten().filter_map(|entry| entry.metadata().ok()).filter(|file| file.is_file());
    sizes.map(|file| file.len()).sum()
}
