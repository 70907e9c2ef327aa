//! The tick of the servers (`tickTime`). The leader pings the other servers every half tick, and
//! each answer to a ping lists the sessions that are alive.
//!
//! ZooKeeper's protocol has no request for the tick. So the client opens a session and requests a
//! timeout of one millisecond. The server grants the shortest timeout that it allows instead. This
//! timeout is two ticks, unless `minSessionTimeout` is configured.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::base::telemetry::log_event;
use crate::zk::session::{SessionParameters, open_requests};

/// Maximum time of one attempt to learn the tick.
const MAX_ASK_TIME: Duration = Duration::from_secs(10);

/// The tick of the servers of one client.
pub(crate) struct ServerTick {
    configured: Option<Duration>,
    learned: OnceLock<Duration>,
    is_being_asked: AtomicBool,
    parameters: SessionParameters,
}

impl ServerTick {
    /// Creates the tick of a client. `configured`: the tick that the caller has set. `parameters`: the
    /// parameters of the client's sessions. The session that asks for the tick has the same
    /// parameters, except for the timeout.
    pub(crate) fn new(configured: Option<Duration>, parameters: &SessionParameters) -> ServerTick {
        let parameters = SessionParameters { timeout: Duration::from_millis(1), ..parameters.clone() };
        ServerTick {
            configured,
            learned: OnceLock::new(),
            is_being_asked: AtomicBool::new(false),
            parameters,
        }
    }

    /// Returns the tick that the caller has set.
    pub(crate) fn configured(&self) -> Option<Duration> {
        self.configured
    }

    /// Returns the tick for a session with this timeout, if the tick is known.
    ///
    /// A learned tick is too long if `minSessionTimeout` is longer than two ticks. So the result is
    /// limited to a third of the timeout. With a tick of that length, the lease is as long as with
    /// an unknown tick.
    pub(crate) fn for_timeout(&self, timeout: Duration) -> Option<Duration> {
        self.configured.or_else(|| self.learned.get().map(|learned| (*learned).min(timeout / 3)))
    }

    /// Asks a server for the tick in the background, unless the tick is known or another task asks for it.
    pub(crate) fn learn_in_background(self: &std::sync::Arc<Self>) {
        if self.configured.is_some()
            || self.learned.get().is_some()
            || self.is_being_asked.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let tick = self.clone();
        self.parameters.tasks.spawn(async move {
            match open_requests(&tick.parameters, tokio::time::Instant::now() + MAX_ASK_TIME).await {
                Ok(session) => {
                    let shortest = session.timeout();
                    session.close().await;
                    log_event!(DEBUG, ?shortest, "the shortest session timeout that the server grants");
                    let _ = tick.learned.set(shortest / 2);
                }
                // Only logs the failure, because leases are valid without the tick, and only shorter.
                Err(error) => {
                    let servers: Vec<String> =
                        tick.parameters.hosts.iter().map(ToString::to_string).collect();
                    log_event!(
                        DEBUG,
                        servers = servers.join(","),
                        ?error,
                        "the tick of the server is not known"
                    );
                    tick.is_being_asked.store(false, Ordering::Release);
                }
            }
        });
    }
}
