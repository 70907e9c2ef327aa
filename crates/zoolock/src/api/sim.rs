//! Replaces the operating system in a simulation. For the simulation of this workspace alone.

use std::sync::Arc;

use crate::api::builder::Builder;
use crate::api::zoolock::Zoolock;
use crate::base::error::Error;
pub use crate::base::host::{Host, Inside, Job, Later, enter};
use crate::lock::context::SessionThread;

/// Connects from this host.
///
/// # Errors
/// As [`Builder::connect`].
pub async fn connect(builder: Builder, address: &str, host: Arc<dyn Host>) -> Result<Zoolock, Error> {
    builder.open_on(address, None, || Ok(SessionThread::simulated(host))).await
}
