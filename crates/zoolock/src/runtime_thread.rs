//! An async runtime on a thread of its own.

use std::io;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use zoolock_client::start_thread;

/// A runtime with one thread, so that a caller that blocks its executor does not delay the tasks. Dropping it ends the tasks
/// without waiting for them.
///
/// It is a current-thread runtime, because tokio panics if the system refuses a thread to a multi-thread runtime.
pub(crate) struct RuntimeThread {
    handle: Handle,
    /// Ends the thread when it is dropped.
    _end: oneshot::Sender<()>,
}

impl RuntimeThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a thread or a file.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        start_thread(name, move || {
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _end: end })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}
