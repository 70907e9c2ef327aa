//! Runs the tasks of all hosts on one thread, in an order that follows from the seed.
//!
//! A task that is woken is put into a set, and the next task to run is drawn from that set. So the
//! order in which wakers are called does not matter. With enough seeds, every order in which a
//! runtime with one thread could run the tasks is tried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use zoolock::sim::{Later, SimulatedMachine, SimulatedTask, enter};

use crate::lock;

/// The tasks of all hosts.
#[derive(Default)]
pub(crate) struct Executor {
    inner: Mutex<ExecutorState>,
}

#[derive(Default)]
struct ExecutorState {
    next: u64,
    tasks: BTreeMap<u64, Slot>,
    ready: BTreeSet<u64>,
    /// Hosts that do not run at present.
    stopped: BTreeSet<usize>,
    /// Hosts that have crashed.
    dead: BTreeSet<usize>,
    /// The waker of the loop that drives the run, while the loop sleeps.
    driver: Option<Waker>,
}

struct Slot {
    host: usize,
    /// Set for a task of the library, unset for a task of the simulation.
    is_library: bool,
    /// `None` while the task runs.
    future: Option<Later<()>>,
    waker: Waker,
    aborted: bool,
}

struct TaskWaker {
    id: u64,
    executor: Arc<Executor>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.executor.make_ready(self.id);
    }
}

struct TaskHandle {
    id: u64,
    executor: Arc<Executor>,
}

impl SimulatedTask for TaskHandle {
    fn abort(&self) {
        if let Some(slot) = lock(&self.executor.inner).tasks.get_mut(&self.id) {
            slot.aborted = true;
        }
        self.executor.make_ready(self.id);
    }
}

impl Executor {
    pub(crate) fn spawn(
        self: &Arc<Self>,
        host: usize,
        is_library: bool,
        future: Later<()>,
    ) -> Arc<dyn SimulatedTask> {
        let inner = &mut *lock(&self.inner);
        let id = inner.next;
        inner.next += 1;
        // On a dead host, the task is dropped without having run.
        if !inner.dead.contains(&host) {
            let waker = Waker::from(Arc::new(TaskWaker { id, executor: self.clone() }));
            inner.tasks.insert(id, Slot { host, is_library, future: Some(future), waker, aborted: false });
            inner.ready.insert(id);
        }
        Arc::new(TaskHandle { id, executor: self.clone() })
    }

    fn make_ready(&self, id: u64) {
        let inner = &mut *lock(&self.inner);
        if inner.tasks.contains_key(&id) {
            inner.ready.insert(id);
            if let Some(driver) = inner.driver.take() {
                driver.wake();
            }
        }
    }

    /// Sets the waker of the loop that drives the run. The loop calls this just before it sleeps.
    pub(crate) fn wake_with(&self, driver: &Waker) {
        lock(&self.inner).driver = Some(driver.clone());
    }

    pub(crate) fn stop(&self, host: usize) {
        lock(&self.inner).stopped.insert(host);
    }

    pub(crate) fn resume(&self, host: usize) {
        lock(&self.inner).stopped.remove(&host);
    }

    /// Returns the number of tasks that could run now.
    pub(crate) fn count_ready_tasks(&self) -> usize {
        let inner = &*lock(&self.inner);
        if inner.stopped.is_empty() {
            return inner.ready.len();
        }
        inner.ready.iter().filter(|id| inner.may_run(**id)).count()
    }

    /// Returns whether a task of this host is ready, even if the host is stopped.
    pub(crate) fn is_busy(&self, host: usize) -> bool {
        let inner = &*lock(&self.inner);
        inner.ready.iter().any(|id| inner.tasks.get(id).is_some_and(|slot| slot.host == host))
    }

    /// Returns the number of tasks of the library on this host.
    pub(crate) fn count_library_tasks(&self, host: usize) -> usize {
        let inner = &*lock(&self.inner);
        inner.tasks.values().filter(|slot| slot.host == host && slot.is_library).count()
    }

    /// Runs the `nth` of the tasks that could run. Returns its id.
    pub(crate) fn run(&self, nth: usize, hosts: &[Arc<dyn SimulatedMachine>]) -> Option<u64> {
        let (id, host, waker, future, aborted) = {
            let inner = &mut *lock(&self.inner);
            let id = inner.ready.iter().copied().filter(|id| inner.may_run(*id)).nth(nth)?;
            inner.ready.remove(&id);
            let slot = inner.tasks.get_mut(&id)?;
            (id, slot.host, slot.waker.clone(), slot.future.take()?, slot.aborted)
        };
        let inside = enter(&hosts[host]);
        let mut future = Some(future);
        let over = aborted
            || match future
                .as_mut()
                .expect("future is set above")
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
            {
                Poll::Ready(()) => true,
                Poll::Pending => false,
            };
        if over {
            // The future is dropped before the task counts as finished. The mutex is not locked
            // meanwhile, because the drop may send requests.
            future = None;
        }
        let rest = {
            let inner = &mut *lock(&self.inner);
            match (over || inner.dead.contains(&host), inner.tasks.get_mut(&id)) {
                (false, Some(slot)) => {
                    slot.future = future.take();
                    None
                }
                (_, _) => {
                    inner.ready.remove(&id);
                    (inner.tasks.remove(&id), future.take()).into()
                }
            }
        };
        drop(rest);
        drop(inside);
        Some(id)
    }

    /// Drops all tasks of a host, ready or not.
    pub(crate) fn kill(&self, host: usize, hosts: &[Arc<dyn SimulatedMachine>]) {
        let _inside = enter(&hosts[host]);
        let gone: Vec<Slot> = {
            let inner = &mut *lock(&self.inner);
            inner.dead.insert(host);
            let ids: Vec<u64> =
                inner.tasks.iter().filter(|(_, slot)| slot.host == host).map(|(id, _)| *id).collect();
            ids.iter().for_each(|id| {
                inner.ready.remove(id);
            });
            ids.into_iter().filter_map(|id| inner.tasks.remove(&id)).collect()
        };
        drop(gone);
    }
}

impl ExecutorState {
    fn may_run(&self, id: u64) -> bool {
        self.tasks.get(&id).is_some_and(|slot| !self.stopped.contains(&slot.host))
    }
}
