//! `zoolock run` and its command on a terminal, which `script` of util-linux creates.

use std::io::{Read, Write};
use std::process::Stdio;

use crate::common::{Running, Sandbox};

/// A terminal that `script` creates, with a command in it.
pub(crate) struct Terminal(Running);

impl Terminal {
    /// Starts a command line in a new terminal. Returns `None` if `script` is not installed.
    pub(crate) fn start(sandbox: &Sandbox, line: &str) -> Option<Self> {
        let mut script = sandbox.command("script");
        script.args(["-qec", line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        match script.spawn() {
            Ok(child) => Some(Self(Running(child))),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no `script`: {error}");
                eprintln!("skipped: no `script` here ({error})");
                None
            }
        }
    }

    /// Reads up to the end of `text`.
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        let stdout = self.0.0.stdout.as_mut().expect("stdout is piped");
        loop {
            let mut byte = [0];
            let count = stdout.read(&mut byte).expect("readable");
            assert_ne!(count, 0, "the output ended: {}", String::from_utf8_lossy(&seen));
            seen.push(byte[0]);
            if seen.ends_with(text.as_bytes()) {
                return String::from_utf8_lossy(&seen).into_owned();
            }
        }
    }

    /// Reads the output until the command ends.
    pub(crate) fn rest(&mut self) -> String {
        let mut seen = Vec::new();
        // Reading from a terminal fails after its last process has ended.
        let _ = self.0.0.stdout.as_mut().expect("stdout is piped").read_to_end(&mut seen);
        String::from_utf8_lossy(&seen).into_owned()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let stdin = self.0.0.stdin.as_mut().expect("input is open");
        stdin.write_all(bytes).expect("script reads");
        stdin.flush().expect("script reads");
    }
}

/// Returns a command line that runs zoolock.
fn command(rest: &str) -> String {
    format!("{} {rest}", env!("CARGO_BIN_EXE_zoolock"))
}

#[test]
fn command_reads_terminal_and_gets_interrupt() {
    let sandbox = Sandbox::new();
    let line = command(
        "run x -- sh -c 'trap \"echo interrupted; exit 5\" INT; echo ready; read a; echo got $a; echo go; while :; do sleep 0.05; done'",
    );
    let Some(mut terminal) = Terminal::start(&sandbox, &line) else { return };
    terminal.read_until("ready");
    terminal.write(b"hello\n");
    terminal.read_until("got hello");
    terminal.read_until("go\r\n");
    terminal.write(b"\x03");
    terminal.read_until("interrupted");
    assert_eq!(terminal.0.code(), 5);
}

#[test]
fn piped_command_can_read_the_terminal() {
    let sandbox = Sandbox::new();
    let line = command("run x -- sh -c 'echo ready; read a; echo got $a' | cat");
    let Some(mut terminal) = Terminal::start(&sandbox, &line) else { return };
    terminal.read_until("ready");
    terminal.write(b"hello\n");
    terminal.read_until("got hello");
    assert_eq!(terminal.0.code(), 0);
}

#[test]
fn history_on_terminal_says_what_is_not_recorded() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    assert_eq!(sandbox.output(&["revoke", "x"]).code, 0);
    assert_eq!(holder.code(), 0);
    let note = "not recorded: releases, waiters that gave up";
    let piped = sandbox.output(&["history", "x"]);
    assert!(piped.stdout.contains("asked") && !piped.stderr.contains(note), "{piped:?}");
    let Some(mut terminal) = Terminal::start(&sandbox, &command("history x")) else { return };
    let seen = terminal.rest();
    assert!(seen.contains("asked") && seen.contains(note), "{seen}");
}

#[test]
fn wait_line_disappears_when_granted() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let Some(mut terminal) = Terminal::start(&sandbox, &command("run x -- echo mine")) else { return };
    let seen = terminal.read_until("held by");
    assert!(seen.contains("position 1 of 1"), "{seen}");
    holder.end_of_input();
    let seen = terminal.read_until("mine");
    assert!(seen.contains("\r\x1b[2K"), "{seen:?}");
    assert_eq!(terminal.0.code(), 0);
}
