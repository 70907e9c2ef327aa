//! How those look who only look: not faster than others can stand.

use futures_util::future::join;
use tokio::sync::Semaphore;

use crate::keeper::{Answer, Keeper, KeeperError, Stat};

/// How many questions are under way at a time, in all. So many keep a connection busy over any local network; more
/// would only stand before what others of the same session ask, the renewal of its lease among it.
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

/// Asks the service, a few questions at a time however many tasks ask.
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

    pub(super) async fn children(&self, path: &str) -> Result<(Vec<String>, Stat), KeeperError> {
        let _turn = self.turn().await;
        self.keeper.children(path).await
    }

    pub(super) async fn exists(&self, path: &str) -> Result<Option<Stat>, KeeperError> {
        let _turn = self.turn().await;
        self.keeper.exists(path).await
    }

    /// Both at once.
    pub(super) async fn data_and_children(
        &self,
        path: &str,
    ) -> (Result<(Vec<u8>, Stat), KeeperError>, Result<(Vec<String>, Stat), KeeperError>) {
        join(self.read(path), self.children(path)).await
    }

    async fn turn(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.room.acquire().await.expect("nobody closes it")
    }
}
