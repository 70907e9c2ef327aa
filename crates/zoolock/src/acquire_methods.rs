//! The four ways to ask for a lock, the same for every kind.

/// Gives a lock handle the four ways to acquire one kind of guard.
macro_rules! acquire {
    (
        $handle:ident, $guard:ident, $kind:expr, $what:literal,
        $lock:ident, $try_lock:ident, $lock_timeout:ident, $lock_deadline:ident
    ) => {
        impl $handle {
            #[doc = concat!("Waits until ", $what, " is ours.")]
            ///
            /// # Cancel safety
            /// Dropping the future gives up the place in the queue. Its node is deleted in the background, also after
            /// a lost connection, until it is gone or the session is over.
            ///
            /// # Errors
            /// [`Error::Invalid`](crate::Error::Invalid) for a bad name, or a lock of another kind;
            /// [`Error::Lost`](crate::Error::Lost) where the session ended or somebody deleted our place in the
            /// queue; [`Error::Unavailable`](crate::Error::Unavailable) where no session can be opened;
            /// [`Error::Denied`](crate::Error::Denied) where the service refuses.
            pub async fn $lock(&self) -> Result<$guard, crate::Error> {
                self.lock.lock($kind).await.map($guard::new)
            }

            #[doc = concat!("Takes ", $what, " if it is free, and says `None` if it is not.")]
            ///
            /// # Cancel safety
            #[doc = concat!("As [`Self::", stringify!($lock), "`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`Self::", stringify!($lock), "`].")]
            pub async fn $try_lock(&self) -> Result<Option<$guard>, crate::Error> {
                let held = self.lock.acquire($kind, crate::acquire::Patience::Try).await?;
                Ok(held.map($guard::new))
            }

            #[doc = concat!("Waits until ", $what, " is ours, at most for `timeout`.")]
            ///
            /// # Cancel safety
            #[doc = concat!("As [`Self::", stringify!($lock), "`].")]
            ///
            /// # Errors
            /// [`Error::Timeout`](crate::Error::Timeout), at once when the time is over; else
            #[doc = concat!("as [`Self::", stringify!($lock), "`].")]
            pub async fn $lock_timeout(&self, timeout: std::time::Duration) -> Result<$guard, crate::Error> {
                self.$lock_deadline(crate::zoolock::Zoolock::deadline_after(timeout)).await
            }

            #[doc = concat!("Waits until ", $what, " is ours, at most until `deadline`.")]
            ///
            /// # Cancel safety
            #[doc = concat!("As [`Self::", stringify!($lock), "`].")]
            ///
            /// # Errors
            /// [`Error::Timeout`](crate::Error::Timeout), at once when the time is over; else
            #[doc = concat!("as [`Self::", stringify!($lock), "`].")]
            pub async fn $lock_deadline(&self, deadline: std::time::Instant) -> Result<$guard, crate::Error> {
                self.lock.lock_until($kind, deadline).await.map($guard::new)
            }
        }
    };
}

/// What can be done with a single lock from outside.
macro_rules! operate {
    ($handle:ident) => {
        impl $handle {
            /// The name it was made with.
            pub fn name(&self) -> &str {
                self.lock.name()
            }

            /// The directory of the lock; the name as it was given where that is no good.
            pub fn path(&self) -> String {
                self.lock.path()
            }

            /// Who holds the lock, and who waits for it. What other makes may keep below it or beside it and we may not
            /// read is named in [`unread`](crate::Snapshot::unread).
            ///
            /// # Errors
            /// [`Error::Invalid`](crate::Error::Invalid), [`Error::Unavailable`](crate::Error::Unavailable),
            /// [`Error::Denied`](crate::Error::Denied).
            pub async fn snapshot(&self) -> Result<crate::Snapshot, crate::Error> {
                self.lock.snapshot().await
            }

            /// The same again and again, with the next `waiters` of those who wait: see
            /// [`Glances`](crate::Glances). The others are counted and not read.
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

            /// Asks a holder or waiter to let go: its [`revoked`](crate::Guard::revoked) resolves. A lock of Curator's
            /// that was made revocable is asked in Curator's words. Other makes have no such thing, and nothing is
            /// written for them.
            ///
            /// # Errors
            /// [`Error::NoSuchHolder`](crate::Error::NoSuchHolder) where nobody with this ticket is in the queue;
            /// [`Error::Denied`](crate::Error::Denied) where it may be among those whom we may not read;
            /// [`Error::Invalid`](crate::Error::Invalid) where it cannot be asked; else as for
            /// [`Self::snapshot`].
            pub async fn revoke(&self, ticket: impl Into<crate::Ticket>) -> Result<(), crate::Error> {
                self.lock.revoke(ticket.into()).await
            }

            /// Takes the lock, or the place in its queue, away from the one with this ticket and from nobody else;
            /// its `lost()` resolves with [`LossReason::Broken`](crate::LossReason::Broken). In one transaction with
            /// a line in the directory `.audit` of the root that says who did it.
            ///
            /// Whoever held it may not have noticed yet: wait for what its work can take, or let the resource check
            /// tokens. Says who it was, as it was seen last: a client of another make (it has another `family`, but
            /// for .NET's mutex, and no `pid`) looks at its own node no more once it holds, and goes on until somebody ends it.
            ///
            /// # Errors
            /// [`Error::NoSuchHolder`](crate::Error::NoSuchHolder) where nobody with this ticket is in the queue;
            /// [`Error::Denied`](crate::Error::Denied) where it may be among those whom we may not read; else as for
            /// [`Self::snapshot`].
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
