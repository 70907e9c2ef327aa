//! Completion with the tab key in each shell. `script` of util-linux creates a terminal for the shell.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use crate::common::{PATIENCE, Running, Sandbox};
use zoolock_tests::skip::Availability;

/// An interactive shell, which gets its keys from the test.
struct InteractiveShell {
    shell: Running,
    output: Receiver<Vec<u8>>,
    screen: String,
}

impl InteractiveShell {
    /// Starts a shell with zoolock in its path.
    fn start(sandbox: &Sandbox, shell: &str) -> Self {
        let programs =
            Path::new(env!("CARGO_BIN_EXE_zoolock")).parent().expect("the binary is in a directory");
        let mut script = Command::new("script");
        script.args(["-qec", &format!("stty rows 24 cols 120; exec {shell}"), "/dev/null"]);
        script.env_clear().env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
        script.env("HOME", sandbox.path("")).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
        script.env("SHELL", "/bin/sh").current_dir(sandbox.path(""));
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = Running(script.spawn().expect("script starts; every Debian has it"));
        let mut stdout = shell.take_stdout();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                let _ = sender.send(buffer[..count].to_vec());
            }
        });
        Self { shell, output, screen: String::new() }
    }

    /// Types `keys`, and returns what the terminal shows until it has shown each text in `expected`.
    fn type_until(&mut self, keys: &str, expected: &[&str]) -> String {
        self.screen.clear();
        self.shell.write(keys);
        self.shell.0.stdin.as_mut().expect("input is open").flush().expect("script reads");
        let deadline = Instant::now() + PATIENCE;
        while !expected.iter().all(|text| self.screen.contains(text)) {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.screen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{keys:?} does not show {expected:?}, but\n{}", self.screen)
                }
            }
        }
        self.screen.clone()
    }
}

/// Tests completion in a shell. `start` starts the shell. `load` loads the completion script `file` from the directory DIR.
fn test_completion(shell: &str, file: &str, start: &str, load: &str) {
    let is_installed =
        Command::new(shell).arg("-c").arg("exit 0").status().is_ok_and(|status| status.success());
    let availability = if is_installed {
        Availability::Available
    } else {
        Availability::Missing(format!("no {shell} here"))
    };
    if !availability.or_skip(&format!("completion in {shell}")) {
        return;
    }
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["completions", shell]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let directory = sandbox.path("completions");
    std::fs::create_dir(&directory).expect("directory created");
    std::fs::write(directory.join(file), done.stdout).expect("file written");

    let mut terminal = InteractiveShell::start(&sandbox, start);
    let load = load.replace("DIR", directory.to_str().expect("UTF-8"));
    // The terminal also echoes the keys. Only the output of the shell contains the word without the
    // quotes.
    terminal.type_until(&format!("{load}; echo lo''aded\n"), &["loaded"]);
    let offered = terminal.type_until("zoolock r\t\t", &["resize", "revoke", "run"]);
    assert!(!offered.contains("reap"), "a hidden command is offered: {offered}");
    terminal.type_until("\x15zoolock run --on-b\t", &["--on-busy-exit"]);
    terminal.type_until("\x15zoolock run --color \t\t", &["always", "never"]);
}

#[test]
fn bash_completes() {
    test_completion("bash", "zoolock", "bash --noprofile --norc -i", ". DIR/zoolock");
}

#[test]
fn zsh_completes() {
    test_completion(
        "zsh",
        "_zoolock",
        "zsh -f -i",
        "fpath=(DIR $fpath); autoload -U compinit; compinit -u -D",
    );
}

#[test]
fn fish_completes() {
    test_completion(
        "fish",
        "zoolock.fish",
        "fish --no-config -i",
        "set fish_complete_path DIR $fish_complete_path",
    );
}
