//! `zoolock serve`: runs the embedded server in the foreground, and reports on this user's server or stops it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use sd_notify::NotifyState;
use serde::Serialize;
use zoolock_server::Builder;

use crate::args::{Global, ServeArgs};
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::Reporter;
use crate::base::signals::{Signals, signal_name};
use crate::local::limits::{connection_budget, raise_file_limit, server_start_failure};
use crate::local::{self, LocalState, StateDir};
use crate::plan::Context;
use crate::render::text::{format_json, print};
use crate::verbs::recover::confirm_loss;

const PAUSE: Duration = Duration::from_millis(20);
const STOP_BOUND: Duration = Duration::from_secs(10);

impl ServeArgs {
    /// Runs `zoolock serve`.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { global, reporter } = context;
        refuse_client_flags(global)?;
        if self.status {
            return print_status(global.json);
        }
        context.refuse_json("serve")?;
        if self.stop {
            return stop_server(reporter).await;
        }
        if self.adopt {
            return local::adopt(reporter).await;
        }
        if self.local {
            return local::serve(self.idle, reporter).await;
        }
        let builder = self.builder()?;
        serve(self, builder, reporter).await
    }
}

/// Refuses the flags of clients. Ignores their variables, which the environment may set for other commands.
fn refuse_client_flags(global: &Global) -> Result<(), Failure> {
    for (flag, advice) in [
        ("--connect", ""),
        ("--auth", "; give the accounts with --users"),
        // A user who gives --cacert instead of --tls-client-ca would start a server without client authentication.
        ("--cacert", "; did you mean --tls-client-ca?"),
        ("--cert", "; did you mean --tls-cert?"),
        ("--key", "; did you mean --tls-key?"),
    ] {
        if global.copied.contain(flag) {
            return Err(Failure::usage(format!("{flag} has no effect on `serve`{advice}")));
        }
    }
    Ok(())
}

/// Serves until a signal or a failure, or backs up a data directory.
async fn serve(args: ServeArgs, builder: Builder, reporter: &Arc<Reporter>) -> Result<Exit, Failure> {
    if let Some(to) = &args.backup {
        let last = builder.back_up(to).map_err(|error| server_start_failure(&error))?;
        reporter.note(format_args!("backed up all transactions up to {last} to {}", to.display()));
        return Ok(Exit::OK);
    }
    let mut signals = Signals::listen()?;
    signals.stay_at_hup_without_terminal(reporter);
    let budget =
        connection_budget(raise_file_limit(), args.limits.max_connections, args.operation.metrics.is_some())?;
    let mut builder = builder.max_connections(budget.clients).max_http_connections(budget.http);
    let is_damaged = Arc::new(AtomicBool::new(false));
    if let Some(answer) = args.recover {
        let is_damaged = Arc::clone(&is_damaged);
        builder = builder.restore_if_damaged(move |loss| {
            is_damaged.store(true, Ordering::Relaxed);
            confirm_loss(loss, answer)
        });
    }
    let server = tokio::select! {
        started = builder.start() => started.map_err(|error| server_start_failure(&error))?,
        // The start may wait for an answer, or until lost sessions have expired.
        signal = signals.next_end_signal() => {
            reporter.note(format_args!("{} received; stopping", signal_name(signal)));
            return Ok(Exit::OK);
        }
    };
    if args.recover.is_some() && !is_damaged.load(Ordering::Relaxed) {
        reporter.note("the log is sound; there is nothing to recover");
    }
    server.repairs().iter().for_each(|repair| reporter.note(repair));
    let (address, tls) = (server.local_addr(), server.tls_addr());
    if tls != Some(address) {
        reporter.note(format_args!("serving on {address}"));
    }
    if let Some(tls) = tls {
        reporter.note(format_args!("serving TLS on {tls}"));
    }
    if let Some(metrics) = server.metrics_addr() {
        reporter.note(format_args!("metrics at http://{metrics}/metrics"));
    }
    let reachable = |address: SocketAddr| !address.ip().is_loopback();
    if !args.access.require_auth && (reachable(address) || tls.is_some_and(reachable)) {
        reporter.note(
            "any client that can connect may acquire and break any lock; restrict access with a firewall or \
             --require-auth",
        );
    } else if reachable(address) && tls != Some(address) {
        reporter.note("passwords cross the network unencrypted; --tls-listen without --listen prevents that");
    }
    // Tells systemd that the server is ready. Has no effect if systemd has not set NOTIFY_SOCKET.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let result = tokio::select! {
        signal = signals.next_end_signal() => {
            reporter.note(format_args!("{} received; stopping", signal_name(signal)));
            Ok(Exit::OK)
        }
        why = server.wait_for_failure() => Err(Failure::unavailable(format!("stopping: {why}"))),
    };
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    tokio::select! {
        () = server.shutdown() => {}
        _ = signals.next_end_signal() => {}
    }
    result
}

