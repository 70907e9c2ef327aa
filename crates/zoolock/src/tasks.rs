//! Where our tasks run: on the runtime of the sessions, or where a simulation says.

use tokio::runtime::{EnterGuard, Handle};
use tokio::task::AbortHandle;

#[cfg(feature = "simulation")]
use crate::sim::{Host, Job};

/// Runs tasks until they end or are aborted, or it goes down itself.
#[derive(Clone)]
pub(crate) enum Tasks {
    Runtime(Handle),
    #[cfg(feature = "simulation")]
    Simulated(std::sync::Arc<dyn Host>),
}

/// A task that was started. Goes on when dropped.
pub(crate) enum Task {
    Spawned(AbortHandle),
    #[cfg(feature = "simulation")]
    Simulated(std::sync::Arc<dyn Job>),
}

impl Tasks {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Task {
        match self {
            Tasks::Runtime(handle) => Task::Spawned(handle.spawn(task).abort_handle()),
            #[cfg(feature = "simulation")]
            Tasks::Simulated(host) => Task::Simulated(host.spawn(Box::pin(task))),
        }
    }

    /// What is made meanwhile uses its timers, whoever polls it.
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        match self {
            Tasks::Runtime(handle) => Some(handle.enter()),
            #[cfg(feature = "simulation")]
            Tasks::Simulated(_) => None,
        }
    }

    /// How many there are.
    pub(crate) fn alive(&self) -> usize {
        match self {
            Tasks::Runtime(handle) => handle.metrics().num_alive_tasks(),
            #[cfg(feature = "simulation")]
            Tasks::Simulated(host) => host.jobs(),
        }
    }
}

impl Task {
    pub(crate) fn abort(&self) {
        match self {
            Task::Spawned(task) => task.abort(),
            #[cfg(feature = "simulation")]
            Task::Simulated(job) => job.abort(),
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Task::Spawned(task) => task.is_finished(),
            #[cfg(feature = "simulation")]
            Task::Simulated(job) => job.is_finished(),
        }
    }
}
