//! Types that every layer uses: errors, paths, options, clocks, tasks, metrics and events.

pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod events;
#[cfg(feature = "simulation")]
pub(crate) mod host;
pub(crate) mod metrics;
pub(crate) mod naming;
pub(crate) mod options;
pub(crate) mod owner_id;
pub(crate) mod path;
pub(crate) mod process;
pub(crate) mod runtime_thread;
pub(crate) mod sync;
pub(crate) mod tasks;
pub(crate) mod telemetry;
pub(crate) mod text_enum;
pub(crate) mod ticket;
pub(crate) mod unix_time;
pub(crate) mod uuid;
pub(crate) mod wait;
