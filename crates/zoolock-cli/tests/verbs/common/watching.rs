//! Runs `zoolock watch`, and reads its lines one by one.

use rustix::process::Signal;
use serde_json::Value;

use super::{Lines, Running, Sandbox};

/// A running `zoolock watch`.
pub(crate) struct Watch {
    running: Running,
    stdout: Lines,
    stderr: Lines,
}

impl Watch {
    /// Starts `zoolock watch`, and waits until it prints that it watches the lock.
    pub(crate) fn start(sandbox: &Sandbox, args: &[&str]) -> Watch {
        let mut running = sandbox.start_piped(&[&["watch"], args].concat());
        let stdout = Lines::of(running.take_stdout());
        let stderr = Lines::of(running.take_stderr());
        let first = stderr.next();
        assert!(first.contains("watching"), "{first}");
        Watch { running, stdout, stderr }
    }

    /// Returns the next line of standard output.
    pub(crate) fn line(&self) -> String {
        self.stdout.next()
    }

    /// Returns the next line of standard error.
    pub(crate) fn stderr_line(&self) -> String {
        self.stderr.next()
    }

    /// Returns the next event.
    pub(crate) fn next_event(&self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }

    /// Returns the next event, which must be named `word`.
    pub(crate) fn event(&self, word: &str) -> Value {
        let line = self.line();
        let event: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(event["event"], word, "{line}");
        event
    }

    /// Sends a signal, and returns the exit code and the remaining output.
    pub(crate) fn end(mut self, signal: Signal) -> (i32, String) {
        self.running.signal(signal);
        (self.running.code(), self.stdout.rest())
    }
}
