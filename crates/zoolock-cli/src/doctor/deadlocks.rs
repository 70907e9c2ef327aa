//! Finds deadlocks among the locks, and holders that do not react to a request to release.

use std::collections::BTreeSet;

use zoolock::{Deadlock, Snapshot, Zoolock};

use super::finding::{Level, Report};
use super::locks::abbreviate_list;
use crate::plan::ConnectionSettings;
use crate::render::text::lock_name;
use crate::verbs::deadlocks::is_certain;
use crate::verbs::operate::{AdminAction, command_line};

const CHECK: &str = "deadlock";

/// Reports the deadlocks among the locks.
pub(super) async fn check_deadlocks(
    zoolock: &Zoolock,
    locks: &[Snapshot],
    service: &ConnectionSettings,
    report: &mut Report,
) {
    let deadlocks = match zoolock.deadlocks_among(locks).await {
        Ok(deadlocks) => deadlocks,
        Err(error) => {
            let what = format!("locks that may be in a deadlock could not be read again: {error}");
            return report.note(CHECK, what, "see `zoolock deadlocks`");
        }
    };
    for deadlock in &deadlocks {
        report_deadlock(deadlock, service, report);
    }
    if deadlocks.is_empty() && !locks.is_empty() {
        report
            .ok(CHECK, format!("no deadlock among the contenders that were read, in {} queues", locks.len()));
    }
}

fn report_deadlock(deadlock: &Deadlock, service: &ConnectionSettings, report: &mut Report) {
    let names: BTreeSet<&str> = deadlock
        .edges
        .iter()
        .flat_map(|edge| [&edge.holds.lock, &edge.waits_for.lock])
        .map(|path| lock_name(path, &service.root))
        .collect();
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    let owners = match deadlock.owners {
        1 => "an owner waits for itself".to_owned(),
        count => format!("{count} owners wait for each other"),
    };
    let behind = match deadlock.behind {
        0 => String::new(),
        1 => "; 1 owner waits behind them".to_owned(),
        count => format!("; {count} owners wait behind them"),
    };
    let locks = abbreviate_list(&names);
    let remedy = match &deadlock.to_break {
        Some(cut) => command_line(service, AdminAction::Break, &cut.lock, &cut.token),
        None => "stop one of these processes; none of their znodes can be read".to_owned(),
    };
    // Two threads of a client of another library share a session, and need not wait for each other.
    if !is_certain(deadlock) {
        let what = format!(
            "may be a deadlock: {owners}, with the locks {locks}{behind}; other client libraries show only their \
             session, which may have several threads"
        );
        let remedy = format!("see `zoolock deadlocks`; if it is a deadlock: {remedy}");
        return report.add(CHECK, Level::Warning, what, Some(remedy));
    }
    report.error(CHECK, format!("deadlock: {owners}, with the locks {locks}{behind}"), remedy);
}

/// Reports the locks whose holder was asked to release, and still holds.
pub(super) fn check_revocations(locks: &[Snapshot], service: &ConnectionSettings, report: &mut Report) {
    let asked = locks.iter().filter(|lock| lock.holders().any(|holder| holder.revoked));
    let asked: Vec<String> = asked.map(|lock| lock_name(&lock.path, &service.root).to_owned()).collect();
    if !asked.is_empty() {
        report.note(
            "revoked",
            format!("holders were asked to release, and still hold: {}", abbreviate_list(&asked)),
            "see them with `zoolock show`; a holder that ignores the request can be removed with `zoolock break`",
        );
    }
}
