//! Reads for observers, limited so that they do not delay other requests.

use futures_util::future::join;
use tokio::sync::Semaphore;

use crate::zk::session::{Answer, ZkError, ZkSession, ZnodeStat};

/// Maximum number of reads in flight. This number keeps a connection busy over any local network. More reads would only
/// delay the other requests of the session, such as the renewal of its lease.
pub(crate) const MAX_IN_FLIGHT: usize = 64;

/// The reads that observers send on a session.
pub(crate) trait ObserverReads: Sync {
    fn read(&self, path: &str) -> Answer<(Vec<u8>, ZnodeStat)>;
    fn children(&self, path: &str) -> Answer<(Vec<String>, ZnodeStat)>;
    fn exists(&self, path: &str) -> Answer<Option<ZnodeStat>>;
}

impl ObserverReads for ZkSession {
    fn read(&self, path: &str) -> Answer<(Vec<u8>, ZnodeStat)> {
        ZkSession::read(self, path)
    }

    fn children(&self, path: &str) -> Answer<(Vec<String>, ZnodeStat)> {
        ZkSession::children(self, path)
    }

    fn exists(&self, path: &str) -> Answer<Option<ZnodeStat>> {
        ZkSession::exists(self, path)
    }
}

/// A reader with at most [`MAX_IN_FLIGHT`] reads in flight, for all tasks that share it.
pub(crate) struct QueueReader<'a> {
    zk: &'a dyn ObserverReads,
    slots: Semaphore,
}

impl<'a> QueueReader<'a> {
    pub(crate) fn new(zk: &'a dyn ObserverReads) -> QueueReader<'a> {
        QueueReader { zk, slots: Semaphore::new(MAX_IN_FLIGHT) }
    }

    pub(crate) async fn read(&self, path: &str) -> Result<(Vec<u8>, ZnodeStat), ZkError> {
        let _slot = self.wait_for_slot().await;
        self.zk.read(path).await
    }

    pub(crate) async fn children(&self, path: &str) -> Result<(Vec<String>, ZnodeStat), ZkError> {
        let _slot = self.wait_for_slot().await;
        self.zk.children(path).await
    }

    pub(crate) async fn exists(&self, path: &str) -> Result<Option<ZnodeStat>, ZkError> {
        let _slot = self.wait_for_slot().await;
        self.zk.exists(path).await
    }

    /// Reads the data and the children of a znode. Sends both requests at once.
    pub(crate) async fn data_and_children(
        &self,
        path: &str,
    ) -> (Result<(Vec<u8>, ZnodeStat), ZkError>, Result<(Vec<String>, ZnodeStat), ZkError>) {
        join(self.read(path), self.children(path)).await
    }

    /// Waits until fewer than [`MAX_IN_FLIGHT`] reads are in flight.
    async fn wait_for_slot(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.slots.acquire().await.expect("the semaphore is never closed")
    }
}
