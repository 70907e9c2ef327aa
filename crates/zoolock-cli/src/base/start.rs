//! Calls library functions that start threads.

use zoolock_client::RAISE_THREAD_LIMIT;

use crate::base::exit::Failure;
use crate::base::reporter::Reporter;

/// Calls `start`, in which a library starts threads. If the system refuses a thread, the library
/// panics. The process then exits at once, because otherwise tokio would wait for its other threads
/// for ever.
pub(crate) fn start_threads_or_exit<T>(start: impl FnOnce() -> T) -> T {
    std::panic::set_hook(Box::new(|panic| {
        let why = panic.payload().downcast_ref::<String>().map_or("the system refuses it", String::as_str);
        let failure = Failure::unavailable(format!("cannot start a thread: {why}; {RAISE_THREAD_LIMIT}"));
        Reporter::plain().error(&failure);
        std::process::exit(failure.exit.number().into());
    }));
    let started = start();
    drop(std::panic::take_hook());
    started
}
