//! The address of a server, and the kinds of failures to reach it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A host name or an IP address, and a port.
    Tcp {
        /// The name or the address, without brackets.
        name: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Host {
    /// Returns the name or the address, without the port. Returns `localhost` for a Unix socket.
    pub fn name(&self) -> &str {
        match self {
            Host::Tcp { name, .. } => name,
            Host::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Tcp { name, port } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Host::Tcp { name, port } => write!(f, "{name}:{port}"),
            Host::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One address of a host. A name may have several addresses, and each may be another server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The host. TLS and SASL check the name of the host, and not its address.
    pub host: Host,
    /// The address. `None` for a Unix socket, and for a name that did not resolve.
    pub address: Option<SocketAddr>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)?;
        match self.address.filter(|_| self.host.name().parse::<IpAddr>().is_err()) {
            Some(address) => write!(f, " ({})", address.ip()),
            None => Ok(()),
        }
    }
}

/// The kind of a failed dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialFailure {
    /// No connection was made: the name did not resolve, the address is not reachable, or the server does not accept a
    /// connection in time.
    NotConnected,
    /// The connection was refused: nothing listens at the address, or a firewall answers in its place.
    Refused,
    /// The server accepted the connection, and closed it at once.
    HungUp,
    /// The connection was made, but TLS fails, or there is no SASL token.
    NotSecured,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_display_as_in_a_connect_string() {
        let shown = |host: Host| host.to_string();
        assert_eq!(shown(Host::Tcp { name: "::1".to_owned(), port: 2181 }), "[::1]:2181");
        assert_eq!(shown(Host::Tcp { name: "zk".to_owned(), port: 2181 }), "zk:2181");
        assert_eq!(shown(Host::Unix("/run/zk".into())), "unix:/run/zk");
    }

    #[test]
    fn endpoint_of_name_displays_its_address() {
        let shown = |name: &str, address: &str| {
            let host = Host::Tcp { name: name.to_owned(), port: 2181 };
            Endpoint { host, address: address.parse().ok() }.to_string()
        };
        assert_eq!(shown("zk", "10.0.0.7:2181"), "zk:2181 (10.0.0.7)");
        assert_eq!(shown("zk", "[fd00::7]:2181"), "zk:2181 (fd00::7)");
        assert_eq!(shown("10.0.0.7", "10.0.0.7:2181"), "10.0.0.7:2181");
        assert_eq!(shown("zk", "no address"), "zk:2181");
    }
}
