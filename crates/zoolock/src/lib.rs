//! Distributed locks over ZooKeeper that tell the holder when the lock is lost.
//!
//! The locks are fair. Every grant of an exclusive lock has a fencing token.
//!
//! ```no_run
//! use zoolock::Zoolock;
//!
//! # async fn example() -> Result<(), zoolock::Error> {
//! let zl = Zoolock::connect("zk1:2181,zk2:2181,zk3:2181").await?;
//! let mutex = zl.mutex("nightly");
//! let guard = mutex.lock().await?;          // waits in the queue, first come first served
//! println!("token {}", guard.token());      // increases with every grant: a resource can refuse an older one
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
//! use zoolock::{ExclusiveGuard, LocalLocker, Locker, Owner, Previous, Zoolock};
//!
//! let zl = Zoolock::embedded().await?; // starts a server in this process; use `connect` for an ensemble
//!
//! // A mutex has one holder at a time.
//! let guard = zl.mutex("job").lock().await?;
//! assert!(zl.mutex("job").try_lock().await?.is_none());
//! guard.release().await?;
//!
//! // Readers hold together, a writer holds alone. A writer can become a reader without a release in between.
//! let config = zl.rwlock("config");
//! let (one, two) = (config.read().await?, config.read().await?);
//! assert!(config.try_write().await?.is_none());
//! drop((one, two));
//! let reader = config.write().await?.downgrade().await?;
//! reader.release().await?;
//! // An upgradable reader can become a writer, after the other readers have released.
//! let writer = config.upgradable_read().await?.upgrade().await?;
//! writer.release().await?;
//!
//! // At most five permits are held at a time. An acquisition gets all its permits or none.
//! let encoders = zl.semaphore("encoders", 5);
//! let three = encoders.acquire(3).await?;
//! assert!(encoders.try_acquire(3).await?.is_none());
//! drop(three);
//!
//! // A multi-lock acquires several locks at once. The order of the names cannot cause a deadlock.
//! let both = zl.multi(["accounts/7", "accounts/42"]).lock().await?;
//! assert_eq!(both.paths(), ["/locks/accounts/7", "/locks/accounts/42"]);
//! both.release().await?;
//!
//! // A reentrant lock: an owner that holds the lock can acquire it again.
//! let owner = Owner::new();
//! let outer = zl.mutex("job").lock_as(&owner).await?;
//! let inner = zl.mutex("job").lock_as(&owner).await?;
//! assert_eq!(inner.depth(), 2);
//! drop((inner, outer));
//!
//! // A guard shows how the previous holder left. A handle reports events, and can ask the holder
//! // to release the lock.
//! let job = zl.mutex("tracked").crash_detection();
//! let mut events = job.events();
//! job.lock().await?.release().await?;
//! let guard = job.lock().await?;
//! assert_eq!(guard.previous(), Previous::Clean);
//! zl.admin().revoke("tracked", guard.token()).await?;
//! guard.revoked().await;
//! guard.release().await?;
//! assert!(events.next().await.is_some());
//!
//! // Code that is generic over `Locker` can be tested without a server.
//! async fn work<L: Locker>(locks: &L) -> Result<u32, zoolock::Error> {
//!     let timeout = std::time::Duration::from_secs(5);
//!     locks.with_lock("job", timeout, |guard| async move { if guard.is_valid() { 42 } else { 0 } }).await
//! }
//! assert_eq!(work(&zl).await?, 42);
//! assert_eq!(work(&LocalLocker::new()).await?, 42);
//! zl.close().await;
//! # Ok(()) }
//! ```
//! With [`Wait`], programs without async use the same API.
//!
//! # The promise of a guard
//! While [`Held::is_valid`] returns `true`, no other client holds the lock; [`Held::valid_until`] tells how long that is certain.
//! This assumes that the clocks of the client and of ZooKeeper's leader run equally fast, within a twelfth. It also assumes that
//! the program is not stopped between the check and the work, and that no hypervisor pauses, moves
//! or restores its virtual machine, whose clocks do not count that time. [`Guard::token`] protects a
//! resource even from such a program: the resource refuses a token that is older than one that it
//! has seen.
//!
//! # Errors, and which to retry
//! [`Error::is_retryable`] says whether the same call may succeed later: the lock was busy ([`Error::is_timeout`], which is
//! never true in an outage), no server answered, or another client deleted the znode in the queue. After
//! [`Error::Lost`] the work may have overlapped with that of the next holder, so look at its result before you repeat
//! it. All other errors name what must change first: a setting, a permission, or the code.
//!
//! # How to shut down
//! Drop or release the guards, and await [`Zoolock::close`]. It waits for releases under way, and closes the sessions, so
//! that the next holder need not wait for the session timeout. A client that is only dropped does the same in the
//! background, and its last drop waits for at most a quarter of a second. For an election, call [`Election::resign`], and await
//! the future of [`Election::run`] before the close.
//!
//! # Testing
//! With the feature `embedded`, `TestServer` is a server for tests: it can expire the sessions of one holder or of all clients,
//! cut connections, and advance its clock. On any server, [`Admin::break_lock`] takes the lock of one holder away. Without a
//! server, [`LocalLocker`] replaces a [`Zoolock`] behind the trait [`Locker`], and its `expire` ends a hold; it has mutexes only.
//!
//! # Runtime
//! The futures need no runtime: each works with tokio, with another executor, and with [`Wait`] without one. A client
//! renews its leases on a thread of its own (`zoolock-session`), so a blocked executor loses no lock. A second thread
//! (`zoolock-log`) passes log events and metrics on.
//!
//! # Features
//! None is on by default.
//!
//! | feature | adds |
//! |---|---|
//! | `embedded` | a server in this process: `Zoolock::embedded`, and `TestServer` for tests |
//! | `tls` | TLS, with client certificates. Building ring needs a C compiler |
//! | `sasl` | SASL with DIGEST-MD5; Kerberos is in the crate zoolock-gssapi |
//!
//! # Platforms
//! Linux. On other systems the crate does not compile, because the lease needs timers on a clock that counts the time in
//! which the machine sleeps (`CLOCK_BOOTTIME`).
//!
//! # What 1.0 will promise
//! * The API follows semantic versioning. Enums and errors may get new variants and fields, which is why they are
//!   `non_exhaustive`.
//! * The minimum version of Rust rises only with a minor version.
//! * Features are not removed, and none becomes a default.
//! * Two versions with the same major version can use the same locks at the same time: the names and the data of znodes
//!   stay readable in both directions.
//! * Names of metrics and their labels, and the JSON of the command, change only with a major version.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Some functions are used only by `internals`. Builds of the whole workspace have that feature, and find dead code.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]

