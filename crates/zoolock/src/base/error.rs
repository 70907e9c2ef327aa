//! Errors, by what the caller can do about them.

use std::sync::Arc;
use std::time::Duration;

use zoolock_core::acquisition::{Loss, SessionEnd};

/// An error of the lock library. Messages name the lock or the address, and the next step.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock is busy: at the end of the wait the server still answers, but has not granted the lock. An outage is
    /// [`Error::Unavailable`] instead.
    #[non_exhaustive]
    #[error("lock {path}: not acquired within {waited:?}; {}", next_step(*held_here))]
    Timeout {
        /// The path of the lock, or the paths of a multi-lock.
        path: String,
        /// The time that the caller waited.
        waited: Duration,
        /// Set if a guard of this client holds the lock, so that this guard must be released first.
        /// The guard may belong to another task, or to the caller, which then waits for itself.
        held_here: bool,
    },
    /// The lock was granted, and is lost. Work under the lock may have overlapped with the work of the next holder.
    #[non_exhaustive]
    #[error("lock {path}: lost, {reason}")]
    Lost {
        /// The path of the lock.
        path: String,
        /// The reason.
        reason: LossReason,
    },
    /// Another client deleted the znode of the acquisition in the queue. The lock was not acquired.
    #[non_exhaustive]
    #[error("lock {path}: another client deleted this client's znode in the queue; try again")]
    Removed {
        /// The path of the lock.
        path: String,
    },
    /// No server can be reached, or none answers. A later attempt may succeed.
    #[non_exhaustive]
    #[error("{servers}: {message}")]
    Unavailable {
        /// The addresses of the servers.
        servers: String,
        /// The cause, and what to do.
        message: String,
        /// The underlying error.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// The server refuses the request because of the credentials, the access control or a quota.
    #[non_exhaustive]
    #[error("{subject}: {message}")]
    Denied {
        /// The lock or the address.
        subject: String,
        /// The reason for the refusal, and what to do.
        message: String,
    },
    /// The client was closed.
    #[error("the client was closed; connect again")]
    Closed,
    /// The client belongs to the process from which this process was forked.
    #[non_exhaustive]
    #[error(
        "the client belongs to process {parent} and cannot be used after a fork; connect again in this process"
    )]
    Forked {
        /// The id of the process that made the client.
        parent: u32,
    },
    /// The semaphore has another number of permits.
    #[non_exhaustive]
    #[error(
        "lock {path}: has {actual} permits, not {expected}; ask for a semaphore of that size, or resize it"
    )]
    WrongSize {
        /// The path of the lock.
        path: String,
        /// The size of this handle.
        expected: u32,
        /// The size of the semaphore.
        actual: u32,
    },
    /// The lock is of another kind, or belongs to another client library.
    #[non_exhaustive]
    #[error("lock {path}: {message}")]
    WrongKind {
        /// The path of the lock.
        path: String,
        /// The kind of the lock, and what to do.
        message: String,
    },
    /// An argument is invalid, or does not fit the lock or the client.
    #[non_exhaustive]
    #[error("{input}: {message}")]
    Invalid {
        /// The input.
        input: String,
        /// The mistake, and what to do.
        message: String,
    },
    /// The upgrade would wait for ever, or the directory must be replaced before this reader can upgrade.
    #[non_exhaustive]
    #[error("lock {path}: {message}")]
    Conflict {
        /// The path of the lock.
        path: String,
        /// The obstacle, and what to do.
        message: String,
    },
    /// The queue has clients of other libraries that ignore this client's znodes, or each other's. Two clients could
    /// then hold the lock at once.
    #[non_exhaustive]
    #[error("lock {path}: {message}")]
    ForeignContender {
        /// The path of the lock.
        path: String,
        /// The contenders that ignore each other, and what to do.
        message: String,
    },
    /// No holder or waiter of the lock has this ticket.
    #[non_exhaustive]
    #[error("lock {path}: no holder or waiter has the token {ticket}; list them with `zoolock show`")]
    NoSuchHolder {
        /// The path of the lock.
        path: String,
        /// The ticket.
        ticket: String,
    },
    /// The contender cannot be asked to release, because its client library reads no such requests.
    #[non_exhaustive]
    #[error("lock {path}: {message}")]
    NotRevocable {
        /// The path of the lock.
        path: String,
        /// The contender, and what to do.
        message: String,
    },
    /// The server sent an answer that this library does not understand.
    #[non_exhaustive]
    #[error("{subject}: {message}")]
    Protocol {
        /// The lock or the address.
        subject: String,
        /// The answer.
        message: String,
    },
}

