//! The lock of zoolock.

use std::time::Duration;

use zoolock::{Guard, Mutex, Zoolock};

use super::peer::{Peer, SESSION_TIMEOUT};
use crate::Outcome;

#[derive(Clone)]
pub(super) struct ZoolockPeer(Zoolock);

impl Peer for ZoolockPeer {
    type Lock = Mutex;
    type Held = Guard;

    async fn open(address: &str) -> Outcome<Self> {
        Ok(Self(Zoolock::builder().session_timeout(SESSION_TIMEOUT).connect(address).await?))
    }

    fn lock(&self, path: &str) -> Mutex {
        self.0.mutex(path)
    }

    fn shared_lock(&self, path: &str) -> Option<Mutex> {
        Some(self.0.mutex(path).batching(1_000, Duration::from_millis(20)).linger(Duration::from_secs(1)))
    }

    async fn acquire(lock: &Mutex) -> Outcome<Guard> {
        Ok(lock.lock().await?)
    }

    async fn release(_: &Mutex, held: Guard) -> Outcome<()> {
        Ok(held.release().await?)
    }

    fn release_without_waiting(_: &Mutex, held: Guard) -> Outcome<()> {
        drop(held);
        Ok(())
    }

    async fn close(self) -> Outcome<()> {
        self.0.close().await;
        Ok(())
    }
}
