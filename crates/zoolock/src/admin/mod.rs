//! The facts and actions for operators: snapshots, the wait graph, the history, requests to release, and breaks. The methods
//! are those of [`Admin`](crate::Admin).

pub(crate) mod graph;
pub(crate) mod history;
pub(crate) mod kinds;
pub(crate) mod once;
pub(crate) mod operate;
pub(crate) mod server_clock;
pub(crate) mod slots;
pub(crate) mod snapshot;
pub(crate) mod token_check;

pub use crate::lock::history::{HistoryEvent, HistoryKind, Party};
pub use graph::{BreakTarget, ChainLink, Deadlock, Edge, QueueEntry, WaitChain, WaitGraph, WaitingOwner};
pub use kinds::{ChainEnd, Family, OwnerKind, PreviousEnd, Role};
pub use once::Run;
pub use snapshot::{Entry, ForeignSemaphore, LockPoller, PolledSnapshot, Snapshot};
pub use token_check::TokenCheck;
