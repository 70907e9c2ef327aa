//! The blocking API: the same locks for programs without async.
//!
//! Each call blocks the calling thread until the result is known. Nothing else is different from
//! the async API: the library's own thread renews the leases and releases dropped guards.
//!
//! ```no_run
//! use std::time::Duration;
//! use zoolock::blocking::Zoolock;
//!
//! # fn main() -> Result<(), zoolock::Error> {
//! let zl = Zoolock::connect("zk1:2181,zk2:2181,zk3:2181")?;
//! let guard = zl.mutex("nightly").lock_timeout(Duration::from_secs(30))?;
//! for part in 0..100 {
//!     if !guard.is_valid() {
//!         break; // another holder may be granted the lock soon
//!     }
//!     work(part, guard.token());
//! }
//! guard.release()?; // fails if the lock was lost before
//! zl.close();
//! # Ok(()) }
//! # fn work(_: u32, _: zoolock::FencingToken) {}
//! ```
//!
//! # How loss is noticed
//! A lock can be lost while your thread is busy, and nothing interrupts the thread. There are three ways to notice the
//! loss. Until your thread notices it, the fencing token protects the resource.
//!
//! * **Ask** [`Held::is_valid`](crate::Held::is_valid) before each important step. It reads a clock and sends
//!   nothing, so ask often.
//! * **Be called**: the callback that you pass to [`Guard::on_lost`] runs on a thread of its own when the lock is lost.
//!   It can set a flag that the work checks, shut down a socket that blocks the work, or kill a child process.
//! * **Wait**: if a child process or another thread does the work, call [`Guard::lost_timeout`].
//!   This call sleeps, and returns early when the lock is lost. [`Guard::lost`] waits without a
//!   limit: for ever, if the lock is never lost.
//!
//! # Reentrant locks
//! With [`Mutex::lock_reentrant`], the owner of a lock is the calling thread, as for reentrant
//! locks in Java: a function that acquires a lock can be called by a function that already holds
//! it. The guard cannot move to another thread. If several threads do one job, make an
//! [`Owner`](crate::Owner) and pass it to them ([`Mutex::lock_as`]).
//!
//! # Inside an async program
//! Blocking calls do not use the runtime of the caller. So they work on the threads of a runtime,
//! including current-thread runtimes, and do not panic there. But they block the thread and all
//! other tasks that it would run. If one of these tasks holds the lock, that task can never release
//! the lock, and the call waits for ever. So use the async API in async code, or move the blocking
//! call to a thread of its own (`spawn_blocking`).

// All methods are on two wrappers: `Blocking` around clients and handles, and `BlockingGuard`
// around guards. A method that waits calls `wait` with the future of the async method of the same
// name.

mod guard;
mod handle;
mod loss;
mod multi;
mod mutex;
mod rwlock;
mod semaphore;
mod shared_hold;
mod thread;
mod zoolock;

pub use guard::{
    BlockingGuard, Guard, MultiGuard, MultiReadGuard, PermitGuard, ReadGuard, ReentrantGuard,
    UpgradableReadGuard, WriteGuard,
};
pub use handle::Blocking;
pub use multi::MultiLock;
pub use mutex::Mutex;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use shared_hold::SharedHold;
pub use thread::ThreadGuard;
pub use zoolock::Zoolock;

/// Blocks this thread until the future is ready.
fn block_on<F: Future>(future: F) -> F::Output {
    // Inside a tokio task, the cooperative budget of that task would apply to the future. Once the budget is used up,
    // tokio's channels return `Pending` until the thread returns to the scheduler. This call keeps the thread, so with
    // the budget it could block for ever.
    futures_lite::future::block_on(tokio::task::unconstrained(future))
}
