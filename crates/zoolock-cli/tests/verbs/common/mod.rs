//! What the tests of the command share: a state directory of their own, and its server stopped at the end.

pub(crate) mod band;
pub(crate) mod watching;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Much more than anything here takes, on a busy machine too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A place with a state directory; the server that was started for it is stopped at the end.
pub(crate) struct Sandbox {
    dir: TempDir,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// The command, in a clean environment.
    pub(crate) fn zoolock<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoolock"));
        let settings =
            ["CONNECT", "SESSION_TIMEOUT", "CONNECT_TIMEOUT", "ROOT", "LOCAL_IDLE", "NAMING", "OWNER"];
        for name in settings.into_iter().chain(["AUTH", "CACERT", "CERT", "KEY"]) {
            command.env_remove(format!("ZOOLOCK_{name}"));
        }
        command.args(args).env("ZOOLOCK_STATE_DIR", self.state()).current_dir(self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn output(&self, args: &[&str]) -> Done {
        Done::from(self.zoolock(args).output().expect("the command starts"))
    }

    /// Starts it; what it says goes to where nobody reads it.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.zoolock(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().expect("the command starts"))
    }

    /// Starts it with its input open and its output caught.
    pub(crate) fn converse(&self, args: &[&str]) -> Running {
        let mut command = self.zoolock(args);
        command.stdin(Stdio::piped());
        Running(command.spawn().expect("the command starts"))
    }

    /// How many contenders a lock has.
    pub(crate) fn contenders(&self, name: &str) -> usize {
        self.contenders_with(&[], name)
    }

    /// The same with further flags.
    pub(crate) fn contenders_with(&self, flags: &[&str], name: &str) -> usize {
        let shown = self.output(&[flags, &["show", name, "--json"]].concat());
        assert_eq!(shown.code, 0, "{shown:?}");
        let lock: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
        usize::from(!lock["holder"].is_null()) + lock["waiters"].as_array().expect("a list").len()
    }

    pub(crate) fn wait_for_contenders(&self, name: &str, count: usize) {
        wait_until(&format!("{name} has {count} contenders"), || self.contenders(name) == count);
    }

    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        let path = self.path(name);
        let read = || std::fs::read_to_string(&path).unwrap_or_default();
        wait_until(&format!("{} has a line", path.display()), || read().ends_with('\n'));
        read().trim_end().to_owned()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.zoolock(["serve", "--stop"]).status();
    }
}

/// A process that is killed when the test ends early.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).expect("a process id")).expect("not zero");
        kill_process(pid, signal).expect("it is our child");
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.0.stdin.as_mut().expect("input is open").write_all(text.as_bytes()).expect("it reads");
    }

    pub(crate) fn end_of_input(&mut self) {
        self.0.stdin = None;
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("it is our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "it did not end in time");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn code(&mut self) -> i32 {
        self.wait().code().expect("it ends by itself")
    }

    /// Waits for the end, and takes what was caught.
    pub(crate) fn done(mut self) -> Done {
        let status = self.wait();
        let mut done =
            Done { code: status.code().unwrap_or(-1), stdout: String::new(), stderr: String::new() };
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut done.stdout).expect("text");
        }
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut done.stderr).expect("text");
        }
        done
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process prints, line by line. None is waited for longer than anything takes.
pub(crate) struct Lines(mpsc::Receiver<String>);

impl Lines {
    pub(crate) fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                // Read on where nobody wants it: the process is not to stand still.
                let _ = sender.send(std::mem::take(&mut line));
            }
        });
        Self(lines)
    }

    pub(crate) fn next(&self) -> String {
        let line = self.0.recv_timeout(PATIENCE).expect("a line in time");
        assert!(line.ends_with('\n'), "it ended: {line:?}");
        line
    }

    /// What is there until it ends.
    pub(crate) fn rest(&self) -> String {
        let mut rest = String::new();
        loop {
            match self.0.recv_timeout(PATIENCE) {
                Ok(line) => rest.push_str(&line),
                Err(mpsc::RecvTimeoutError::Disconnected) => return rest,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it did not end in time: {rest:?}"),
            }
        }
    }
}

/// How a command ended and what it said.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A server in the foreground, which can be stopped and continued.
pub(crate) fn server(sandbox: &Sandbox) -> (Running, String) {
    server_with(sandbox, &[])
}

pub(crate) fn server_with(sandbox: &Sandbox, flags: &[&str]) -> (Running, String) {
    serving(sandbox.zoolock([&["serve", "--listen", "127.0.0.1:0"], flags].concat()))
}

/// Starts a server, and returns its address.
pub(crate) fn serving(mut command: Command) -> (Running, String) {
    let mut server = Running(command.stdout(Stdio::null()).spawn().expect("the command starts"));
    let mut line = String::new();
    let mut stderr = BufReader::new(server.0.stderr.take().expect("caught"));
    stderr.read_line(&mut line).expect("it says where it listens");
    std::thread::spawn(move || {
        let _ = stderr.read_to_end(&mut Vec::new());
    });
    let address = line.trim().rsplit(' ').next().expect("the address is last").to_owned();
    (server, address)
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it was never so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process lives; one that has ended and was not yet taken does not.
pub(crate) fn lives(pid: &str) -> bool {
    match std::fs::read(Path::new("/proc").join(pid).join("stat")) {
        Ok(stat) => {
            !String::from_utf8_lossy(&stat).rsplit(") ").next().unwrap_or_default().starts_with(['Z', 'X'])
        }
        Err(_) => false,
    }
}
