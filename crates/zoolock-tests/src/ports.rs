//! Ports for test servers, chosen so that they stay ours while a server is down.
//!
//! Asking the kernel for port 0 gives an ephemeral port: while our server is killed, an outgoing connection of
//! any process may take it, and a client that keeps reconnecting to it may even connect to itself. So we choose
//! below the ephemeral range, and hold the UDP port of the same number as a reservation that other test
//! processes see and that ends with us.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use crate::{Failure, Result};

const LOWEST: u16 = 10_000;

/// A port on 127.0.0.1 that no other test chooses as long as this lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: UdpSocket,
}

impl Port {
    /// Reserves a port on which nothing listens.
    ///
    /// # Errors
    /// When 1,000 candidates were all taken.
    pub fn reserve() -> Result<Self> {
        let beyond = first_ephemeral().max(LOWEST + 1);
        for _ in 0..1_000 {
            let number = LOWEST + (random() % u64::from(beyond - LOWEST)) as u16;
            let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else { continue };
            // Bound and let go at once: nothing was accepted, so nothing lingers.
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _reservation: reservation });
            }
        }
        Err(Failure::new(format!("no free port between {LOWEST} and {beyond}")))
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The address on the loopback interface.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

/// Where the kernel begins to choose ports for outgoing connections.
fn first_ephemeral() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

// Which port it is never matters to a test, so this randomness needs no seed.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
