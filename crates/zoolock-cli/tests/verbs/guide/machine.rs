//! The machine on which the commands of a page run. It replaces the reader's ensemble, ports and directories.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use zoolock_tests::ports::Port;

use crate::common::{Running, Sandbox, set_mode, start_server, start_server_from};
use crate::guide::book::Page;

/// Connect string of the ensemble in the guide.
const ENSEMBLE: &str = "zk1:2181,zk2:2181,zk3:2181";
/// The addresses of the servers in the guide.
const ADDRESSES: [&str; 3] = ["127.0.0.1:2181", "10.0.0.1:2181", "127.0.0.1:7070"];
/// Directory of `zoolock` and of the other programs that the guide names.
const PROGRAMS: &str = "/usr/local/bin";
/// Directories in the guide, each with its replacement in the sandbox.
const DIRECTORIES: [(&str, &str); 3] =
    [(PROGRAMS, "programs"), ("/var/lib/zoolock", "data"), ("/home/me/.local/state/zoolock", "state")];

/// An environment in which the commands of one page run.
#[derive(Default)]
pub(crate) struct Machine {
    /// The server that replaces [`ENSEMBLE`]. Declared first, so that it is dropped before the
    /// sandbox.
    _ensemble: Option<Running>,
    pub(crate) sandbox: Sandbox,
    /// Pairs of a text in the guide and its replacement on this machine.
    replacements: Vec<(String, String)>,
    /// The ports in `replacements`, reserved until the machine is dropped.
    _ports: Vec<Port>,
    /// Root directory of a separate system. Nothing is replaced there.
    root: Option<PathBuf>,
    /// Environment variables that the page needs.
    pub(crate) environment: Vec<(String, String)>,
}

impl Machine {
    /// Creates a machine with a server and ports for the addresses that the page mentions.
    pub(crate) fn for_page(page: &Page) -> Self {
        let mut machine = Self::default();
        let local_path = |name: &str| machine.sandbox.path(name).display().to_string();
        machine.replacements = DIRECTORIES.map(|(guide, local)| (guide.to_owned(), local_path(local))).into();
        let programs = machine.sandbox.path("programs");
        std::fs::create_dir(&programs).expect("directory created");
        symlink(env!("CARGO_BIN_EXE_zoolock"), programs.join("zoolock")).expect("link created");
        let mentions = |text: &str| page.lines().any(|line| line.contains(text));
        for address in ADDRESSES.into_iter().filter(|address| mentions(address)) {
            let port = Port::reserve().expect("a free port");
            machine.replacements.push((address.to_owned(), format!("127.0.0.1:{}", port.number())));
            machine._ports.push(port);
        }
        if mentions(ENSEMBLE) {
            let (running, address) = start_server(&machine.sandbox);
            machine.replacements.push((ENSEMBLE.to_owned(), address));
            machine._ensemble = Some(running);
        }
        // The first chapter shows the note of the command that starts this user's server. Readers of the other pages have
        // a server.
        if !page.path.ends_with("five-minutes.md") {
            machine.sandbox.output(&["ls"]);
        }
        machine
    }

    /// Uses the system below `root`, and starts the ensemble of the guide in that system. The
    /// system has the package and a user `me`. It resolves the host names of the ensemble to
    /// itself.
    pub(crate) fn clean_root(root: PathBuf) -> Self {
        let mut machine = Self { root: Some(root), ..Self::default() };
        let mut server = machine.command("zoolock");
        server.args(["serve", "--listen", "127.0.0.1:2181"]);
        machine._ensemble = Some(start_server_from(server).0);
        machine
    }

    /// Replaces the guide's addresses and directories by those of this machine.
    pub(crate) fn to_local(&self, text: &str) -> String {
        self.replacements.iter().fold(text.to_owned(), |text, (guide, local)| text.replace(guide, local))
    }

    /// Replaces this machine's addresses and directories by those of the guide.
    pub(crate) fn to_guide(&self, text: &str) -> String {
        self.replacements.iter().fold(text.to_owned(), |text, (guide, local)| text.replace(local, guide))
    }

    /// Returns a command that does not inherit the environment of the test.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = match &self.root {
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg("--userspec=me:me").arg(root).args(["/usr/bin/env", "-i", "-C", "/home/me"]);
                command.args([
                    "HOME=/home/me",
                    "LC_ALL=C.UTF-8",
                    "PATH=/usr/local/bin:/usr/bin:/bin",
                    program,
                ]);
                command
            }
            None => {
                let mut command = Command::new(program);
                command.env_clear().env("PATH", self.to_local("/usr/local/bin:/usr/bin:/bin"));
                command.env("HOME", self.sandbox.path("")).env("LC_ALL", "C.UTF-8");
                command.envs(self.environment.iter().cloned());
                command.env("ZOOLOCK_STATE_DIR", self.sandbox.state()).current_dir(self.sandbox.path(""));
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Creates a script for each program in `/usr/local/bin` that `text` names, and returns the path of their log. Each script
    /// appends its name to the log.
    pub(crate) fn create_fake_programs(&self, text: &str) -> PathBuf {
        let log = self.sandbox.path("programs.log");
        let prefix = format!("{PROGRAMS}/");
        let words = text.split(|c: char| c.is_whitespace() || c == '=');
        for name in words.filter_map(|word| word.strip_prefix(&prefix)).filter(|name| *name != "zoolock") {
            let path = self.sandbox.path("programs").join(name);
            let script =
                format!("#!/bin/sh\necho \"{name} $ZOOLOCK_NAME $ZOOLOCK_TOKEN\" >> {}\n", log.display());
            std::fs::write(&path, script).expect("script written");
            set_mode(&path, 0o755);
        }
        log
    }
}
