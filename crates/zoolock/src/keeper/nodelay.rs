//! TCP_NODELAY for the sockets of the client crate.
//!
//! The crate (0.11) leaves Nagle's algorithm on and shows its socket to nobody: a request that follows another within
//! a round trip stays in this machine until the first is acknowledged, so that a flight of two requests takes two
//! round trips. The kernel knows the sockets by their numbers. `pidfd_getfd` on our own process would turn a number into
//! a descriptor without unsafe code, but Docker's default profile forbids it, and systemd's filters kill whoever calls it.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::net::{getpeername, sockopt};

/// Sets it on every TCP connection of this process to one of these ports, and returns on how many it was off.
///
/// The connection may be another client's in this process; it loses nothing but small delays. Which one is ours cannot
/// be told: names resolve to other addresses each time.
///
/// # Errors
/// Where the descriptors of this process cannot be listed.
pub(super) fn set(ports: &[u16]) -> io::Result<usize> {
    let mut changed = 0;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // Whatever is closed meanwhile is none of ours.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if !target.as_os_str().as_bytes().starts_with(b"socket:") {
            continue;
        }
        let Some(number) = number(&entry.file_name()) else { continue };
        // Of another kind, or closed.
        changed += usize::from(set_on(number, ports).unwrap_or(false));
    }
    Ok(changed)
}

fn number(name: &OsStr) -> Option<RawFd> {
    name.to_str()?.parse().ok()
}

/// Whether it was off.
#[allow(unsafe_code, reason = "there is no other way to name a socket that its owner does not show")]
fn set_on(number: RawFd, ports: &[u16]) -> rustix::io::Result<bool> {
    // SAFETY: it is not -1. It is asked to stay open, too, which only its owner could promise; he may close it at any time,
    // and the number may then be another file's. The three calls below bear that: each fails on it, looks at it, or sets
    // an option that changes no data. None reads, writes, duplicates (which would drop the locks of a file) or closes it.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let peer = getpeername(socket)?.and_then(|peer| SocketAddr::try_from(peer).ok());
    if !peer.is_some_and(|peer| ports.contains(&peer.port())) || sockopt::tcp_nodelay(socket)? {
        return Ok(false);
    }
    sockopt::set_tcp_nodelay(socket, true)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_to_these_ports_get_it_and_no_others() {
        let servers = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let ports = servers.each_ref().map(|server| server.local_addr().expect("it is bound").port());
        let clients = ports.map(|port| TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
        let has = || clients.each_ref().map(|client| client.nodelay().expect("it is open"));
        assert_eq!(has(), [false, false]);
        assert_eq!(set(&ports[..1]).expect("there is /proc"), 1);
        assert_eq!(has(), [true, false]);
        assert_eq!(set(&ports[..1]).expect("there is /proc"), 0, "it has it");
    }
}
