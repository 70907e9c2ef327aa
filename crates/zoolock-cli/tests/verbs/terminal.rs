//! On a terminal the command has the terminal; made with `script` of util-linux, which makes one.

use std::io::{Read, Write};
use std::process::Stdio;

use crate::common::{Running, Sandbox};

/// A terminal that `script` makes, with a command in it.
pub(crate) struct Typed(Running);

impl Typed {
    /// Starts the command. Returns `None` where there is no `script`.
    pub(crate) fn start(sandbox: &Sandbox, line: &str) -> Option<Self> {
        let mut script = std::process::Command::new("script");
        script.args(["-qec", line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        script.env_remove("ZOOLOCK_CONNECT").env("ZOOLOCK_STATE_DIR", sandbox.state());
        script.current_dir(sandbox.path("."));
        match script.spawn() {
            Ok(child) => Some(Self(Running(child))),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no `script`: {error}");
                eprintln!("skipped: no `script` here ({error})");
                None
            }
        }
    }

    fn read_until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        let stdout = self.0.0.stdout.as_mut().expect("caught");
        loop {
            let mut byte = [0];
            let count = stdout.read(&mut byte).expect("readable");
            assert_ne!(count, 0, "it ended: {}", String::from_utf8_lossy(&seen));
            seen.push(byte[0]);
            if seen.ends_with(text.as_bytes()) {
                return String::from_utf8_lossy(&seen).into_owned();
            }
        }
    }

    /// Reads what it shows until it ends.
    pub(crate) fn rest(&mut self) -> String {
        let mut seen = Vec::new();
        // A terminal whose last process ended answers with an error.
        let _ = self.0.0.stdout.as_mut().expect("caught").read_to_end(&mut seen);
        String::from_utf8_lossy(&seen).into_owned()
    }

    fn write(&mut self, bytes: &[u8]) {
        let stdin = self.0.0.stdin.as_mut().expect("open");
        stdin.write_all(bytes).expect("it reads");
        stdin.flush().expect("it reads");
    }
}

fn command(rest: &str) -> String {
    format!("{} {rest}", env!("CARGO_BIN_EXE_zoolock"))
}

#[test]
fn command_reads_terminal_and_gets_interrupt() {
    let sandbox = Sandbox::new();
    let line = command(
        "run x -- sh -c 'trap \"echo interrupted; exit 5\" INT; echo ready; read a; echo got $a; echo go; while :; do sleep 0.05; done'",
    );
    let Some(mut typed) = Typed::start(&sandbox, &line) else { return };
    typed.read_until("ready");
    typed.write(b"hello\n");
    typed.read_until("got hello");
    typed.read_until("go\r\n");
    typed.write(b"\x03");
    typed.read_until("interrupted");
    assert_eq!(typed.0.code(), 5);
}

#[test]
fn piped_command_can_read_the_terminal() {
    let sandbox = Sandbox::new();
    let line = command("run x -- sh -c 'echo ready; read a; echo got $a' | cat");
    let Some(mut typed) = Typed::start(&sandbox, &line) else { return };
    typed.read_until("ready");
    typed.write(b"hello\n");
    typed.read_until("got hello");
    assert_eq!(typed.0.code(), 0);
}

#[test]
fn wait_line_disappears_when_granted() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.converse(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let Some(mut typed) = Typed::start(&sandbox, &command("run x -- echo mine")) else { return };
    let seen = typed.read_until("held by");
    assert!(seen.contains("1 of 1 in line"), "{seen}");
    holder.end_of_input();
    let seen = typed.read_until("mine");
    assert!(seen.contains("\r\x1b[2K"), "{seen:?}");
    assert_eq!(typed.0.code(), 0);
}
