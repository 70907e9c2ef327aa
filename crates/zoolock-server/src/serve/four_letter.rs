//! The words that administrators type into a bare connection.

use std::fmt::Write as _;

use super::Shared;

/// The release of Apache ZooKeeper whose behaviour we copy, and what we are.
const VERSION: &str = concat!("3.8.0-zoolock-", env!("CARGO_PKG_VERSION"), ", built on 1970-01-01 00:00 UTC");

/// Answers a word, or `None` when the bytes are the start of a frame. (As lengths, the words are far too large.)
pub(super) fn answer(shared: &Shared, input: &[u8]) -> Option<String> {
    let word: &[u8; 4] = input.first_chunk()?;
    let known = [b"ruok", b"srvr", b"envi", b"isro"].contains(&word);
    if known && shared.timing.guarded && word != b"ruok" {
        let word = String::from_utf8_lossy(word);
        return Some(format!("{word} is not executed because it is not in the whitelist."));
    }
    match word {
        b"ruok" => Some("imok".to_owned()),
        b"isro" => Some("rw".to_owned()),
        b"srvr" => Some(srvr(shared)),
        b"envi" => Some(format!("Environment:\nzookeeper.version={VERSION}\n")),
        _ => None,
    }
}

fn srvr(shared: &Shared) -> String {
    let inner = shared.lock();
    let (stats, latency) = (inner.core.stats(), &inner.latency);
    let average = latency.total as f64 / latency.count.max(1) as f64;
    // Java prints at most four decimals, and at least one.
    let mut average = format!("{average:.4}").trim_end_matches('0').to_owned();
    if average.ends_with('.') {
        average.push('0');
    }
    let mut text = format!("Zookeeper version: {VERSION}\n");
    let _ = writeln!(text, "Latency min/avg/max: {}/{average}/{}", latency.min, latency.max);
    let _ = writeln!(text, "Received: {}\nSent: {}", stats.received, stats.sent);
    // The one that asks is no client yet, but counted, as ZooKeeper does.
    let _ = writeln!(text, "Connections: {}\nOutstanding: 0", stats.connections);
    // ZooKeeper counts the root twice, as "" and as "/".
    let _ = writeln!(text, "Zxid: {:#x}\nMode: standalone\nNode count: {}", stats.zxid, stats.znodes + 1);
    text
}