pub mod admin;
mod api;
mod base;
mod engine;
mod lock;
pub mod observe;
mod session;
mod zk;

// Checks at compile time that the futures are `Send`. docs/api.txt lists the types that are `Send` and `Sync`.
const _: fn() = || {
    fn assert_send<T: Send>(_: &T) {}
    /// Checks the futures that these calls return.
    macro_rules! futures {
        ($($call:expr;)+) => { $(assert_send(&$call);)+ };
    }
    const TIME: std::time::Duration = std::time::Duration::ZERO;
    fn client(zl: Zoolock, builder: Builder, mutex: Mutex, owner: Owner, hold: SharedHold) {
        futures! {
            builder.connect("");
            zl.close();
            zl.with_lock("", TIME, async |_| ());
            mutex.lock(); mutex.try_lock(); mutex.lock_timeout(TIME); mutex.with_lock(TIME, async |_| ());
            mutex.events().next();
            mutex.lock_as(&owner); mutex.try_lock_as(&owner); mutex.lock_as_timeout(&owner, TIME);
            hold.lock(); hold.try_lock(); hold.lock_timeout(TIME);
        }
    }
    fn operators(admin: Admin, token: FencingToken) {
        futures! {
            admin.locks(None, 0); admin.deadlocks(None); admin.deadlocks_among(&[]); admin.why(""); admin.history(None, 0);
            admin.snapshot(""); admin.revoke("", token); admin.break_lock("", token); admin.check_token("", token);
        }
    }
    fn kinds(
        rwlock: RwLock,
        semaphore: Semaphore,
        multi: MultiLock,
        election: Election,
        mut changes: LeaderChanges,
    ) {
        futures! {
            rwlock.read(); rwlock.read_timeout(TIME); rwlock.with_read(TIME, async |_| ());
            rwlock.write(); rwlock.write_timeout(TIME); rwlock.with_write(TIME, async |_| ());
            rwlock.upgradable_read(); rwlock.upgradable_read_timeout(TIME);
            semaphore.acquire(1); semaphore.try_acquire(1); semaphore.acquire_timeout(1, TIME);
            semaphore.with_permits(1, TIME, async |_| ()); semaphore.available_permits(); semaphore.resize(1);
            multi.lock(); multi.lock_timeout(TIME); multi.read();
            election.run(|_| async {}); election.campaign(); election.leader(); changes.next();
        }
    }
    fn guards(any: AnyGuard, write: WriteGuard, read: UpgradableReadGuard, lease: Lease, term: Term) {
        futures! {
            any.lost(); any.revoked();
            lease.ended(); lease.lost(); lease.revoked(); term.stopping(); term.lost();
            write.downgrade(); read.upgrade(); any.release();
        }
    }
    let _ = (client, operators, kinds, guards);
};

