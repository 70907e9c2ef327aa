//! The results of a run.

use serde::Serialize;

use super::server::ServerCounts;
use super::settings::ServerChoice;
use super::tally::ChurnTally;
use crate::process::ResourceUse;

/// The figures of one sample.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LoadSample {
    /// Seconds from the end of the first round, in which each lock is held once, to this sample.
    pub(super) at: f64,
    pub(super) turns: u64,
    pub(super) server: ResourceUse,
    pub(super) clients: ResourceUse,
}

/// The results of one server.
#[derive(Debug, Serialize)]
pub(crate) struct LoadResult {
    pub(super) kind: ServerChoice,
    /// The resources before the first session.
    pub(super) server_before: ResourceUse,
    pub(super) clients_before: ResourceUse,
    /// Seconds from the order to open the sessions until all of them were open.
    pub(super) opening: f64,
    /// Seconds from the start of the acquisitions until each lock had been held once. By then,
    /// server and clients have allocated the memory that they need for all locks.
    pub(super) first_round: f64,
    /// Live bytes on the heap of a Java server: after the first round, and after all clients had stopped. `None` for
    /// another server.
    pub(super) alive: Option<(u64, u64)>,
    pub(super) samples: Vec<LoadSample>,
    pub(super) tally: ChurnTally,
    /// The counts after all clients had stopped, with their sessions still open.
    pub(super) idle: ServerCounts,
    /// The counts after all sessions were closed.
    pub(super) empty: ServerCounts,
    pub(super) server_after: ResourceUse,
    pub(super) clients_after: ResourceUse,
    /// Number of lock directories at the end.
    pub(super) directories: usize,
    /// Descriptions of what is left below the root at the end: lock directories that still contain
    /// a znode, and ephemeral znodes.
    pub(super) left: Vec<String>,
}
