//! `zoolock serve` as a process, to be killed, told to end, and started again.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use crate::{Failure, Result};

/// How long it may take to start and to end.
const BOUND: Duration = Duration::from_secs(60);

/// A server that listens; dropping it kills it.
#[derive(Debug)]
pub struct Serving {
    child: Child,
    notes: BufReader<ChildStderr>,
    addr: SocketAddr,
}

/// A server that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// What it said after its address.
    pub notes: String,
}

impl Serving {
    /// Starts the server and waits until it says where it listens.
    ///
    /// # Errors
    /// What it said instead.
    pub async fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| Failure::during("executing the server", error))?;
        let mut notes = BufReader::new(child.stderr.take().expect("it is piped"));
        let addr = timeout(BOUND, listening(&mut notes)).await;
        let addr = addr.unwrap_or_else(|_| Err(Failure::new(format!("it says nothing within {BOUND:?}"))));
        let (_, addr) = addr.map_err(|failure| Failure::during("starting the server", failure))?;
        Ok(Self { child, notes, addr })
    }

    /// Waits until another server listens in the place of this one, and returns what was said until then: for a
    /// command that starts two.
    ///
    /// # Errors
    /// What was said instead.
    pub async fn next(&mut self) -> Result<String> {
        let next = timeout(BOUND, listening(&mut self.notes)).await;
        let (said, addr) =
            next.unwrap_or_else(|_| Err(Failure::new(format!("no server follows within {BOUND:?}"))))?;
        self.addr = addr;
        Ok(said)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Which process it is.
    pub fn pid(&self) -> Pid {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        pid.expect("it has not been waited for")
    }

    /// Ends it where it stands.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("it is ours to kill");
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// When it does not.
    pub async fn terminate(self) -> Result<Ended> {
        kill_process(self.pid(), Signal::TERM).map_err(|error| Failure::during("signalling", error))?;
        self.ended().await
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ended(mut self) -> Result<Ended> {
        let ended = timeout(BOUND, async {
            let mut notes = String::new();
            self.notes.read_to_string(&mut notes).await?;
            std::io::Result::Ok(Ended { code: self.child.wait().await?.code(), notes })
        });
        match ended.await {
            Ok(ended) => ended.map_err(|error| Failure::during("waiting for the server's end", error)),
            Err(_) => Err(Failure::new(format!("the server does not end within {BOUND:?}"))),
        }
    }
}

async fn listening(notes: &mut BufReader<ChildStderr>) -> Result<(String, SocketAddr)> {
    let mut said = String::new();
    loop {
        let before = said.len();
        match notes.read_line(&mut said).await {
            Ok(0) => return Err(Failure::during("it ended", said)),
            Ok(_) => {}
            Err(error) => return Err(Failure::during("reading what it says", error)),
        }
        if let Some((_, addr)) = said[before..].split_once("serving on ") {
            let addr = addr.trim().parse().map_err(|error| Failure::during(addr.trim(), error))?;
            return Ok((said, addr));
        }
    }
}
