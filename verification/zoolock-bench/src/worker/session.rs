//! A session of a ZooKeeper client, for workers that send their own requests.

use std::marker::PhantomData;

use super::peer::{Peer, no_unawaited_release};
use crate::Outcome;

/// The requests for a lock at `path`.
pub(super) trait LockRequests: Clone + Send + Sync + 'static {
    /// The session that sends the requests.
    type Client: Clone + Send + Sync + 'static;
    /// The data that a release needs.
    type Held: Send + 'static;

    fn open(address: &str) -> impl Future<Output = Outcome<Self::Client>> + Send;

    fn acquire(client: &Self::Client, path: &str) -> impl Future<Output = Outcome<Self::Held>> + Send;

    fn release(
        client: &Self::Client,
        path: &str,
        held: Self::Held,
    ) -> impl Future<Output = Outcome<()>> + Send;

    fn release_without_waiting(_client: &Self::Client, _held: Self::Held) -> Outcome<()> {
        no_unawaited_release()
    }
}

#[derive(Clone)]
pub(super) struct SessionPeer<R: LockRequests>(R::Client, PhantomData<R>);

impl<R: LockRequests> Peer for SessionPeer<R> {
    type Lock = (R::Client, String);
    type Held = R::Held;

    async fn open(address: &str) -> Outcome<Self> {
        Ok(Self(R::open(address).await?, PhantomData))
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

    fn release_without_waiting((client, _): &Self::Lock, held: R::Held) -> Outcome<()> {
        R::release_without_waiting(client, held)
    }
}
