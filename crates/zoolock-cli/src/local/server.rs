//! Runs this user's server.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit, setsid, umask};
use zoolock_client::SocketPath;
use zoolock_server::log::LogError;
use zoolock_server::{Error, Limits, Server, ServerHandle};

use super::files::{remove, replace_file, take_server_lock};
use super::limits::{connection_budget, raise_file_limit, server_start_failure};
use super::log::{STOPPED, timestamp};
use super::machine::{self, Machine};
use super::paths::{SOCKET, StateDir};
use super::process::RecordedProcess;
use super::state::{recorded_server, unlocked_server_failure};
use super::{holders, keep, log};
use crate::base::exit::{Exit, Failure};
use crate::base::inherited;
use crate::base::memory::{LEAST_MEMORY, available_memory};
use crate::base::reporter::Reporter;
use crate::base::signals::{Signals, signal_name};

/// The name of the socket before the server is ready.
const NEW_SOCKET: &str = "socket.new";
/// Interval between checks of the server's files and sessions.
const LOOK: Duration = Duration::from_secs(1);
/// Time that a command may take from finding the server to opening a session.
const CONNECT_GRACE: Duration = Duration::from_millis(500);

/// Resource limits that the server raises to the allowed maximum. The job that started the server
/// may have lowered them for itself.
const LIMITS: [Resource; 5] = [Resource::Cpu, Resource::Fsize, Resource::As, Resource::Data, Resource::Nproc];

/// Makes this process independent of the job and the terminal that started it. Must be called
/// before the first thread starts, and before any file is opened.
pub(crate) fn become_independent() {
    inherited::close(inherited::list_inherited());
    // `setsid` fails only for a server that was started by hand, in the foreground.
    let _ = setsid();
    let _ = SigSet::empty().thread_set_mask();
    umask(Mode::RWXG | Mode::RWXO);
    // The kernel has named the process `exe`, because it was started as /proc/self/exe.
    let _ = rustix::thread::set_name(c"zoolock");
    for resource in LIMITS {
        let maximum = getrlimit(resource).maximum;
        let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
    }
}

/// Serves until a signal or a failure, or until there was no session for `idle`. Ends without an error if another server runs.
pub(crate) async fn serve(idle: Duration, reporter: &Arc<Reporter>) -> Result<Exit, Failure> {
    let served = serve_until_done(idle, reporter).await;
    served.map_err(|failure| Failure::new(failure.exit, log::failure_line(failure)))
}

async fn serve_until_done(idle: Duration, reporter: &Arc<Reporter>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    signals.stay_at_hup_without_terminal(reporter);
    // `serve --stop` sends TERM. The server handles TERM even if the job that started the server
    // ignores it.
    signals.listen_for(Signal::TERM)?;
    let dir = StateDir::open()?;
    let Some(lock) = take_server_lock(&dir).await? else {
        reporter.detail("another server runs already");
        return Ok(Exit::OK);
    };
    let known = machine::check_machine(&dir)?;
    if let Some(failure) = unlocked_server_failure(&dir) {
        return Err(failure);
    }
    // A crashed server leaves these files behind.
    for name in ["server", SOCKET, NEW_SOCKET] {
        remove(&dir, name)?;
    }
    keep::mark_wanted(&dir)?;
    let has_rebooted = known.as_ref().is_some_and(|known| Machine::current().has_rebooted_since(known));
    let server = start(&dir).await?;
    server.repairs().iter().for_each(|repair| reporter.note(repair));
    // No client has a session yet, because the socket still has its temporary name.
    let mut ended = holders::expire_dead_commands(&dir, &server, has_rebooted);
    if has_rebooted {
        ended += server.expire_sessions();
    }
    // The machine is recorded before the first session, so that the next server does not end sessions of this boot.
    machine::record_machine(&dir, known.as_ref())?;
    let ready = std::fs::rename(dir.file(NEW_SOCKET), dir.file(SOCKET));
    ready.map_err(|error| dir.file_failure("rename", NEW_SOCKET, &error))?;
    replace_file(&dir, "sessions", "0", false)?;
    write_server_file(&dir)?;
    if ended > 0 {
        reporter.note(format_args!("{} expired {ended} sessions of processes that have ended", timestamp()));
    }
    reporter.note(format_args!("{} serving on {}", timestamp(), dir.file(SOCKET).display()));
    let why = wait_until_done(&server, &dir, &lock, idle, &mut signals).await;
    // Removes the files only if they are those of this server. If they were removed before, another
    // server may have created new files.
    if is_still_at(&lock, &dir.file("lock")) && !is_another_process(&dir) {
        for name in ["server", "sessions", SOCKET] {
            let _ = remove(&dir, name);
        }
    }
    server.shutdown().await;
    reporter.note(format_args!("{} {}", timestamp(), why?));
    // The file lock is released when this function returns.
    Ok(Exit::OK)
}

