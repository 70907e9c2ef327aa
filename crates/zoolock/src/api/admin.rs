//! The methods for operators and observers.

use crate::admin::graph::{self, Deadlock, WaitChain};
use crate::admin::history;
use crate::admin::once::{self, Run};
use crate::admin::snapshot::{self, Entry, LockPoller, Snapshot};
use crate::admin::token_check::TokenCheck;
use crate::base::error::Error;
use crate::base::ticket::Ticket;
use crate::lock::acquire::Lock;
use crate::lock::context::Context;
use crate::lock::history::HistoryEvent;
use crate::observe::All;

/// Looks at the queues of locks of all kinds, and changes them. [`Zoolock::admin`](crate::Zoolock::admin) returns it.
///
/// Names are relative to the [root](crate::Builder::root), or absolute if they start with `/`.
///
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// let seen = zl.admin().snapshot("nightly").await?;
/// if let Some(holder) = seen.holder
///     && let Some(token) = holder.token
/// {
///     println!("asking {:?} to release", holder.host);
///     zl.admin().revoke("nightly", token).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Admin {
    context: Context,
}

impl Admin {
    pub(super) fn new(context: Context) -> Admin {
        Admin { context }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    fn lock(&self, name: &str) -> Lock {
        Lock::new(self.context.clone(), vec![name.to_owned()])
    }

    /// Returns the holders and the waiters of a lock. Directories that may contain more contenders, and that this client has
    /// no permission to read, are in [`unread`](Snapshot::unread).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Unavailable`], [`Error::Denied`].
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot, Error> {
        self.lock(name).snapshot().await
    }

    /// Returns a source of repeated snapshots of a lock; see [`LockPoller`]. Each snapshot has the holders and the next
    /// `waiters` waiters. The other waiters are counted, not read.
    ///
    /// ```no_run
    /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
    /// let mut poller = zl.admin().poller("nightly", 0);
    /// let seen = poller.snapshot().await?;
    /// println!("{} wait for {:?}", seen.lock.waiting, seen.lock.holder);
    /// # Ok(()) }
    /// ```
    pub fn poller(&self, name: &str, waiters: usize) -> LockPoller {
        LockPoller::new(self.lock(name), waiters)
    }

    /// Returns a snapshot of every lock directory under the root, or under `prefix`, sorted by path. Each snapshot has the
    /// holders and the next `waiters` waiters. The other waiters are counted, not read ([`Snapshot::waiting`]). This costs
    /// at least two requests per directory, and one per contender that is read. At most 64 requests are in flight at a time.
    ///
    /// # Errors
    /// As [`Admin::snapshot`].
    pub async fn locks(&self, prefix: Option<&str>, waiters: usize) -> Result<Vec<Snapshot>, Error> {
        snapshot::survey(&self.context, prefix, waiters).await
    }

    /// Returns a live view of the same locks as [`Admin::locks`].
    pub fn observe(&self, prefix: Option<&str>, waiters: usize) -> All {
        All::new(self.context.clone(), prefix, waiters)
    }

    /// Returns the deadlocks among the owners of the locks under the root, or under `prefix`: owners that wait for
    /// each other in a cycle.
    ///
    /// The locks are read at different moments, and may change in between. Such a change can look
    /// like a cycle. So suspected cycles are read again, and only cycles that existed at one moment
    /// are returned. A returned cycle still exists, unless one of its contenders has left the queue
    /// meanwhile. [`Entry::owner_kind`] shows how certain the owner of a contender is.
    ///
    /// # Errors
    /// As [`Admin::snapshot`].
    pub async fn deadlocks(&self, prefix: Option<&str>) -> Result<Vec<Deadlock>, Error> {
        self.deadlocks_among(&self.locks(prefix, usize::MAX).await?).await
    }

    /// Returns the deadlocks among locks that were read before. Costs nothing if there is none. Otherwise reads the locks of
    /// each deadlock again, as [`Admin::deadlocks`] does. Waiters that the snapshots leave out are in no deadlock.
    ///
    /// # Errors
    /// As [`Admin::snapshot`].
    pub async fn deadlocks_among(&self, locks: &[Snapshot]) -> Result<Vec<Deadlock>, Error> {
        graph::find_deadlocks(&self.context, locks).await
    }

    /// Returns the last attempts to do work once under this lock, newest first. See [`Once`](crate::Once).
    ///
    /// # Errors
    /// As [`Admin::snapshot`]; [`Error::Protocol`] for a record of a newer version.
    pub async fn runs(&self, name: &str) -> Result<Vec<Run>, Error> {
        once::runs(&self.context, self.context.path(name)?.as_str()).await
    }

    /// Returns why a lock is not free: its holder, the lock under the root for which the holder waits, the holder of that
    /// lock, and so on.
    ///
    /// # Errors
    /// As [`Admin::snapshot`].
    pub async fn why(&self, name: &str) -> Result<WaitChain, Error> {
        let path = self.context.path(name)?;
        let path = self.context.without_chroot(path.as_str()).to_owned();
        let mut locks = self.locks(None, usize::MAX).await?;
        if locks.iter().all(|lock| lock.path != path) {
            locks.push(self.snapshot(name).await?);
        }
        graph::find_chain(&self.context, locks, &path).await
    }

    /// Returns the last `max` events in the history of the locks under the root, or of one lock, the oldest first: requests
    /// to release, breaks, and the crashes that holders found. Locks with absolute names are in the history of the root of
    /// the client that acted. Leaves out events that this client has no permission to read. Costs one request, and one for
    /// each event.
    ///
    /// # Errors
    /// As [`Admin::snapshot`].
    pub async fn history(&self, name: Option<&str>, max: usize) -> Result<Vec<HistoryEvent>, Error> {
        history::read(&self.context, name, max).await
    }

    /// Checks whether a holder of a lock has this ticket. The answer was true at a moment during the call, and a majority of
    /// the servers has confirmed it; it need not be true any more. So this is a gate before long work. A resource that must
    /// be safe compares tokens with each write. The [epoch](crate::Builder::token_epoch) of the ticket counts. Of a
    /// [shared hold](crate::SharedHold), each task's token is current while one of its tasks holds the lock. Costs two to
    /// three reads, and one or two empty transactions.
    ///
    /// # Errors
    /// [`Error::Denied`] if the ticket may belong to a holder that this client has no permission to read; else as
    /// [`Admin::snapshot`].
    pub async fn check_token(&self, name: &str, ticket: impl Into<Ticket>) -> Result<TokenCheck, Error> {
        self.lock(name).check_token(ticket.into()).await
    }

    /// Asks a holder to release the lock. Then [`revoked`](crate::Held::revoked) of its guard resolves. A waiter keeps its
    /// queue position, and gets the request after its grant. A revocable lock of Curator gets Curator's request. Contenders
    /// of other libraries cannot be asked, and nothing is written for them. To wait until it has left, watch
    /// the queue ([`observe::Queue`](crate::observe::Queue)).
    ///
    /// # Errors
    /// [`Error::NoSuchHolder`] if no contender in the queue has this ticket; [`Error::Denied`] if the ticket may belong to a
    /// contender that this client has no permission to read; [`Error::NotRevocable`] if the contender cannot be asked; else
    /// as [`Admin::snapshot`].
    pub async fn revoke(&self, name: &str, ticket: impl Into<Ticket>) -> Result<(), Error> {
        self.lock(name).revoke(ticket.into()).await
    }

    /// Deletes the znode of the contender with this ticket in this lock. Of several locks that were acquired together, the
    /// others stay held until the holder notices: it has the same ticket in each. A holder's `lost()` resolves with
    /// [`LossReason::Broken`](crate::LossReason::Broken). The same transaction records this client in the directory `.audit`
    /// of the root. Returns the contender as it was last seen.
    ///
    /// The holder may not have noticed the loss yet: wait until its work must have ended, or let the resource check tokens.
    /// A client of another library does not watch its own znode while it holds. It may continue to work after the break,
    /// until an operator ends its program. The returned entry of such a client has no `pid`. Its `family` is not zoolock's,
    /// except for a mutex of .NET.
    ///
    /// # Errors
    /// [`Error::NoSuchHolder`] if no contender in the queue has this ticket; [`Error::Denied`] if the ticket may belong to a
    /// contender that this client has no permission to read; else as [`Admin::snapshot`].
    pub async fn break_lock(&self, name: &str, ticket: impl Into<Ticket>) -> Result<Entry, Error> {
        self.lock(name).break_lock(ticket.into()).await
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("root", &self.context.root()).finish_non_exhaustive()
    }
}
