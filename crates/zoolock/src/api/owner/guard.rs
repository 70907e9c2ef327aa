//! The guards of an owner.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use zoolock_core::FencingToken;

use super::shared_acquire::MapEntry;
use crate::api::mutex::Guard;
use crate::base::error::{Error, LossReason};
use crate::lock::held::Held;

/// A guard of an owner's lock. The lock is released when the owner's last guard is dropped.
///
/// It has the methods of [`Held`]. All guards of an owner on one lock have the same token, the
/// same lease and the same loss. A request to release the lock reaches all of them.
/// [`Held::previous`] returns how the holder before this owner left.
///
/// Dropping the last guard releases the lock as dropping a [`Guard`] does. If any of the owner's
/// guards was dropped in a panic, the release is recorded as that of a holder that panicked.
#[must_use = "the lock is released when the owner's last guard is dropped"]
pub struct ReentrantGuard {
    /// `None` only after this guard was dropped or released.
    held: Option<Arc<OwnerHold>>,
}

impl ReentrantGuard {
    /// Returns the number of guards that the owner now has on this lock, including this one.
    pub fn depth(&self) -> u32 {
        self.held().depth.load(Ordering::Acquire)
    }

    /// Returns the fencing token of the owner's lock; see [`Guard::token`].
    pub fn token(&self) -> FencingToken {
        self.held().guard.token()
    }

    /// Returns the path of the lock directory.
    pub fn path(&self) -> &str {
        self.held().guard.path()
    }

    /// Releases this guard. The owner's last guard releases the lock and waits until the server has
    /// confirmed the release. Other guards return at once.
    ///
    /// # Errors
    /// As [`Guard::release`]. If the lock is lost, every guard gets [`Error::Lost`].
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let held = self.detach().expect("the guard was not released yet");
        let (loss, pending_release) = (held.loss_error(), held.guard.pending_release());
        match Arc::into_inner(held) {
            Some(last) => {
                drop(last);
                pending_release.wait().await
            }
            None => loss.map_or(Ok(()), Err),
        }
    }

    fn held(&self) -> &OwnerHold {
        self.held.as_ref().expect("the guard was not released yet")
    }

    fn detach(&mut self) -> Option<Arc<OwnerHold>> {
        let held = self.held.take()?;
        if std::thread::panicking() {
            held.panicked.store(true, Ordering::Release);
        }
        held.depth.fetch_sub(1, Ordering::AcqRel);
        Some(held)
    }
}

impl Deref for ReentrantGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held().guard
    }
}

impl Drop for ReentrantGuard {
    fn drop(&mut self) {
        self.detach();
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

/// A lock that an owner holds. Each guard has an `Arc` of it. Dropping the last `Arc` releases the lock.
pub(super) struct OwnerHold {
    guard: Guard,
    depth: AtomicU32,
    limit: u32,
    /// Set if one of the guards was dropped in a panic. The work may then be incomplete, even if the last guard is
    /// dropped normally.
    panicked: AtomicBool,
    /// Set once a guard has existed. It stays unset if all calls were dropped before the grant.
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

    /// Returns a new guard of this lock.
    pub(super) fn new_guard(self: Arc<OwnerHold>) -> Result<ReentrantGuard, Error> {
        if let Some(lost) = self.loss_error() {
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

    fn loss_error(&self) -> Option<Error> {
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
    let message = match limit {
        0 => "cannot be acquired, because the owner's limit is 0 or its thread ends; acquire it earlier, or for another owner"
            .to_owned(),
        _ => format!("is held {limit} times by this owner, which is the limit; release guards, or raise the limit"),
    };
    Error::invalid(format!("lock {path}"), message)
}
