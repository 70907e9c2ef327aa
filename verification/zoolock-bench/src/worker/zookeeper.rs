//! The lock of the crate zookeeper-client.

use std::sync::Arc;

use futures_util::FutureExt as _;
use zookeeper_client::{Acls, Client, LockPrefix};

use super::peer::connect;
use super::session::LockRequests;
use crate::Outcome;

#[derive(Clone)]
pub(super) struct Recipe;

impl LockRequests for Recipe {
    type Client = Arc<Client>;
    /// The path of the contender's znode.
    type Held = String;

    async fn open(address: &str) -> Outcome<Arc<Client>> {
        Ok(Arc::new(connect(address).await?))
    }

    async fn acquire(client: &Arc<Client>, path: &str) -> Outcome<String> {
        let prefix = LockPrefix::new_curator(path, "lock-")?;
        let held = client.lock(prefix, b"", Acls::anyone_all()).await?;
        let node = held.lock_path().to_owned();
        // The guard is not dropped: `release` and `release_without_waiting` delete the znode instead, which can be
        // awaited.
        std::mem::forget(held);
        Ok(node)
    }

    async fn release(client: &Arc<Client>, _: &str, held: String) -> Outcome<()> {
        Ok(client.delete(&held, None).await?)
    }

    fn release_without_waiting(client: &Arc<Client>, held: String) -> Outcome<()> {
        // Like the drop of the crate's guard, this sends the request and does not await the reply.
        match client.delete(&held, None).now_or_never() {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }
}
