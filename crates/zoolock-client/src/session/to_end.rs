//! The end of an existing session of another process.

use std::time::Duration;

use zoolock_wire::Hidden;

use super::pace::SessionPace;
use super::{Instant, MIN_HANDSHAKE_TIMEOUT, Session};

/// The timeout that a session requests to close an existing one. The server grants its shortest timeout instead, so the
/// session ends soon even if the close is lost.
const TIMEOUT_TO_END: Duration = Duration::from_millis(1);

/// The identity of an existing session. A program that has it can attach to the session, and can end it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionKey {
    /// The session id. Servers may give negative ids.
    pub id: i64,
    /// The password that the server gave to the session.
    pub password: Hidden,
    /// The shortest timeout that was granted since the creation of the session.
    pub timeout: Duration,
}

impl Session {
    /// Makes this session the existing session `key`, only to close it.
    pub(super) fn become_closing(&mut self, key: SessionKey, now: Instant) {
        self.id = key.id;
        self.password = key.password;
        self.created_with = Some(TIMEOUT_TO_END);
        self.pace = SessionPace::new(key.timeout.max(MIN_HANDSHAKE_TIMEOUT));
        self.longest = key.timeout;
        self.closing = Some(now);
        // The session does not wait long for one server if there are others.
        self.has_ephemeral = true;
    }

    /// Returns the identity of the session, for [`SessionConfig::to_end`](crate::SessionConfig::to_end) in another process.
    /// `None` before the session exists.
    pub fn key(&self) -> Option<SessionKey> {
        let key = || SessionKey { id: self.id, password: self.password.clone(), timeout: self.pace.timeout };
        (self.id != 0).then(key)
    }
}
