//! Repeated snapshots of one lock at a low cost.

use zoolock_core::Zxid;
use zoolock_core::contender::Failure;

use super::{Snapshot, SnapshotCache, View, describe, gathered};
use crate::base::error::Error;
use crate::engine::gather::Gathered;
use crate::engine::reader::Reader;
use crate::lock::acquire::Lock;

/// A reader of repeated snapshots of one lock. It reads each contender once, so the contender's data is as old as
/// that read. That includes [`Entry::revoked`](crate::Entry::revoked).
#[derive(Debug)]
pub struct Glances {
    lock: Lock,
    waiters: usize,
    cache: SnapshotCache,
    /// Creation of the directory that `cache` belongs to: a new directory restarts the sequence numbers.
    made: Option<Zxid>,
    /// Set if the queue position of this client is wanted.
    wants_position: bool,
}

/// One snapshot, and the queue position of this client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Glance {
    /// The lock, with the number of waiters that was asked for.
    pub lock: Snapshot,
    /// Number of waiters before the first waiter of this client. `None` if none of its contenders waits,
    /// without [`Glances::with_place`], or if the server does not support it (before ZooKeeper 3.6).
    pub place: Option<usize>,
    /// Creation of the lock's directory in the server's order (its `czxid`); `None` if there is no directory.
    /// A new directory restarts the sequence numbers.
    pub made: Option<i64>,
}

impl Glances {
    pub(crate) fn new(lock: Lock, waiters: usize) -> Glances {
        Glances { lock, waiters, cache: SnapshotCache::default(), made: None, wants_position: false }
    }

    /// Finds the position of this client's own contender, too. This costs one more request when the contender
    /// is first seen.
    #[must_use]
    pub fn with_place(self) -> Glances {
        Glances { wants_position: true, ..self }
    }

    /// Takes one snapshot. This costs two requests, and one for each holder and each of the next waiters that
    /// was not read before. It costs one more if a contender has left, since it may have crashed or written
    /// the release marker.
    ///
    /// # Cancel safety
    /// Contenders that were read before the future was dropped are not read again: a queue that is too long
    /// for one call is complete after a few.
    ///
    /// # Errors
    /// As [`Mutex::snapshot`](crate::Mutex::snapshot).
    pub async fn look(&mut self) -> Result<Glance, Error> {
        let context = self.lock.context.clone();
        let zk = context.zk().await?;
        let reader = Reader::new(&*zk);
        let view = View { waiters: self.waiters, ..View::of(&context) };
        let here = gathered(&reader, self.lock.directory()?, &view).await?;
        if self.made != here.made {
            (self.made, self.cache) = (here.made, SnapshotCache::default());
        }
        if self.wants_position && !self.knows_own_znodes(&here) {
            self.find_own_znodes(&here).await;
        }
        let (lock, place) = describe(&reader, here, &view, Some(&mut self.cache)).await?;
        Ok(Glance { lock, place, made: self.made.map(|made| made.0) })
    }

    fn knows_own_znodes(&self, here: &Gathered) -> bool {
        let own = &self.cache.own;
        !own.is_empty() && here.contenders.iter().any(|contender| own.contains(&contender.path(&here.path)))
    }

    /// Asks each session of this client for its own znodes here: names do not tell their session.
    async fn find_own_znodes(&mut self, here: &Gathered) {
        self.cache.own.clear();
        if here.contenders.is_empty() {
            return;
        }
        for session in self.lock.context.sessions() {
            // Keeps each session only while it is asked, and skips those without a connection: a pending
            // answer keeps a session from being closed.
            let zk = session.zk().filter(|_| session.is_up());
            let Some(answer) = zk.map(|zk| zk.ephemerals(here.path.as_str())) else { continue };
            match answer.await {
                Ok(own) => self.cache.own.extend(own),
                // The server does not support this request.
                Err(error) if matches!(error.failure, Failure::Refused(_)) => self.wants_position = false,
                Err(_) => {}
            }
        }
    }
}

impl std::fmt::Debug for SnapshotCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Prints neither data of other clients nor session ids in the names of ZooKeeper's recipe.
        f.debug_struct("SnapshotCache").field("read", &self.read.len()).finish_non_exhaustive()
    }
}
