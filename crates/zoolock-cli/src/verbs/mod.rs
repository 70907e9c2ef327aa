//! The commands that read or change queues, and `serve`.

pub(crate) mod check;
pub(crate) mod deadlocks;
pub(crate) mod history;
pub(crate) mod leader;
pub(crate) mod list;
mod manuals;
mod missing_lock;
pub(crate) mod operate;
pub(crate) mod recover;
pub(crate) mod serve;
mod server_flags;
pub(crate) mod why;
