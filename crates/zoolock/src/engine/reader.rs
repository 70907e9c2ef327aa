//! Reads for observers, limited so that they do not delay other requests.

use futures_util::future::join;
use tokio::sync::Semaphore;

use crate::zk::keeper::{Answer, Keeper, KeeperError, Stat};

/// Maximum number of reads in flight. They keep a connection busy over any local network. More would only delay the
/// other requests of the session, such as the renewal of its lease.
pub(crate) const AT_ONCE: usize = 64;

/// The reads of a session.
pub(crate) trait Reads: Sync {
    fn read(&self, path: &str) -> Answer<(Vec<u8>, Stat)>;
    fn children(&self, path: &str) -> Answer<(Vec<String>, Stat)>;
    fn exists(&self, path: &str) -> Answer<Option<Stat>>;
}

impl Reads for Keeper {
    fn read(&self, path: &str) -> Answer<(Vec<u8>, Stat)> {
        Keeper::read(self, path)
    }

    fn children(&self, path: &str) -> Answer<(Vec<String>, Stat)> {
        Keeper::children(self, path)
    }

    fn exists(&self, path: &str) -> Answer<Option<Stat>> {
        Keeper::exists(self, path)
    }
}

/// Reads from the server, at most [`AT_ONCE`] at a time for all tasks together.
pub(crate) struct Reader<'a> {
    keeper: &'a dyn Reads,
    room: Semaphore,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(keeper: &'a dyn Reads) -> Reader<'a> {
        Reader { keeper, room: Semaphore::new(AT_ONCE) }
    }

    pub(crate) async fn read(&self, path: &str) -> Result<(Vec<u8>, Stat), KeeperError> {
        let _turn = self.turn().await;
        self.keeper.read(path).await
    }

    pub(crate) async fn children(&self, path: &str) -> Result<(Vec<String>, Stat), KeeperError> {
        let _turn = self.turn().await;
        self.keeper.children(path).await
    }

    pub(crate) async fn exists(&self, path: &str) -> Result<Option<Stat>, KeeperError> {
        let _turn = self.turn().await;
        self.keeper.exists(path).await
    }

    /// Sends both reads at once.
    pub(crate) async fn data_and_children(
        &self,
        path: &str,
    ) -> (Result<(Vec<u8>, Stat), KeeperError>, Result<(Vec<String>, Stat), KeeperError>) {
        join(self.read(path), self.children(path)).await
    }

    async fn turn(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.room.acquire().await.expect("nobody closes it")
    }
}
