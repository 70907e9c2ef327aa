//! The messages of this user's server, which it writes to the file `log`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use rustix::fs::statvfs;
use rustix::process::{Resource, geteuid, getrlimit};

use super::paths::StateDir;

/// Maximum number of bytes at the end of the log in which the last line is sought.
const LAST_LINE: u64 = 4096;
/// The text before the error in the line that `failure_line` returns.
const FAILED: &str = " failed: ";
/// The first word of the reason why a server stopped without an error.
pub(super) const STOPPED: &str = "stopped";
/// The reason to report if the disk has no space for the text of the error.
const FULL: &str = "the disk is full; free space on it";
/// Number of free blocks below which the disk counts as full.
const MIN_BLOCKS: u64 = 16;

/// Returns the line to log for an error that ends the server.
pub(super) fn failure_line(error: impl std::fmt::Display) -> String {
    format!("{}{FAILED}{error}", timestamp())
}

/// Returns the error with which the last server ended. Returns `None` if the server runs, was stopped, or was killed.
pub(super) fn last_failure(dir: &StateDir) -> Option<String> {
    let line = last_line(dir, 0)?;
    match line.split_once(FAILED) {
        Some((_, why)) => Some(why.to_owned()),
        // The error did not fit on the disk.
        None if !line.contains(STOPPED) && is_full(dir) => Some(FULL.to_owned()),
        None => None,
    }
}

/// Returns the size of the log in bytes.
pub(super) fn size(dir: &StateDir) -> u64 {
    std::fs::metadata(dir.file("log")).map_or(0, |metadata| metadata.len())
}

/// Returns the reason why a server ended. `from` is the size of the log before that server started.
pub(super) fn end_reason(dir: &StateDir, from: u64) -> String {
    let Some(line) = last_line(dir, from) else {
        let why = if getrlimit(Resource::Fsize).current.is_some() {
            "perhaps it could not write its log; raise the limit on the size of files (ulimit -f)"
        } else if is_full(dir) {
            FULL
        } else {
            "it printed no message"
        };
        return why.to_owned();
    };
    match line.split_once(FAILED) {
        Some((_, why)) => why.to_owned(),
        None => line.strip_prefix("zoolock: ").unwrap_or(&line).to_owned(),
    }
}

/// Returns whether the disk of the state directory has hardly any space left.
fn is_full(dir: &StateDir) -> bool {
    statvfs(dir.path()).is_ok_and(|disk| {
        // Some blocks are reserved for root.
        let free = if geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
        disk.f_blocks > 0 && free < MIN_BLOCKS
    })
}

/// Returns the last line that begins at byte `from` or later. Skips the last line of a panic, which is about backtraces.
fn last_line(dir: &StateDir, from: u64) -> Option<String> {
    let mut log = File::open(dir.file("log")).ok()?;
    let from = log.metadata().ok()?.len().saturating_sub(LAST_LINE).max(from);
    log.seek(SeekFrom::Start(from)).ok()?;
    let mut text = Vec::new();
    log.take(LAST_LINE).read_to_end(&mut text).ok()?;
    String::from_utf8_lossy(&text)
        .lines()
        .rfind(|line| !line.starts_with("note: run with"))
        .map(str::to_owned)
}

/// Returns the current time in the format of the log.
pub(super) fn timestamp() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_the_last_server_is_found() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        assert_eq!(last_failure(&state), None);
        let line = format!("zoolock: {}\n", failure_line("no space"));
        std::fs::write(state.file("log"), &line).expect("file written");
        assert_eq!(last_failure(&state).as_deref(), Some("no space"));
        assert_eq!(end_reason(&state, 0), "no space");
        // The line was written before the last server started, so it is not the reason why that server ended.
        assert!(!end_reason(&state, size(&state)).contains("no space"));
        std::fs::write(state.file("log"), line + "zoolock: now serving on x\n").expect("file written");
        assert_eq!(last_failure(&state), None);
        assert_eq!(end_reason(&state, 0), "now serving on x");
        let panic = "thread 'main' panicked at x.rs:\nno thread\nnote: run with `RUST_BACKTRACE=1`\n";
        std::fs::write(state.file("log"), panic).expect("file written");
        assert_eq!(end_reason(&state, 0), "no thread");
    }
}
