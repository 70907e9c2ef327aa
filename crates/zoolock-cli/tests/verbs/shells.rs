//! Completion, with the tab key, in each shell on a terminal of its own (which `script` of util-linux makes).

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use crate::common::{PATIENCE, Running, Sandbox};
use zoolock_tests::skip::Availability;

/// A shell that somebody types into.
struct Typed {
    shell: Running,
    output: Receiver<Vec<u8>>,
    seen: String,
}

impl Typed {
    /// Starts it with our command in its path.
    fn start(sandbox: &Sandbox, shell: &str) -> Self {
        let programs = Path::new(env!("CARGO_BIN_EXE_zoolock")).parent().expect("a directory");
        let mut script = Command::new("script");
        script.args(["-qec", &format!("stty rows 24 cols 120; exec {shell}"), "/dev/null"]);
        script.env_clear().env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
        script.env("HOME", sandbox.path("")).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
        script.env("SHELL", "/bin/sh").current_dir(sandbox.path(""));
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = Running(script.spawn().expect("script is part of every Debian"));
        let mut stdout = shell.0.stdout.take().expect("it is caught");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                let _ = sender.send(buffer[..count].to_vec());
            }
        });
        Self { shell, output, seen: String::new() }
    }

    /// Types, and waits until all of `shown` is on the screen.
    fn type_until(&mut self, keys: &str, shown: &[&str]) -> String {
        self.seen.clear();
        self.shell.say(keys);
        self.shell.0.stdin.as_mut().expect("it is open").flush().expect("it reads");
        let deadline = Instant::now() + PATIENCE;
        while !shown.iter().all(|word| self.seen.contains(word)) {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{keys:?} does not show {shown:?}, but\n{}", self.seen)
                }
            }
        }
        self.seen.clone()
    }
}

/// `load` has the script's directory where it says DIR.
fn completes(shell: &str, file: &str, start: &str, load: &str) {
    let found = Command::new(shell).arg("-c").arg("exit 0").status().is_ok_and(|status| status.success());
    let here =
        if found { Availability::Available } else { Availability::Missing(format!("no {shell} here")) };
    if !here.or_skip(&format!("completion in {shell}")) {
        return;
    }
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["completions", shell]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let directory = sandbox.path("completions");
    std::fs::create_dir(&directory).expect("a new directory");
    std::fs::write(directory.join(file), done.stdout).expect("a new file");

    let mut typed = Typed::start(&sandbox, start);
    let load = load.replace("DIR", directory.to_str().expect("UTF-8"));
    // What is typed is shown, too; only the shell makes one word of it.
    typed.type_until(&format!("{load}; echo lo''aded\n"), &["loaded"]);
    let said = typed.type_until("zoolock r\t\t", &["resize", "revoke", "run"]);
    assert!(!said.contains("reap"), "what is hidden is not offered: {said}");
    typed.type_until("\x15zoolock run --on-b\t", &["--on-busy-exit"]);
    typed.type_until("\x15zoolock run --on-lost \t\t", &["kill", "warn"]);
}

#[test]
fn bash_completes() {
    completes("bash", "zoolock", "bash --noprofile --norc -i", ". DIR/zoolock");
}

#[test]
fn zsh_completes() {
    completes("zsh", "_zoolock", "zsh -f -i", "fpath=(DIR $fpath); autoload -U compinit; compinit -u -D");
}

#[test]
fn fish_completes() {
    completes(
        "fish",
        "zoolock.fish",
        "fish --no-config -i",
        "set fish_complete_path DIR $fish_complete_path",
    );
}
