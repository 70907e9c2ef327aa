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
    /// Maximum number of paths that a connection may watch. Default: 1,000,000. 0 means no limit.
    ///
    /// The server closes a connection that watches more paths. A path of more than 128 bytes counts
    /// as several.
    pub max_watches: usize,
    /// Maximum number of paths that all connections may watch, counted like [`Limits::max_watches`]. Default:
    /// 4,000,000. 0 means no limit.
    ///
    /// Above the limit the server closes the connection that watches the most.
    pub max_total_watches: usize,
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
            max_watches: 1_000_000,
            max_total_watches: 4_000_000,
            extended_types: true,
            log: log::Options::default(),
            disk: None,
        }
    }
}
