//! Distributed locks over ZooKeeper: fair, fenced, and honest about when they are lost.
//!
//! Only one of us does this at a time, and we know when that stops being true.
//!
//! ```no_run
//! use zoolock::Zoolock;
//!
//! # async fn example() -> Result<(), zoolock::Error> {
//! let zl = Zoolock::connect("zk1:2181,zk2:2181,zk3:2181").await?;
//! let mutex = zl.mutex("nightly");
//! let guard = mutex.lock().await?;          // in the queue, first come first served
//! println!("token {}", guard.token());      // rises with every grant: let the resource check it
//! tokio::select! {
//!     () = work() => guard.release().await?, // or drop the guard
//!     why = guard.lost() => eprintln!("stop: {why}"),
//! }
//! zl.close().await;
//! # Ok(()) }
//! # async fn work() {}
//! ```
//!
//! # What a guard promises
//! While [`Guard::is_valid`] says yes, nobody else holds the lock, provided that clocks do not drift by a sixth and
//! that the program is not stopped between the question and the deed. For that last case there is
//! [`Guard::token`]: the resource itself refuses an older one.

pub mod blocking;
mod builder;
mod clock;
mod connect;
mod data;
mod directory;
mod driver;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod guard;
mod keeper;
mod local;
mod locker;
mod mutex;
mod owner;
mod path;
mod session;
mod sessions;
mod snapshot;
mod zoolock;

// Guards and futures go wherever their tasks go.
const _: fn() = || {
    fn travels<T: Send + 'static>(_: &T) {}
    fn check(guard: &Guard, zoolock: &Zoolock, mutex: &'static Mutex, owner: &'static Owner) {
        travels(guard);
        travels(zoolock);
        travels(&mutex.lock());
        travels(&mutex.try_lock());
        travels(owner);
        travels(&mutex.lock_as(owner));
        travels(&mutex.lock_as_timeout(owner, std::time::Duration::ZERO));
    }
    let _ = check;
};

/// The README's example is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use builder::Builder;
pub use clock::Deadline;
#[cfg(feature = "embedded")]
pub use embedded::TestServer;
pub use error::{Error, LossReason};
pub use guard::{Guard, Previous};
pub use local::{LocalGuard, LocalLocker};
pub use locker::{Hold, Locker};
pub use mutex::Mutex;
pub use owner::{Owner, ReentrantGuard};
pub use path::{ConnectString, DEFAULT_ROOT, LockPath};
pub use session::Connection;
pub use snapshot::{Entry, Snapshot};
pub use zoolock::Zoolock;
pub use zoolock_core::FencingToken;
