//! Finding this user's server, and starting it where there is none.

use std::fs::{OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::paths::StateDir;
use super::secret::Secret;
use super::{Running, State, identity, look, open_lock};
use crate::exit::{Exit, Failure};

const PAUSE: Duration = Duration::from_millis(10);
/// Longer than any session of a local server, which is 40 s at most.
const AFTER_A_CRASH: Duration = Duration::from_secs(60);
/// Near enough for every clock.
const NEVER: Duration = Duration::from_secs(365 * 86_400);
/// How much of the end of the log is worth a look when a server did not start.
const LAST_WORDS: usize = 300;

/// Finds the server; starts it if there is none. Of many who come at once, one starts it and all find it.
pub(crate) async fn running(patience: Duration) -> Result<Running, Failure> {
    let dir = StateDir::open()?;
    let secret = Secret::of(&dir)?;
    // A server that follows one which ended with sessions first waits until they are over.
    let patience = if dir.file("data/owed").exists() { patience.max(AFTER_A_CRASH) } else { patience };
    let deadline = Instant::now() + patience.min(NEVER);
    let address = loop {
        match look(&dir)? {
            State::Listening(address) => break address,
            State::Busy => {}
            State::Absent => {
                let lock = open_lock(&dir, "starting")?;
                match lock.try_lock() {
                    // Somebody may have been quicker between our look and the lock.
                    Ok(()) if look(&dir)? == State::Absent => start(&dir, deadline).await?,
                    // Another starts it; or it is there now.
                    Ok(()) | Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(error)) => return Err(dir.failed("lock", "starting", &error)),
                }
            }
        }
        if Instant::now() >= deadline {
            return Err(Failure::unavailable(format!(
                "this user's server did not begin to listen within {patience:?}; see {}",
                dir.file("log").display()
            )));
        }
        tokio::time::sleep(PAUSE).await;
    };
    let tls = identity::of_client(&dir);
    Ok(Running { address: address.socket, secret_file: dir.file("secret"), tls, secret })
}

/// Starts one and waits until it listens, or has ended, or time is up.
async fn start(dir: &StateDir, deadline: Instant) -> Result<(), Failure> {
    let mut server = launch(dir)
        .map_err(|error| Failure::unavailable(format!("cannot start this user's server: {error}")))?;
    loop {
        if matches!(look(dir)?, State::Listening(_)) || Instant::now() >= deadline {
            return Ok(());
        }
        match server.try_wait() {
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
                        last_words(dir),
                        dir.file("log").display()
                    ),
                ));
            }
            // It found another server there; so will we.
            Ok(Some(_)) => return Ok(()),
            Ok(None) => {}
            Err(error) => {
                return Err(Failure::unavailable(format!("cannot watch the server start: {error}")));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The server makes itself independent of us ([`super::server::serve`]).
fn launch(dir: &StateDir) -> io::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.file("log"))?;
    // Not its path, which an upgrade may have given to another.
    Command::new("/proc/self/exe")
        .args(["serve", "--local"])
        .env("ZOOLOCK_STATE_DIR", dir.path())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
}

fn last_words(dir: &StateDir) -> String {
    let log = std::fs::read(dir.file("log")).unwrap_or_default();
    let tail = &log[log.len().saturating_sub(LAST_WORDS)..];
    let tail = String::from_utf8_lossy(tail);
    let line = tail.lines().next_back().unwrap_or("it said nothing");
    line.strip_prefix("zoolock: ").unwrap_or(line).to_owned()
}
