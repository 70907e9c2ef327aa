//! The files that whoever started us had open. A process of ours that outlives him, and they with it, would keep his
//! lock on a file, or the pipe whose end somebody waits for.

use std::os::fd::RawFd;

/// Those beside the three standard ones. To be asked before any are our own.
pub(crate) fn files() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let mut open: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The list itself is among them, and closed by now: its number would be another's soon.
    open.retain(|fd| *fd > 2 && std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok());
    open
}

/// Closes them.
pub(crate) fn close(files: Vec<RawFd>) {
    for fd in files {
        let _ = nix::unistd::close(fd);
    }
}
