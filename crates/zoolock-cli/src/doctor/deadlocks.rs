//! Finds deadlocks among the locks, and holders that do not react to a request to release.

use zoolock::Zoolock;
use zoolock::admin::{Deadlock, Snapshot};

use super::finding::Report;
use super::locks::{abbreviate_list, count_queues};
use crate::plan::ConnectionSettings;
use crate::render::deadlock::{
    SESSIONS, describe_deadlock, describe_ending, describe_others, format_circle, is_certain,
};
use crate::render::remedy::Remedy;
use crate::render::text::lock_name;

const CHECK: &str = "deadlock";

/// Reports the deadlocks among the locks.
pub(super) async fn check_deadlocks(
    zoolock: &Zoolock,
    locks: &[Snapshot],
    service: &ConnectionSettings,
    report: &mut Report,
) {
    let deadlocks = match zoolock.admin().deadlocks_among(locks).await {
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
        report.ok(
            CHECK,
            format!("no deadlock among the contenders that were read, in {}", count_queues(locks.len())),
        );
    }
}

fn report_deadlock(deadlock: &Deadlock, service: &ConnectionSettings, report: &mut Report) {
    let what = format!("{}: {}", describe_deadlock(deadlock), format_circle(deadlock, &service.root));
    let mut what = [vec![what], describe_others(deadlock)].concat().join("; ");
    let target = deadlock.to_break.as_ref();
    let remedy = target.and_then(|target| Remedy::of(service, &target.lock, &target.entry));
    let remedy = match remedy {
        Some(remedy) => remedy.sentence(),
        None => describe_ending(target, service),
    };
    if is_certain(deadlock) {
        return report.error(CHECK, what, remedy);
    }
    what.push_str(&format!("; {SESSIONS}"));
    report.warn(CHECK, what, format!("see `zoolock deadlocks`; if it is a deadlock: {remedy}"));
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
