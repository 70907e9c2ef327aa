//! Local mode: a server for this user on this machine, started by whoever needs it first.
//!
//! All of it lives in one directory that is this user's alone:
//! - `secret`: what every client presents; made once;
//! - `identity`: what the server shows before a client presents anything; made once;
//! - `lock`: locked by the one server for as long as it lives;
//! - `address`: where it listens, and its process; believed only while `lock` is held;
//! - `port`: where the last one listened, which the next one does if it can;
//! - `stopped`: says that nobody who holds or waits is to start it again;
//! - `starting`: locked by the one client that starts a server;
//! - `sessions`: how many clients the server has, for `serve --status`;
//! - `log`: what the server has to say;
//! - `data`: what must not be forgotten, so that tokens never go back.

mod identity;
mod keep;
mod paths;
mod secret;
mod server;
mod start;

use std::fs::{File, OpenOptions, TryLockError};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;

use rustix::process::{Pid, test_kill_process};
use zeroize::Zeroizing;
use zoolock::Tls;

pub(crate) use keep::{Keeper, stopped};
pub(crate) use paths::StateDir;
pub(crate) use server::serve;
pub(crate) use start::running;

use crate::exit::{Exit, Failure};

/// A server that can be connected to.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) secret_file: PathBuf,
    /// By what the server is known.
    pub(crate) tls: Tls,
    secret: secret::Secret,
}

impl Running {
    /// What the server demands.
    pub(crate) fn credentials(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(format!("zoolock:{}", self.secret.expose()).into_bytes())
    }
}

/// What the server wrote about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) socket: SocketAddr,
    pub(crate) pid: Pid,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.socket, self.pid)
    }
}

impl FromStr for Address {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (socket, pid) = text.trim_end().split_once(' ').ok_or(())?;
        let pid = pid.parse().ok().and_then(Pid::from_raw).ok_or(())?;
        Ok(Self { socket: socket.parse().map_err(|_| ())?, pid })
    }
}

/// Whether a server lives, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody holds the lock.
    Absent,
    /// Somebody does, but does not listen yet or no longer.
    Busy,
    /// It listens.
    Listening(Address),
}

/// Looks, and changes nothing.
pub(crate) fn look(dir: &StateDir) -> Result<State, Failure> {
    let lock = open_lock(dir, "lock")?;
    match lock.try_lock_shared() {
        Ok(()) => return Ok(State::Absent),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(dir.failed("lock", "lock", &error)),
    }
    let Ok(text) = std::fs::read_to_string(dir.file("address")) else { return Ok(State::Busy) };
    match text.parse::<Address>() {
        // One of a server that crashed may be there until the next has taken it away; its port may be anyone's.
        Ok(address) if test_kill_process(address.pid).is_ok() => Ok(State::Listening(address)),
        _ => Ok(State::Busy),
    }
}

/// Opens a file that only serves to be locked.
fn open_lock(dir: &StateDir, name: &str) -> Result<File, Failure> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(dir.file(name))
        .map_err(|error| dir.failed("open", name, &error))
}

/// A failure of the file system: a matter of permission if it says so.
fn storage(message: String, error: &std::io::Error) -> Failure {
    let exit = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Exit::DENIED,
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_as_it_was_written() {
        let address: Address = "127.0.0.1:4711 42\n".parse().expect("well formed");
        assert_eq!(address.to_string(), "127.0.0.1:4711 42");
        for bad in ["", "127.0.0.1:4711", "127.0.0.1 42", "127.0.0.1:4711 0", "127.0.0.1:4711 -"] {
            assert!(bad.parse::<Address>().is_err(), "{bad:?}");
        }
    }
}
