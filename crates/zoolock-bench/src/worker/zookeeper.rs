//! The lock of the crate zookeeper-client.

use std::sync::Arc;

use futures_util::FutureExt as _;
use zookeeper_client::{Acls, Client, LockPrefix};

use super::connect;
use super::session::Requests;
use crate::Outcome;

#[derive(Clone)]
pub(super) struct Recipe;

impl Requests for Recipe {
    type Client = Arc<Client>;
    /// Path of the znode.
    type Held = String;

    async fn open(address: &str) -> Outcome<Arc<Client>> {
        Ok(Arc::new(connect(address).await?))
    }

    async fn acquire(client: &Arc<Client>, path: &str) -> Outcome<String> {
        let prefix = LockPrefix::new_curator(path, "lock-")?;
        let held = client.lock(prefix, b"", Acls::anyone_all()).await?;
        let node = held.lock_path().to_owned();
        // `release` and `release_without_waiting` do the work of the drop, where it can be awaited.
        std::mem::forget(held);
        Ok(node)
    }

    async fn release(client: &Arc<Client>, _: &str, held: String) -> Outcome<()> {
        Ok(client.delete(&held, None).await?)
    }

    fn release_without_waiting(client: &Arc<Client>, held: String) -> Outcome<()> {
        // As its guard does: the request is sent, and the answer is not awaited.
        match client.delete(&held, None).now_or_never() {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }
}
