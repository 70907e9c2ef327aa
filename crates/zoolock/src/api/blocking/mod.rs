//! The blocking API: the same locks for programs without async.
//!
//! Each call blocks its thread until there is an answer. Nothing else is different: the library's own thread renews
//! the lease and cleans up guards, without help from yours.
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
//! A lock can be lost while your thread is busy, and nothing interrupts the thread. There are three ways to notice
//! the loss. The fencing token covers the rest:
//!
//! * **Ask** [`Guard::is_valid`] before each important step. It reads a clock and sends nothing, so ask often.
//! * **Be called**: the callback that you pass to [`Guard::on_lost`] runs on a thread of its own at that moment. It
//!   can set a flag that the work checks, shut down a socket that blocks the work, or kill a child process.
//! * **Wait**: if a child process or another thread does the work, [`Guard::lost_timeout`] is a sleep that ends early
//!   when the lock is lost. [`Guard::lost`] waits without a limit: for ever, if the lock is never lost.
//!
//! # Reentrant locks
//! [`Mutex::lock_reentrant`] counts by thread, as locks in Java do: a function that takes a lock can be called by a
//! function that already holds it. Its guard stays on its thread. If several threads do one job, make an
//! [`Owner`](crate::Owner) and pass it to them ([`Mutex::lock_as`]).
//!
//! # Inside an async program
//! Calls neither start nor need a runtime. So they work, and do not panic, on the threads of a runtime, including current-thread
//! runtimes. But they block the thread, and all other tasks that it would run. If one of these tasks holds the lock, it can never
//! release it. There, use the async API, or move the blocking call to a thread of its own (`spawn_blocking`).

// Each kind of lock is one file: a thin type around the async type. Its methods `wait` for the async methods of the
// same name. `blocking_guard!` defines its guards.

#[macro_use]
mod guard;
#[macro_use]
mod methods;
mod loss;
mod multi;
mod mutex;
mod rwlock;
mod semaphore;
mod thread;
mod zoolock;

pub use guard::{Guard, ReentrantGuard};
pub use multi::{MultiGuard, MultiLock, MultiReadGuard};
pub use mutex::Mutex;
pub use rwlock::{ReadGuard, RwLock, UpgradableReadGuard, WriteGuard};
pub use semaphore::{PermitGuard, Semaphore};
pub use thread::ThreadGuard;
pub use zoolock::Zoolock;

/// Blocks this thread until the future is ready.
fn wait<F: Future>(future: F) -> F::Output {
    // Unconstrained, because inside a tokio task the budget of that task would count. Once it is used up, tokio's channels
    // return "pending", and wake the task when its thread returns to the scheduler. But this call keeps the thread.
    futures_lite::future::block_on(tokio::task::unconstrained(future))
}
