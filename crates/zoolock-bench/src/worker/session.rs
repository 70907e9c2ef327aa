//! A session of the crate zookeeper-client, for those that send their requests by it and nothing else.

use std::marker::PhantomData;
use std::sync::Arc;

use zookeeper_client::Client;

use super::{Peer, connect, nodelay, waits_always};
use crate::Outcome;

/// What is sent for a lock at `path`.
pub(super) trait Requests: Clone + Send + Sync + 'static {
    /// What a release needs.
    type Held: Send + 'static;

    /// Whether no request waits for the acknowledgement of the one before it, as zoolock sees to; the crate does not.
    const AT_ONCE: bool;

    fn acquire(client: &Arc<Client>, path: &str) -> impl Future<Output = Outcome<Self::Held>> + Send;

    fn release(client: &Client, path: &str, held: Self::Held) -> impl Future<Output = Outcome<()>> + Send;

    fn let_go(_client: &Client, _held: Self::Held) -> Outcome<()> {
        waits_always()
    }
}

#[derive(Clone)]
pub(super) struct Session<R>(Arc<Client>, PhantomData<R>);

impl<R: Requests> Peer for Session<R> {
    type Lock = (Arc<Client>, String);
    type Held = R::Held;

    async fn open(address: &str) -> Outcome<Self> {
        let client = Arc::new(connect(address).await?);
        if R::AT_ONCE {
            let ports: Vec<u16> =
                address.split(',').filter_map(|host| host.rsplit(':').next()?.parse().ok()).collect();
            nodelay::set(&ports)?;
        }
        Ok(Self(client, PhantomData))
    }

    fn lock(&self, path: &str) -> Self::Lock {
        (self.0.clone(), path.to_owned())
    }

    async fn acquire((client, path): &Self::Lock) -> Outcome<R::Held> {
        R::acquire(client, path).await
    }

    async fn release((client, path): &Self::Lock, held: R::Held) -> Outcome<()> {
        R::release(client, path, held).await
    }

    fn let_go((client, _): &Self::Lock, held: R::Held) -> Outcome<()> {
        R::let_go(client, held)
    }
}
