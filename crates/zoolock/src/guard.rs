//! What a holder holds.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use zoolock_core::contender::{Departed, Failure, Grant, Refusal};
use zoolock_core::queue::native_name;
use zoolock_core::record::Left;
use zoolock_core::{Event, FencingToken};

use crate::clock::Deadline;
use crate::driver::Acquisition;
use crate::error::{Error, LossReason};
use crate::session::Connection;
use crate::zoolock::Zoolock;

/// Proof that the lock is ours, and the knowledge of how long it may be believed.
///
/// Dropping it releases the lock in the background: the request is sent before `drop` returns, and repeated after a
/// lost connection until the node is gone or the session is over.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    zoolock: Zoolock,
    acquisition: Arc<Acquisition>,
    grant: Grant,
}

/// How the last holder left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Previous {
    /// It released the lock: what it wrote is complete.
    Clean,
    /// It is not known: a crash, a contender that gave up, a client of another make, a directory that was removed in
    /// between, or no last holder at all.
    Unknown,
}

impl std::fmt::Display for Previous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Previous::Clean => "clean",
            Previous::Unknown => "unknown",
        })
    }
}

impl Guard {
    pub(crate) fn new(zoolock: Zoolock, acquisition: Arc<Acquisition>, grant: Grant) -> Guard {
        Guard { zoolock, acquisition, grant }
    }

    /// A number that rises with every grant, for the resource to check.
    pub fn token(&self) -> FencingToken {
        FencingToken::new(self.zoolock.epoch(), self.grant.node.czxid, 0)
    }

    /// Until when the lock may be believed to be ours. Moves on with each renewal; reads no clock and sends nothing.
    /// Once the lock is lost it has passed.
    pub fn valid_until(&self) -> Deadline {
        match self.acquisition.is_lost() {
            None => Deadline(self.acquisition.session().valid_until()),
            Some(_) => Deadline::PASSED,
        }
    }

    /// Whether the lock may be believed to be ours now. Reads the clock and sends nothing. Once it said no, it
    /// always says no.
    pub fn is_valid(&self) -> bool {
        if self.acquisition.is_lost().is_some() {
            return false;
        }
        if self.acquisition.session().lease_valid() {
            return true;
        }
        // We are the first to see it, before the alarm: a stopped process wakes up in the middle of anything.
        self.acquisition.happen(Event::LeaseLost);
        false
    }

    /// Waits until the lock is lost. Resolves at once, and always the same, if it has been.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) -> LossReason {
        self.acquisition.lost().await.into()
    }

    /// Why the lock was lost, if that is known already. Waits for nothing.
    pub fn loss(&self) -> Option<LossReason> {
        self.acquisition.is_lost().map(LossReason::from)
    }

    /// How the holder before us left.
    pub fn previous(&self) -> Previous {
        match self.grant.previous {
            zoolock_core::contender::Previous::Clean => Previous::Clean,
            zoolock_core::contender::Previous::Unknown => Previous::Unknown,
        }
    }

    /// The directory of the lock.
    pub fn path(&self) -> &str {
        self.zoolock.shown(self.acquisition.directory().as_str())
    }

    /// The node that holds the lock.
    pub fn node_path(&self) -> String {
        format!("{}/{}", self.path(), native_name(self.grant.node.sequence))
    }

    /// What the session is doing: for a word to the user, not for deciding anything.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.acquisition.session().connection()
    }

    /// Releases the lock and waits until the service has confirmed it.
    ///
    /// # Errors
    /// [`Error::Lost`] where the lock had been lost before; [`Error::Denied`] where the service refuses the delete,
    /// which is then tried again in the background until the session ends.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(self) -> Result<(), Error> {
        let departure = self.departure();
        drop(self);
        departure.wait().await
    }

    /// Calls `tell` on our own thread when the lock is lost, unless the handle is aborted first.
    pub(crate) fn when_lost(&self, tell: impl FnOnce(LossReason) + Send + 'static) -> AbortHandle {
        let acquisition = self.acquisition.clone();
        let task = async move { tell(acquisition.lost().await.into()) };
        self.acquisition.session().runtime().spawn(task).abort_handle()
    }

    /// Lets go as a holder does that panics; to be dropped after that.
    pub(crate) fn release_as_panicked(&self) {
        self.acquisition.happen(Event::Release(Left::Panicked));
    }

    pub(crate) fn departure(&self) -> Departure {
        Departure { acquisition: self.acquisition.clone(), path: self.path().to_owned() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.acquisition.release();
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("path", &self.path())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

/// The end of a guard, for those who wait for it.
pub(crate) struct Departure {
    acquisition: Arc<Acquisition>,
    path: String,
}

impl Departure {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether the guard was dropped, or the lock lost.
    pub(crate) fn has_begun(&self) -> bool {
        self.acquisition.has_departed() || self.acquisition.is_leaving()
    }

    /// Waits until the service has confirmed that the node is gone.
    pub(crate) async fn wait(self) -> Result<(), Error> {
        match self.acquisition.departed().await {
            Departed::Clean => Ok(()),
            Departed::Lost(loss) => Err(Error::Lost { path: self.path, reason: loss.into() }),
            Departed::Refused(Failure::Refused(Refusal::Denied)) => Err(Error::Denied {
                subject: format!("lock {}", self.path),
                message:
                    "the access control list forbids to delete our own node; it stays until the session ends"
                        .to_owned(),
            }),
            Departed::Refused(failure) => Err(Error::Protocol {
                subject: format!("lock {}", self.path),
                message: format!(
                    "the release was refused ({failure:?}); the node stays until the session ends"
                ),
            }),
        }
    }
}
