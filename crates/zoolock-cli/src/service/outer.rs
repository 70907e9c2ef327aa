//! The server of the `run` that has started this command. Two servers have no common locks, so a zoolock in the command of
//! `run` must not use another server by mistake.

use zoolock::internals::ConnectString;

use crate::base::exit::Failure;
use crate::local::StateDir;
use crate::plan::{ConnectionSettings, Endpoint};
use crate::reaper::child::HELD_VARIABLE;

/// Returns the value of [`HELD_VARIABLE`] for the command of `run`.
pub(crate) fn held_variable(ids: &[String], service: &ConnectionSettings) -> Result<String, Failure> {
    Ok(format!("{} @ {}", ids.join(" "), connect_string(service)?))
}

/// Returns the ids of the acquisitions of the outer commands, and the server of the innermost one, from the environment.
pub(crate) fn outer_commands() -> (Vec<String>, Option<String>) {
    let held = std::env::var(HELD_VARIABLE).unwrap_or_default();
    let (ids, server) = held.split_once(" @ ").map_or((&*held, None), |(ids, server)| (ids, Some(server)));
    (ids.split_whitespace().map(str::to_owned).collect(), server.map(str::to_owned))
}

/// Refuses a server that is not the server of the outer command, unless the command line names it.
pub(super) fn check_server(service: &ConnectionSettings) -> Result<(), Failure> {
    let (_, Some(outer)) = outer_commands() else { return Ok(()) };
    let ours = connect_string(service)?;
    // The connect strings of one ensemble may name different servers of it.
    let servers = |text: &str| ConnectString::parse(text).map_or(Vec::new(), |connect| connect.servers());
    if service.is_named || servers(&ours).iter().any(|server| servers(&outer).contains(server)) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "this command runs under a lock at {outer}, and would use {ours}, which knows nothing of that lock; if this is \
         intended, name the server with --connect, or unset {HELD_VARIABLE}"
    )))
}

fn connect_string(service: &ConnectionSettings) -> Result<String, Failure> {
    match &service.endpoint {
        Endpoint::Local => Ok(format!("unix:{}", StateDir::open()?.socket().display())),
        Endpoint::Remote { hosts, .. } => Ok(hosts.clone()),
    }
}
