//! A `zoolock watch` whose lines are read one by one.

use rustix::process::Signal;
use serde_json::Value;

use super::{Lines, Running, Sandbox};

pub(crate) struct Watch {
    running: Running,
    stdout: Lines,
    stderr: Lines,
}

impl Watch {
    /// Starts it, and waits until it looks.
    pub(crate) fn start(sandbox: &Sandbox, args: &[&str]) -> Watch {
        let mut running = sandbox.converse(&[&["watch"], args].concat());
        let stdout = Lines::of(running.0.stdout.take().expect("caught"));
        let stderr = Lines::of(running.0.stderr.take().expect("caught"));
        let begun = stderr.next();
        assert!(begun.contains("watching"), "{begun}");
        Watch { running, stdout, stderr }
    }

    pub(crate) fn line(&self) -> String {
        self.stdout.next()
    }

    /// The next line on standard error.
    pub(crate) fn said(&self) -> String {
        self.stderr.next()
    }

    pub(crate) fn event(&self, word: &str) -> Value {
        let line = self.line();
        let event: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(event["event"], word, "{line}");
        event
    }

    /// Ends it with this signal; what it had still to say.
    pub(crate) fn end(mut self, signal: Signal) -> (i32, String) {
        self.running.signal(signal);
        (self.running.code(), self.stdout.rest())
    }
}
