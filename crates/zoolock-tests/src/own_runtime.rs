//! A runtime on threads of its own, for what must outlive or die apart from the test's runtime.
//!
//! A proxy or an embedded server on the test's runtime would share its fate: a body that blocks would stall
//! the server, a server shared by two tests would end with the first, and killing it could not be told from
//! shutting it down.

use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// How long threads may take to end once their tasks were dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Owns a runtime; dropping it drops all its tasks where they stand and joins its threads.
#[derive(Debug)]
pub struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    /// Starts a runtime with that many threads, named `name`.
    pub fn new(name: &str, threads: usize) -> Self {
        let runtime =
            Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build();
        Self(Some(runtime.expect("a test machine has threads to give")))
    }

    /// The handle with which tasks are spawned here.
    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("taken only by drop").handle()
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        let Some(runtime) = self.0.take() else { return };
        // A runtime may not be waited for on a thread of another runtime.
        let ended = std::thread::spawn(move || runtime.shutdown_timeout(PATIENCE)).join();
        if ended.is_err() && !std::thread::panicking() {
            panic!("the runtime's shutdown panicked");
        }
    }
}
