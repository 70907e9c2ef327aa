//! A comparison of a textbook lock with zoolock: the same work, counted on the wire.
#![allow(dead_code, reason = "the tests use a part")]

pub(crate) mod command;
mod ours;
mod run;

use std::time::Duration;

pub(crate) use ours::Ours;
pub(crate) use run::{Figures, Plan, run};

/// A result whose error the program prints before it ends.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The session timeout, the same for both locks, so that both keep their sessions alive equally often.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// A lock to measure, with its session.
pub(crate) trait Lock: Sized + Send + Sync + 'static {
    /// The name in the table.
    const NAME: &'static str;

    /// The data that `release` needs.
    type Held: Send;

    /// Opens a session with `server`, for the lock at `path`. The parent znode of `path` exists.
    fn connect(server: &str, path: &str) -> impl Future<Output = Outcome<Self>> + Send;

    /// Acquires the lock.
    fn lock(&self) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Releases the lock and waits for the confirmation of the server.
    fn release(&self, held: Self::Held) -> impl Future<Output = Outcome<()>> + Send;
}
