//! The same work through another lock and through ours, counted on the wire.
#![allow(dead_code, reason = "the tests use a part")]

pub(crate) mod command;
mod ours;
mod referee;
mod run;

use std::time::Duration;

pub(crate) use ours::Ours;
#[allow(unused_imports, reason = "the tests use it")]
pub(crate) use referee::Referee;
pub(crate) use run::{Figures, Plan, run};

/// What is an error here: shown, and the end.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The same for both, so that both keep their sessions alive as often.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// A lock to be measured, and the session that it stands on.
pub(crate) trait Lock: Sized + Send + Sync + 'static {
    /// How the table calls it.
    const NAME: &'static str;

    /// What `release` needs to know.
    type Held: Send;

    /// Opens a session at `server`, for the lock at `path`, the parent of which is there.
    fn connect(server: &str, path: &str) -> impl Future<Output = Outcome<Self>> + Send;

    /// Waits until the lock is ours.
    fn lock(&self) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Lets go, and waits until the server has confirmed it.
    fn release(&self, held: Self::Held) -> impl Future<Output = Outcome<()>> + Send;
}
