//! Runs a command beside one Apache ZooKeeper, which all tests of that command share.
//!
//! `with-apache cargo nextest run` starts a server, sets `ZOOLOCK_TEST_APACHE` to its address, runs the command and
//! stops the server. Without Apache ZooKeeper on this machine the command runs without the variable.

use std::io;
use std::process::{ExitCode, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use zoolock_tests::both_servers::SHARED_APACHE;
use zoolock_tests::skip::Availability;
use zoolock_tests::{Apache, ServerOptions, apache};

/// Exit code when the command was ended by a signal.
const SIGNALLED: u8 = 128;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(program) = args.next() else {
        eprintln!("usage: with-apache COMMAND [ARG]...");
        return ExitCode::from(64);
    };
    let mut command = Command::new(&program);
    command.args(args);
    let server = match apache::availability() {
        Availability::Missing(reason) => {
            eprintln!("with-apache: no shared server: {reason}");
            None
        }
        Availability::Available => {
            let options = ServerOptions { heap: "1g".to_owned(), ..Default::default() };
            match Apache::start(options).await {
                Ok(server) => Some(server),
                Err(failure) => {
                    eprintln!("with-apache: {failure}");
                    return ExitCode::FAILURE;
                }
            }
        }
    };
    if let Some(server) = &server {
        command.env(SHARED_APACHE, server.addr());
    }
    let status = run(&mut command).await;
    if let Some(server) = server {
        server.kill().await;
    }
    match status {
        Ok(status) => ExitCode::from(status.code().map_or(SIGNALLED, |code| code as u8)),
        Err(error) => {
            eprintln!("with-apache: cannot execute {}: {error}", program.display());
            ExitCode::from(127)
        }
    }
}

/// Runs the command to its end. Passes SIGTERM on to the command. Ignores SIGINT, because the
/// terminal sends SIGINT to the command too.
async fn run(command: &mut Command) -> io::Result<ExitStatus> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut child = command.spawn()?;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {
                if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id as i32)) {
                    kill_process(pid, Signal::TERM)?;
                }
            }
        }
    }
}
