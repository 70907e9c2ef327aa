//! An async runtime on a thread of its own.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use zoolock_client::{add_limit_advice, start_thread};

/// A runtime on a thread of its own, so that a caller that blocks its executor does not delay the
/// tasks. Dropping the runtime ends the tasks without waiting for them.
///
/// The runtime is a current-thread runtime, because tokio panics if the system refuses a thread to
/// a multi-thread runtime.
pub(crate) struct RuntimeThread {
    handle: Handle,
    /// Ends the thread when it is dropped.
    _end: oneshot::Sender<()>,
}

impl RuntimeThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses a thread or a file.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let runtime =
            EndsAtOnce(Some(Builder::new_current_thread().enable_all().build().map_err(add_limit_advice)?));
        let handle = runtime.get().handle().clone();
        let (end, ended) = oneshot::channel();
        start_thread(name, move || {
            let _ = runtime.get().block_on(ended);
        })?;
        Ok(Self { handle, _end: end })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// A runtime that shuts down without waiting. If the system refuses the thread, the caller of
/// [`RuntimeThread::start`] drops the runtime. The caller may be a task of another runtime, which
/// must not block.
struct EndsAtOnce(Option<Runtime>);

impl EndsAtOnce {
    fn get(&self) -> &Runtime {
        self.0.as_ref().expect("the runtime is taken only when this is dropped")
    }
}

impl Drop for EndsAtOnce {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
