//! Repeated snapshots of one lock at a low cost.

use zoolock_core::Zxid;
use zoolock_core::acquisition::RequestFailure;

use super::{Rereads, Snapshot, SnapshotCache, SnapshotOptions, describe, gather};
use crate::base::error::Error;
use crate::engine::gather::LockDirectory;
use crate::engine::reader::QueueReader;
use crate::lock::acquire::Lock;

/// A source of repeated snapshots of one lock. It reads the data of each contender once. Later
/// changes of that data are not seen, for example [`Entry::revoked`](crate::admin::Entry::revoked). With
/// [`LockPoller::with_rereads`] or [`LockPoller::with_holder_rereads`], each snapshot reads the data
/// again.
#[derive(Debug)]
pub struct LockPoller {
    lock: Lock,
    waiters: usize,
    cache: SnapshotCache,
    /// The `czxid` of the directory that `cache` belongs to. A new directory restarts the sequence numbers.
    made: Option<Zxid>,
    /// Set if the snapshots include the queue position of this client.
    wants_position: bool,
}

/// One snapshot, and the queue position of this client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PolledSnapshot {
    /// The snapshot of the lock, with at most as many waiters as were asked for.
    pub lock: Snapshot,
    /// Number of waiters before the first waiter of this client. `None` if no contender of this client waits, if
    /// [`LockPoller::with_position`] was not called, or if the server is older than ZooKeeper 3.6.
    pub place: Option<usize>,
    /// The `czxid` of the lock directory; `None` if there is no directory. A new directory restarts the sequence
    /// numbers.
    pub made: Option<i64>,
}

impl LockPoller {
    pub(crate) fn new(lock: Lock, waiters: usize) -> LockPoller {
        let (cache, made) = (SnapshotCache::default(), None);
        LockPoller { lock, waiters, cache, made, wants_position: false }
    }

    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Also finds the queue position of this client. Until a contender of this client is found in the queue, this costs
    /// one more request per session of the client in each snapshot.
    #[must_use]
    pub fn with_position(self) -> LockPoller {
        LockPoller { wants_position: true, ..self }
    }

    /// Reads the data again in each snapshot. This costs one request for each contender that the snapshot describes.
    #[must_use]
    pub fn with_rereads(mut self) -> LockPoller {
        self.cache.rereads = Rereads::All;
        self
    }

    /// Reads the data of the holders again in each snapshot. This costs one request for each holder, also in a queue with
    /// many waiters.
    #[must_use]
    pub fn with_holder_rereads(mut self) -> LockPoller {
        self.cache.rereads = Rereads::Holders;
        self
    }

    /// Takes one snapshot. This costs two requests, and one for each described contender that was not read before. It
    /// costs one more if a contender has left, because the release marker must be read again.
    ///
    /// # Cancel safety
    /// Contenders that were read before the future was dropped are not read again. So a queue that is too long for one
    /// call is read completely after a few calls.
    ///
    /// # Errors
    /// Fails as [`Admin::snapshot`](crate::Admin::snapshot) does.
    pub async fn snapshot(&mut self) -> Result<PolledSnapshot, Error> {
        let context = self.lock.context.clone();
        let zk = context.zk().await?;
        let reader = QueueReader::new(&*zk);
        let view = SnapshotOptions { waiters: self.waiters, ..SnapshotOptions::of(&context) };
        let here = gather(&reader, self.lock.directory()?, &view).await?;
        if self.made != here.made {
            self.made = here.made;
            self.cache = SnapshotCache { rereads: self.cache.rereads, ..SnapshotCache::default() };
        }
        if self.wants_position && !self.knows_own_znodes(&here) {
            self.find_own_znodes(&here).await;
        }
        let (lock, place) = describe(&reader, here, &view, Some(&mut self.cache)).await?;
        Ok(PolledSnapshot { lock, place, made: self.made.map(|made| made.0) })
    }

    fn knows_own_znodes(&self, here: &LockDirectory) -> bool {
        let own = &self.cache.own;
        !own.is_empty() && here.contenders.iter().any(|contender| own.contains(&contender.path(&here.path)))
    }

    /// Asks the server for the znodes that this client's sessions own in the lock directory. The names of znodes do not
    /// show the session.
    async fn find_own_znodes(&mut self, here: &LockDirectory) {
        self.cache.own.clear();
        if here.contenders.is_empty() {
            return;
        }
        for session in self.lock.context.sessions() {
            // A session cannot be closed while an answer is pending or `zk` exists. So sessions
            // without a connection are skipped, and `zk` is dropped before the wait.
            let zk = session.zk().filter(|_| session.is_up());
            let Some(answer) = zk.map(|zk| zk.ephemerals(here.path.as_str())) else { continue };
            match answer.await {
                Ok(own) => self.cache.own.extend(own),
                // The server does not support this request, so no later snapshot sends it.
                Err(error) if matches!(error.failure, RequestFailure::Refused(_)) => {
                    self.wants_position = false
                }
                Err(_) => {}
            }
        }
    }
}

impl std::fmt::Debug for SnapshotCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Leaves out the data of other clients, and the names of znodes, which may contain session ids.
        f.debug_struct("SnapshotCache").field("read", &self.read.len()).finish_non_exhaustive()
    }
}
