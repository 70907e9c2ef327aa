//! A terminal of 80×24 characters for tests: a separate tmux server that ends with the test.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::binary::zoolock_variables;
use crate::skip::Availability;
use crate::wait::retry_until_ok;
use crate::{Result, TestFailure};

/// Time limit for a change of the screen. It is long enough for a busy machine.
const BOUND: Duration = Duration::from_secs(60);
const SESSION: &str = "screen";

/// Returns whether tmux is installed.
pub fn availability() -> Availability {
    match Command::new("tmux").arg("-V").output() {
        Ok(_) => Availability::Available,
        Err(error) => Availability::Missing(format!("no tmux ({error})")),
    }
}

/// A terminal that runs a shell.
pub struct Tmux {
    server: Child,
    home: TempDir,
}

impl Tmux {
    /// Starts tmux and a shell with these environment variables.
    ///
    /// # Errors
    /// Fails if tmux does not start.
    pub async fn start(environment: &[(&str, &str)]) -> Result<Self> {
        let home =
            TempDir::new().map_err(|error| TestFailure::during("making a directory for tmux", error))?;
        // `-D` keeps the tmux server in the foreground. So the server is a child process, and
        // `drop` can kill it.
        let server =
            tmux(&home, &["-D"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let server = server.map_err(|error| TestFailure::during("starting tmux", error))?;
        let this = Self { server, home };
        retry_until_ok("tmux answers", BOUND, async || this.run_tmux(&["set-option", "-g", "status", "off"]))
            .await?;
        let directory = this.directory().to_str().expect("path in UTF-8");
        let mut arguments = vec!["new-session", "-d", "-s", SESSION, "-x", "80", "-y", "24", "-c", directory];
        let pairs: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        for pair in &pairs {
            arguments.extend(["-e", pair]);
        }
        // The shell is interactive, so that it handles ^Z. It reads no start-up files.
        arguments.push("ENV= PS1='ready> ' exec sh -i");
        this.run_tmux(&arguments)?;
        this.until("the shell is ready", |screen| screen.contains("ready>")).await;
        Ok(this)
    }

    /// Returns the working directory of the shell.
    pub fn directory(&self) -> &Path {
        self.home.path()
    }

    /// Types text, letter by letter.
    pub fn type_text(&self, text: &str) {
        self.run_tmux(&["send-keys", "-t", SESSION, "-l", text]).expect("text sent");
    }

    /// Types keys by their names: Enter, Escape, Down, C-c.
    pub fn press(&self, keys: &[&str]) {
        self.run_tmux(&[&["send-keys", "-t", SESSION], keys].concat()).expect("keys sent");
    }

    /// Types a command line into the shell.
    pub fn run(&self, line: &str) {
        self.type_text(line);
        self.press(&["Enter"]);
    }

    /// Sets the size of the terminal.
    pub fn resize(&self, columns: u16, lines: u16) {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        self.run_tmux(&["resize-window", "-t", SESSION, "-x", &columns, "-y", &lines]).expect("size set");
    }

    /// Returns the text on the screen.
    fn screen(&self) -> String {
        self.run_tmux(&["capture-pane", "-t", SESSION, "-p"]).expect("screen captured")
    }

    /// Returns the value of a tmux format such as `#{cursor_flag}`.
    pub fn format_value(&self, format: &str) -> String {
        self.run_tmux(&["display-message", "-t", SESSION, "-p", format])
            .expect("format expanded")
            .trim_end()
            .to_owned()
    }

    /// Waits until the screen satisfies `condition`, and returns the screen.
    ///
    /// # Panics
    /// Panics if the screen does not satisfy it within a minute.
    pub async fn until(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let check = async || {
            let screen = self.screen();
            if condition(&screen) {
                Ok(screen)
            } else {
                Err(TestFailure::new(format!("the screen is:\n{screen}")))
            }
        };
        match retry_until_ok(what, BOUND, check).await {
            Ok(screen) => screen,
            Err(failure) => panic!("{failure}"),
        }
    }

    fn run_tmux(&self, arguments: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = tmux(&self.home, arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| TestFailure::during("executing tmux", error))?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        Err(TestFailure::during(arguments.join(" "), String::from_utf8_lossy(&stderr).trim()))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.run_tmux(&["kill-server"]);
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn tmux(home: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new("tmux");
    command.args(["-u", "-L", "zoolock-test", "-f", "/dev/null"]).args(arguments);
    for name in zoolock_variables() {
        command.env_remove(name);
    }
    command.env_remove("TMUX").env("TMUX_TMPDIR", home.path()).env("LC_ALL", "C.UTF-8");
    command
}
