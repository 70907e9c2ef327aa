//! Connects clients to a simulation instead of the operating system. Only for the simulation in this
//! workspace.

use std::sync::Arc;

use crate::api::builder::Builder;
use crate::api::zoolock::Zoolock;
use crate::base::error::Error;
pub use crate::base::host::{HostScope, Later, SimulatedMachine, SimulatedTask, enter};
use crate::lock::context::SessionThread;

/// Connects a client that runs on the simulated machine `host`.
///
/// # Errors
/// As [`Builder::connect`].
pub async fn connect(
    builder: Builder,
    address: &str,
    host: Arc<dyn SimulatedMachine>,
) -> Result<Zoolock, Error> {
    builder.open_on(address, None, || Ok(SessionThread::simulated(host))).await
}
