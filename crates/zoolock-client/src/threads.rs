//! Threads whose start may fail, and errors that name the system limit.
//!
//! tokio's blocking calls do not fail cleanly if the system refuses a thread: the call panics, or its work never
//! starts.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use rustix::io::Errno;
use tokio::sync::{Semaphore, oneshot};

/// The advice to users if the system refused a process or a thread.
pub const RAISE_THREAD_LIMIT: &str =
    "raise the limit on processes and threads (ulimit -u, TasksMax, pids.max)";

/// Returns the advice for an error of starting a process or thread, or of opening a file. `None` if no limit caused the
/// error.
pub fn limit_advice(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::AGAIN => Some(RAISE_THREAD_LIMIT),
        Errno::MFILE => Some("raise the limit on open files (ulimit -n, LimitNOFILE)"),
        _ => None,
    }
}

/// Adds the advice of [`limit_advice`] to the error, if a limit caused it.
pub fn add_limit_advice(error: io::Error) -> io::Error {
    match limit_advice(&error) {
        Some(advice) => io::Error::new(error.kind(), format!("{error}; {advice}")),
        None => error,
    }
}

/// Starts a thread.
///
/// # Errors
/// The system refuses the thread.
pub fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(add_limit_advice)
}

/// Runs blocking work on a new thread, and returns its result.
///
/// # Errors
/// The system refuses the thread, or the work panics.
pub async fn run_on_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    start_thread(name, move || drop(sender.send(work())))?;
    receiver.await.map_err(|_| io::Error::other(format!("the thread {name} panicked")))
}

/// The limit on concurrent name lookups of this process. A lookup occupies its thread until the resolver answers.
static LOOKUPS: Semaphore = Semaphore::const_new(4);

/// Resolves the name of a host.
///
/// # Errors
/// The name is unknown, or the system refuses the thread for the lookup. The error is a text in
/// lower case.
pub async fn resolve(name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let name = name.to_owned();
    let lookup = LOOKUPS.acquire().await.expect("the semaphore is never closed");
    let resolved = run_on_thread("zoolock-resolve", move || {
        let _lookup = lookup;
        Ok((name.as_str(), port).to_socket_addrs()?.collect())
    });
    let resolved = resolved.await;
    let resolved = resolved.map_err(|error| format!("cannot start a thread: {error}"))?;
    resolved.map_err(|error: io::Error| format!("unknown host ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_the_limit() {
        for (errno, limit) in [(Errno::AGAIN, "ulimit -u"), (Errno::MFILE, "ulimit -n")] {
            let refused = add_limit_advice(errno.into());
            assert!(refused.to_string().contains(limit), "{refused}");
            assert!(limit_advice(&refused).is_none(), "the advice is given once: {refused}");
        }
        let other = add_limit_advice(Errno::NOMEM.into());
        assert!(!other.to_string().contains("ulimit"), "{other}");
    }

    #[tokio::test]
    async fn addresses_need_no_thread_and_names_are_resolved() {
        let address = resolve("::1", 7).await.expect("address is resolved");
        assert_eq!(address, ["[::1]:7".parse().expect("address is parsed")]);
        assert!(!resolve("localhost", 7).await.expect("name is resolved").is_empty());
        let unknown = resolve("no host", 7).await.expect_err("name is not resolved");
        assert!(unknown.contains("unknown host"), "{unknown}");
    }

    #[tokio::test]
    async fn panic_on_a_thread_is_an_error() {
        let error = run_on_thread("doomed", || panic!("a bug")).await.expect_err("panic is reported");
        assert!(error.to_string().contains("doomed panicked"), "{error}");
    }
}
