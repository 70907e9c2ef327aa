//! A Tokio runtime on its own threads, for servers and proxies of a test.
//!
//! On the runtime of the test, a server or proxy would stall while the test body blocks. A server
//! that several tests share would end with the test that started it. And a server could only be
//! shut down, not killed.

use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// Time limit for the threads to end after their tasks were dropped.
const SHUTDOWN_BOUND: Duration = Duration::from_secs(10);

/// A runtime. Dropping it cancels all its tasks and joins its threads.
#[derive(Debug)]
pub(crate) struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    /// Starts a runtime with `threads` threads, each named `name`.
    pub(crate) fn new(name: &str, threads: usize) -> Self {
        let runtime =
            Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build();
        Self(Some(runtime.expect("threads can be started")))
    }

    /// Returns the handle that spawns tasks on this runtime.
    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("only drop takes the runtime").handle()
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        let Some(runtime) = self.0.take() else { return };
        // Tokio forbids that a thread of one runtime blocks until another runtime has ended. So a
        // new thread waits for that end.
        let ended = std::thread::spawn(move || runtime.shutdown_timeout(SHUTDOWN_BOUND)).join();
        if ended.is_err() && !std::thread::panicking() {
            panic!("the runtime's shutdown panicked");
        }
    }
}
