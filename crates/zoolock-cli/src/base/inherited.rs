//! Files that this process inherited.
//!
//! A zoolock process that outlives its parent must close these files. An open file keeps the file
//! locks of the parent. An open pipe keeps its reader waiting for the end of the input.

use std::os::fd::RawFd;

/// Returns the inherited files, without the three standard files. Must be called before this
/// process opens a file.
pub(crate) fn list_inherited() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let mut open: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The list includes the descriptor with which the directory was read. That descriptor is closed
    // by now, and a later file may get its number, so it is removed from the list.
    open.retain(|fd| *fd > 2 && std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok());
    open
}

/// Closes the files that `list_inherited` returned.
pub(crate) fn close(files: Vec<RawFd>) {
    for fd in files {
        let _ = nix::unistd::close(fd);
    }
}
