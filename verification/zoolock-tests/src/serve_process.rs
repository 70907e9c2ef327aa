//! `zoolock serve` as a child process.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use crate::{Result, TestFailure};

/// Time limit for the server to start, and for it to end.
const BOUND: Duration = Duration::from_secs(60);

/// A running `zoolock serve`. Dropping it kills the process.
#[derive(Debug)]
pub struct ServeProcess {
    child: Child,
    stderr: BufReader<ChildStderr>,
    addr: SocketAddr,
}

/// A server that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code of the server, or `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard error of the server after the line with its address.
    pub notes: String,
}

impl ServeProcess {
    /// Starts the server and waits until it prints its address.
    ///
    /// # Errors
    /// Fails if the server does not start. The error contains the server's standard error.
    pub async fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child =
            command.spawn().map_err(|error| TestFailure::during("executing the server", error))?;
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let addr = timeout(BOUND, read_address(&mut stderr)).await;
        let addr = addr.unwrap_or_else(|_| Err(TestFailure::new(format!("no address within {BOUND:?}"))));
        let (_, addr) = addr.map_err(|failure| TestFailure::during("starting the server", failure))?;
        Ok(Self { child, stderr, addr })
    }

    /// Waits until a command that starts two servers in succession has started the second one.
    ///
    /// Returns the command's standard error up to the address of the second server.
    ///
    /// # Errors
    /// Fails if no second server starts. The error contains the command's standard error.
    pub async fn wait_for_second_server(&mut self) -> Result<String> {
        let next = timeout(BOUND, read_address(&mut self.stderr)).await;
        let (output, addr) =
            next.unwrap_or_else(|_| Err(TestFailure::new(format!("no second server within {BOUND:?}"))))?;
        self.addr = addr;
        Ok(output)
    }

    /// Returns the address on which the server listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> Pid {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        pid.expect("the process has not been waited for")
    }

    /// Kills the server (SIGKILL).
    pub async fn kill(mut self) {
        self.child.kill().await.expect("a child process can be killed");
    }

    /// Terminates the server (SIGTERM) and waits until it has ended.
    ///
    /// # Errors
    /// Fails if the server does not end in time.
    pub async fn terminate(self) -> Result<Ended> {
        kill_process(self.pid(), Signal::TERM).map_err(|error| TestFailure::during("signalling", error))?;
        self.wait_for_end().await
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// Fails if the server does not end in time.
    pub async fn wait_for_end(mut self) -> Result<Ended> {
        let ended = timeout(BOUND, async {
            let mut notes = String::new();
            self.stderr.read_to_string(&mut notes).await?;
            std::io::Result::Ok(Ended { code: self.child.wait().await?.code(), notes })
        });
        match ended.await {
            Ok(ended) => ended.map_err(|error| TestFailure::during("waiting for the server's end", error)),
            Err(_) => Err(TestFailure::new(format!("the server does not end within {BOUND:?}"))),
        }
    }
}

/// Reads standard error up to the line with the server's address. Returns the lines read and the address.
async fn read_address(stderr: &mut BufReader<ChildStderr>) -> Result<(String, SocketAddr)> {
    let mut output = String::new();
    loop {
        let before = output.len();
        match stderr.read_line(&mut output).await {
            Ok(0) => return Err(TestFailure::during("the server ended", output)),
            Ok(_) => {}
            Err(error) => return Err(TestFailure::during("reading its standard error", error)),
        }
        if let Some((_, addr)) = output[before..].split_once("serving on ") {
            let addr = addr.trim().parse().map_err(|error| TestFailure::during(addr.trim(), error))?;
            return Ok((output, addr));
        }
    }
}
