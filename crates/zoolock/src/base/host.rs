//! A simulated replacement of the operating system. Only for the simulation in this workspace.
//!
//! Everything that runs inside [`enter`] gets its clock, its alarm, its random numbers and its tasks from a
//! [`SimulatedMachine`]. Its sessions are those of `zoolock-client`, on the machine's network ([`Platform`]). Timers
//! are tokio's, and a simulation pauses tokio's clock. All other code runs as without a simulation.

use std::cell::RefCell;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use zoolock_client::Platform;
use zoolock_core::Instant;

/// A boxed future that can move to another thread.
pub type Later<T> = BoxFuture<'static, T>;

/// A simulated machine, with a clock, a network and tasks.
pub trait SimulatedMachine: Platform {
    /// Waits until `at`, on the clock of [`Platform::now`]. The wait may end too early.
    fn alarm(&self, at: Instant) -> Later<()>;
    /// Starts a task, which runs inside [`enter`].
    fn start(&self, task: Later<()>) -> Arc<dyn SimulatedTask>;
    /// Returns the number of tasks that have not ended.
    fn jobs(&self) -> usize;
}

/// A task of a [`SimulatedMachine`].
pub trait SimulatedTask: Send + Sync + 'static {
    /// Ends the task at its next `await`, but never before this call returns.
    fn abort(&self);
}

thread_local! {
    static HOST: RefCell<Option<Arc<dyn SimulatedMachine>>> = const { RefCell::new(None) };
}

/// Makes this thread run on the simulated machine `host`, until the returned value is dropped.
#[must_use = "it ends when it is dropped"]
pub fn enter(host: &Arc<dyn SimulatedMachine>) -> HostScope {
    HostScope(HOST.replace(Some(host.clone())))
}

/// The scope of [`enter`]. Dropping it restores the machine on which the thread ran before.
pub struct HostScope(Option<Arc<dyn SimulatedMachine>>);

impl Drop for HostScope {
    fn drop(&mut self) {
        let before = self.0.take();
        HOST.set(before);
    }
}

pub(crate) fn host() -> Option<Arc<dyn SimulatedMachine>> {
    HOST.with_borrow(Clone::clone)
}

/// Calls `what` with the simulated machine on which this thread runs. Returns `None` outside of a simulation.
pub(crate) fn on_host<T>(what: impl FnOnce(&Arc<dyn SimulatedMachine>) -> T) -> Option<T> {
    HOST.with_borrow(|host| host.as_ref().map(what))
}