/// Starts the server on the socket with the temporary name.
async fn start(dir: &StateDir) -> Result<ServerHandle, Failure> {
    let path = SocketPath::new(&dir.file(NEW_SOCKET));
    let listener = path
        .and_then(UnixListener::bind)
        .map_err(|error| dir.file_failure("listen on", NEW_SOCKET, &error))?;
    let budget = connection_budget(raise_file_limit(), None, false)?;
    let server = Server::builder()
        .unix(listener)
        .data_dir(dir.file("data"))
        .max_connections(budget.clients)
        // A job with less memory may still start the server, because few locks need little.
        .limits(Limits::for_memory(available_memory().max(LEAST_MEMORY)))
        .owns_runtime();
    server.start().await.map_err(|error| match &error {
        // `serve --recover` is for servers that the user starts.
        Error::Log { source: source @ (LogError::Damaged { .. } | LogError::Missing { .. }) } => {
            Failure::new(
                Exit::UNAVAILABLE,
                format!(
                    "{}; restore {} from a copy, or remove it, which frees all locks of local mode",
                    source.problem(),
                    dir.file("data").display()
                ),
            )
        }
        error => server_start_failure(error),
    })
}

/// Serves until there is a reason to stop. Returns the reason.
async fn wait_until_done(
    server: &ServerHandle,
    dir: &StateDir,
    lock: &File,
    idle: Duration,
    signals: &mut Signals,
) -> Result<String, Failure> {
    let mut known = 0;
    loop {
        tokio::select! {
            signal = signals.next_end_signal() => return Ok(format!("{STOPPED} by {}", signal_name(signal))),
            why = server.wait_for_failure() => return Err(Failure::unavailable(why)),
            () = tokio::time::sleep(LOOK.min(idle)) => {}
        }
        if !is_still_at(lock, &dir.file("lock")) || matches!(dir.file(SOCKET).try_exists(), Ok(false)) {
            // Without these files, the next command starts another server. This server exits,
            // because two servers must not run at the same time.
            return Err(Failure::unavailable("the files of this server were removed; exiting"));
        }
        if is_another_process(dir) {
            return Err(Failure::unavailable(
                "another server uses the state directory: its file system does not share locks between machines",
            ));
        }
        // Writes the file again if it was deleted, or could not be written at the last check.
        if !dir.file("server").exists() {
            let _ = write_server_file(dir);
        }
        let sessions = server.sessions();
        // Only `serve --status` reads the file, so a failed write on a full disk is no reason to stop.
        if sessions != known && replace_file(dir, "sessions", &sessions.to_string(), false).is_ok() {
            known = sessions;
        }
        if server.idle_since().is_none_or(|since| since.elapsed() < idle) {
            continue;
        }
        // After this removal, no command finds the server. The pause lets commands that have found
        // the server before open their sessions.
        remove(dir, "server")?;
        tokio::time::sleep(CONNECT_GRACE).await;
        if server.idle_since().is_some_and(|since| since.elapsed() >= idle) {
            return Ok(format!("{STOPPED}: there was no session for some time"));
        }
        // If this fails, for example on a full disk, the next check tries again.
        let _ = write_server_file(dir);
    }
}

/// Returns whether the file `server` names another process.
fn is_another_process(dir: &StateDir) -> bool {
    recorded_server(dir).is_some_and(|process| !process.is_same(&RecordedProcess::current()))
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

/// Writes the file `server`, so that commands find the server.
fn write_server_file(dir: &StateDir) -> Result<(), Failure> {
    replace_file(dir, "server", &RecordedProcess::current().to_string(), false)
}
