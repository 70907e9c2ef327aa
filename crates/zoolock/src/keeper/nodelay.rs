//! TCP_NODELAY for the sockets of the client crate.
//!
//! The crate (0.11) leaves Nagle's algorithm on and shows its socket to nobody: a request that follows another within
//! a round trip stays in this machine until the first is acknowledged, so that a flight of two requests takes two
//! round trips. The option belongs to the socket, not to the descriptor, so it can be set through a duplicate;
//! `pidfd_getfd` on our own process makes one without unsafe code. It is Linux's since 5.6, and a container may forbid
//! it: then locks are slower, not wrong.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::net::{getpeername, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Sets it on every TCP connection of this process to one of these ports, and returns on how many it was off.
///
/// The connection may be another client's in this process; it loses nothing but small delays. Which one is ours cannot
/// be told: names resolve to other addresses each time.
pub(super) fn set(ports: &[u16]) -> io::Result<usize> {
    let me = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut changed = 0;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // Whatever is closed meanwhile is none of ours.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if !target.as_os_str().as_bytes().starts_with(b"socket:") {
            continue;
        }
        let Some(number) = number(&entry.file_name()) else { continue };
        let socket = match pidfd_getfd(&me, number, PidfdGetfdFlags::empty()) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::BADF) => continue,
            Err(error) => return Err(error.into()),
        };
        if leads_to(&socket, ports) && matches!(sockopt::tcp_nodelay(&socket), Ok(false)) {
            sockopt::set_tcp_nodelay(&socket, true)?;
            changed += 1;
        }
    }
    Ok(changed)
}

fn number(name: &OsStr) -> Option<i32> {
    name.to_str()?.parse().ok()
}

fn leads_to(socket: &OwnedFd, ports: &[u16]) -> bool {
    let peer = getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    peer.is_some_and(|peer| ports.contains(&peer.port()))
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
        assert_eq!(set(&ports[..1]).expect("nothing forbids it here"), 1);
        assert_eq!(has(), [true, false]);
        assert_eq!(set(&ports[..1]).expect("nothing forbids it here"), 0, "it has it");
    }
}
