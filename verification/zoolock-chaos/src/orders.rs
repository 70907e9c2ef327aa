//! Orders from the parent process, and reports to it, one line each.

use std::io::Write as _;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::ChildStdout;
use tokio::sync::mpsc::{self, Receiver};

use crate::Outcome;

/// The orders on standard input, one per line. A separate thread reads them until the input ends, or until this value
/// is dropped.
pub(crate) struct Orders(Receiver<String>);

impl Orders {
    pub(crate) fn listen() -> Orders {
        let (sender, receiver) = mpsc::channel(1);
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Orders(receiver)
    }

    /// Waits for the next order. Returns `None` if the parent process has ended.
    pub(crate) async fn next(&mut self) -> Option<String> {
        self.0.recv().await
    }

    /// Waits for the next order, which must be this one.
    pub(crate) async fn wait_for(&mut self, order: &str) -> Outcome<()> {
        match self.next().await {
            Some(line) if line == order => Ok(()),
            Some(line) => Err(format!("expected the order {order}, received {line}").into()),
            None => Err("the parent process has ended".into()),
        }
    }
}

/// Reports to the parent process, as a line of JSON.
pub(crate) fn send_report(report: &impl Serialize) -> Outcome<()> {
    let line = serde_json::to_string(report)?;
    // The lock is held for the whole line, so that lines of several threads do not mix.
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}

/// Records each report of a process. `who` names the process in errors.
pub(crate) async fn read_reports<T: DeserializeOwned>(
    output: ChildStdout,
    who: &'static str,
    mut record: impl FnMut(T),
) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(report) => record(report),
            Err(error) => eprintln!("{who} reported `{line}`: {error}"),
        }
    }
}
