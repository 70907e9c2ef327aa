//! Tasks of a client, on the runtime of its sessions or in a simulation.

use std::sync::Arc;

use tokio::runtime::{EnterGuard, Handle};
use tokio::task::AbortHandle;
use zoolock_client::{Os, Platform};

#[cfg(feature = "simulation")]
use crate::base::host::{SimulatedMachine, SimulatedTask};

/// A handle that starts tasks. A task runs until it ends, is aborted, or the runtime stops.
#[derive(Clone)]
pub(crate) enum Tasks {
    Runtime(Handle),
    #[cfg(feature = "simulation")]
    Simulated(Arc<dyn SimulatedMachine>),
}

/// A handle of a started task. The task continues when the handle is dropped.
pub(crate) enum Task {
    Spawned(AbortHandle),
    #[cfg(feature = "simulation")]
    Simulated(Arc<dyn SimulatedTask>),
}

impl Tasks {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Task {
        match self {
            Tasks::Runtime(handle) => Task::Spawned(handle.spawn(task).abort_handle()),
            #[cfg(feature = "simulation")]
            Tasks::Simulated(host) => Task::Simulated(host.start(Box::pin(task))),
        }
    }

    /// Returns the platform on which the sessions run.
    pub(crate) fn platform(&self) -> Arc<dyn Platform> {
        match self {
            Tasks::Runtime(handle) => Os::with_runtime(handle),
            #[cfg(feature = "simulation")]
            Tasks::Simulated(host) => host.clone(),
        }
    }

    /// Makes new tokio timers belong to the runtime, until the returned guard is dropped.
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        match self {
            Tasks::Runtime(handle) => Some(handle.enter()),
            #[cfg(feature = "simulation")]
            Tasks::Simulated(_) => None,
        }
    }

    /// Returns the number of tasks that have not ended.
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
}
