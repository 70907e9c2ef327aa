//! Starts this user's server again if it ends while a command needs it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::paths::StateDir;
use super::{State, look, running};
use crate::plan::{Endpoint, Service};
use crate::talk::Talk;

/// Time between two looks. Sessions survive a crash of the server, and a lease lasts much longer.
const LOOK: Duration = Duration::from_secs(1);

/// The file that exists after `serve --stop`.
const STOPPED: &str = "stopped";

/// Starts the server again when needed, until it is dropped.
pub(crate) struct Keeper(JoinHandle<()>);

impl Keeper {
    /// Returns a keeper for a command that holds a lock in local mode, or waits for one.
    pub(crate) fn of(service: &Service, talk: &Arc<Talk>) -> Option<Self> {
        match service.endpoint {
            Endpoint::Local => Some(Self(tokio::spawn(keep(service.connect_timeout, Arc::clone(talk))))),
            Endpoint::Remote { .. } => None,
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Time between two attempts to start the server.
const RETRY: Duration = Duration::from_secs(10);

/// Watches the server. Prints the error of a failed start, and tries again.
async fn keep(patience: Duration, talk: Arc<Talk>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Ok(dir) = StateDir::open() else { continue };
        if dir.file(STOPPED).exists() || look(&dir).ok() != Some(State::Absent) {
            continue;
        }
        talk.note("this user's server has ended; starting it again");
        if let Err(failure) = running(patience).await {
            talk.note(failure);
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Tells keepers not to start the server again. The next command starts it.
pub(crate) fn stopped(dir: &StateDir) -> Result<(), crate::exit::Failure> {
    std::fs::write(dir.file(STOPPED), "").map_err(|error| dir.failed("write", STOPPED, &error))
}

/// Lets keepers start the server again.
pub(super) fn started(dir: &StateDir) {
    let _ = std::fs::remove_file(dir.file(STOPPED));
}
