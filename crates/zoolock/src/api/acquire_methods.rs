//! The methods to acquire a lock, and to operate on it. They are the same for each kind.

/// Implements the methods of a lock handle that acquire one kind of guard.
macro_rules! acquire {
    (
        $handle:ident, $guard:ident, $kind:expr, $object:literal,
        $lock:ident, $try_lock:ident, $lock_timeout:ident, $lock_deadline:ident
    ) => {
        impl $handle {
            #[doc = concat!("Waits until it acquires ", $object, ".")]
            ///
            /// If the session expires in an outage, it queues again at the end, and continues to wait.
            ///
            /// # Cancel safety
            /// Dropping the future leaves the queue. The znode is deleted in the background. After a lost connection the
            /// deletion is repeated, until it succeeds or the session has ended.
            ///
            /// # Errors
            /// [`Error::Invalid`](crate::Error::Invalid) for a bad name, a lock of another kind, or a client that was
            /// closed or belongs to another process; [`Error::Removed`](crate::Error::Removed) if another client deleted the
            /// znode of this acquisition; [`Error::Lost`](crate::Error::Lost) if the lock was granted and lost before this future
            /// was polled; [`Error::Unavailable`](crate::Error::Unavailable) if no session can be opened;
            /// [`Error::Denied`](crate::Error::Denied) if the server refuses.
            pub async fn $lock(&self) -> Result<$guard, crate::Error> {
                self.lock.lock($kind).await.map($guard::new)
            }

            #[doc = concat!("Acquires ", $object, " if it is free. Returns `None` if it is busy.")]
            ///
            /// # Cancel safety
            #[doc = concat!("As [`Self::", stringify!($lock), "`].")]
            ///
            /// # Errors
            /// [`Error::Unavailable`](crate::Error::Unavailable) if the server does not answer within
            /// [`Builder::answer_timeout`](crate::Builder::answer_timeout); else
            #[doc = concat!("as [`Self::", stringify!($lock), "`].")]
            pub async fn $try_lock(&self) -> Result<Option<$guard>, crate::Error> {
                let held = self.lock.acquire($kind, crate::lock::acquire::WaitLimit::Try).await?;
                Ok(held.map($guard::new))
            }

            #[doc = concat!("Waits until it acquires ", $object, ", for `timeout` at most. Zero is one attempt.")]
            ///
            /// # Cancel safety
            #[doc = concat!("As [`Self::", stringify!($lock), "`].")]
            ///
            /// # Errors
            /// [`Error::Timeout`](crate::Error::Timeout) if the server has shown that the lock is busy, and still answers at
            /// the end of the wait; [`Error::Unavailable`](crate::Error::Unavailable) if it does not, within
            /// [`Builder::answer_timeout`](crate::Builder::answer_timeout); else
            #[doc = concat!("as [`Self::", stringify!($lock), "`].")]
            pub async fn $lock_timeout(&self, timeout: std::time::Duration) -> Result<$guard, crate::Error> {
                self.$lock_deadline(crate::base::clock::deadline_after(timeout)).await
            }

            #[doc = concat!("Waits until it acquires ", $object, ", until `deadline` at most.")]
            ///
            /// # Cancel safety
            #[doc = concat!("As [`Self::", stringify!($lock), "`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`Self::", stringify!($lock_timeout), "`].")]
            pub async fn $lock_deadline(&self, deadline: std::time::Instant) -> Result<$guard, crate::Error> {
                self.lock.lock_until($kind, deadline).await.map($guard::new)
            }
        }
    };
}

/// Implements the methods of a handle for operators and observers.
macro_rules! operate {
    ($handle:ident) => {
        impl $handle {
            /// Returns the name of the lock, as it was given.
            pub fn name(&self) -> &str {
                self.lock.name()
            }

            /// Returns the path of the lock directory, or the given name if that is invalid.
            pub fn path(&self) -> String {
                self.lock.path()
            }

            /// Returns the holders and the waiters of the lock. Znodes of other libraries that this client may not read are
            /// in [`unread`](crate::Snapshot::unread).
            ///
            /// # Errors
            /// [`Error::Invalid`](crate::Error::Invalid), [`Error::Unavailable`](crate::Error::Unavailable),
            /// [`Error::Denied`](crate::Error::Denied).
            pub async fn snapshot(&self) -> Result<crate::Snapshot, crate::Error> {
                self.lock.snapshot().await
            }

            /// Returns a reader of repeated snapshots with the next `waiters` waiters: see [`Glances`](crate::Glances). The
            /// other waiters are counted, not read.
            ///
            /// ```no_run
            /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
            /// let mut glances = zl.mutex("nightly").glances(0);
            /// let seen = glances.look().await?;
            /// println!("{} wait for {:?}", seen.lock.waiting, seen.lock.holder);
            /// # Ok(()) }
            /// ```
            pub fn glances(&self, waiters: usize) -> crate::Glances {
                crate::Glances::new(self.lock.clone(), waiters)
            }

            /// Asks a holder or waiter to release: its [`revoked`](crate::Guard::revoked) resolves. A revocable lock of
            /// Curator gets Curator's request. Other libraries have no such request, and nothing is written for them.
            ///
            /// # Errors
            /// [`Error::NoSuchHolder`](crate::Error::NoSuchHolder) if no contender in the queue has this ticket;
            /// [`Error::Denied`](crate::Error::Denied) if it may belong to a contender that this client may not read;
            /// [`Error::Invalid`](crate::Error::Invalid) if that contender cannot be asked; else as [`Self::snapshot`].
            pub async fn revoke(&self, ticket: impl Into<crate::Ticket>) -> Result<(), crate::Error> {
                self.lock.revoke(ticket.into()).await
            }

            /// Deletes the znode of the contender with this ticket. A holder's `lost()` resolves with
            /// [`LossReason::Broken`](crate::LossReason::Broken). The same transaction records this client in the directory
            /// `.audit` of the root. Returns the contender as it was last seen.
            ///
            /// The holder may not have noticed yet: wait until its work must have ended, or let the resource check tokens.
            /// A client of another library does not watch its own znode while it holds, and continues until it is ended. Its
            /// entry has no `pid`. The `family` is another one, except for .NET's mutex.
            ///
            /// # Errors
            /// [`Error::NoSuchHolder`](crate::Error::NoSuchHolder) if no contender in the queue has this ticket;
            /// [`Error::Denied`](crate::Error::Denied) if it may belong to a contender that this client may not read; else
            /// as [`Self::snapshot`].
            pub async fn break_lock(
                &self,
                ticket: impl Into<crate::Ticket>,
            ) -> Result<crate::Entry, crate::Error> {
                self.lock.break_lock(ticket.into()).await
            }
        }

        impl std::fmt::Debug for $handle {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($handle)).field("name", &self.name()).finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use {acquire, operate};