/// The README. The documentation tests compile its examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// A handle and a guard have only the methods of their kind. These must not compile.
///
/// ```compile_fail,E0599
/// fn token(guard: &zoolock::PermitGuard) -> zoolock::FencingToken { guard.token() }
/// ```
///
/// ```compile_fail,E0599
/// fn token(guard: &zoolock::ReadGuard) -> zoolock::FencingToken { guard.token() }
/// ```
///
/// ```compile_fail,E0599
/// fn lock(semaphore: &zoolock::Semaphore) { let _ = semaphore.lock(); }
/// ```
///
/// ```compile_fail,E0599
/// async fn upgrade(guard: zoolock::ReadGuard) { let _ = guard.upgrade().await; }
/// ```
#[cfg(doctest)]
struct MethodsOfOtherKinds;

pub use api::admin::Admin;
pub use api::any_guard::AnyGuard;
pub use api::builder::Builder;
pub use api::election::{Election, ElectionState, Ended, Leader, LeaderChange, LeaderChanges, Term};
#[cfg(feature = "embedded")]
pub use api::embedded::TestServer;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use api::internals;
pub use api::local::{LocalGuard, LocalLocker};
pub use api::locker::{ExclusiveGuard, Locker};
pub use api::multi::{MultiGuard, MultiLock, MultiReadGuard};
pub use api::mutex::{Guard, Mutex};
pub use api::once::{Once, OnceOutcome};
pub use api::owner::{Owner, ReentrantGuard};
pub use api::rwlock::{NotUpgraded, ReadGuard, RwLock, UpgradableReadGuard, WriteGuard};
pub use api::semaphore::{PermitGuard, Semaphore};
pub use api::shared_hold::SharedHold;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use api::sim;
pub use api::zoolock::Zoolock;
pub use base::check::Check;
pub use base::clock::Deadline;
pub use base::error::{Error, LossReason};
pub use base::events::{LockEvent, LockEvents};
pub use base::metrics::describe as describe_metrics;
pub use base::ticket::Ticket;
pub use base::wait::Wait;
pub use lock::held::Held;
pub use lock::lease::{End, Lease};
pub use session::Connection;
#[cfg(feature = "sasl")]
pub use zk::sasl;
#[cfg(feature = "tls")]
pub use zk::tls::Tls;
#[doc(inline)]
pub use zoolock_core::FencingToken;
#[doc(inline)]
pub use zoolock_core::ParseTokenError;
#[doc(inline)]
pub use zoolock_core::acquisition::Previous;
#[doc(inline)]
pub use zoolock_core::names::Naming;
