//! The guards of an owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::watch;
use zoolock_core::FencingToken;

use super::shared_acquire::MapEntry;
use crate::api::guard::Guard;
use crate::base::clock::Deadline;
use crate::base::error::{Error, LossReason};
use crate::base::previous::Previous;
use crate::base::tasks::Task;
use crate::session::Connection;

/// A guard of an owner's lock. The lock is released when the owner's last guard is dropped.
///
/// All guards of an owner on a lock share its token, its lease and its loss. Dropping the last one releases the lock as
/// dropping a [`Guard`] does. If any of them was dropped in a panic, the lock is released like that of a holder that panics.
#[must_use = "the lock is released when the owner's last guard is dropped"]
pub struct ReentrantGuard {
    /// `None` only after the guard was dropped or released.
    held: Option<Arc<OwnerHold>>,
}

impl ReentrantGuard {
    /// Returns the fencing token, which rises with every grant. The resource checks it. All guards of the owner have
    /// the same token.
    pub fn token(&self) -> FencingToken {
        self.guard().token()
    }

    /// Returns the lease deadline; see [`Guard::valid_until`].
    pub fn valid_until(&self) -> Deadline {
        self.guard().valid_until()
    }

    /// Returns whether the owner may rely on the lock now; see [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard().is_valid()
    }

    /// Waits until the lock is lost. Resolves at once if it is lost already, and always to the same reason.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) -> LossReason {
        self.guard().lost().await
    }

    /// Returns the reason of the loss, if it is known already. Does not wait.
    pub fn loss(&self) -> Option<LossReason> {
        self.guard().loss()
    }

    /// Returns how the holder before this owner left.
    pub fn previous(&self) -> Previous {
        self.guard().previous()
    }

    /// Returns the path of the lock directory.
    pub fn path(&self) -> &str {
        self.guard().path()
    }

    /// Returns the path of the znode that holds the lock.
    pub fn node_path(&self) -> String {
        self.guard().node_path()
    }

    /// Waits until the owner is asked to release the lock. It is only a request.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn revoked(&self) {
        self.guard().revoked().await;
    }

    /// Returns whether the owner has been asked to release the lock.
    pub fn is_revoked(&self) -> bool {
        self.guard().is_revoked()
    }

    /// Returns whether the owner has been asked to release the lock by now, also while it was a waiter. Asks the
    /// server if that is not known yet. Returns false if the lock is lost.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn revoked_by_now(&self) -> bool {
        self.guard().revoked_by_now().await
    }

    /// Returns the ticket, by which [`revoke`](crate::Mutex::revoke) and [`break_lock`](crate::Mutex::break_lock)
    /// identify this holder.
    pub fn ticket(&self) -> crate::Ticket {
        self.guard().ticket()
    }

    /// Returns the identifier of the acquisition, which no other one has ([`Entry::id`](crate::Entry::id)).
    pub fn acquisition_id(&self) -> String {
        self.guard().acquisition_id()
    }

    /// Returns the check for the caller's own ZooKeeper transaction.
    pub fn check(&self) -> crate::Check {
        self.guard().check()
    }

    /// Returns the state of the session's connection: for messages to the user, not for decisions.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.guard().connection()
    }

    /// Returns the number of guards that the owner has on this lock now, including this one.
    pub fn depth(&self) -> u32 {
        self.held().depth.load(Ordering::Acquire)
    }

    /// Releases this guard. The owner's last guard releases the lock and waits until the server has confirmed it.
    /// Other guards return at once.
    ///
    /// # Errors
    /// As [`Guard::release`]; [`Error::Lost`] for every guard of a lost lock.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let held = self.leave().expect("taken only when the guard goes");
        let (loss, pending_release) = (held.loss(), held.guard.pending_release());
        match Arc::into_inner(held) {
            Some(last) => {
                drop(last);
                pending_release.wait().await
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

    fn held(&self) -> &OwnerHold {
        self.held.as_ref().expect("taken only when the guard goes")
    }

    fn leave(&mut self) -> Option<Arc<OwnerHold>> {
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

/// A lock that an owner holds. Each guard has an `Arc` of it, and so has each answer that was not fetched yet. The
/// lock is released with the last `Arc`.
pub(super) struct OwnerHold {
    guard: Guard,
    depth: AtomicU32,
    limit: u32,
    /// Set if one of the guards was dropped in a panic: the writes may be incomplete, whichever guard is dropped last.
    panicked: AtomicBool,
    /// Set once a guard has existed: an answer may come after all calls were dropped.
    entered: AtomicBool,
    _entry: MapEntry,
}

impl OwnerHold {
    pub(super) fn new(guard: Guard, limit: u32, entry: MapEntry) -> OwnerHold {
        OwnerHold {
            guard,
            depth: AtomicU32::new(0),
            limit,
            panicked: AtomicBool::new(false),
            entered: AtomicBool::new(false),
            _entry: entry,
        }
    }

    /// Adds a guard.
    pub(super) fn enter(self: Arc<OwnerHold>) -> Result<ReentrantGuard, Error> {
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

impl Drop for OwnerHold {
    fn drop(&mut self) {
        if self.panicked.load(Ordering::Acquire) {
            self.guard.release_as_panicked();
        } else if !self.entered.load(Ordering::Acquire) {
            self.guard.release_untouched();
        }
    }
}

pub(super) fn too_deep(path: &str, limit: u32) -> Error {
    Error::invalid(
        format!("lock {path}"),
        format!(
            "is held {limit} times by this owner, which is the limit; release guards, or raise the limit"
        ),
    )
}
