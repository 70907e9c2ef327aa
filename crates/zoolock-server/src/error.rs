use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

use crate::log::LogError;

/// The reason why a server did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is invalid.
    #[error("{what}")]
    Invalid {
        /// The problem and the remedy.
        what: String,
    },
    /// The server cannot listen on the address.
    #[error("cannot listen on {addr}: {source}; {}", listen_hint(.source))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error("cannot {what} {}: {source}; {}", .path.display(), data_hint(.source))]
    DataDir {
        /// The failed operation.
        what: &'static str,
        /// The directory, or the file in it.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another server uses the data directory.
    #[error("the data directory {} is in use by another server; stop it or choose another directory", .path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Another user could change the data directory.
    #[error("the data directory {} {why}", .path.display())]
    UnsafeDataDir {
        /// The directory.
        path: PathBuf,
        /// The problem and the remedy.
        why: String,
    },
    /// The epoch file is damaged.
    #[error(
        "the epoch file {} is damaged ({found}); write a number into it that is higher than any epoch used before, \
         or choose an empty data directory and raise the epoch of the tokens",
        .path.display()
    )]
    CorruptEpoch {
        /// The file.
        path: PathBuf,
        /// The kind of damage.
        found: String,
    },
    /// The session timeout of the previous server cannot be read.
    #[error(
        "cannot read the session timeout of the previous server from {}: {source}; write the longest timeout \
         that a session can have, in milliseconds, into the file, and try again",
        .path.display()
    )]
    SessionTimeoutFile {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The log or its snapshots cannot be used.
    #[error("{source}")]
    Log {
        /// The file, the problem and the remedy.
        source: LogError,
    },
    /// A thread of the server could not be started.
    #[error("cannot start a thread of the server: {source}")]
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },
    /// A certificate or a key cannot be used.
    #[error("cannot use {} as {what}: {why}", .path.display())]
    Certificate {
        /// The intended use of the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        why: String,
    },
    /// The operating system gives no random numbers.
    #[error(
        "the operating system gives no random numbers for session passwords: {what}; allow this process to call getrandom(2)"
    )]
    Random {
        /// The error of the operating system.
        what: String,
    },
}

fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the process that uses it, or choose another port",
        io::ErrorKind::PermissionDenied => "choose a port above 1023",
        _ => "choose an address of this machine",
    }
}

fn data_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "a file has this name; rename it, or choose another data directory"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space on this disk, or choose a data directory on another disk"
        }
        io::ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
        _ if Errno::from_io_error(error) == Some(Errno::LOOP) => {
            "a symbolic link has this name; replace the link by its file"
        }
        // NFS locks no file that is open for reading alone, as a directory is.
        _ if Errno::from_io_error(error) == Some(Errno::BADF) => {
            "choose a data directory on a local file system"
        }
        _ => "choose a data directory that this user can write to",
    }
}
