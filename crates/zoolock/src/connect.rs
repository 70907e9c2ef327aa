//! Why there is no connection: looked at only when there is none, so that the error can say it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::Error;
use crate::path::{ConnectString, display_host};

/// How long one host may take to show what it is.
const LOOK: Duration = Duration::from_secs(2);

/// Tries each host by hand and puts what it finds into words.
pub(crate) async fn diagnose(connect: &ConnectString, patience: Duration) -> Error {
    let mut findings = Vec::new();
    for (host, port) in connect.hosts() {
        findings.push(format!("{}: {}", display_host(host, *port), look(host, *port).await));
    }
    Error::unavailable(
        connect.endpoints(),
        format!(
            "no session within {patience:?} ({}); check the address and that the service runs",
            findings.join("; ")
        ),
    )
}

async fn look(host: &str, port: u16) -> String {
    let found = async {
        let addresses: Vec<_> = match tokio::net::lookup_host((host, port)).await {
            Ok(addresses) => addresses.collect(),
            Err(error) => return format!("unknown host ({error})"),
        };
        let mut stream = match TcpStream::connect(&*addresses).await {
            Ok(stream) => stream,
            Err(error) => return format!("cannot connect ({error})"),
        };
        match shake_hands(&mut stream).await {
            Ok(true) => "speaks ZooKeeper, but opened no session in time".to_owned(),
            Ok(false) => "something answers, but it does not speak ZooKeeper".to_owned(),
            Err(error) => format!("connects, but hangs up on a ZooKeeper client ({error})"),
        }
    };
    tokio::time::timeout(LOOK, found).await.unwrap_or_else(|_| "connects, but does not answer".to_owned())
}

/// Asks to re-attach to a session that cannot exist: a ZooKeeper says no and makes nothing.
async fn shake_hands(stream: &mut TcpStream) -> std::io::Result<bool> {
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
    let length = stream.read_i32().await?;
    // protocol version, timeout, session, password, and from 3.4 on read-only
    Ok(matches!(length, 36 | 37))
}
