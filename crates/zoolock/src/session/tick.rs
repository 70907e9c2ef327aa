//! The tick of the servers (`tickTime`), which determines how soon a leader hears of a session.
//!
//! A client cannot read the tick. So it opens a session with a timeout of one millisecond. The server grants its
//! shortest timeout instead. That is two ticks, unless `minSessionTimeout` is configured.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::zk::session::{Opening, open_requests};

/// Maximum time to ask for the tick.
const MAX_ASK_TIME: Duration = Duration::from_secs(10);

/// The tick of the servers of one client.
pub(crate) struct ServerTick {
    configured: Option<Duration>,
    learned: OnceLock<Duration>,
    is_being_asked: AtomicBool,
    opening: Opening,
}

impl ServerTick {
    /// Creates the tick of a client. `configured`: the tick that the caller has set. `opening`: the parameters of the client's
    /// sessions, with which it asks for the tick.
    pub(crate) fn new(configured: Option<Duration>, opening: &Opening) -> ServerTick {
        let opening = Opening { timeout: Duration::from_millis(1), ..opening.clone() };
        ServerTick { configured, learned: OnceLock::new(), is_being_asked: AtomicBool::new(false), opening }
    }

    /// Returns the tick that the caller has set.
    pub(crate) fn configured(&self) -> Option<Duration> {
        self.configured
    }

    /// Returns the tick for a session with this timeout, if it is known. A learned tick is an upper bound, because
    /// `minSessionTimeout` may be longer than two ticks. It is limited to a third of the timeout: with this tick, the
    /// lease is as long as with an unknown tick.
    pub(crate) fn of(&self, timeout: Duration) -> Option<Duration> {
        self.configured.or_else(|| self.learned.get().map(|learned| (*learned).min(timeout / 3)))
    }

    /// Asks a server for the tick in the background, unless the tick is known or another task asks for it.
    pub(crate) fn ask(self: &std::sync::Arc<Self>) {
        if self.configured.is_some()
            || self.learned.get().is_some()
            || self.is_being_asked.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let tick = self.clone();
        self.opening.tasks.spawn(async move {
            match open_requests(&tick.opening, tokio::time::Instant::now() + MAX_ASK_TIME).await {
                Ok(session) => {
                    let shortest = session.timeout();
                    session.close().await;
                    tracing::debug!(?shortest, "the shortest session timeout that the server grants");
                    let _ = tick.learned.set(shortest / 2);
                }
                // Leases stay shorter until a later attempt succeeds.
                Err(error) => {
                    tracing::debug!(?error, "the tick of the server is not known");
                    tick.is_being_asked.store(false, Ordering::Release);
                }
            }
        });
    }
}
