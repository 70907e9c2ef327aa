//! Runs this user's server.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, setsid, umask};
use zoolock_client::SocketPath;
use zoolock_server::{Server, ServerHandle};

use super::keep;
use super::paths::StateDir;
use super::{Process, SOCKET, open_lock, remove};
use crate::exit::{Exit, Failure};
use crate::inherited;
use crate::signals::{ServerSignals, name as signal_name};
use crate::talk::Talk;

/// Maximum number of attempts to take the lock. A command that looks for the server has it for a moment.
const LOCK_ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two looks at the number of sessions.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum time for a command from looking for the server to having a session.
const FAREWELL: Duration = Duration::from_millis(500);

/// Limits that the server raises as far as it may. The job that started the server may have lowered them for itself.
const LIMITS: [Resource; 5] = [Resource::Cpu, Resource::Fsize, Resource::As, Resource::Data, Resource::Nproc];

/// Makes this process independent of the job and the terminal that started it. Call it before the first thread starts, and
/// before any file is opened.
pub(crate) fn become_independent() {
    inherited::close(inherited::files());
    // This fails only for a server that was started by hand, in the foreground.
    let _ = setsid();
    let _ = SigSet::empty().thread_set_mask();
    umask(Mode::RWXG | Mode::RWXO);
    // The kernel has named the process after /proc/self/exe.
    let _ = rustix::thread::set_name(c"zoolock");
    for resource in LIMITS {
        let maximum = getrlimit(resource).maximum;
        let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
    }
}

/// Serves until told to stop, or until there was no session for `idle`. Ends without an error if another server runs.
pub(crate) async fn serve(idle: Duration, talk: &Talk) -> Result<Exit, Failure> {
    let mut signals = ServerSignals::listen(talk)?;
    // The job that started the server may ignore TERM. `serve --stop` sends it.
    signals.listen_for_term()?;
    let dir = StateDir::open()?;
    let Some(lock) = take_lock(&dir).await? else {
        talk.detail("another server runs already");
        return Ok(Exit::OK);
    };
    // A server that crashed leaves both.
    remove(&dir, "server")?;
    remove(&dir, SOCKET)?;
    keep::started(&dir);
    let server = start(&dir).await?;
    write(&dir, "sessions", "0")?;
    publish(&dir)?;
    talk.note(format_args!("{} serving on {}", stamp(), dir.file(SOCKET).display()));
    let why = until_done(&server, &dir, &lock, idle, &mut signals).await;
    // Files that were removed and created again belong to another server.
    if is_still_at(&lock, &dir.file("lock")) && !is_another_process(&dir) {
        for name in ["server", "sessions", SOCKET] {
            let _ = remove(&dir, name);
        }
    }
    server.shutdown().await;
    talk.note(format_args!("{} {}", stamp(), why?));
    // The lock is released when this returns.
    Ok(Exit::OK)
}

async fn start(dir: &StateDir) -> Result<ServerHandle, Failure> {
    let path = SocketPath::new(&dir.file(SOCKET));
    let listener =
        path.and_then(UnixListener::bind).map_err(|error| dir.failed("listen on", SOCKET, &error))?;
    let server = Server::builder()
        .unix(listener)
        .data_dir(dir.file("data"))
        .max_connections(crate::serve::most_connections(None)?);
    server.start().await.map_err(|error| crate::serve::failure(&error))
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

/// Serves until there is a reason to stop. Returns the reason.
async fn until_done(
    server: &ServerHandle,
    dir: &StateDir,
    lock: &File,
    idle: Duration,
    signals: &mut ServerSignals<'_>,
) -> Result<String, Failure> {
    let mut known = 0;
    loop {
        tokio::select! {
            signal = signals.end() => return Ok(format!("stopped by {}", signal_name(signal))),
            why = server.failed() => return Err(Failure::unavailable(why)),
            () = tokio::time::sleep(LOOK.min(idle)) => {}
        }
        if !is_still_at(lock, &dir.file("lock")) {
            // The next command finds no lock and starts another server. This one must not run beside it.
            return Err(Failure::unavailable("the files of this server were removed; exiting"));
        }
        if is_another_process(dir) {
            return Err(Failure::unavailable(
                "another server uses the state directory: its file system does not share locks between machines",
            ));
        }
        let sessions = server.sessions();
        // Only `--status` reads it. So a full disk is no reason to stop.
        if sessions != known && write(dir, "sessions", &sessions.to_string()).is_ok() {
            known = sessions;
        }
        if server.idle_since().is_none_or(|since| since.elapsed() < idle) {
            continue;
        }
        // No command finds the server from here on. A command that has found it before has time to open a session.
        remove(dir, "server")?;
        tokio::time::sleep(FAREWELL).await;
        if server.idle_since().is_some_and(|since| since.elapsed() >= idle) {
            return Ok("stopped: there was no session for some time".to_owned());
        }
        publish(dir)?;
    }
}

/// Returns whether the file `server` names another process.
fn is_another_process(dir: &StateDir) -> bool {
    let named =
        std::fs::read_to_string(dir.file("server")).ok().and_then(|text| text.parse::<Process>().ok());
    named.is_some_and(|named| named != Process::current())
}

/// Returns whether a path still leads to this open file.
fn is_still_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(theirs)) => identity(ours) == identity(theirs),
        (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
        (Err(_), _) => true,
    }
}

/// Lets commands find the server.
fn publish(dir: &StateDir) -> Result<(), Failure> {
    write(dir, "server", &Process::current().to_string())
}

/// Replaces the content of a file. Readers see the old one or the new one.
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

/// Returns the time for the log.
fn stamp() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
