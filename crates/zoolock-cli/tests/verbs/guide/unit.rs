//! systemd units, and ZooKeeper's configuration.

use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use rustix::process::Signal;

use crate::common::{Done, PATIENCE, Running, wait_until};
use crate::guide::book::Block;
use crate::guide::world::World;

/// What ZooKeeper reads, of what one might set.
const PROPERTIES: [&str; 10] = [
    "tickTime",
    "initLimit",
    "syncLimit",
    "minSessionTimeout",
    "maxSessionTimeout",
    "dataDir",
    "clientPort",
    "autopurge.snapRetainCount",
    "autopurge.purgeInterval",
    "4lw.commands.whitelist",
];

/// What the units of the guide set; a name that is written wrong is not among them.
const KEYS: [&str; 18] = [
    "Unit.Description",
    "Unit.Wants",
    "Unit.After",
    "Unit.StartLimitIntervalSec",
    "Service.Type",
    "Service.Environment",
    "Service.ExecStart",
    "Service.KillMode",
    "Service.Restart",
    "Service.RestartSec",
    "Service.RestartPreventExitStatus",
    "Service.SuccessExitStatus",
    "Service.DynamicUser",
    "Service.StateDirectory",
    "Service.LimitNOFILE",
    "Install.WantedBy",
    "Timer.OnCalendar",
    "Timer.Persistent",
];

/// Starts the service as systemd would, finds it ready, and stops it as systemd would.
pub(crate) fn run(block: &Block, world: &World) {
    let unit = Unit::parse(block);
    let log = world.stand_ins(&block.text);
    let _ = std::fs::remove_file(&log);
    let line = unit.one("Service.ExecStart").unwrap_or_else(|| panic!("{}: starts nothing", block.place));
    let line = world.here(line);
    let mut words = line.split_whitespace();
    let mut command = world.command(words.next().expect("a program"));
    command.args(words);
    for variable in unit.all("Service.Environment") {
        let (name, value) = variable.split_once('=').expect("NAME=VALUE");
        command.env(name, world.here(value));
    }
    let kind = unit.one("Service.Type").unwrap_or("simple");
    if kind == "oneshot" {
        let done = Done::from(command.output().expect("it starts"));
        assert_eq!(done.code, 0, "{}: {done:?}", block.place);
        return;
    }
    let socket = world.sandbox.path("notify");
    let notified = UnixDatagram::bind(&socket).expect("a new socket");
    command.env("NOTIFY_SOCKET", &socket);
    let running = Running(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", block.place)));
    match kind {
        "notify" => until_ready(&notified, &block.place),
        "simple" => wait_until("its program was started", || log.exists()),
        other => panic!("{}: services of type {other} are not known here", block.place),
    }
    running.signal(Signal::TERM);
    let done = running.done();
    std::fs::remove_file(&socket).expect("it is ours");
    let fine = unit.one("Service.SuccessExitStatus").unwrap_or("0");
    let is_fine = done.code == 0 || fine.split_whitespace().any(|code| code == done.code.to_string());
    assert!(is_fine, "{}: a stop would count as a failure: {done:?}", block.place);
}

fn until_ready(notified: &UnixDatagram, place: &str) {
    let deadline = Instant::now() + PATIENCE;
    let mut buffer = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "{place}: it does not say that it is ready");
        notified.set_read_timeout(Some(left)).expect("a time to wait");
        let Ok(count) = notified.recv(&mut buffer) else { continue };
        if String::from_utf8_lossy(&buffer[..count]).lines().any(|line| line == "READY=1") {
            return;
        }
    }
}

struct Unit {
    /// `Section.Key` and what it is set to.
    lines: Vec<(String, String)>,
}

impl Unit {
    fn parse(block: &Block) -> Self {
        let mut section = "";
        let mut lines = Vec::new();
        for line in block.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name;
                continue;
            }
            let pair = line.split_once('=').unwrap_or_else(|| panic!("{}: {line:?}", block.place));
            let key = format!("{section}.{}", pair.0);
            assert!(KEYS.contains(&key.as_str()), "{}: {key} is not known here", block.place);
            lines.push((key, pair.1.to_owned()));
        }
        Self { lines }
    }

    fn one(&self, key: &str) -> Option<&str> {
        self.all(key).last()
    }

    fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.lines.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

/// Looks at each line.
pub(crate) fn check_properties(block: &Block) {
    for line in block.text.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{}: {line:?}", block.place));
        let known = PROPERTIES.contains(&key)
            || key.strip_prefix("server.").is_some_and(|id| id.parse::<u8>().is_ok());
        assert!(known && !value.is_empty(), "{}: ZooKeeper does not know {line:?}", block.place);
    }
}
