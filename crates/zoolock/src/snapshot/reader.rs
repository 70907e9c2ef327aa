//! How those look who only look: not faster than others can stand.

use futures_util::future::join;
use tokio::sync::Semaphore;

use crate::keeper::{Keeper, KeeperError, Stat};

/// How many questions are under way at a time, in all. So many keep a connection busy over any local network; more
/// would only stand before what others of the same session ask, the renewal of its lease among it.
pub(crate) const AT_ONCE: usize = 64;

/// Asks the service, a few questions at a time however many tasks ask.
pub(crate) struct Reader<'a> {
    keeper: &'a dyn Keeper,
    room: Semaphore,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(keeper: &'a dyn Keeper) -> Reader<'a> {
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
