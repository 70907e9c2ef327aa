//! Our own mutex.

use zoolock::{Guard, Mutex, Zoolock};

use super::{Lock, Outcome, SESSION_TIMEOUT};

/// Everybody watches the znode before its own, whose name it knows without asking. A hand-over wakes two: the next
/// one, and whoever let go, who watches its own znode too.
pub(crate) struct Ours {
    // Ends the session with it.
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
