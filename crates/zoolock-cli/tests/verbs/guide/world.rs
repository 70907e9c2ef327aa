//! What stands in for the reader's world: an ensemble, free ports, and directories that may be written to.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use zoolock_tests::ports::Port;

use crate::common::{Running, Sandbox, server};
use crate::guide::book::Page;

/// The ensemble of the guide.
const ENSEMBLE: &str = "zk1:2181,zk2:2181,zk3:2181";
/// Where the guide has servers listen.
const ADDRESSES: [&str; 3] = ["127.0.0.1:2181", "10.0.0.1:2181", "127.0.0.1:7070"];
/// Where programs are; `zoolock` is there, and whatever else the guide names there.
const PROGRAMS: &str = "/usr/local/bin";
/// What the guide has on disk.
const DATA: &str = "/var/lib/zoolock";
const STATE: &str = "/home/me/.local/state/zoolock";

/// A page's world.
pub(crate) struct World {
    /// Ended before the sandbox goes.
    _ensemble: Option<Running>,
    pub(crate) sandbox: Sandbox,
    /// As the guide has it, and as it is here.
    pairs: Vec<(String, String)>,
    _ports: Vec<Port>,
    /// A system of its own, where nothing stands in for anything.
    root: Option<PathBuf>,
    /// What a page takes for granted.
    pub(crate) environment: Vec<(String, String)>,
}

impl World {
    pub(crate) fn for_page(page: &Page) -> Self {
        let sandbox = Sandbox::new();
        let programs = sandbox.path("programs");
        std::fs::create_dir(&programs).expect("a new directory");
        symlink(env!("CARGO_BIN_EXE_zoolock"), programs.join("zoolock")).expect("a new link");
        let mut pairs = vec![
            (PROGRAMS.to_owned(), programs.display().to_string()),
            (DATA.to_owned(), sandbox.path("data").display().to_string()),
            (STATE.to_owned(), sandbox.state().display().to_string()),
        ];
        let mentions = |what: &str| page.lines().any(|line| line.contains(what));
        let mut ports = Vec::new();
        for address in ADDRESSES.into_iter().filter(|address| mentions(address)) {
            let port = Port::reserve().expect("a free port");
            pairs.push((address.to_owned(), format!("127.0.0.1:{}", port.number())));
            ports.push(port);
        }
        let ensemble = mentions(ENSEMBLE).then(|| {
            let (running, address) = server(&sandbox);
            pairs.push((ENSEMBLE.to_owned(), address));
            running
        });
        Self { _ensemble: ensemble, sandbox, pairs, _ports: ports, root: None, environment: Vec::new() }
    }

    /// A system in a directory, with our package, a user `me`, and the guide's ensemble for names of this machine.
    pub(crate) fn clean_root(root: PathBuf) -> Self {
        let mut world = Self {
            _ensemble: None,
            sandbox: Sandbox::new(),
            pairs: Vec::new(),
            _ports: Vec::new(),
            root: Some(root),
            environment: Vec::new(),
        };
        let mut server = world.command("zoolock");
        server.args(["serve", "--listen", "127.0.0.1:2181"]).stdout(Stdio::null());
        let mut server = Running(server.spawn().expect("it starts"));
        let mut line = String::new();
        let mut stderr = BufReader::new(server.0.stderr.take().expect("it is caught"));
        stderr.read_line(&mut line).expect("it says where it listens");
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        assert!(line.contains("serving on"), "{line}");
        world._ensemble = Some(server);
        world
    }

    /// What to do here.
    pub(crate) fn here(&self, text: &str) -> String {
        self.pairs.iter().fold(text.to_owned(), |text, (guide, here)| text.replace(guide, here))
    }

    /// What the guide says of it.
    pub(crate) fn guide(&self, text: &str) -> String {
        self.pairs.iter().fold(text.to_owned(), |text, (guide, here)| text.replace(here, guide))
    }

    /// A program in an environment that has nothing of ours but what is given.
    pub(crate) fn command(&self, program: &str) -> Command {
        if let Some(root) = &self.root {
            let mut command = Command::new("chroot");
            command.arg("--userspec=me:me").arg(root).args(["/usr/bin/env", "-i", "-C", "/home/me"]);
            command.args(["HOME=/home/me", "LC_ALL=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin", program]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            return command;
        }
        let mut command = Command::new(program);
        command.env_clear().env("PATH", self.here(&format!("{PROGRAMS}:/usr/bin:/bin")));
        command.env("HOME", self.sandbox.path("")).env("LC_ALL", "C.UTF-8");
        command.envs(self.environment.iter().cloned());
        command.env("ZOOLOCK_STATE_DIR", self.sandbox.state()).current_dir(self.sandbox.path(""));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Makes programs of all that `text` names where programs are; each writes its name to the log when it is run.
    pub(crate) fn stand_ins(&self, text: &str) -> PathBuf {
        let log = self.sandbox.path("programs.log");
        let prefix = format!("{PROGRAMS}/");
        let words = text.split(|c: char| c.is_whitespace() || c == '=');
        for name in words.filter_map(|word| word.strip_prefix(&prefix)).filter(|name| *name != "zoolock") {
            let path = self.sandbox.path("programs").join(name);
            let script =
                format!("#!/bin/sh\necho \"{name} $ZOOLOCK_NAME $ZOOLOCK_TOKEN\" >> {}\n", log.display());
            std::fs::write(&path, script).expect("a new program");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("it is ours");
        }
        log
    }
}
