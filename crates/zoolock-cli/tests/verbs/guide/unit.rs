//! systemd units, and ZooKeeper's configuration.

use std::os::unix::net::UnixDatagram;

use rustix::process::Signal;

use crate::common::{Done, PATIENCE, Running, wait_until};
use crate::guide::book::Block;
use crate::guide::world::World;

/// Keys of ZooKeeper's configuration that the guide may set.
const PROPERTIES: &str = "tickTime initLimit syncLimit minSessionTimeout maxSessionTimeout dataDir clientPort
    autopurge.snapRetainCount autopurge.purgeInterval 4lw.commands.whitelist";

/// Keys that the units of the guide may set.
const KEYS: &str = "Unit.Description Unit.Wants Unit.After Unit.StartLimitIntervalSec Service.Type
    Service.Environment Service.ExecStart Service.KillMode Service.Restart Service.RestartSec
    Service.RestartPreventExitStatus Service.SuccessExitStatus Service.DynamicUser Service.StateDirectory
    Service.LimitNOFILE Install.WantedBy Timer.OnCalendar Timer.Persistent";

/// Starts a service as systemd would, waits until it is ready, and stops it as systemd would.
pub(crate) fn run(block: &Block, world: &World) {
    let place = &block.place;
    let unit = parsed(block);
    let all = |key: &'static str| {
        unit.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    };
    let one = |key| all(key).next_back();
    let log = world.stand_ins(&block.text);
    let _ = std::fs::remove_file(&log);
    let line = world.here(one("Service.ExecStart").unwrap_or_else(|| panic!("{place}: starts nothing")));
    let mut words = line.split_whitespace();
    let mut command = world.command(words.next().expect("a program"));
    command.args(words);
    for variable in all("Service.Environment") {
        let (name, value) = variable.split_once('=').expect("NAME=VALUE");
        command.env(name, world.here(value));
    }
    let kind = one("Service.Type").unwrap_or("simple");
    if kind == "oneshot" {
        let done = Done::from(command.output().expect("it starts"));
        assert_eq!(done.code, 0, "{place}: {done:?}");
        return;
    }
    let socket = world.sandbox.path("notify");
    let notified = UnixDatagram::bind(&socket).expect("a new socket");
    command.env("NOTIFY_SOCKET", &socket);
    let running = Running(command.spawn().unwrap_or_else(|error| panic!("{place}: {error}")));
    match kind {
        "notify" => wait_until("the service reports that it is ready", || {
            let mut buffer = [0; 1024];
            notified.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let count = notified.recv(&mut buffer).expect("a message");
            String::from_utf8_lossy(&buffer[..count]).lines().any(|line| line == "READY=1")
        }),
        "simple" => wait_until("its program was started", || log.exists()),
        other => panic!("{place}: no test runs a service of type {other}"),
    }
    running.signal(Signal::TERM);
    let done = running.done();
    std::fs::remove_file(&socket).expect("our file");
    let fine = one("Service.SuccessExitStatus").unwrap_or("0");
    let is_fine = done.code == 0 || fine.split_whitespace().any(|code| code == done.code.to_string());
    assert!(is_fine, "{place}: a stop would count as a failure: {done:?}");
}

/// Returns each `Section.Key` and its value.
fn parsed(block: &Block) -> Vec<(String, String)> {
    let mut section = "";
    let mut pairs = Vec::new();
    for line in block.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{}: {line:?}", block.place));
        let key = format!("{section}.{key}");
        assert!(KEYS.split_whitespace().any(|known| known == key), "{}: unknown key {key}", block.place);
        pairs.push((key, value.to_owned()));
    }
    pairs
}

/// Checks each line of ZooKeeper's configuration.
pub(crate) fn check_properties(block: &Block) {
    for line in block.text.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{}: {line:?}", block.place));
        let known = PROPERTIES.split_whitespace().any(|known| known == key)
            || key.strip_prefix("server.").is_some_and(|id| id.parse::<u8>().is_ok());
        assert!(known && !value.is_empty(), "{}: ZooKeeper does not know {line:?}", block.place);
    }
}
