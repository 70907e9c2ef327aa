//! TCP_NODELAY for the sockets of the client crate.
//!
//! The crate (0.11) leaves Nagle's algorithm on and shows its socket to nobody: a request that follows another within
//! a round trip stays in this machine until the first is acknowledged, so that a flight of two requests takes two
//! round trips. The kernel knows the sockets by their numbers. `pidfd_getfd` on our own process would turn a number into
//! a descriptor without unsafe code, but Docker's default profile forbids it, and systemd's filters kill whoever calls it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{getpeername, sockopt};

/// Sets it on every TCP connection of this process to one of these ports. Blocks for as long as that takes.
///
/// # Errors
/// Where the descriptors of this process cannot be listed.
pub(super) fn set(ports: &[u16]) -> io::Result<()> {
    static LOOKS: Looks = Looks::new();
    LOOKS.share(ports, set_on_all)
}

/// Who opens a thousand sessions at once would look through all descriptors a thousand times: a look serves all who asked
/// before it began.
struct Looks {
    ports: Mutex<BTreeSet<u16>>,
    asked: AtomicU64,
    /// How many had asked when the last look began. Whoever looks keeps it locked.
    served: Mutex<u64>,
}

impl Looks {
    const fn new() -> Looks {
        Looks { ports: Mutex::new(BTreeSet::new()), asked: AtomicU64::new(0), served: Mutex::new(0) }
    }

    fn share(&self, ports: &[u16], look: impl FnOnce(&[u16]) -> io::Result<usize>) -> io::Result<()> {
        lock(&self.ports).extend(ports);
        // After the ports: a look that counts us has them.
        let ours = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut served = lock(&self.served);
        if *served >= ours {
            return Ok(());
        }
        let asked = self.asked.load(Ordering::SeqCst);
        let ports: Vec<_> = lock(&self.ports).iter().copied().collect();
        look(&ports)?;
        *served = asked;
        Ok(())
    }
}

/// Returns on how many it was off.
///
/// The connection may be another client's in this process; it loses nothing but small delays. Which one is ours cannot
/// be told: names resolve to other addresses each time.
fn set_on_all(ports: &[u16]) -> io::Result<usize> {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(set_on_all(&ports[..1]).expect("there is /proc"), 1);
        assert_eq!(has(), [true, false]);
        assert_eq!(set_on_all(&ports[..1]).expect("there is /proc"), 0, "it has it");
    }

    #[test]
    fn who_asks_at_once_shares_a_look_that_began_after_he_asked() {
        const MANY: u16 = 50;
        let (looks, begun) = (Looks::new(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for port in 0..MANY {
                let (looks, begun) = (&looks, &begun);
                scope.spawn(move || {
                    let before = begun.load(Ordering::SeqCst);
                    let look = |ports: &[u16]| {
                        begun.fetch_add(1, Ordering::SeqCst);
                        assert!(ports.contains(&port));
                        std::thread::sleep(std::time::Duration::from_millis(100));
                        Ok(0)
                    };
                    looks.share(&[port], look).expect("it looks");
                    assert!(begun.load(Ordering::SeqCst) > before);
                });
            }
        });
        let (looks_taken, all) = (begun.into_inner(), u64::from(MANY));
        assert!(looks_taken < all / 2, "{looks_taken} looks for {all}");
        assert_eq!(*lock(&looks.served), all);
    }

    #[test]
    fn a_look_that_failed_served_nobody() {
        let looks = Looks::new();
        assert!(looks.share(&[1], |_| Err(io::ErrorKind::OutOfMemory.into())).is_err());
        let mut seen = Vec::new();
        looks
            .share(&[2], |ports| {
                Ok({
                    seen = ports.to_vec();
                    0
                })
            })
            .expect("it looks");
        assert_eq!(seen, [1, 2]);
    }
}
