//! Asks a host whether it speaks ZooKeeper's protocol.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The kind of server that has answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerGreeting {
    ZooKeeper,
    Other,
}

/// Sends a connect request for a session that cannot exist, and reads the answer. A ZooKeeper server refuses
/// the request and creates no session.
pub(crate) async fn probe_zookeeper(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> std::io::Result<ServerGreeting> {
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
    // A response has a protocol version, a timeout, a session, a password, and from ZooKeeper 3.4
    // on a read-only flag. These are 36 or 37 bytes.
    Ok(if matches!(length, 36 | 37) { ServerGreeting::ZooKeeper } else { ServerGreeting::Other })
}
