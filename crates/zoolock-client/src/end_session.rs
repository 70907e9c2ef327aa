//! Ends the session of another program.

use std::sync::Arc;

use tokio::sync::oneshot;
use zoolock_wire::{Reply, WatchEvent};

use crate::Instant;
use crate::driver::{Client, Handler, Servers};
use crate::platform::Platform;
use crate::session::{End, RequestError, RequestNumber, SessionConfig, SessionKey, SessionState};

/// Ends an existing session, and returns the reason of its end; see [`SessionConfig::to_end`]. Tries the
/// servers until one has answered or the session timeout has passed. The caller must limit the time to less, because after
/// the session timeout this function returns [`End::Closed`] without an answer.
///
/// # Cancel safety
/// Dropping the future does not end the attempt.
///
/// # Panics
/// There is no server in `servers`.
pub async fn end_session(
    key: SessionKey,
    mut config: SessionConfig,
    servers: impl Into<Servers>,
    platform: Arc<dyn Platform>,
) -> End {
    let (sender, end) = oneshot::channel();
    config.to_end = Some(key);
    let _client = Client::start(config, servers, EndListener(Some(sender)), platform);
    end.await.unwrap_or(End::Abandoned)
}

/// Waits for the end of a session.
struct EndListener(Option<oneshot::Sender<End>>);

impl Handler for EndListener {
    fn handle_reply(&mut self, _: RequestNumber, _: Instant, _: Result<Reply, RequestError>) {}

    fn handle_event(&mut self, _: WatchEvent) {}

    fn handle_state_change(&mut self, state: SessionState) {
        if let SessionState::Ended(end) = state
            && let Some(sender) = self.0.take()
        {
            let _ = sender.send(end);
        }
    }
}
