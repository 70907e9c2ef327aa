//! The state of a session's connection, as users see it.

use tokio::sync::watch;

/// The state of the sessions of a client: for messages to the user, not for decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Connection {
    /// There is no session. The next request opens one.
    Idle,
    /// Each session has a connection, and no confirmation by the server is late.
    Connected,
    /// A connection is lost, or a confirmation by the server is late. No lock is lost yet.
    /// A holder may rely on its lock until [`Held::valid_until`](crate::Held::valid_until).
    Suspect,
    /// The client is closed, or this process was forked. Of one lock: its session has ended.
    Ended,
}

/// The state of the session of one lock, and its changes.
#[derive(Debug)]
pub struct ConnectionChanges(watch::Receiver<Connection>);

impl ConnectionChanges {
    pub(super) fn new(states: watch::Receiver<Connection>) -> ConnectionChanges {
        ConnectionChanges(states)
    }

    pub(crate) fn ended() -> ConnectionChanges {
        ConnectionChanges(watch::channel(Connection::Ended).1)
    }

    /// Waits for a change, and returns the state. It may equal the last one. Waits for ever after the end of the session.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Connection {
        match self.0.changed().await {
            Ok(()) => *self.0.borrow_and_update(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until the state is one of these, and returns it. Looks at the present state first. Waits for ever after the end
    /// of the session.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn wait_for(&mut self, mut is_wanted: impl FnMut(Connection) -> bool) -> Connection {
        let found = self.0.wait_for(|state| is_wanted(*state)).await.map(|state| *state);
        match found {
            Ok(state) => state,
            Err(_) => std::future::pending().await,
        }
    }
}
