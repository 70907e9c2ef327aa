//! Replaces what the reader has: an ensemble, free ports, and directories to write to.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use zoolock_tests::ports::Port;

use crate::common::{Running, Sandbox, server, serving};
use crate::guide::book::Page;

/// The ensemble of the guide.
const ENSEMBLE: &str = "zk1:2181,zk2:2181,zk3:2181";
/// The addresses of the servers in the guide.
const ADDRESSES: [&str; 3] = ["127.0.0.1:2181", "10.0.0.1:2181", "127.0.0.1:7070"];
/// The directory of `zoolock` and of the other programs that the guide names.
const PROGRAMS: &str = "/usr/local/bin";
/// The guide's other directories, each with its replacement in the sandbox.
const DIRECTORIES: [(&str, &str); 3] =
    [(PROGRAMS, "programs"), ("/var/lib/zoolock", "data"), ("/home/me/.local/state/zoolock", "state")];

/// The environment of a page.
#[derive(Default)]
pub(crate) struct World {
    /// Dropped before the sandbox.
    _ensemble: Option<Running>,
    pub(crate) sandbox: Sandbox,
    /// Text of the guide, and its replacement.
    pairs: Vec<(String, String)>,
    _ports: Vec<Port>,
    /// The root of a system of its own, in which nothing is replaced.
    root: Option<PathBuf>,
    /// Environment variables that the page expects.
    pub(crate) environment: Vec<(String, String)>,
}

impl World {
    pub(crate) fn for_page(page: &Page) -> Self {
        let mut world = Self::default();
        let path = |name: &str| world.sandbox.path(name).display().to_string();
        world.pairs = DIRECTORIES.map(|(guide, here)| (guide.to_owned(), path(here))).into();
        let programs = world.sandbox.path("programs");
        std::fs::create_dir(&programs).expect("a new directory");
        symlink(env!("CARGO_BIN_EXE_zoolock"), programs.join("zoolock")).expect("a new link");
        let mentions = |what: &str| page.lines().any(|line| line.contains(what));
        for address in ADDRESSES.into_iter().filter(|address| mentions(address)) {
            let port = Port::reserve().expect("a free port");
            world.pairs.push((address.to_owned(), format!("127.0.0.1:{}", port.number())));
            world._ports.push(port);
        }
        if mentions(ENSEMBLE) {
            let (running, address) = server(&world.sandbox);
            world.pairs.push((ENSEMBLE.to_owned(), address));
            world._ensemble = Some(running);
        }
        world
    }

    /// A system below `root` that has the package, a user `me`, and the guide's ensemble as names of this machine.
    pub(crate) fn clean_root(root: PathBuf) -> Self {
        let mut world = Self { root: Some(root), ..Self::default() };
        let mut server = world.command("zoolock");
        server.args(["serve", "--listen", "127.0.0.1:2181"]);
        world._ensemble = Some(serving(server).0);
        world
    }

    /// Replaces the guide's text by what it is here.
    pub(crate) fn here(&self, text: &str) -> String {
        self.pairs.iter().fold(text.to_owned(), |text, (guide, here)| text.replace(guide, here))
    }

    /// Replaces what it is here by the guide's text.
    pub(crate) fn guide(&self, text: &str) -> String {
        self.pairs.iter().fold(text.to_owned(), |text, (guide, here)| text.replace(here, guide))
    }

    /// A program without the environment of the test.
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
                command.env_clear().env("PATH", self.here("/usr/local/bin:/usr/bin:/bin"));
                command.env("HOME", self.sandbox.path("")).env("LC_ALL", "C.UTF-8");
                command.envs(self.environment.iter().cloned());
                command.env("ZOOLOCK_STATE_DIR", self.sandbox.state()).current_dir(self.sandbox.path(""));
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Creates each program in `/usr/local/bin` that `text` names. It appends its name to the log that is returned.
    pub(crate) fn stand_ins(&self, text: &str) -> PathBuf {
        let log = self.sandbox.path("programs.log");
        let prefix = format!("{PROGRAMS}/");
        let words = text.split(|c: char| c.is_whitespace() || c == '=');
        for name in words.filter_map(|word| word.strip_prefix(&prefix)).filter(|name| *name != "zoolock") {
            let path = self.sandbox.path("programs").join(name);
            let script =
                format!("#!/bin/sh\necho \"{name} $ZOOLOCK_NAME $ZOOLOCK_TOKEN\" >> {}\n", log.display());
            std::fs::write(&path, script).expect("a new program");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("our file");
        }
        log
    }
}
