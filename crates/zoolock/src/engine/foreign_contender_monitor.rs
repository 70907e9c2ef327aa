//! Detects contenders of other client libraries that join a holder's queue and ignore the holder's
//! znode.
//!
//! A holder cannot stop such contenders: they may hold the lock at the same time. But the holder
//! can report them to its listeners. The monitor checks the queue only while there are listeners,
//! and only after the lock was held for a while. A longer queue means longer pauses, because the
//! number of names read per second is limited.

use std::sync::{Arc, Weak};
use std::time::Duration;

use zoolock_core::Record;
use zoolock_core::Zxid;
use zoolock_core::census::census;
use zoolock_core::layout::Layout;
use zoolock_core::names::{Name, Spelling};

use super::Acquisition;
use crate::base::events::LockEvent;
use crate::base::naming;
use crate::base::sync::lock;
use crate::base::telemetry::log_event;

/// Pause before the first check, and shortest pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// For each group of this many names that a check reads, the pause after the check is one
/// `CHECK_INTERVAL` longer.
const NAMES_PER_INTERVAL: u32 = 64;

/// The state of one directory at its last check, and the findings that were reported.
#[derive(Default)]
struct LastCheck {
    changed: Option<(Zxid, i32)>,
    reported: Vec<Obstacle>,
}

/// A finding in one directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    /// The name formats of the znodes of two contenders. The first contender ignores the second
    /// one.
    Clash(Spelling, Spelling),
    /// A semaphore of another client library.
    Layout(Layout),
}

/// Checks the lock's queues repeatedly, until the lock is released or lost.
pub(super) async fn monitor_queue(acquisition: Weak<Acquisition>, lock_count: usize) {
    let mut last_checks: Vec<LastCheck> = (0..lock_count).map(|_| LastCheck::default()).collect();
    let mut wait = CHECK_INTERVAL;
    loop {
        tokio::time::sleep(wait).await;
        let mut read = 0;
        for (lock_index, last) in last_checks.iter_mut().enumerate() {
            let Some(acquisition) = acquisition.upgrade() else { return };
            if lock(&acquisition.state).hold_end.is_some() || acquisition.is_leaving() {
                return;
            }
            if !acquisition.listeners.has_listeners() {
                continue;
            }
            read += acquisition.check_directory(lock_index, last).await;
        }
        wait = CHECK_INTERVAL * (1 + read / NAMES_PER_INTERVAL);
    }
}

impl Acquisition {
    /// Checks one directory. Returns the number of names that were read.
    async fn check_directory(self: &Arc<Self>, lock_index: usize, last: &mut LastCheck) -> u32 {
        let Some(zk) = self.session.zk() else { return 0 };
        let directory = self.directories[lock_index].as_str();
        // Does not list the children if the directory has not changed, as most checks find.
        let Ok((data, stat)) = zk.read(directory).await else { return 0 };
        if last.changed == Some((stat.pzxid, stat.version)) {
            return 0;
        }
        let Ok((names, _)) = zk.children(directory).await else { return 0 };
        last.changed = Some((stat.pzxid, stat.version));
        if let Some(what) = self.find_conflict(lock_index, &names, Record::parse(&data))
            && !last.reported.contains(&what.0)
        {
            last.reported.push(what.0);
            let what = format!("{directory}: {}", what.1);
            self.report(&lock(&self.state), |ticket| LockEvent::ForeignContender(ticket, what.clone()));
            log_event!(WARN, "{what}");
        }
        u32::try_from(names.len()).unwrap_or(u32::MAX)
    }

    /// Finds a semaphore of another client library, or a contender that ignores another contender's
    /// znode. Returns the finding and a message.
    fn find_conflict(
        &self,
        lock_index: usize,
        names: &[String],
        record: Record,
    ) -> Option<(Obstacle, String)> {
        let node = lock(&self.state).machine.node(lock_index)?;
        let mine = node.name();
        let own = node.prefix.to_name(node.sequence);
        if let Some(layout) = Layout::detect(names, record) {
            return Some((Obstacle::Layout(layout), naming::layout_conflict_message(&own, layout)));
        }
        let others = names.iter().filter(|name| **name != mine).filter_map(|name| Name::parse(name));
        // A name of an unknown format counts as a contender only if its number is lower than this
        // holder's. A higher number may be something else, for example a date.
        let others = others.filter(|name| name.counts_below(own.position()));
        let clash = census(others, Some(own), self.config.names)?;
        let kinds = (clash.viewer.spelling, clash.ignored.spelling);
        Some((Obstacle::Clash(kinds.0, kinds.1), naming::clash_error_message(&clash)))
    }
}
