use std::sync::Arc;
use std::time::Duration;

use zoolock_wire::MAX_FRAME;

use crate::log;

/// Limits of a [`Server`](crate::Server) that rarely need a change.
///
/// # Examples
/// ```
/// use zoolock_server::{Limits, Server};
///
/// let limits = Limits { max_watches: 10_000, ..Limits::default() };
/// let builder = Server::builder().limits(limits);
/// ```
#[derive(Debug, Clone)]
pub struct Limits {
    /// Shortest session timeout granted. Default: `None`, which means 2 ticks.
    pub min_session_timeout: Option<Duration>,
    /// Maximum size of a frame in bytes, like ZooKeeper's `jute.maxbuffer`. At most 512 MiB. Default: 1,048,575, as in
    /// ZooKeeper.
    pub max_frame: usize,
    /// Maximum number of bytes of unsent replies and events, over all connections. Default: 512 MiB. 0 means no limit.
    ///
    /// Above the limit the server closes the connection with the most unsent bytes. Incomplete
    /// requests have a separate limit of the same size. Above that limit, the server closes
    /// connections with an incomplete request of more than 64 KiB.
    pub max_queued: usize,
    /// Maximum number of paths that a connection may watch. Default: 131,072. 0 means no limit.
    ///
    /// The server closes a connection that watches more paths. A path of more than 128 bytes counts
    /// as several.
    pub max_watches: usize,
    /// Maximum number of paths that all connections may watch, counted like [`Limits::max_watches`]. Default:
    /// 4,000,000. 0 means no limit.
    ///
    /// Above the limit the server closes the connection that watches the most.
    pub max_total_watches: usize,
    /// Approximate maximum memory of all znodes in bytes, with their data and access lists. Default: 64 GiB. 0 means no
    /// limit.
    ///
    /// Above the limit the server refuses writes that create znodes or write much data, with ZooKeeper's error
    /// `QuotaExceeded`.
    pub max_znode_memory: usize,
    /// Maximum number of sessions. Default: 100,000. 0 means no limit.
    ///
    /// The server closes connections that ask for another session.
    pub max_sessions: usize,
    /// Set if znodes may have a time to live, like ZooKeeper's `extendedTypesEnabled`. Default:
    /// true.
    pub extended_types: bool,
    /// Sizes of the log's files, in bytes. Default: a new segment after 64 MiB, a snapshot after 64 MiB, and allocation
    /// in steps of 8 MiB.
    #[doc(hidden)]
    pub log: log::Options,
    /// Disk that stores the log and the snapshots. Default: `None`, which means the data directory.
    /// The lock and the epoch are always in the data directory.
    #[doc(hidden)]
    pub disk: Option<Arc<dyn log::Disk>>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            min_session_timeout: None,
            max_frame: MAX_FRAME,
            max_queued: 512 << 20,
            max_watches: 131_072,
            max_total_watches: 4_000_000,
            max_znode_memory: 64 << 30,
            max_sessions: 100_000,
            extended_types: true,
            log: log::Options::default(),
            disk: None,
        }
    }
}

/// Approximate memory of a watched path in bytes.
const WATCH_MEMORY: u64 = 256;

impl Limits {
    /// Returns limits for a server that may take this number of bytes of memory. They are not higher than the defaults.
    ///
    /// Znodes may take a third of the memory, output and incomplete requests a twelfth each, and watches and undelivered
    /// events a 48th each. The rest is for growing tables, for buffers and for the program.
    pub fn for_memory(bytes: u64) -> Self {
        let limits = Limits::default();
        let least =
            |default: usize, share: u64| default.min(usize::try_from(share).unwrap_or(usize::MAX).max(1));
        let watches = bytes / 48 / WATCH_MEMORY;
        Limits {
            max_queued: least(limits.max_queued, bytes / 12),
            max_watches: least(limits.max_watches, watches / 2),
            max_total_watches: least(limits.max_total_watches, watches),
            max_znode_memory: least(limits.max_znode_memory, bytes / 3),
            max_sessions: least(limits.max_sessions, bytes / 16_384),
            ..limits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_shrink_with_the_memory() {
        let (small, large) = (Limits::for_memory(512 << 20), Limits::for_memory(1 << 40));
        assert_eq!(large.max_queued, Limits::default().max_queued);
        assert_eq!(large.max_sessions, Limits::default().max_sessions);
        let watches = small.max_total_watches * WATCH_MEMORY as usize;
        // Output, incomplete requests, undelivered events, znodes and watches.
        let sum = small.max_queued * 2 + small.max_queued / 4 + small.max_znode_memory + watches;
        assert!(sum < 340 << 20, "{sum}");
        assert!(Limits::for_memory(0).max_queued > 0, "a limit of 0 would mean no limit");
    }
}
