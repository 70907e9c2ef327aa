//! Helpers for the tests of the command `zoolock`: a sandbox with its own state directory,
//! processes and their output.

pub(crate) mod process_tree;
pub(crate) mod watching;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::net;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Time limit of every wait: far longer than any step takes, also on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A temporary directory with a state directory. Dropping it stops the local server of that state directory.
pub(crate) struct Sandbox {
    dir: TempDir,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self { dir: tempfile::tempdir().expect("temporary directory") }
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

    /// Returns a command that runs `program` in the sandbox, without the zoolock settings of the environment.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ZOOLOCK_") {
                command.env_remove(name);
            }
        }
        // Asks for local mode, because otherwise the first command prints a note about it.
        command.env("ZOOLOCK_CONNECT", "local");
        command.env("ZOOLOCK_STATE_DIR", self.state()).current_dir(self.dir.path());
        command
    }

    /// Returns a zoolock command with empty standard input. Its output is piped. An argument such as `ZOOLOCK_ROOT=/x` sets
    /// a variable.
    pub(crate) fn zoolock<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_zoolock"));
        for arg in args {
            let arg = arg.as_ref();
            let text = arg.to_str().filter(|text| text.starts_with("ZOOLOCK_"));
            match text.and_then(|text| text.split_once('=')) {
                Some((name, value)) => command.env(name, value),
                None => command.arg(arg),
            };
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn output(&self, args: &[&str]) -> CommandOutput {
        output(&mut self.zoolock(args))
    }

    /// Runs zoolock with `--json`, and returns the document that it prints. Panics unless the exit code is 0.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.json_with_code(args, 0)
    }

    /// Returns the JSON document that a command with this exit code prints.
    pub(crate) fn json_with_code(&self, args: &[&str], code: i32) -> Value {
        let done = self.output(&[args, &["--json"]].concat());
        assert_eq!(done.code, code, "{done:?}");
        let document: Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert_eq!(document["schema"], "zoolock/1", "{done:?}");
        document
    }

    /// Runs a shell script as root in a mount namespace of its own, with zoolock as `$0`. Returns
    /// `None` if this user has no permission to mount there.
    pub(crate) fn in_mount_namespace(&self, script: &str) -> Option<CommandOutput> {
        let run = |script: &str| {
            let mut command = self.command("unshare");
            command.args(["--map-root-user", "--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_zoolock")]);
            command.stdin(Stdio::null()).output()
        };
        if !run("mount -t tmpfs tmpfs /mnt").is_ok_and(|probe| probe.status.success()) {
            println!("skipped: cannot mount a file system");
            return None;
        }
        Some(CommandOutput::from(run(script).expect("the command starts")))
    }

    /// Starts zoolock, and discards its output.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.zoolock(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().expect("the command starts"))
    }

    /// Starts zoolock with its input and output piped.
    pub(crate) fn start_piped(&self, args: &[&str]) -> Running {
        let mut command = self.zoolock(args);
        command.stdin(Stdio::piped());
        Running(command.spawn().expect("the command starts"))
    }

    /// Returns the number of contenders of a lock.
    pub(crate) fn contenders(&self, name: &str) -> usize {
        self.contenders_with(&[], name)
    }

    /// Returns the number of contenders of a lock. Runs `show` with `flags` to read them.
    pub(crate) fn contenders_with(&self, flags: &[&str], name: &str) -> usize {
        let done = self.output(&[flags, &["show", name, "--json"]].concat());
        // A lock without a directory has no contenders, and `show` fails with 66.
        assert!([0, 66].contains(&done.code), "{done:?}");
        let lock: Value = serde_json::from_str(&done.stdout).expect("JSON");
        usize::from(!lock["holder"].is_null()) + lock["waiters"].as_array().expect("a list").len()
    }

    pub(crate) fn wait_for_contenders(&self, name: &str, count: usize) {
        wait_until(&format!("{name} has {count} contenders"), || self.contenders(name) == count);
    }

    /// Waits until a file ends with a whole line, and returns its text without that line end.
    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        let path = self.path(name);
        let read = || std::fs::read_to_string(&path).unwrap_or_default();
        wait_until(&format!("{} has a line", path.display()), || read().ends_with('\n'));
        read().trim_end().to_owned()
    }

    /// Writes a file of mode 0600, and returns its path.
    pub(crate) fn write_private(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("file written");
        set_mode(&path, 0o600);
        path.display().to_string()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.zoolock(["serve", "--stop"]).status();
    }
}

