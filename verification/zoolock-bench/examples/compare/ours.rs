//! zoolock's mutex.

use zoolock::{Guard, Mutex, Zoolock};

use super::{Lock, Outcome, SESSION_TIMEOUT};

/// A client of zoolock with one mutex. Each waiter watches its predecessor's znode, whose name it knows without a listing.
/// A hand-over fires two watches: that of the next holder, and that of the former holder on its own znode.
pub(crate) struct Ours {
    // Kept, because its drop ends the session.
    _zoolock: Zoolock,
    mutex: Mutex,
}

impl Lock for Ours {
    const NAME: &'static str = "zoolock";

    type Held = Guard;

    async fn connect(server: &str, path: &str) -> Outcome<Self> {
        let zoolock = Zoolock::builder().session_timeout(SESSION_TIMEOUT).connect(server).await?;
        let mutex = zoolock.mutex(path);
        Ok(Self { _zoolock: zoolock, mutex })
    }

    async fn lock(&self) -> Outcome<Guard> {
        Ok(self.mutex.lock().await?)
    }

    async fn release(&self, guard: Guard) -> Outcome<()> {
        Ok(guard.release().await?)
    }
}
