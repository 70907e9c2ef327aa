//! `/proc`, in which zoolock finds processes.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid};

use crate::base::exit::Failure;

/// The program of this process. Not its path, because an upgrade may have put another program there.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Checks that `/proc` shows this process. Otherwise zoolock cannot find the processes of a
/// command.
pub(crate) fn check_proc() -> Result<(), Failure> {
    let shown = std::fs::read_link("/proc/self").ok();
    if shown.is_some_and(|shown| shown.as_os_str() == getpid().to_string().as_str()) {
        return Ok(());
    }
    Err(Failure::unavailable(
        "/proc is not mounted, or is of another process namespace, and zoolock finds processes there; run: mount -t proc \
         proc /proc",
    ))
}

/// Returns a field of `/proc/PID/status`, such as `PPid:`.
pub(crate) fn status_field(pid: impl Display, name: &str) -> Option<String> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    // The process's name is in the file, cut after 15 bytes, and may not be UTF-8.
    let status = String::from_utf8_lossy(&status);
    Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned())
}

/// The signals that this process ignored when it was started, with one bit for each.
static IGNORED_AT_START: AtomicU64 = AtomicU64::new(0);

/// Reads which signals are ignored before `main`, because Rust's runtime ignores PIPE before it calls `main`.
///
/// Soundness: `std::fs` and `format!` need the allocator of libc and system calls, but nothing that the runtime sets up.
/// Nothing here panics, starts a thread, or uses the arguments or standard streams.
#[ctor::ctor(unsafe)]
fn read_signals_ignored_at_start() {
    IGNORED_AT_START.store(ignored_signals("self"), Ordering::Relaxed);
}

/// Returns whether this process ignored a signal when it was started.
pub(crate) fn ignored_at_start(signal: Signal) -> bool {
    IGNORED_AT_START.load(Ordering::Relaxed) >> (signal.as_raw() - 1) & 1 == 1
}

/// Returns the signals that a process ignores, with one bit for each; 0 if they cannot be read.
pub(crate) fn ignored_signals(pid: impl Display) -> u64 {
    let mask = status_field(pid, "SigIgn:");
    mask.and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0)
}
