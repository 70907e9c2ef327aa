//! Reads for observers, limited so that they do not delay other requests.

use futures_util::future::join;
use tokio::sync::Semaphore;

use crate::zk::session::{Answer, Stat, ZkError, ZkSession};

/// Maximum number of reads in flight. They keep a connection busy over any local network. More would only delay the
/// other requests of the session, such as the renewal of its lease.
pub(crate) const MAX_IN_FLIGHT: usize = 64;

/// The reads of a session.
pub(crate) trait Reads: Sync {
    fn read(&self, path: &str) -> Answer<(Vec<u8>, Stat)>;
    fn children(&self, path: &str) -> Answer<(Vec<String>, Stat)>;
    fn exists(&self, path: &str) -> Answer<Option<Stat>>;
}

impl Reads for ZkSession {
    fn read(&self, path: &str) -> Answer<(Vec<u8>, Stat)> {
        ZkSession::read(self, path)
    }

    fn children(&self, path: &str) -> Answer<(Vec<String>, Stat)> {
        ZkSession::children(self, path)
    }

    fn exists(&self, path: &str) -> Answer<Option<Stat>> {
        ZkSession::exists(self, path)
    }
}

/// Reads from the server, at most [`MAX_IN_FLIGHT`] at a time for all tasks together.
pub(crate) struct Reader<'a> {
    zk: &'a dyn Reads,
    permits: Semaphore,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(zk: &'a dyn Reads) -> Reader<'a> {
        Reader { zk, permits: Semaphore::new(MAX_IN_FLIGHT) }
    }

    pub(crate) async fn read(&self, path: &str) -> Result<(Vec<u8>, Stat), ZkError> {
        let _permit = self.permit().await;
        self.zk.read(path).await
    }

    pub(crate) async fn children(&self, path: &str) -> Result<(Vec<String>, Stat), ZkError> {
        let _permit = self.permit().await;
        self.zk.children(path).await
    }

    pub(crate) async fn exists(&self, path: &str) -> Result<Option<Stat>, ZkError> {
        let _permit = self.permit().await;
        self.zk.exists(path).await
    }

    /// Sends both reads at once.
    pub(crate) async fn data_and_children(
        &self,
        path: &str,
    ) -> (Result<(Vec<u8>, Stat), ZkError>, Result<(Vec<String>, Stat), ZkError>) {
        join(self.read(path), self.children(path)).await
    }

    async fn permit(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.permits.acquire().await.expect("the semaphore is never closed")
    }
}
