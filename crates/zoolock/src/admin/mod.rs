//! Observing and changing queues: snapshots, the wait graph, requests to release, and breaks.

pub(crate) mod graph;
pub(crate) mod history;
pub(crate) mod operate;
pub(crate) mod server_clock;
pub(crate) mod snapshot;
pub(crate) mod token_check;
