//! The lock of zoolock.

use std::time::Duration;

use zoolock::{Guard, Mutex, SharedHold, Zoolock};

use super::peer::{Peer, SESSION_TIMEOUT};
use crate::Outcome;

#[derive(Clone)]
pub(super) struct ZoolockPeer(Zoolock);

#[derive(Clone)]
pub(super) enum Handle {
    Mutex(Mutex),
    SharedHold(SharedHold),
}

impl Peer for ZoolockPeer {
    type Lock = Handle;
    type Held = Guard;

    async fn open(address: &str) -> Outcome<Self> {
        Ok(Self(Zoolock::builder().session_timeout(SESSION_TIMEOUT).connect(address).await?))
    }

    fn lock(&self, path: &str) -> Handle {
        Handle::Mutex(self.0.mutex(path))
    }

    fn shared_lock(&self, path: &str) -> Option<Handle> {
        Some(Handle::SharedHold(self.0.mutex(path).shared_hold(Duration::from_millis(20))))
    }

    async fn acquire(lock: &Handle) -> Outcome<Guard> {
        Ok(match lock {
            Handle::Mutex(mutex) => mutex.lock().await?,
            Handle::SharedHold(mutex) => mutex.lock().await?,
        })
    }

    async fn release(_: &Handle, held: Guard) -> Outcome<()> {
        Ok(held.release().await?)
    }

    fn release_without_waiting(_: &Handle, held: Guard) -> Outcome<()> {
        drop(held);
        Ok(())
    }

    async fn close(self) -> Outcome<()> {
        self.0.close().await;
        Ok(())
    }
}
