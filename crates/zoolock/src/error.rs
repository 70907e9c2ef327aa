//! What can go wrong, by what the caller can do about it.

use std::sync::Arc;
use std::time::Duration;

use zoolock_core::contender::{Loss, SessionEnd};

/// An error of the lock library. Messages name the lock or the address, and the next step.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock is busy: another contender held it for all of the time to wait. Or the wait was shorter than half a second, and
    /// no answer came. An outage is [`Error::Unavailable`].
    #[error(
        "lock {path}: not acquired within {waited:?}; wait longer, or look who holds it with `zoolock show`"
    )]
    Timeout {
        /// The lock.
        path: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The lock, or the place in its queue, is gone. What was done under it may have overlapped with others.
    #[error("lock {path}: lost, {reason}")]
    Lost {
        /// The lock.
        path: String,
        /// Why.
        reason: LossReason,
    },
    /// The service cannot be reached, or does not answer. It may come back.
    #[error("{address}: {message}")]
    Unavailable {
        /// Where it was looked for.
        address: String,
        /// What happened, and what to do.
        message: String,
        /// The error underneath.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// The service refuses: credentials, access control or quota.
    #[error("{subject}: {message}")]
    Denied {
        /// The lock or the address.
        subject: String,
        /// What was refused, and what to do.
        message: String,
    },
    /// The caller asked for something that makes no sense.
    #[error("{input}: {message}")]
    Invalid {
        /// What was given.
        input: String,
        /// What is wrong with it.
        message: String,
    },
    /// Somebody else goes first, and waiting would not help.
    #[error("lock {path}: {message}")]
    Conflict {
        /// The lock.
        path: String,
        /// Who goes first, and what to do.
        message: String,
    },
    /// Clients of other makes stand in the queue that do not see us, or each other: two would hold at once.
    #[error("lock {path}: {message}")]
    Neighbour {
        /// The lock.
        path: String,
        /// Who it is, and what to do.
        message: String,
    },
    /// Nobody with this ticket holds the lock or waits for it (any more).
    #[error("lock {path}: nobody there has the token {ticket}; look who is there with `zoolock show`")]
    NoSuchHolder {
        /// The lock.
        path: String,
        /// Who was looked for.
        ticket: String,
    },
    /// The service said something that this library does not understand.
    #[error("{subject}: {message}")]
    Protocol {
        /// The lock or the address.
        subject: String,
        /// What was said.
        message: String,
    },
}

/// Why a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The session expired, or the service ended it.
    SessionExpired,
    /// Somebody else deleted the node: the lock was broken, or its directory removed.
    Broken,
    /// The service did not confirm the session in time; somebody else may hold the lock soon.
    Unreachable,
    /// The session was closed by this program.
    Closed,
}

impl std::fmt::Display for LossReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LossReason::SessionExpired => "the session expired",
            LossReason::Broken => "somebody deleted its node",
            LossReason::Unreachable => "the service did not confirm the session in time",
            LossReason::Closed => "the session was closed",
        })
    }
}

impl From<Loss> for LossReason {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Broken => LossReason::Broken,
            Loss::Unreachable => LossReason::Unreachable,
            Loss::SessionOver(SessionEnd::Closed) => LossReason::Closed,
            Loss::SessionOver(SessionEnd::Expired | SessionEnd::AuthFailed) => LossReason::SessionExpired,
        }
    }
}

impl Error {
    pub(crate) fn invalid(input: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Invalid { input: input.into(), message: message.into() }
    }

    pub(crate) fn unavailable(address: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Unavailable { address: address.into(), message: message.into(), source: None }
    }
}