/// The output of `serve --status --json`.
#[derive(Serialize)]
struct Status {
    running: bool,
    socket: Option<String>,
    pid: Option<i32>,
    sessions: Option<u64>,
    directory: String,
}

/// Prints whether this user's server is running.
fn print_status(json: bool) -> Result<Exit, Failure> {
    let dir = StateDir::open()?;
    let directory = dir.path().display().to_string();
    let state = local::server_state(&dir)?;
    let process = if let LocalState::Listening(process) = &state { Some(process) } else { None };
    let sessions =
        process.and_then(|_| std::fs::read_to_string(dir.file("sessions")).ok()?.trim().parse::<u64>().ok());
    let socket = dir.file("socket").display().to_string();
    let status = Status {
        running: state != LocalState::Absent,
        socket: process.map(|_| socket.clone()),
        pid: process.filter(|process| process.is_in_our_namespace()).map(|process| process.pid.as_raw_pid()),
        sessions,
        directory,
    };
    let text = if json {
        format_json(&status)
    } else {
        match (state, sessions) {
            (LocalState::Absent, _) => format!("not running ({})\n", status.directory),
            (LocalState::Busy, _) => {
                format!("starting or stopping ({})\n", status.directory)
            }
            (LocalState::Listening(_), sessions) => format!(
                "running on {socket}, {}, {}\n",
                match status.pid {
                    Some(pid) => format!("pid {pid}"),
                    None => "in another process namespace".to_owned(),
                },
                match sessions {
                    Some(1) => "1 session".to_owned(),
                    Some(sessions) => format!("{sessions} sessions"),
                    None => "number of sessions unknown".to_owned(),
                }
            ),
        }
    };
    print(&text)?;
    Ok(if status.running { Exit::OK } else { Exit::NOT_RUNNING })
}

/// Stops this user's server, and waits until it has stopped.
async fn stop_server(reporter: &Reporter) -> Result<Exit, Failure> {
    let dir = StateDir::open()?;
    let deadline = Instant::now() + STOP_BOUND;
    let mut signalled = None;
    loop {
        let state = local::server_state(&dir)?;
        match state {
            LocalState::Absent if signalled.is_none() => {
                // While this process holds the file lock `starting`, no command starts the server.
                // On a full disk, taking that file lock may fail. Then only the state of the server
                // counts.
                let starts = local::take_starting_lock(&dir);
                if !matches!(starts, Ok(None)) && local::server_state(&dir)? == LocalState::Absent {
                    mark_server_stopped(&dir, reporter);
                    reporter.note("this user's server is not running");
                    return Ok(Exit::OK);
                }
            }
            LocalState::Absent => {
                reporter.note("stopped this user's server");
                return Ok(Exit::OK);
            }
            LocalState::Listening(process) if signalled.as_ref() != Some(&process.pid) => {
                if !process.is_in_our_namespace() {
                    return Err(Failure::unavailable(
                        "this user's server runs in another process namespace, such as a container; stop it there".to_owned(),
                    ));
                }
                mark_server_stopped(&dir, reporter);
                // The server still holds its file lock, so no other process has this pid.
                kill_process(process.pid, Signal::TERM).map_err(|error| {
                    Failure::new(Exit::DENIED, format!("cannot stop process {}: {error}", process.pid))
                })?;
                signalled = Some(process.pid);
            }
            LocalState::Listening(_) | LocalState::Busy => {}
        }
        if Instant::now() >= deadline {
            return Err(Failure::unavailable(format!(
                "this user's server did not stop within {STOP_BOUND:?}; see {}{}",
                dir.file("log").display(),
                signalled.map(|pid| format!(", or run: kill -KILL {pid}")).unwrap_or_default()
            )));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tells commands that hold or wait not to start the server again.
fn mark_server_stopped(dir: &StateDir, reporter: &Reporter) {
    if let Err(failure) = local::mark_stopped(dir) {
        reporter.note(format_args!("commands that hold or wait may start the server again: {failure}"));
    }
}
