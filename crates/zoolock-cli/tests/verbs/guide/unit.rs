//! Runs systemd units, and checks the keys of ZooKeeper's configuration.

use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use crate::common::{CommandOutput, PATIENCE, Running, wait_until};
use crate::guide::book::Block;
use crate::guide::machine::Machine;

/// Keys of ZooKeeper's configuration that the guide may set.
const PROPERTIES: &str = "tickTime initLimit syncLimit minSessionTimeout maxSessionTimeout dataDir clientPort
    autopurge.snapRetainCount autopurge.purgeInterval 4lw.commands.whitelist";

/// Keys that a unit in the guide may set.
const UNIT_KEYS: &str = "Unit.Description Unit.Wants Unit.After Unit.StartLimitIntervalSec Service.Type
    Service.Environment Service.ExecStart Service.KillMode Service.Restart Service.RestartSec
    Service.RestartPreventExitStatus Service.DynamicUser Service.StateDirectory
    Service.LimitNOFILE Install.WantedBy Timer.OnCalendar Timer.Persistent";

/// Starts a service as systemd would, waits until it is ready, and stops it as systemd would.
pub(crate) fn run(block: &Block, machine: &Machine) {
    let location = &block.location;
    let unit = parse_unit(block);
    let values =
        |key: &'static str| unit.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str());
    let value = |key| values(key).next_back();
    let log = machine.create_fake_programs(&block.text);
    let _ = std::fs::remove_file(&log);
    let line = machine.to_local(
        value("Service.ExecStart").unwrap_or_else(|| panic!("{location}: the unit has no ExecStart")),
    );
    let mut words = line.split_whitespace();
    let mut command = machine.command(words.next().expect("a program"));
    command.args(words);
    for variable in values("Service.Environment") {
        let (name, text) = variable.split_once('=').expect("NAME=VALUE");
        command.env(name, machine.to_local(text));
    }
    let kind = value("Service.Type").unwrap_or("simple");
    if kind == "oneshot" {
        let done = CommandOutput::from(command.output().expect("the service starts"));
        assert_eq!(done.code, 0, "{location}: {done:?}");
        return;
    }
    let socket = machine.sandbox.path("notify");
    let notifications = UnixDatagram::bind(&socket).expect("socket bound");
    command.env("NOTIFY_SOCKET", &socket);
    let mut running = Running(command.spawn().unwrap_or_else(|error| panic!("{location}: {error}")));
    match kind {
        "notify" => wait_until("the service reports that it is ready", || {
            let mut buffer = [0; 1024];
            notifications.set_read_timeout(Some(PATIENCE)).expect("timeout set");
            let count = notifications.recv(&mut buffer).expect("a message");
            String::from_utf8_lossy(&buffer[..count]).lines().any(|line| line == "READY=1")
        }),
        "simple" => wait_until("the program of the service has started", || log.exists()),
        other => panic!("{location}: no test runs a service of type {other}"),
    }
    running.signal(Signal::TERM);
    let status = running.wait();
    let done = running.wait_for_output();
    std::fs::remove_file(&socket).expect("socket removed");
    let is_success = status.success() || status.signal() == Some(Signal::TERM.as_raw());
    assert!(is_success, "{location}: systemd would count the stop as a failure: {done:?}");
}

/// Returns each `Section.Key` and its value.
fn parse_unit(block: &Block) -> Vec<(String, String)> {
    let mut section = "";
    let mut pairs = Vec::new();
    for line in block.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{}: {line:?}", block.location));
        let key = format!("{section}.{key}");
        assert!(
            UNIT_KEYS.split_whitespace().any(|known| known == key),
            "{}: unknown key {key}",
            block.location
        );
        pairs.push((key, value.to_owned()));
    }
    pairs
}

/// Checks that each line sets a known key of ZooKeeper's configuration.
pub(crate) fn check_properties(block: &Block) {
    for line in block.text.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{}: {line:?}", block.location));
        let is_known = PROPERTIES.split_whitespace().any(|known| known == key)
            || key.strip_prefix("server.").is_some_and(|id| id.parse::<u8>().is_ok());
        assert!(is_known && !value.is_empty(), "{}: ZooKeeper does not know {line:?}", block.location);
    }
}
