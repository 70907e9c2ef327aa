//! Being this user's server.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::process::{getpid, setsid};
use zoolock_server::{Error, Server, ServerHandle};

use super::identity;
use super::keep;
use super::paths::StateDir;
use super::secret::Secret;
use super::{Address, open_lock};
use crate::exit::{Exit, Failure};
use crate::signals::{Signals, name as signal_name};
use crate::talk::Talk;

/// Whoever looks whether a server lives holds the lock for a moment.
const LOCK_ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// How often the number of sessions is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a client may take from reading our address to having a session.
const FAREWELL: Duration = Duration::from_millis(500);

/// Serves until told to stop, or until nobody has had a session for `idle`. Ends quietly when another server is
/// there already.
pub(crate) async fn serve(idle: Duration, talk: &Talk) -> Result<Exit, Failure> {
    // We outlive the terminal and the job that started us. It fails only for the leader of a group: then somebody
    // started us by hand, and has us in the foreground.
    let _ = setsid();
    let mut signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
    let dir = StateDir::open()?;
    let Some(lock) = take_lock(&dir).await? else {
        talk.detail("another server is there already");
        return Ok(Exit::OK);
    };
    // It may be that of a server that crashed.
    withdraw(&dir)?;
    keep::started(&dir);
    let secret = Secret::of(&dir)?;
    let server = start(&dir, &secret).await?;
    let address = Address { socket: server.local_addr(), pid: getpid() };
    write(&dir, "port", &address.socket.port().to_string())?;
    write(&dir, "sessions", "0")?;
    publish(&dir, address)?;
    talk.note(format_args!("{} serving on {}", stamp(), address.socket));
    let why = until_done(&server, &dir, &lock, address, idle, &mut signals).await;
    // What is there now may be another's.
    if is_still_at(&lock, &dir.file("lock")) {
        let _ = withdraw(&dir);
        let _ = std::fs::remove_file(dir.file("sessions"));
    }
    server.shutdown().await;
    talk.note(format_args!("{} {}", stamp(), why?));
    // Only now is the lock let go.
    Ok(Exit::OK)
}

/// Sessions outlive a server that crashed: their owners look for it where it was.
async fn start(dir: &StateDir, secret: &Secret) -> Result<ServerHandle, Failure> {
    let identity = identity::of_server(dir)?;
    let builder = |port| {
        Server::builder()
            .tls(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), identity.clone())
            .tls_only()
            .data_dir(dir.file("data"))
            .secret(zoolock_server::Secret::new(secret.expose()))
    };
    let known = std::fs::read_to_string(dir.file("port")).ok().and_then(|port| port.trim().parse().ok());
    let started = match known {
        Some(port) => match builder(port).start().await {
            // Somebody else has it by now.
            Err(Error::Listen { .. }) => builder(0).start().await,
            started => started,
        },
        None => builder(0).start().await,
    };
    started.map_err(|error| crate::serve::failure(&error))
}

async fn take_lock(dir: &StateDir) -> Result<Option<File>, Failure> {
    let lock = open_lock(dir, "lock")?;
    for _ in 0..LOCK_ATTEMPTS {
        match lock.try_lock() {
            Ok(()) => return Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(PAUSE).await,
            Err(TryLockError::Error(error)) => return Err(dir.failed("lock", "lock", &error)),
        }
    }
    Ok(None)
}

/// Returns what to say when there is nothing to do any more.
async fn until_done(
    server: &ServerHandle,
    dir: &StateDir,
    lock: &File,
    address: Address,
    idle: Duration,
    signals: &mut Signals,
) -> Result<String, Failure> {
    let mut known = 0;
    loop {
        tokio::select! {
            signal = signals.end() => return Ok(format!("stopped by {}", signal_name(signal))),
            why = server.failed() => return Err(Failure::unavailable(why)),
            () = tokio::time::sleep(LOOK.min(idle)) => {}
        }
        if !is_still_at(lock, &dir.file("lock")) {
            // Whoever comes next finds no lock and starts another server: ours must not go on beside it.
            return Err(Failure::unavailable(
                "somebody removed our files; leaving, lest there be two servers",
            ));
        }
        let sessions = server.sessions();
        // For `--status` only: a full disk is no reason to leave.
        if sessions != known && write(dir, "sessions", &sessions.to_string()).is_ok() {
            known = sessions;
        }
        if server.idle_since().is_none_or(|since| since.elapsed() < idle) {
            continue;
        }
        // Nobody finds us from here on; whoever has found us before is given time to have a session, and is then
        // a reason to stay.
        withdraw(dir)?;
        tokio::time::sleep(FAREWELL).await;
        if server.idle_since().is_some_and(|since| since.elapsed() >= idle) {
            return Ok("left, nobody needed it".to_owned());
        }
        publish(dir, address)?;
    }
}

/// Whether an open file is still what its path leads to.
fn is_still_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(theirs)) => identity(ours) == identity(theirs),
        (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
        (Err(_), _) => true,
    }
}

fn publish(dir: &StateDir, address: Address) -> Result<(), Failure> {
    write(dir, "address", &address.to_string())
}

fn withdraw(dir: &StateDir) -> Result<(), Failure> {
    match std::fs::remove_file(dir.file("address")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(dir.failed("delete", "address", &error)),
        _ => Ok(()),
    }
}

/// Readers see the old content or the new.
fn write(dir: &StateDir, name: &str, content: &str) -> Result<(), Failure> {
    let draft = dir.file(&format!("{name}.new"));
    let written = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| writeln!(file, "{content}"))
        .and_then(|()| std::fs::rename(&draft, dir.file(name)));
    written.map_err(|error| dir.failed("write", name, &error))
}

/// The time, for the log.
fn stamp() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
