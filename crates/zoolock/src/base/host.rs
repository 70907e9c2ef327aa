//! Replaces the operating system in a simulation. For the simulation of this workspace alone.
//!
//! A [`Host`] is one simulated machine. Everything that runs inside [`enter`] gets its clock, its alarm, its random numbers
//! and its tasks from it. Its sessions are those of `zoolock-client`, on the host's network ([`Platform`]). Timers are
//! tokio's, and a simulation pauses tokio's clock. There is no other difference.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;

use zoolock_client::Platform;
use zoolock_core::Instant;

/// A boxed future.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A simulated machine.
pub trait Host: Platform {
    /// Waits until a time of [`Platform::now`]. It may end too early.
    fn alarm(&self, at: Instant) -> Later<()>;
    /// Starts a task, which runs inside [`enter`].
    fn start(&self, task: Later<()>) -> Arc<dyn Job>;
    /// Returns the number of tasks that have not ended.
    fn jobs(&self) -> usize;
}

/// A task of a [`Host`].
pub trait Job: Send + Sync + 'static {
    /// Ends the task at its next wait, but not before this returns.
    fn abort(&self);
    /// Returns whether the task has ended.
    fn is_finished(&self) -> bool;
}

thread_local! {
    static HOST: RefCell<Option<Arc<dyn Host>>> = const { RefCell::new(None) };
}

/// Makes this thread run on a host until the returned value is dropped.
#[must_use = "it ends when it is dropped"]
pub fn enter(host: &Arc<dyn Host>) -> Inside {
    Inside(HOST.replace(Some(host.clone())))
}

/// The scope of [`enter`].
pub struct Inside(Option<Arc<dyn Host>>);

impl Drop for Inside {
    fn drop(&mut self) {
        let before = self.0.take();
        HOST.set(before);
    }
}

pub(crate) fn host() -> Option<Arc<dyn Host>> {
    HOST.with_borrow(Clone::clone)
}

/// Calls `what` with the host that this thread runs on. `None` outside of a simulation.
pub(crate) fn on_host<T>(what: impl FnOnce(&Arc<dyn Host>) -> T) -> Option<T> {
    HOST.with_borrow(|host| host.as_ref().map(what))
}
