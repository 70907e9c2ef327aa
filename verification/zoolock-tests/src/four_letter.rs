//! ZooKeeper's four-letter words, such as `ruok`, `mntr` and `conf`.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{Result, TestFailure};

const BOUND: Duration = Duration::from_secs(10);

/// Sends a four-letter word to the server at `addr` and returns its answer.
///
/// # Errors
/// Fails if the server does not answer within 10 s.
pub async fn send_four_letter_word(addr: SocketAddr, word: &str) -> Result<String> {
    let asked = timeout(BOUND, async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    });
    match asked.await {
        Ok(Ok(answer)) => Ok(String::from_utf8_lossy(&answer).into_owned()),
        Ok(Err(error)) => Err(TestFailure::during(format_args!("asking {addr} `{word}`"), error)),
        Err(_) => Err(TestFailure::new(format!("asking {addr} `{word}`: no answer within {BOUND:?}"))),
    }
}

/// Returns the number of watches on data, children and existence that `mntr` reports.
///
/// `mntr` is used because `wchs` does not count watches on children.
///
/// # Errors
/// Fails if the server does not answer, or if its answer has no number of watches.
pub async fn watch_count(addr: SocketAddr) -> Result<u64> {
    let answer = send_four_letter_word(addr, "mntr").await?;
    answer.lines().find_map(|line| line.strip_prefix("zk_watch_count")?.trim().parse().ok()).ok_or_else(
        || TestFailure::new(format!("{addr} does not count its watches, it answers `{answer}` to `mntr`")),
    )
}

/// Returns the number of watched paths at or below `root`, for watches on data and existence.
///
/// # Errors
/// Fails if the server does not answer.
pub async fn watches_below(addr: SocketAddr, root: &str) -> Result<u64> {
    let answer = send_four_letter_word(addr, "wchp").await?;
    let is_below =
        |path: &&str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    Ok(answer.lines().filter(is_below).count() as u64)
}
