//! The guards of one kind of lock each.
//!
//! A guard owns a [`Held`], and dereferences to it for the methods that the guards of all kinds have.

use std::marker::PhantomData;
use std::ops::Deref;

use zoolock_core::FencingToken;

use crate::api::mode::{self, Exclusive, Fenced, OneLock};
use crate::base::error::Error;
use crate::lock::held::Held;

/// A guard that holds the lock and exposes its lease deadline.
///
/// Dropping it releases the lock in the background. The request is sent before any later request of
/// the same session, except for renewals of the lease. After a lost connection, the request is
/// repeated, until the znode is deleted or the session has ended.
///
/// `Guard` without a type parameter is the guard of a [`Mutex`](crate::Mutex). The other guards are aliases with
/// another [mode], such as [`ReadGuard`](crate::ReadGuard). All of them have the methods of [`Held`], which show the
/// lease, the loss of the lock and requests to release it. [`AnyGuard`](crate::AnyGuard) is a guard of any kind.
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

impl<M: Fenced> Guard<M> {
    /// Returns the fencing token. It is higher than the tokens of all earlier grants. Pass the
    /// token to the protected resource, which refuses requests with an older token.
    pub fn token(&self) -> FencingToken {
        self.held.token()
    }
}

impl<M> Deref for Guard<M> {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
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
