//! `zoolock deadlocks`: lists deadlocks, and the command that breaks each one.

use std::fmt::Write as _;

use serde::Serialize;
use zoolock::{Deadlock, QueueEntry};

use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::plan::ConnectionSettings;
use crate::render::status::describe_contender;
use crate::render::text::{TextStyle, describe_role, format_json, lock_name, print, wrap_text};
use crate::service::connect::connect_and_request;
use crate::verbs::missing_lock::MissingLock;
use crate::verbs::operate::{AdminAction, STOP_FIRST, command_line};
use crate::verbs::why::format_since;

#[derive(Serialize)]
struct Deadlocks<'a> {
    deadlocks: &'a [Deadlock],
}

/// Prints the deadlocks among the locks at and below `prefix`.
pub(crate) async fn deadlocks(
    service: &ConnectionSettings,
    prefix: Option<&str>,
    json: bool,
    color: ColorWhen,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let (deadlocks, missing) = connect_and_request(service, reporter, async |zoolock| {
        let deadlocks = zoolock.deadlocks(prefix).await?;
        let missing = match deadlocks.is_empty() {
            true => MissingLock::find_root(zoolock, prefix, service).await?,
            false => None,
        };
        Ok((deadlocks, missing))
    })
    .await?;
    let found = if deadlocks.is_empty() { Exit::OK } else { Exit::DEADLOCK };
    if json {
        print(&format_json(&Deadlocks { deadlocks: &deadlocks }))?;
    }
    if let Some(missing) = missing {
        return Err(missing.failure("", service));
    }
    if json {
        return Ok(found);
    }
    if deadlocks.is_empty() {
        let ConnectionSettings { endpoint, root, .. } = service;
        let part = prefix.map_or_else(String::new, |prefix| format!(" at or below {prefix}"));
        let (address, hint) = (endpoint.address(), endpoint.ensemble_hint());
        reporter.note(format_args!(
            "no deadlocks among the contenders that can be read{part} at {address} below {root}{hint}"
        ));
        return Ok(Exit::OK);
    }
    let style = TextStyle::of_stdout(color);
    let texts: Vec<_> = deadlocks.iter().map(|deadlock| format_deadlock(deadlock, service, &style)).collect();
    let printed = print(&texts.join("\n"));
    if !deadlocks.iter().all(is_certain) {
        reporter.note(
            "other client libraries show only their session: threads of one session that do not wait for each other may be \
             reported as a deadlock",
        );
    }
    printed.map(|_| found)
}

/// Returns whether each owner in the circle is one task or program. Threads that share a session of another client library
/// need not wait for each other.
pub(crate) fn is_certain(deadlock: &Deadlock) -> bool {
    deadlock.edges.iter().all(|edge| edge.owner_kind != "session")
}

/// Describes a deadlock by the number of its owners.
pub(crate) fn describe_deadlock(deadlock: &Deadlock) -> String {
    let what = if is_certain(deadlock) { "deadlock" } else { "possible deadlock" };
    match deadlock.owners {
        1 => format!("{what}: one owner waits for itself"),
        count => format!("{what} of {count} owners"),
    }
}

/// Describes the owners that are not in the shortest cycle of a deadlock, and the owners that wait behind it.
pub(crate) fn describe_others(deadlock: &Deadlock) -> Vec<String> {
    let others = deadlock.owners.saturating_sub(deadlock.edges.len());
    let counted = |what: &str, count: usize| (count > 0).then(|| format!("{what}: {count}"));
    [counted("more owners in this deadlock", others), counted("owners that wait behind it", deadlock.behind)]
        .into_iter()
        .flatten()
        .collect()
}

/// Formats a deadlock, and the command that breaks it.
fn format_deadlock(deadlock: &Deadlock, service: &ConnectionSettings, style: &TextStyle) -> String {
    let mut text = format!("{}\n", style.bold(&describe_deadlock(deadlock)));
    let mut line =
        |line: &str, indent: usize| _ = writeln!(text, "  {}", wrap_text(line, indent, style.width));
    let lock = |place: &QueueEntry| escape_unprintable(lock_name(&place.lock, &service.root));
    for edge in &deadlock.edges {
        let (holds, wants) = (&edge.holds, &edge.waits_for);
        let (holder, waiter) = (describe_contender(&holds.entry), describe_contender(&wants.entry));
        line(&waiter, 4);
        let verb = if holds.granted { "holds" } else { "is ahead in the queue of" };
        // One process of an owner may hold a lock while another process of that owner waits.
        let by = if holder == waiter { String::new() } else { format!(" as {holder}") };
        let token = holds.entry.token.as_deref().unwrap_or("unknown");
        line(&format!("  {verb} {}{by}{}, token {token}", lock(holds), format_since(holds)), 6);
        line(
            &format!("  waits for {} ({}){}", lock(wants), describe_role(&wants.entry), format_since(wants)),
            6,
        );
    }
    for other in describe_others(deadlock) {
        line(&other, 4);
    }
    match &deadlock.to_break {
        // The command is not wrapped, so that it can be copied.
        Some(cut) => {
            let command = command_line(service, AdminAction::Break, &cut.lock, &cut.token);
            let warning = wrap_text(&format!("      {STOP_FIRST}"), 8, style.width);
            _ = writeln!(text, "  next: {command}\n  {warning}")
        }
        None => line("next: stop one of these processes; none of their znodes can be read", 4),
    }
    text
}
