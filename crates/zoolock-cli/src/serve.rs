//! `zoolock serve`: the embedded server in the foreground; and asking for this user's own.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde::Serialize;
use zoolock_server::{Error, Server};

use crate::exit::{Exit, Failure};
use crate::list::{print, to_json};
use crate::local::{self, State, StateDir};
use crate::signals::{Signals, name as signal_name};
use crate::talk::Talk;

const PAUSE: Duration = Duration::from_millis(20);
const STOP_BOUND: Duration = Duration::from_secs(10);

/// Serves until told to stop.
pub(crate) async fn serve(listen: SocketAddr, data: Option<&Path>, talk: &Talk) -> Result<Exit, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
    let mut builder = Server::builder().listen(listen);
    if let Some(data) = data {
        builder = builder.data_dir(data);
    }
    let server = builder.start().await.map_err(|error| failure(&error))?;
    let address = server.local_addr();
    talk.note(format_args!("serving on {address}"));
    if !address.ip().is_loopback() {
        talk.note("whoever reaches this address can take and break any lock; let a firewall choose who does");
    }
    let signal = signals.end().await;
    talk.detail(format_args!("{} received", signal_name(signal)));
    tokio::select! {
        () = server.shutdown() => {}
        _ = signals.end() => {}
    }
    Ok(Exit::OK)
}

/// A server that did not start.
pub(crate) fn failure(error: &Error) -> Failure {
    let denied = |source: &std::io::Error| source.kind() == std::io::ErrorKind::PermissionDenied;
    let exit = match error {
        Error::Invalid { .. } => Exit::USAGE,
        Error::Listen { source, .. } | Error::DataDir { source, .. } if denied(source) => Exit::DENIED,
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, error.to_string())
}

/// What `serve --status --json` prints.
#[derive(Serialize)]
struct Status {
    running: bool,
    address: Option<SocketAddr>,
    pid: Option<i32>,
    sessions: Option<u64>,
    directory: String,
}

/// Says whether this user's server is running.
pub(crate) fn status(json: bool) -> Result<Exit, Failure> {
    let dir = StateDir::open()?;
    let directory = dir.path().display().to_string();
    let state = local::look(&dir)?;
    let address = if let State::Listening(address) = state { Some(address) } else { None };
    let sessions =
        address.and_then(|_| std::fs::read_to_string(dir.file("sessions")).ok()?.trim().parse::<u64>().ok());
    let status = Status {
        running: state != State::Absent,
        address: address.map(|address| address.socket),
        pid: address.map(|address| address.pid.as_raw_pid()),
        sessions,
        directory,
    };
    let text = if json {
        to_json(&status)
    } else {
        match (state, sessions) {
            (State::Absent, _) => format!("not running ({})\n", status.directory),
            (State::Busy, _) => format!("starting or leaving ({})\n", status.directory),
            (State::Listening(address), sessions) => format!(
                "running on {}, pid {}, {} ({})\n",
                address.socket,
                address.pid,
                match sessions {
                    Some(1) => "1 session".to_owned(),
                    Some(sessions) => format!("{sessions} sessions"),
                    None => "sessions unknown".to_owned(),
                },
                status.directory
            ),
        }
    };
    print(&text)?;
    Ok(if status.running { Exit::OK } else { Exit::NOT_RUNNING })
}

/// Stops this user's server and waits until it is gone.
pub(crate) async fn stop(talk: &Talk) -> Result<Exit, Failure> {
    let dir = StateDir::open()?;
    let deadline = Instant::now() + STOP_BOUND;
    let mut told = None;
    loop {
        match local::look(&dir)? {
            State::Absent if told.is_none() => {
                talk.note("this user's server is not running");
                return Ok(Exit::OK);
            }
            State::Absent => {
                talk.note("stopped this user's server");
                return Ok(Exit::OK);
            }
            // The lock is held and the process is there, so it is the server and not another of the same number.
            State::Listening(address) if told != Some(address.pid) => {
                kill_process(address.pid, Signal::TERM).map_err(|error| {
                    Failure::new(Exit::DENIED, format!("cannot stop process {}: {error}", address.pid))
                })?;
                told = Some(address.pid);
            }
            State::Listening(_) | State::Busy => {}
        }
        if Instant::now() >= deadline {
            return Err(Failure::unavailable(format!(
                "this user's server did not stop within {STOP_BOUND:?}; see {}",
                dir.file("log").display()
            )));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
