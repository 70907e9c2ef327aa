//! Finds this user's server, and starts it if it does not run.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::files::{open_or_create, remove};
use super::log;
use super::paths::StateDir;
use super::state::{LocalState, server_state, unlocked_server_failure};
use crate::base::exit::{Exit, Failure, cannot_start};
use crate::base::proc::OWN_PROGRAM;
use crate::reaper::zombies::SpawnedChild;

const PAUSE: Duration = Duration::from_millis(10);
/// Upper bound of the time to wait. An [`Instant`] could overflow with a longer time.
const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// This user's running server.
#[derive(Debug)]
pub(crate) struct LocalServer {
    socket: PathBuf,
    /// Set if this process has started the server.
    pub(crate) was_started: bool,
}

impl LocalServer {
    /// Returns the connect string of the server.
    ///
    /// # Errors
    /// The path of the state directory is not UTF-8.
    pub(crate) fn address(&self) -> Result<String, Failure> {
        let path = self.socket.to_str().ok_or_else(|| {
            Failure::usage(format!(
                "the path {} is not UTF-8; set ZOOLOCK_STATE_DIR to another directory",
                self.socket.display()
            ))
        })?;
        Ok(format!("unix:{path}"))
    }
}

/// Finds the server, or starts it. If many commands call this at once, one of them starts the server, and all find it.
pub(crate) async fn find_or_start_server(patience: Duration) -> Result<LocalServer, Failure> {
    let dir = StateDir::open()?;
    let was_started = ensure_started(&dir, patience, || true).await?;
    Ok(LocalServer { socket: dir.socket(), was_started })
}

/// Takes the file lock `starting`, which a command holds while it starts the server. Returns `None`
/// if another command holds the file lock.
pub(crate) fn take_starting_lock(dir: &StateDir) -> Result<Option<File>, Failure> {
    let lock = open_or_create(dir, "starting")?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(dir.file_failure("lock", "starting", &error)),
    }
}

/// Finds the server, or starts it. Does nothing if no server runs and `wanted` returns false. Returns whether this call has
/// started a server.
pub(super) async fn ensure_started(
    dir: &StateDir,
    patience: Duration,
    wanted: impl Fn() -> bool,
) -> Result<bool, Failure> {
    let deadline = Instant::now() + patience.min(NEVER);
    let (mut is_last_look, mut was_started) = (false, false);
    loop {
        match server_state(dir)? {
            LocalState::Listening(_) => return Ok(was_started),
            _ if is_last_look => {
                return Err(unlocked_server_failure(dir).unwrap_or_else(|| {
                    Failure::unavailable(format!(
                        "this user's server was not ready within {patience:?}; run the command again, or raise \
                         ZOOLOCK_CONNECT_TIMEOUT; see {}",
                        dir.file("log").display()
                    ))
                }));
            }
            LocalState::Busy => {}
            LocalState::Absent => {
                // Another command may be starting the server, or may have started it between the check and the lock.
                if let Some(_lock) = take_starting_lock(dir)?
                    && server_state(dir)? == LocalState::Absent
                {
                    // Checked under the file lock. So `serve --stop` has either deleted the file
                    // `wanted` already, or waits for this start and then stops the server.
                    if !wanted() {
                        return Ok(false);
                    }
                    // A server that has lost its files ends within a second. Until then, no other
                    // server is started.
                    if unlocked_server_failure(dir).is_none() {
                        // A crashed server leaves this file behind. Commands could mistake it for
                        // the file of the new server.
                        remove(dir, "server")?;
                        launch_and_wait(dir, deadline).await?;
                        was_started = true;
                    }
                }
            }
        }
        is_last_look = Instant::now() >= deadline;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Starts a server, and waits until it listens, has ended, or the deadline has passed.
async fn launch_and_wait(dir: &StateDir, deadline: Instant) -> Result<(), Failure> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.file("log"));
    let log = log.map_err(|error| dir.file_failure("open", "log", &error))?;
    let written = log::size(dir);
    let mut server = launch(dir, log).map_err(|error| cannot_start("this user's server", error))?;
    loop {
        if matches!(server_state(dir)?, LocalState::Listening(_)) || Instant::now() >= deadline {
            return Ok(());
        }
        match server.0.try_wait() {
            Ok(Some(status)) if !status.success() => {
                let exit = if status.code() == Some(i32::from(Exit::DENIED.number())) {
                    Exit::DENIED
                } else {
                    Exit::UNAVAILABLE
                };
                return Err(Failure::new(
                    exit,
                    format!(
                        "this user's server did not start ({status}): {}; see {}",
                        log::end_reason(dir, written),
                        dir.file("log").display()
                    ),
                ));
            }
            // The started process has found another server, and has ended.
            Ok(Some(_)) => return Ok(()),
            Ok(None) => {}
            Err(error) => {
                return Err(Failure::unavailable(format!("cannot watch the server start: {error}")));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Environment variables that the server keeps. All other variables belong to the job that starts
/// the server. Among them are secrets, and marks by which a CI system finds and kills the processes
/// of a build.
const ENVIRONMENT: [&str; 2] = ["ZOOLOCK_LOCAL_IDLE", "LD_LIBRARY_PATH"];

/// Launches a server. The server makes itself independent of this process
/// ([`super::server::become_independent`]).
fn launch(dir: &StateDir, log: File) -> io::Result<SpawnedChild> {
    let mut server = Command::new(OWN_PROGRAM);
    server
        .arg0("zoolock")
        .args(["serve", "--local"])
        .env_clear()
        .envs(ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .env("ZOOLOCK_STATE_DIR", dir.path())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    SpawnedChild::start(&mut server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unwanted_server_is_not_started() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        ensure_started(&state, Duration::from_secs(60), || false).await.expect("nothing to do");
        assert!(!state.file("log").exists(), "a start opens the log");
    }

    #[test]
    fn only_one_command_starts_the_server() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        let first = take_starting_lock(&state).expect("lock file is created");
        assert!(first.is_some());
        assert!(take_starting_lock(&state).expect("lock file is opened").is_none());
        drop(first);
        assert!(take_starting_lock(&state).expect("lock file is opened").is_some());
    }
}
