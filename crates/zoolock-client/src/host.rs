//! The address of a server, and the kinds of failures to reach it.

use std::fmt;
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

/// The kind of a failed dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialFailure {
    /// No connection was made: the name has no address, or the server does not accept a connection
    /// in time.
    NotConnected,
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
}
