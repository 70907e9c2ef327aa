//! The thread limit of the operating system: a connect that exceeds it fails with an error that names the limit.

use rustix::process::{Resource, Rlimit, geteuid, setrlimit};
use rustix::thread::{Uid, set_thread_uid};
use zoolock::Error;
use zoolock_tests::locks::settings;

use crate::forked::in_child;

/// Id of a user without other processes. The limit counts all threads of a user.
const USER: u32 = 61_304;

/// Makes the operating system refuse new threads to this process. If the user is root, first
/// changes the user, because root has no limit.
fn forbid_threads() -> rustix::io::Result<()> {
    if geteuid().is_root() {
        set_thread_uid(Uid::from_raw(USER))?;
    }
    setrlimit(Resource::Nproc, Rlimit { current: Some(1), maximum: Some(1) })
}

/// Connects while no thread can be started. Returns 0 if the error names the limit, and otherwise
/// the number of the failure.
fn connect_without_threads() -> i32 {
    if forbid_threads().is_err() {
        return 2;
    }
    match futures_lite::future::block_on(settings().connect("127.0.0.1:1")) {
        Err(Error::Unavailable { message, .. }) if message.contains("ulimit -u") => 0,
        Err(Error::Unavailable { .. }) => 3,
        Err(_) => 4,
        Ok(_) => 5,
    }
}

#[test]
fn refused_thread_names_the_limit() {
    assert_eq!(in_child(connect_without_threads), Some(0));
}
