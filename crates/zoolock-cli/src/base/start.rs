//! Calls library functions that start threads.

use std::io;

use rustix::io::Errno;
use zoolock_client::limit_advice;

use crate::base::exit::Failure;
use crate::base::reporter::Reporter;

/// Calls `start`, in which a library starts threads. If the system refuses a thread, the library
/// panics. The process then exits at once, because otherwise tokio would wait for its other threads
/// for ever.
pub(crate) fn start_threads_or_exit<T>(start: impl FnOnce() -> T) -> T {
    std::panic::set_hook(Box::new(|panic| {
        let why = panic.payload().downcast_ref::<String>().map_or("the system refuses it", String::as_str);
        // The panic has only the text of the error.
        let is_denied = why.contains(&io::Error::from(Errno::PERM).to_string());
        let advice =
            limit_advice(&if is_denied { Errno::PERM } else { Errno::AGAIN }.into()).unwrap_or_default();
        let failure = Failure::unavailable(format!("cannot start a thread: {why}; {advice}"));
        Reporter::plain().error(&failure);
        std::process::exit(failure.exit.number().into());
    }));
    let started = start();
    drop(std::panic::take_hook());
    started
}
