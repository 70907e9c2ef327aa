//! Starting this user's server again when it goes under those who need it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::paths::StateDir;
use super::{State, look, running};
use crate::plan::{Endpoint, Service};
use crate::talk::Talk;

/// How often it is looked for: sessions survive its crash, and a lease lasts much longer.
const LOOK: Duration = Duration::from_secs(1);

/// The file that says that somebody wants the server to be gone.
const STOPPED: &str = "stopped";

/// Sees to it that the server is there, until it is dropped.
pub(crate) struct Keeper(JoinHandle<()>);

impl Keeper {
    /// For whoever holds a lock in local mode, or waits for one.
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

/// One that cannot be started is not tried again and again: what is wrong was said.
async fn keep(patience: Duration, talk: Arc<Talk>) {
    let Ok(dir) = StateDir::open() else { return };
    loop {
        tokio::time::sleep(LOOK).await;
        if dir.file(STOPPED).exists() || look(&dir).ok() != Some(State::Absent) {
            continue;
        }
        talk.note("this user's server is gone; starting it again");
        if let Err(failure) = running(patience).await {
            talk.note(failure);
            return;
        }
    }
}

/// Tells keepers that the server is not to come back until somebody new needs it.
pub(crate) fn stopped(dir: &StateDir) -> Result<(), crate::exit::Failure> {
    std::fs::write(dir.file(STOPPED), "").map_err(|error| dir.failed("write", STOPPED, &error))
}

/// Takes that back.
pub(super) fn started(dir: &StateDir) {
    let _ = std::fs::remove_file(dir.file(STOPPED));
}
