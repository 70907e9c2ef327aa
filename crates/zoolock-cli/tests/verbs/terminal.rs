//! `zoolock run` and its command on a terminal.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::common::{Running, Sandbox};

/// A terminal with a command in it. Not that of `script`, which under load drops the end of the output.
pub(crate) struct Terminal {
    end: File,
    command: Running,
}

impl Terminal {
    /// Starts a command line in a new terminal, as the leader of a session of its own.
    pub(crate) fn start(sandbox: &Sandbox, line: &str) -> Self {
        let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal is created");
        grantpt(&end).expect("the terminal is ours");
        unlockpt(&end).expect("the terminal can be opened");
        let name = ptsname(&end, Vec::new()).expect("the terminal has a name").into_bytes();
        let open = || {
            let file = File::options().read(true).write(true).open(OsString::from_vec(name.clone()));
            Stdio::from(file.expect("the terminal can be opened"))
        };
        let mut command = sandbox.command("setsid");
        command.args(["--ctty", "sh", "-c", line]).stdin(open()).stdout(open()).stderr(open());
        Self { end: end.into(), command: Running(command.spawn().expect("setsid of util-linux starts")) }
    }

    /// Reads up to the end of `text`.
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(text.as_bytes()) {
            let read = self.end.read_exact(&mut byte);
            assert!(read.is_ok(), "the output ended: {}", String::from_utf8_lossy(&seen));
            seen.push(byte[0]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    /// Reads the output until the command ends.
    pub(crate) fn rest(&mut self) -> String {
        let mut seen = Vec::new();
        // Reading fails after the last process on the terminal has ended.
        let _ = self.end.read_to_end(&mut seen);
        String::from_utf8_lossy(&seen).into_owned()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.end.write_all(bytes).expect("the terminal takes input");
    }

    /// Hangs up. Returns the command.
    pub(crate) fn close(self) -> Running {
        self.command
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
    let mut terminal = Terminal::start(&sandbox, &line);
    terminal.read_until("ready");
    terminal.write(b"hello\n");
    terminal.read_until("got hello");
    terminal.read_until("go\r\n");
    terminal.write(b"\x03");
    terminal.read_until("interrupted");
    assert_eq!(terminal.command.code(), 5);
}

#[test]
fn piped_command_can_read_the_terminal() {
    let sandbox = Sandbox::new();
    let line = command("run x -- sh -c 'echo ready; read a; echo got $a' | cat");
    let mut terminal = Terminal::start(&sandbox, &line);
    terminal.read_until("ready");
    terminal.write(b"hello\n");
    terminal.read_until("got hello");
    assert_eq!(terminal.command.code(), 0);
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
    let mut terminal = Terminal::start(&sandbox, &command("history x"));
    let seen = terminal.rest();
    assert!(seen.contains("asked") && seen.contains(note), "{seen}");
}

#[test]
fn wait_line_disappears_when_granted() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let mut terminal = Terminal::start(&sandbox, &command("run x -- echo mine"));
    let seen = terminal.read_until("held by");
    assert!(seen.contains("position 1 of 1"), "{seen}");
    holder.end_of_input();
    let seen = terminal.read_until("mine");
    assert!(seen.contains("\r\x1b[2K"), "{seen:?}");
    assert_eq!(terminal.command.code(), 0);
}
