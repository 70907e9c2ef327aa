//! The same locks for programs without async.
//!
//! Every call blocks its thread until there is an answer. Nothing else is different: the lease is renewed and guards
//! are cleaned up by the library's own thread, which needs no help from yours.
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
//!         break; // somebody else may have the lock soon
//!     }
//!     work(part, guard.token());
//! }
//! guard.release()?; // says so if the lock was lost before
//! zl.close();
//! # Ok(()) }
//! # fn work(_: u32, _: zoolock::FencingToken) {}
//! ```
//!
//! # How loss is noticed
//! A lock can be lost while your thread is busy with something else, and nothing interrupts it. There are three ways to
//! hear of it, and the token for the rest:
//!
//! * **Ask** [`Guard::is_valid`] before each step that matters. It reads a clock and sends nothing, so ask often.
//! * **Be called**: what is given to [`Guard::on_lost`] runs on a thread of its own at that moment. Let it set a flag
//!   that the work looks at, shut down a socket that the work blocks on, or kill a child.
//! * **Wait**: where the work is done by somebody else (a child, another thread), [`Guard::lost_timeout`] is a sleep that
//!   ends early when the lock is lost. [`Guard::lost`] waits for as long as it takes, for ever if all goes well.
//!
//! # Reentrant locks
//! [`Mutex::lock_reentrant`] counts by thread, as locks in Java do: a function that takes a lock can be called by
//! another that has it. Its guard stays on its thread. Where a job is done by several threads, make an
//! [`Owner`](crate::Owner) and pass it on ([`Mutex::lock_as`]).
//!
//! # Inside an async program
//! Calls neither start nor need a runtime, so they work and do not panic on the threads of one, current-thread runtimes
//! included. But they block the thread, and with it every other task that it would run. Worse, if the lock is held by
//! such a task, nobody can ever let it go: use the async API there, or move the blocking call to a thread of its own
//! (`spawn_blocking`).

// Another kind of lock is a file here: a thin type around the async one, whose methods `wait` for the async methods of
// the same name, and its guards by `blocking_guard!`.

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

/// Blocks this thread until a future of ours is ready.
fn wait<F: Future>(future: F) -> F::Output {
    // Unconstrained, since inside a task of tokio's that task's budget would count: once it is used up, tokio's channels
    // answer "later", and wake us when the thread comes back to the scheduler; but we are the ones who keep it.
    futures_lite::future::block_on(tokio::task::unconstrained(future))
}
