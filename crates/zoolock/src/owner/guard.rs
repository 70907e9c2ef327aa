//! What an owner holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::watch;
use zoolock_core::FencingToken;

use super::question::Entry;
use crate::clock::Deadline;
use crate::error::{Error, LossReason};
use crate::guard::{Guard, Previous};
use crate::session::Connection;
use crate::tasks::Task;

/// Proof that the lock is its owner's. It is released with the owner's last guard, whichever that is.
///
/// All guards of an owner on a lock share its token, its validity and its loss. Dropping the last one releases the
/// lock as dropping a [`Guard`] does; if any of them was dropped in a panic, the next holder is told of a panic.
#[must_use = "the lock is released when the owner's last guard is dropped"]
pub struct ReentrantGuard {
    /// Taken only when the guard goes.
    held: Option<Arc<Held>>,
}

impl ReentrantGuard {
    /// A number that rises with every grant, for the resource to check. The same for all guards of the owner.
    pub fn token(&self) -> FencingToken {
        self.guard().token()
    }

    /// Until when the lock may be believed to be ours; see [`Guard::valid_until`].
    pub fn valid_until(&self) -> Deadline {
        self.guard().valid_until()
    }

    /// Whether the lock may be believed to be ours now; see [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard().is_valid()
    }

    /// Waits until the lock is lost. Resolves at once, and always the same, if it has been.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) -> LossReason {
        self.guard().lost().await
    }

    /// Why the lock was lost, if that is known already. Waits for nothing.
    pub fn loss(&self) -> Option<LossReason> {
        self.guard().loss()
    }

    /// How the holder before this owner left.
    pub fn previous(&self) -> Previous {
        self.guard().previous()
    }

    /// The directory of the lock.
    pub fn path(&self) -> &str {
        self.guard().path()
    }

    /// The node that holds the lock.
    pub fn node_path(&self) -> String {
        self.guard().node_path()
    }

    /// Waits until somebody asks the owner to let go. It is a request, nothing more.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn revoked(&self) {
        self.guard().revoked().await;
    }

    /// Whether somebody has asked the owner to let go.
    pub fn is_revoked(&self) -> bool {
        self.guard().is_revoked()
    }

    /// Whether somebody has asked the owner to let go by now, if only while it stood in the queue. Asks the service, if
    /// that is not known yet; false if the lock is lost.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn revoked_by_now(&self) -> bool {
        self.guard().revoked_by_now().await
    }

    /// What names this holder to [`revoke`](crate::Mutex::revoke) and [`break_lock`](crate::Mutex::break_lock).
    pub fn ticket(&self) -> crate::Ticket {
        self.guard().ticket()
    }

    /// Returns the identifier of the acquisition, which no other one has ([`Entry::id`](crate::Entry::id)).
    pub fn acquisition_id(&self) -> String {
        self.guard().acquisition_id()
    }

    /// The check that a caller puts into its own ZooKeeper transaction.
    pub fn check(&self) -> crate::Check {
        self.guard().check()
    }

    /// What the session is doing: for a word to the user, not for deciding anything.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.guard().connection()
    }

    /// How many guards the owner has on this lock now, this one included.
    pub fn depth(&self) -> u32 {
        self.held().depth.load(Ordering::Acquire)
    }

    /// Gives this guard back. The owner's last one releases the lock and waits until the service has confirmed it;
    /// any other returns at once.
    ///
    /// # Errors
    /// As [`Guard::release`]; [`Error::Lost`] for every guard of a lost lock.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let held = self.leave().expect("taken only when the guard goes");
        let (loss, departure) = (held.loss(), held.guard.departure());
        match Arc::into_inner(held) {
            Some(last) => {
                drop(last);
                departure.wait().await
            }
            None => loss.map_or(Ok(()), Err),
        }
    }

    pub(crate) fn when_lost(&self, tell: impl FnOnce(LossReason) + Send + 'static) -> Task {
        self.guard().when_lost(tell)
    }

    fn guard(&self) -> &Guard {
        &self.held().guard
    }

    fn held(&self) -> &Held {
        self.held.as_ref().expect("taken only when the guard goes")
    }

    fn leave(&mut self) -> Option<Arc<Held>> {
        let held = self.held.take()?;
        if std::thread::panicking() {
            held.panicked.store(true, Ordering::Release);
        }
        held.depth.fetch_sub(1, Ordering::AcqRel);
        Some(held)
    }
}

impl Drop for ReentrantGuard {
    fn drop(&mut self) {
        self.leave();
    }
}

impl std::fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReentrantGuard")
            .field("path", &self.path())
            .field("token", &self.token())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}

/// A lock that an owner holds. Every guard has an `Arc` of it, and so has every answer that nobody has fetched yet;
/// the lock is released with the last one.
pub(super) struct Held {
    guard: Guard,
    depth: AtomicU32,
    limit: u32,
    /// Whether one of the guards went in a panic: then what was written may be half done, whoever goes last.
    panicked: AtomicBool,
    /// Whether anybody ever had a guard: an answer may find that all who asked have gone.
    entered: AtomicBool,
    _entry: Entry,
}

impl Held {
    pub(super) fn new(guard: Guard, limit: u32, entry: Entry) -> Held {
        Held {
            guard,
            depth: AtomicU32::new(0),
            limit,
            panicked: AtomicBool::new(false),
            entered: AtomicBool::new(false),
            _entry: entry,
        }
    }

    /// One guard more.
    pub(super) fn enter(self: Arc<Held>) -> Result<ReentrantGuard, Error> {
        if let Some(lost) = self.loss() {
            return Err(lost);
        }
        let more = |depth: u32| (depth < self.limit).then(|| depth + 1);
        match self.depth.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => {
                self.entered.store(true, Ordering::Release);
                Ok(ReentrantGuard { held: Some(self) })
            }
            Err(_) => Err(too_deep(self.guard.path(), self.limit)),
        }
    }

    fn loss(&self) -> Option<Error> {
        if self.guard.is_valid() {
            return None;
        }
        let reason = self.guard.loss().unwrap_or(LossReason::Unreachable);
        Some(Error::Lost { path: self.guard.path().to_owned(), reason })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.panicked.load(Ordering::Acquire) {
            self.guard.release_as_panicked();
        } else if !self.entered.load(Ordering::Acquire) {
            self.guard.give_back();
        }
    }
}

pub(super) fn too_deep(path: &str, limit: u32) -> Error {
    Error::invalid(
        format!("lock {path}"),
        format!(
            "is held {limit} times by the same owner, which is its limit; release some, or raise the limit"
        ),
    )
}
