//! Distributed locks over ZooKeeper that tell the holder when the lock is lost.
//!
//! The locks are fair, and every grant has a fencing token.
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
//! # Every kind of lock
#![cfg_attr(feature = "embedded", doc = "```")]
#![cfg_attr(not(feature = "embedded"), doc = "```ignore")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), zoolock::Error> {
//! use zoolock::{Hold, LocalLocker, Locker, Owner, Previous, Zoolock};
//!
//! let zl = Zoolock::embedded().await?; // a server in this process; `connect` for an ensemble
//!
//! // One at a time.
//! let guard = zl.mutex("job").lock().await?;
//! assert!(zl.mutex("job").try_lock().await?.is_none());
//! guard.release().await?;
//!
//! // Readers together, writers alone. A writer may read on: no writer gets in between.
//! let config = zl.rwlock("config");
//! let (one, two) = (config.read().await?, config.read().await?);
//! assert!(config.try_write().await?.is_none());
//! drop((one, two));
//! let reader = config.write().await?.downgrade().await?;
//! reader.release().await?;
//! // And a reader may write, if no other reader is there.
//! let writer = config.upgradable_read().await?.upgrade().await.map_err(|lost| lost.error)?;
//! writer.release().await?;
//!
//! // At most five at a time; several permits are taken all or none.
//! let encoders = zl.semaphore("encoders", 5);
//! let three = encoders.acquire_many(3).await?;
//! assert!(encoders.try_acquire(3).await?.is_none());
//! drop(three);
//!
//! // Several locks at once, in any order, without deadlock.
//! let both = zl.multi(["accounts/7", "accounts/42"]).lock().await?;
//! assert_eq!(both.paths(), ["/locks/accounts/7", "/locks/accounts/42"]);
//! both.release().await?;
//!
//! // A reentrant lock.
//! let owner = Owner::new();
//! let outer = zl.mutex("job").lock_as(&owner).await?;
//! let inner = zl.mutex("job").lock_as(&owner).await?;
//! assert_eq!(inner.depth(), 2);
//! drop((inner, outer));
//!
//! // How the last holder left, a request to release the lock, and events.
//! let job = zl.mutex("tracked").crash_detection();
//! let mut events = job.events();
//! job.lock().await?.release().await?;
//! let guard = job.lock().await?;
//! assert_eq!(guard.previous(), Previous::Clean);
//! zl.mutex("tracked").revoke(guard.token()).await?;
//! guard.revoked().await;
//! guard.release().await?;
//! assert!(events.next().await.is_some());
//!
//! // Code that takes locks by way of a trait is tested without any server.
//! async fn work<L: Locker>(locks: &L) -> Result<u32, zoolock::Error> {
//!     let timeout = std::time::Duration::from_secs(5);
//!     locks.with_lock("job", timeout, |guard| async move { if guard.is_valid() { 42 } else { 0 } }).await
//! }
//! assert_eq!(work(&zl).await?, 42);
//! assert_eq!(work(&LocalLocker::new()).await?, 42);
//! zl.close().await;
//! # Ok(()) }
//! ```
//! [`blocking`] has the same locks without async.
//!
//! # The promise of a guard
//! While [`Guard::is_valid`] returns `true`, no other client holds the lock. This assumes that clocks drift
//! by less than a sixth, and that the program is not stopped between the check and the work. For a stopped
//! program there is [`Guard::token`]: the resource itself refuses an older one.

mod admin;
mod api;
mod base;
mod engine;
mod lock;
mod session;
mod zk;

// Guards and futures can be sent to other threads.
const _: fn() = || {
    fn assert_send<T: Send + 'static>(_: &T) {}
    fn check(guard: &Guard, zoolock: &Zoolock, mutex: &'static Mutex, owner: &'static Owner) {
        assert_send(guard);
        assert_send(zoolock);
        assert_send(&mutex.lock());
        assert_send(&mutex.try_lock());
        assert_send(owner);
        assert_send(&mutex.lock_as(owner));
        assert_send(&mutex.lock_as_timeout(owner, std::time::Duration::ZERO));
    }
    fn others(rwlock: &'static RwLock, semaphore: &'static Semaphore, multi: &'static MultiLock) {
        assert_send(&rwlock.read());
        assert_send(&rwlock.upgradable_read());
        assert_send(&semaphore.acquire());
        assert_send(&multi.lock());
    }
    fn guards(write: WriteGuard, read: UpgradableReadGuard, permits: &PermitGuard, multi: &MultiGuard) {
        assert_send(permits);
        assert_send(multi);
        assert_send(&write.downgrade());
        assert_send(&read.upgrade());
    }
    let _ = (check, others, guards);
};

/// The README's example is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use admin::graph::{Cut, Deadlock, Edge, Link, Party, Place, WaitGraph, Why};
pub use admin::snapshot::{Entry, ForeignSemaphore, Glance, Glances, Snapshot};
pub use api::blocking;
pub use api::builder::Builder;
#[cfg(feature = "embedded")]
pub use api::embedded::TestServer;
pub use api::guard::Guard;
pub use api::local::{LocalGuard, LocalLocker};
pub use api::locker::{Hold, Locker};
pub use api::multi::{MultiGuard, MultiLock, MultiReadGuard};
pub use api::mutex::Mutex;
pub use api::owner::{Owner, ReentrantGuard};
pub use api::rwlock::{NotUpgraded, ReadGuard, RwLock, UpgradableReadGuard, WriteGuard};
pub use api::semaphore::{PermitGuard, Semaphore};
pub use api::sharded::Sharded;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use api::sim;
pub use api::zoolock::Zoolock;
pub use base::check::Check;
pub use base::clock::{Deadline, start_timers};
pub use base::error::{Error, LossReason};
pub use base::events::{LockEvent, LockEvents};
pub use base::metrics;
pub use base::naming::Naming;
pub use base::path::{ConnectString, DEFAULT_ROOT, LockPath};
pub use base::previous::Previous;
pub use base::ticket::Ticket;
pub use session::Connection;
#[cfg(feature = "sasl")]
pub use zk::sasl;
#[cfg(feature = "tls")]
pub use zk::tls::Tls;
pub use zoolock_core::FencingToken;
