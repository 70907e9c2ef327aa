//! Paths of Unix sockets.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// The longest path that the kernel accepts for a Unix socket, in bytes.
const LONGEST: usize = 107;

/// A path of a Unix socket that is short enough for the kernel. If the path of the socket is
/// longer, this type opens the socket's directory, and the path goes through that directory in
/// `/proc/self/fd`.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// Keeps the directory open.
    _directory: Option<OwnedFd>,
}

impl SocketPath {
    /// Returns a path to the same socket that is short enough for the kernel. With a file name of more than 80 bytes,
    /// the path may still be too long.
    ///
    /// # Errors
    /// The path is longer than 107 bytes, and its directory does not exist or cannot be opened.
    pub fn new(path: &Path) -> io::Result<SocketPath> {
        let is_long = path.as_os_str().len() > LONGEST;
        let Some((directory, name)) = path.parent().zip(path.file_name()).filter(|_| is_long) else {
            return Ok(SocketPath { path: path.to_owned(), _directory: None });
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        Ok(SocketPath { path, _directory: Some(directory) })
    }
}

impl AsRef<Path> for SocketPath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn socket_with_a_long_path_is_reached() {
        let long = std::env::temp_dir().join(format!("zoolock-{}-{}", std::process::id(), "x".repeat(120)));
        std::fs::create_dir_all(&long).expect("directory is created");
        let socket = long.join("socket");
        let listening = UnixListener::bind(SocketPath::new(&socket).expect("directory is opened"));
        let connected = UnixStream::connect(SocketPath::new(&socket).expect("directory is opened"));
        std::fs::remove_dir_all(&long).expect("directory is removed");
        assert!(listening.is_ok() && connected.is_ok(), "{listening:?} {connected:?}");
    }
}
