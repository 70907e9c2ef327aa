//! Ports for test servers. A port stays reserved while its server is down.
//!
//! A server that listens on port 0 gets an ephemeral port. While such a server is down, an outgoing
//! connection of any process could get the same port. A client that keeps reconnecting to the port
//! could even connect to itself. So ports are chosen below the ephemeral range. To reserve a port,
//! a test binds the UDP port of the same number. Then no other test process can bind it. The
//! reservation ends with the process at the latest.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use crate::{Result, TestFailure};

const LOWEST: u16 = 10_000;

/// A TCP port that no other test chooses while this value exists.
#[derive(Debug)]
pub struct Port {
    addr: SocketAddr,
    _reservation: Option<UdpSocket>,
}

impl Port {
    /// Reserves a port on which nothing listens.
    ///
    /// # Errors
    /// Fails if 1,000 candidates are all taken.
    pub fn reserve() -> Result<Self> {
        let end = first_ephemeral().max(LOWEST + 1);
        for _ in 0..1_000 {
            let number = LOWEST + (random() % u64::from(end - LOWEST)) as u16;
            let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else { continue };
            // The listener is dropped at once. It accepted no connection, so the port is free again.
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
                return Ok(Self { addr, _reservation: Some(reservation) });
            }
        }
        Err(TestFailure::new(format!("no free port between {LOWEST} and {end}")))
    }

    /// Returns the port of an address that no other process can use, because it is in a namespace of this process.
    pub fn in_namespace(addr: SocketAddr) -> Self {
        Self { addr, _reservation: None }
    }

    /// Returns the port number.
    pub fn number(&self) -> u16 {
        self.addr.port()
    }

    /// Returns the address, which is on the loopback interface.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// Returns the lowest port that the kernel can choose for outgoing connections.
fn first_ephemeral() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

// No test depends on which port it gets, so this randomness needs no seed.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
