//! Threads whose start may fail, and errors that name the system limit.
//!
//! tokio's blocking calls do not fail cleanly if the system refuses a thread: the call panics, or its work never
//! starts.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use tokio::sync::{oneshot, watch};

/// Returns the advice for an error of starting a process or thread, or of opening a file. `None` if no limit caused the
/// error.
pub fn limit_advice(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::AGAIN => Some("raise the limit on processes and threads (ulimit -u, TasksMax, pids.max)"),
        // glibc starts a process or thread without clone3 only if the kernel does not have it.
        Errno::PERM => Some(
            "a seccomp filter forbids it: allow clone3 and clone there, or upgrade the container runtime",
        ),
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

type Lookup = watch::Receiver<Option<Result<Vec<SocketAddr>, String>>>;

/// The look-ups under way, by process and name. The process id is part of the key because a forked child has the
/// entries of its parent, but not the threads.
static LOOKUPS: Mutex<BTreeMap<(u32, String), Lookup>> = Mutex::new(BTreeMap::new());

/// Resolves the name of a host. Concurrent calls with the same name share one look-up, because a look-up occupies a
/// thread until the name servers answer. Dropping the future does not end the look-up.
///
/// # Errors
/// The name does not resolve, or the system refuses the thread for the look-up. The error is a text in
/// lower case.
pub async fn resolve(name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let mut lookup = join_lookup(name).map_err(|error| format!("cannot start a thread: {error}"))?;
    let answer = lookup.wait_for(Option::is_some).await.map_err(|_| "the look-up panicked")?.clone();
    let mut addresses = answer.expect("the look-up has ended")?;
    addresses.iter_mut().for_each(|address| address.set_port(port));
    Ok(addresses)
}

/// Returns the look-up of this name that is under way, or starts one.
fn join_lookup(name: &str) -> io::Result<Lookup> {
    let mut lookups = LOOKUPS.lock().unwrap_or_else(PoisonError::into_inner);
    // The thread of a look-up drops its sender at its end.
    lookups.retain(|_, lookup| lookup.has_changed().is_ok());
    let key = (std::process::id(), name.to_owned());
    if let Some(lookup) = lookups.get(&key) {
        return Ok(lookup.clone());
    }
    let (sender, lookup) = watch::channel(None);
    let name = name.to_owned();
    start_thread("zoolock-resolve", move || {
        let addresses = (name.as_str(), 0).to_socket_addrs().map(Iterator::collect);
        sender.send_replace(Some(addresses.map_err(|error| format!("the name does not resolve ({error})"))));
    })?;
    lookups.insert(key, lookup.clone());
    Ok(lookup)
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
        assert!(unknown.contains("the name does not resolve"), "{unknown}");
    }

    #[tokio::test]
    async fn calls_with_one_name_share_a_look_up() {
        let name = "no-such-host.invalid";
        let (sender, lookup) = watch::channel(None);
        let key = (std::process::id(), name.to_owned());
        LOOKUPS.lock().expect("no test panics here").insert(key, lookup);
        let abandoned = tokio::time::timeout(std::time::Duration::ZERO, resolve(name, 1)).await;
        assert!(abandoned.is_err(), "the look-up is under way");
        let calls = async { tokio::join!(resolve(name, 2), resolve(name, 3)) };
        let answer = async { sender.send_replace(Some(Ok(vec![([10, 0, 0, 7], 0).into()]))) };
        let ((two, three), _) = tokio::join!(calls, answer);
        assert_eq!((two, three), (Ok(vec![([10, 0, 0, 7], 2).into()]), Ok(vec![([10, 0, 0, 7], 3).into()])));
        drop(sender);
        assert!(resolve(name, 2).await.is_err(), "the next call starts a look-up");
    }

    #[test]
    fn forbidden_clone_is_not_taken_for_a_limit() {
        let advice = |errno: Errno| limit_advice(&errno.into()).unwrap_or_default();
        assert!(advice(Errno::PERM).contains("seccomp") && advice(Errno::AGAIN).contains("ulimit -u"));
        assert_eq!(advice(Errno::NOENT), "");
    }

    #[tokio::test]
    async fn panic_on_a_thread_is_an_error() {
        let error = run_on_thread("doomed", || panic!("a bug")).await.expect_err("panic is reported");
        assert!(error.to_string().contains("doomed panicked"), "{error}");
    }
}
