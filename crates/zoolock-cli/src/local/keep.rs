//! Starts this user's server again if it ends while a command needs it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::files::{open_or_create, remove};
use super::log;
use super::paths::StateDir;
use super::start::ensure_started;
use super::state::{LocalState, server_state};
use crate::base::backoff::Backoff;
use crate::base::duration::format_duration;
use crate::base::exit::Failure;
use crate::base::reporter::Reporter;
use crate::plan::{ConnectionSettings, Endpoint};

/// Interval between checks of the server. A lease lasts much longer, and sessions survive a crash
/// of the server.
const LOOK: Duration = Duration::from_secs(1);

/// Name of the file that lets commands restart the server. `serve --stop` deletes the file. A
/// deletion works on a full disk, too.
const WANTED: &str = "wanted";

/// A task that starts the server again when it has ended, until this value is dropped.
pub(crate) struct ServerKeeper(JoinHandle<()>);

impl ServerKeeper {
    /// Returns a keeper for a command that holds a lock in local mode, or waits for one.
    pub(crate) fn start_for(service: &ConnectionSettings, reporter: &Arc<Reporter>) -> Option<Self> {
        match service.endpoint {
            Endpoint::Local => {
                Some(Self(tokio::spawn(keep_running(service.connect_timeout, Arc::clone(reporter)))))
            }
            Endpoint::Remote { .. } => None,
        }
    }
}

impl Drop for ServerKeeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Watches the server, and starts it again when it has ended. Prints the error of a failed start, and tries again.
/// Prints a note after `serve --stop`.
async fn keep_running(patience: Duration, reporter: Arc<Reporter>) {
    let mut backoff = Backoff::default();
    let mut started = Instant::now();
    let mut stop = StopNote::default();
    let see =
        |dir: &StateDir| (dir.file(WANTED).exists(), server_state(dir).ok() == Some(LocalState::Absent));
    if let Ok(dir) = StateDir::open() {
        let (is_wanted, is_absent) = see(&dir);
        stop.record(is_wanted, is_absent);
    }
    loop {
        tokio::time::sleep(LOOK).await;
        let Ok(dir) = StateDir::open() else { continue };
        let (is_wanted, is_absent) = see(&dir);
        if stop.record(is_wanted, is_absent) {
            reporter.note("this user's server was stopped; the next command that needs it starts it again");
        }
        if !is_wanted || !is_absent {
            continue;
        }
        let why = log::last_failure(&dir).map_or("has ended".to_owned(), |why| format!("has failed: {why}"));
        let pause = backoff.next_pause(started.elapsed());
        reporter
            .note(format_args!("this user's server {why}; starting it again in {}", format_duration(pause)));
        tokio::time::sleep(pause).await;
        let is_wanted = || dir.file(WANTED).exists();
        if !is_wanted() {
            continue;
        }
        started = Instant::now();
        if let Err(failure) = ensure_started(&dir, patience, is_wanted).await {
            reporter.note(failure);
        }
    }
}

/// State that decides when to print the note about a stopped server. The note is printed once for
/// each stop.
#[derive(Default)]
struct StopNote {
    /// Set if the server was wanted or ran since the last note.
    is_armed: bool,
}

impl StopNote {
    /// Records a check of the server. Returns whether to print the note: the server was stopped
    /// after it was wanted or ran. A command that has not started its first server yet prints no
    /// note.
    fn record(&mut self, is_wanted: bool, is_absent: bool) -> bool {
        if is_wanted || !is_absent {
            self.is_armed = true;
            return false;
        }
        std::mem::take(&mut self.is_armed)
    }
}

/// Tells keepers not to start the server again. The next command starts it.
pub(crate) fn mark_stopped(dir: &StateDir) -> Result<(), Failure> {
    remove(dir, WANTED)
}

/// Lets keepers start the server again.
pub(super) fn mark_wanted(dir: &StateDir) -> Result<(), Failure> {
    open_or_create(dir, WANTED).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_is_noted_once() {
        let mut note = StopNote::default();
        assert!(!note.record(false, true), "the command has not started the server yet");
        assert!(!note.record(true, false), "the server runs");
        assert!(!note.record(true, true), "the server has crashed");
        assert!(!note.record(false, false), "the server stops");
        assert!(note.record(false, true), "the server was stopped");
        assert!(!note.record(false, true), "the note was printed");
        assert!(!note.record(true, false), "another command has started the server");
        assert!(note.record(false, true), "the server was stopped again");
    }
}