/// The reason why a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The session expired, or the server ended it.
    SessionExpired,
    /// Another client deleted the holder's znode, for example with `zoolock break`, or removed the directory.
    Broken,
    /// No server confirmed the session in time. Another client may hold the lock soon.
    Unreachable,
    /// This program closed the session.
    Closed,
    /// This process is a fork of the process that holds the lock. The parent process may still hold the lock.
    Forked,
}

impl std::fmt::Display for LossReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LossReason::SessionExpired => "the session expired, or the server ended it",
            LossReason::Broken => "another client deleted its znode",
            LossReason::Unreachable => "no server confirmed the session in time",
            LossReason::Closed => "the session was closed",
            LossReason::Forked => "it belongs to the process from which this one was forked",
        })
    }
}

impl std::error::Error for LossReason {}

impl LossReason {
    pub(crate) fn of(loss: Loss) -> LossReason {
        match loss {
            Loss::Broken => LossReason::Broken,
            Loss::Unreachable => LossReason::Unreachable,
            Loss::SessionOver(SessionEnd::Closed) => LossReason::Closed,
            Loss::SessionOver(SessionEnd::Expired | SessionEnd::AuthFailed) => LossReason::SessionExpired,
        }
    }
}

/// The message for a create or a write that a quota forbids.
pub(crate) const OVER_QUOTA: &str = "a quota of the server is exceeded; raise it, or use another root";

/// Returns the last part of the message of [`Error::Timeout`].
fn next_step(held_here: bool) -> &'static str {
    match held_here {
        true => {
            "a guard of this client holds it; release that guard first (`lock_as` lets one owner hold a mutex several times)"
        }
        false => "wait longer, or look who holds it with `zoolock show`",
    }
}

impl Error {
    /// Returns whether the lock was busy at the end of the wait.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Timeout { .. })
    }

    /// Returns whether the lock was granted, and is lost. Work under the lock may have overlapped with other work.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. })
    }

    /// Returns whether the lock was not acquired for a reason that passes, so that the same call may succeed later: the
    /// lock was busy, no server answered, or another client deleted the znode in the queue.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::Unavailable { .. } | Error::Removed { .. })
    }

    /// Returns the path of the lock, or the paths of a multi-lock, if the error is about a lock.
    pub fn path(&self) -> Option<&str> {
        match self {
            Error::Timeout { path, .. }
            | Error::Lost { path, .. }
            | Error::Removed { path }
            | Error::WrongSize { path, .. }
            | Error::WrongKind { path, .. }
            | Error::Conflict { path, .. }
            | Error::ForeignContender { path, .. }
            | Error::NoSuchHolder { path, .. }
            | Error::NotRevocable { path, .. } => Some(path),
            Error::Denied { subject, .. }
            | Error::Invalid { input: subject, .. }
            | Error::Protocol { subject, .. } => {
                subject.strip_prefix("lock /").map(|_| &subject["lock ".len()..])
            }
            Error::Unavailable { .. } | Error::Closed | Error::Forked { .. } => None,
        }
    }

    /// Returns [`Error::Invalid`], for the settings of a SASL mechanism of another crate.
    pub fn invalid(input: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Invalid { input: input.into(), message: message.into() }
    }

    pub(crate) fn unavailable(servers: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Unavailable { servers: servers.into(), message: message.into(), source: None }
    }

    pub(crate) fn wrong_kind(path: impl Into<String>, message: impl Into<String>) -> Error {
        Error::WrongKind { path: path.into(), message: message.into() }
    }

    /// Returns the error for a lock that the server does not let this client acquire.
    pub(crate) fn lock_denied(path: &str) -> Error {
        Error::Denied {
            subject: format!("lock {path}"),
            message:
                "the server denied access; use credentials that may create and read in the lock directory"
                    .to_owned(),
        }
    }
}
