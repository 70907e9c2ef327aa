//! Files that this process inherited.
//!
//! A zoolock process that outlives its parent must close them. Otherwise it keeps the parent's file locks, and keeps pipes
//! open whose end another process waits for.

use std::os::fd::RawFd;

/// Returns the inherited files other than the three standard ones. Call it before this process opens a file.
pub(crate) fn files() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let mut open: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The list contains the file of the listed directory itself, which is closed by now. Another file may get its number.
    open.retain(|fd| *fd > 2 && std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok());
    open
}

/// Closes the files that `files` returned.
pub(crate) fn close(files: Vec<RawFd>) {
    for fd in files {
        let _ = nix::unistd::close(fd);
    }
}
