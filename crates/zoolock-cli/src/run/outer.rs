//! Detects a lock that this command cannot get, because an outer command holds the lock. An outer
//! command is a `zoolock run` that has started this command. It releases its lock only after this
//! command has ended.
//!
//! `run` passes the ids of its acquisitions to its command, in ZOOLOCK_HELD. A process may keep this variable for longer
//! than the lock is held, so an outer command counts only while the queue of the lock shows it as a holder.

use std::time::{Duration, Instant};

use zoolock::Zoolock;
use zoolock::admin::{Entry, LockPoller, Snapshot};
use zoolock_core::names::Role;

use crate::base::exit::Failure;
use crate::render::status::{is_this_process, read_interval};
use crate::run::flags::WantedLocks;

/// Maximum time to read the locks after they were found busy.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum time for which this command sees a waiter ahead of it that waits for an outer command.
/// After this time, this command fails. The waiter may give up earlier.
const MIN_STAY: Duration = Duration::from_secs(2);

/// Reads the locks repeatedly until one of them cannot be granted before an outer command releases it. Returns the failure
/// of this command. Never returns if there is no outer command.
pub(crate) async fn wait_for_conflict(zoolock: &Zoolock, wanted: &WantedLocks) -> Failure {
    if wanted.outer.is_empty() {
        return std::future::pending().await;
    }
    let began = Instant::now();
    let mut locks = OuterLocks::new(zoolock, wanted);
    loop {
        if let Some(failure) = locks.read_and_check().await {
            return failure;
        }
        tokio::time::sleep(read_interval(began.elapsed())).await;
    }
}

/// Returns the failure of this command if one of the locks cannot be granted before an outer command releases it.
pub(crate) async fn find_conflict(zoolock: &Zoolock, wanted: &WantedLocks) -> Option<Failure> {
    if wanted.outer.is_empty() {
        return None;
    }
    let mut locks = OuterLocks::new(zoolock, wanted);
    let looked = async {
        loop {
            let found = locks.read_and_check().await;
            if found.is_some() || locks.blocking_waiter.is_none() {
                return found;
            }
            tokio::time::sleep(read_interval(Duration::ZERO)).await;
        }
    };
    tokio::time::timeout(LOOK_TIMEOUT, looked).await.ok().flatten()
}

struct OuterLocks<'a> {
    wanted: &'a WantedLocks,
    pollers: Vec<(&'a str, LockPoller)>,
    /// A waiter that is ahead of this command in the queue, and that waits for an outer command.
    /// The values are its znode and the time at which it was first seen.
    blocking_waiter: Option<(String, Instant)>,
}

/// The reason why this command waits for an outer command.
enum OuterWait {
    /// This command cannot hold the lock together with the outer commands.
    Itself,
    /// A waiter ahead of this command cannot hold the lock together with the outer commands. The value is its znode.
    BehindWaiter(String),
}

impl<'a> OuterLocks<'a> {
    fn new(zoolock: &Zoolock, wanted: &'a WantedLocks) -> Self {
        // An exclusive contender waits for every holder. Only the other kinds need a look at the waiters.
        let waiters = if wanted.kind.role() == Role::Exclusive { 0 } else { usize::MAX };
        let pollers = wanted.names.iter().map(|name| (name.as_str(), zoolock.admin().poller(name, waiters)));
        Self { wanted, pollers: pollers.collect(), blocking_waiter: None }
    }

    /// Reads each lock once, and returns the failure if this command waits for an outer command. Ignores errors, because
    /// the acquisition reports them.
    async fn read_and_check(&mut self) -> Option<Failure> {
        let mut blocking_waiter = None;
        for (name, poller) in &mut self.pollers {
            let Ok(snapshot) = poller.snapshot().await else { continue };
            match waits_for_outer(&snapshot.lock, self.wanted) {
                None => continue,
                Some(OuterWait::Itself) => {}
                Some(OuterWait::BehindWaiter(waiter)) => {
                    let known = self.blocking_waiter.take().filter(|(known, _)| *known == waiter);
                    let (waiter, since) = known.unwrap_or_else(|| (waiter, Instant::now()));
                    if since.elapsed() < MIN_STAY {
                        blocking_waiter = Some((waiter, since));
                        continue;
                    }
                }
            }
            return Some(Failure::usage(format!(
                "{name} is held by the command that runs this one, which waits for this one to end; acquire it in one of the \
                 two only"
            )));
        }
        self.blocking_waiter = blocking_waiter;
        None
    }
}

/// Returns the reason why the lock cannot be granted to this command before an outer command
/// releases it. Returns `None` if the lock can be granted.
fn waits_for_outer(lock: &Snapshot, wanted: &WantedLocks) -> Option<OuterWait> {
    let is_outer = |entry: &&Entry| entry.id.as_ref().is_some_and(|id| wanted.outer.contains(id));
    let outer: Vec<&Entry> = lock.holders().filter(is_outer).collect();
    if outer.is_empty() || lock.holders().any(is_this_process) {
        return None;
    }
    let taken: u64 = outer.iter().map(|entry| u64::from(entry.weight)).sum();
    let waits = |role: Role, weight: u32| match role {
        Role::Permit => lock.permits.is_some_and(|permits| taken + u64::from(weight) > u64::from(permits)),
        _ => outer.iter().any(|entry| role.waits_for(entry.role.into())),
    };
    if waits(wanted.kind.role(), wanted.kind.weight()) {
        return Some(OuterWait::Itself);
    }
    let mut before = lock.waiters.iter().take_while(|waiter| !is_this_process(waiter));
    let waiter = before.find(|waiter| waits(waiter.role.into(), waiter.weight))?;
    Some(OuterWait::BehindWaiter(waiter.node.clone()))
}