/// A process. Dropping it kills the process.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        process_tree::signal(&self.0.id().to_string(), signal);
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.0.stdin.as_mut().expect("input is open").write_all(text.as_bytes()).expect("the process reads");
    }

    pub(crate) fn end_of_input(&mut self) {
        self.0.stdin = None;
    }

    /// Takes the piped standard output.
    pub(crate) fn take_stdout(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().expect("stdout is piped"))
    }

    /// Takes the piped standard error.
    pub(crate) fn take_stderr(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.0.stderr.take().expect("stderr is piped"))
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("status of our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the process did not end in time");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn code(&mut self) -> i32 {
        shell_code(self.wait())
    }

    /// Waits until the process ends, and returns its piped output.
    pub(crate) fn wait_for_output(mut self) -> CommandOutput {
        let status = self.wait();
        let mut done =
            CommandOutput { code: shell_code(status), stdout: String::new(), stderr: String::new() };
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut done.stdout).expect("UTF-8");
        }
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut done.stderr).expect("UTF-8");
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

/// The output of a process, line by line. Each wait for a line ends after [`PATIENCE`].
pub(crate) struct Lines(mpsc::Receiver<String>);

impl Lines {
    pub(crate) fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                // Read on if the receiver was dropped, so that the process does not block on a full pipe.
                let _ = sender.send(std::mem::take(&mut line));
            }
        });
        Self(lines)
    }

    pub(crate) fn next(&self) -> String {
        let line = self.0.recv_timeout(PATIENCE).expect("a line arrives in time");
        assert!(line.ends_with('\n'), "the output ended within a line: {line:?}");
        line
    }

    /// Returns the remaining lines, up to the end of the output.
    pub(crate) fn rest(&self) -> String {
        let mut rest = String::new();
        loop {
            match self.0.recv_timeout(PATIENCE) {
                Ok(line) => rest.push_str(&line),
                Err(mpsc::RecvTimeoutError::Disconnected) => return rest,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("the output did not end in time: {rest:?}"),
            }
        }
    }
}

/// Returns the exit code, or 128+N after the signal N, as shells do.
fn shell_code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).expect("the process has ended")
}

/// The exit code and output of a command that ended. The code is 128+N after the signal N.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            code: shell_code(output.status),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs a command to its end.
pub(crate) fn output(command: &mut Command) -> CommandOutput {
    CommandOutput::from(command.output().expect("the command starts"))
}

/// Starts a server in the foreground, and returns it with its address. The test can stop and
/// continue the server by signals.
pub(crate) fn start_server(sandbox: &Sandbox) -> (Running, String) {
    server_with(sandbox, &[])
}

/// Starts a server in the foreground with `flags`, and returns it with its address.
pub(crate) fn server_with(sandbox: &Sandbox, flags: &[&str]) -> (Running, String) {
    start_server_from(sandbox.zoolock([&["serve", "--listen", "127.0.0.1:0"], flags].concat()))
}

/// Starts a server from a command, and returns it with its address. The server prints the address
/// at the end of its first line.
pub(crate) fn start_server_from(mut command: Command) -> (Running, String) {
    let mut server = Running(command.stdout(Stdio::null()).spawn().expect("the command starts"));
    let mut line = String::new();
    let mut stderr = server.take_stderr();
    stderr.read_line(&mut line).expect("the server prints its address");
    // Read on, so that the server does not block on a full pipe.
    std::thread::spawn(move || {
        let _ = stderr.read_to_end(&mut Vec::new());
    });
    let address = line.trim().rsplit(' ').next().expect("the address is last").to_owned();
    (server, address)
}

/// Waits until `condition` is true. `what` describes the condition in the panic message.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Reads lines and appends them to `seen` until `seen` contains `text`.
pub(crate) fn read_until(stream: &mut impl BufRead, seen: &mut String, text: &str) {
    while !seen.contains(text) {
        assert!(stream.read_line(seen).expect("UTF-8") > 0, "the output ended without {text:?}: {seen}");
    }
}

/// Connects from this address of the loopback network. A read ends after [`PATIENCE`].
pub(crate) fn connect_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).expect("a socket");
    net::bind(&socket, &SocketAddr::from((source, 0))).expect("an address of this machine");
    net::connect(&socket, &address).expect("the server listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout set");
    stream
}

/// Sends a request, and returns everything that the server sends until it closes the connection.
pub(crate) fn exchange(address: impl ToSocketAddrs, request: &str) -> String {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout set");
    exchange_over(stream, request)
}

/// Sends a request over a connection, and returns everything that the server sends until it closes the connection.
pub(crate) fn exchange_over(mut stream: TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers and closes");
    answer
}

/// Sends an HTTP request, and returns the response with its head.
pub(crate) fn http_get(address: impl ToSocketAddrs, path: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

pub(crate) fn set_mode(path: impl AsRef<Path>, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("mode set");
}

/// Returns whether a process is alive. A zombie counts as dead.
pub(crate) fn is_alive(pid: &str) -> bool {
    match std::fs::read(Path::new("/proc").join(pid).join("stat")) {
        Ok(stat) => {
            !String::from_utf8_lossy(&stat).rsplit(") ").next().unwrap_or_default().starts_with(['Z', 'X'])
        }
        Err(_) => false,
    }
}
