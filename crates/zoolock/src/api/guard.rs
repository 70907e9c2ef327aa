//! The guard of a lock of any kind.

use std::marker::PhantomData;

use tokio::sync::watch;
use zoolock_core::FencingToken;

use crate::api::mode::{self, Exclusive, Fenced, HasPrevious, OneLock};
use crate::base::check::Check;
use crate::base::clock::Deadline;
use crate::base::error::{Error, LossReason};
use crate::base::ticket::Ticket;
use crate::lock::held::Held;
use crate::session::Connection;
use zoolock_core::acquisition::Previous;

/// A guard that holds the lock and exposes its lease deadline.
///
/// Dropping it releases the lock in the background. The request is sent before any later request of
/// the same session, except for renewals of the lease. After a lost connection, the request is
/// repeated, until the znode is deleted or the session has ended.
///
/// `Guard` without a type parameter is the guard of a [`Mutex`](crate::Mutex). The other guards are aliases with
/// another [mode], such as [`ReadGuard`](crate::ReadGuard).
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<M = Exclusive> {
    pub(super) held: Held,
    mode: PhantomData<fn() -> M>,
}

impl<M> Guard<M> {
    pub(super) fn new(held: Held) -> Guard<M> {
        Guard { held, mode: PhantomData }
    }

    /// Returns the guard of an acquisition that waited without a deadline.
    pub(super) fn expect_granted(held: Option<Held>) -> Guard<M> {
        Guard::new(held.expect("a wait without a deadline ends with the lock or an error"))
    }

    /// Returns the lease deadline, until which the holder may rely on the lock. Each renewal extends it. Reads no clock
    /// and sends nothing. After a loss, returns a deadline that has passed.
    pub fn valid_until(&self) -> Deadline {
        self.held.valid_until()
    }

    /// Returns whether the holder may rely on the lock now. Reads the clock and sends nothing. Once it has
    /// returned false, it always returns false.
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// Waits until the lock is lost, and returns the reason. After the loss, resolves at once, and always to the same
    /// reason.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) -> LossReason {
        self.held.lost().await
    }

    /// Returns the reason of the loss, if the loss is already known. Does not wait.
    pub fn loss(&self) -> Option<LossReason> {
        self.held.loss()
    }

    /// Waits until this holder is asked to release the lock: by `zoolock revoke`, by Curator, or by
    /// another client that follows ZooKeeper's recipe for revocable locks. The holder keeps the
    /// lock until it releases the lock.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn revoked(&self) {
        self.held.revoked().await;
    }

    /// Returns whether this holder has been asked to release the lock, as far as this client knows.
    /// Sends nothing.
    pub fn is_revoked(&self) -> bool {
        self.held.is_revoked()
    }

    /// Returns whether this holder has been asked to release the lock. A request that was made
    /// while this holder was still a waiter counts, too. If this client has not read the holder's
    /// znode yet, waits until it has read the znode or has lost the lock.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn revoked_by_now(&self) -> bool {
        self.held.revoked_by_now().await
    }

    /// Returns the ticket that identifies this holder in [`revoke`](crate::Mutex::revoke) and
    /// [`break_lock`](crate::Mutex::break_lock). It is no fencing token.
    pub fn ticket(&self) -> Ticket {
        self.held.ticket()
    }

    /// Returns the unique identifier of the acquisition, which observers see as [`Entry::id`](crate::Entry::id).
    pub fn acquisition_id(&self) -> String {
        self.held.acquisition_id()
    }

    /// Returns a check that makes the caller's own ZooKeeper transaction fail if the lock is lost.
    pub fn check(&self) -> Check {
        self.held.check()
    }

    /// Returns the path of the znode that holds the lock; for a multi-lock, the path of the first znode.
    pub fn node_path(&self) -> String {
        self.held.node_path()
    }

    /// Returns the paths of the lock directories, each once. A multi-lock has several directories, every other lock has
    /// one.
    pub fn paths(&self) -> Vec<&str> {
        self.held.paths()
    }

    /// Returns the id of the session that created the holder's znode.
    #[doc(hidden)]
    pub fn session_id(&self) -> i64 {
        self.held.session_id()
    }

    /// Returns the state of the session's connection: for messages to the user, not for decisions.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.held.connection()
    }

    /// Releases the lock and waits until the server has confirmed the release.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before; [`Error::Denied`] if the server refuses to delete the znode. The
    /// deletion is then repeated in the background until the session ends.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(self) -> Result<(), Error> {
        self.held.release().await
    }
}

impl<M: OneLock> Guard<M> {
    /// Returns the path of the lock directory.
    pub fn path(&self) -> &str {
        self.held.path()
    }
}

impl<M: HasPrevious> Guard<M> {
    /// Returns how the last exclusive holder left, as far as this is known now. With
    /// [`crash_detection`](crate::Mutex::crash_detection) or
    /// [`tell_previous`](crate::Mutex::tell_previous), this is read before the grant. Without them,
    /// a holder that had to wait for a [`Mutex`](crate::Mutex) may get
    /// [`Unknown`](Previous::Unknown) in its first milliseconds. A result other than `Unknown` is
    /// final.
    pub fn previous(&self) -> Previous {
        self.held.previous()
    }
}

impl<M: Fenced> Guard<M> {
    /// Returns the fencing token. It is higher than the tokens of all earlier grants. Pass the
    /// token to the protected resource, which refuses requests with an older token.
    pub fn token(&self) -> FencingToken {
        self.held.token()
    }
}

impl<M> std::fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("mode", &format_args!("{}", mode::name::<M>()))
            .field("path", &self.held.paths())
            .field("ticket", &self.held.ticket())
            .finish_non_exhaustive()
    }
}
