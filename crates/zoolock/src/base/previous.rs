//! The way in which the previous holder left.

/// The way in which the last holder left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Previous {
    /// It released the lock: its writes are complete.
    Clean,
    /// It ended without a release, or released while it unwound from a panic: its writes may be incomplete. Without
    /// [`crash_detection`](crate::Mutex::crash_detection), only the panic is known.
    Crashed,
    /// Not known: after a crash, after a contender that gave up or that uses another client library, after the
    /// directory was removed, or without a last holder. Also if it was not read yet, see
    /// [`tell_previous`](crate::Mutex::tell_previous).
    Unknown,
}

impl std::fmt::Display for Previous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Previous::Clean => "clean",
            Previous::Crashed => "crashed",
            Previous::Unknown => "unknown",
        })
    }
}
