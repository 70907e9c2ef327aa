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

mod acquire;
mod acquire_methods;
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
mod events;
mod guard;
mod held;
mod keeper;
mod local;
mod locker;
mod multi;
mod mutex;
mod operate;
mod options;
mod owner;
mod path;
mod rwlock;
mod semaphore;
mod session;
mod sessions;
mod snapshot;
mod ticket;
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
    fn others(rwlock: &'static RwLock, semaphore: &'static Semaphore, multi: &'static MultiLock) {
        travels(&rwlock.read());
        travels(&rwlock.upgradable_read());
        travels(&semaphore.acquire());
        travels(&multi.lock());
    }
    fn guards(write: WriteGuard, read: UpgradableReadGuard, permits: &PermitGuard, multi: &MultiGuard) {
        travels(permits);
        travels(multi);
        travels(&write.downgrade());
        travels(&read.upgrade());
    }
    let _ = (check, others, guards);
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
pub use events::{LockEvent, LockEvents};
pub use guard::{Check, Guard, Previous};
pub use local::{LocalGuard, LocalLocker};
pub use locker::{Hold, Locker};
pub use multi::{MultiGuard, MultiLock, MultiReadGuard};
pub use mutex::Mutex;
pub use owner::{Owner, ReentrantGuard};
pub use path::{ConnectString, DEFAULT_ROOT, LockPath};
pub use rwlock::{NotUpgraded, ReadGuard, RwLock, UpgradableReadGuard, WriteGuard};
pub use semaphore::{PermitGuard, Semaphore};
pub use session::Connection;
pub use snapshot::{Entry, Snapshot};
pub use ticket::Ticket;
pub use zoolock::Zoolock;
pub use zoolock_core::FencingToken;
