//! Refuses to wait for an outer command: a command that runs this one, holds the lock, and waits for this one to end.
//!
//! `run` passes the identifiers of its acquisitions to its command. A process may keep that variable for longer than the
//! lock is held, so an outer command counts only while the queue of the lock shows it as a holder.

use std::time::{Duration, Instant};

use zoolock::{Entry, Glances, Snapshot, Zoolock};

use crate::base::exit::Failure;
use crate::plan::{Kind, Wanted};
use crate::render::status::{is_this_process, read_interval};

/// Maximum time to look at the locks after they were busy.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a waiter before this command must stay, if that waiter waits for an outer
/// command. Other waiters give up soon.
const MIN_STAY: Duration = Duration::from_secs(2);

/// Waits until one of the locks is found to be kept by an outer command. Returns the failure.
pub(crate) async fn wait_for_conflict(zoolock: &Zoolock, wanted: &Wanted) -> Failure {
    if wanted.outer.is_empty() {
        return std::future::pending().await;
    }
    let began = Instant::now();
    let mut locks = Locks::new(zoolock, wanted);
    loop {
        if let Some(failure) = locks.look().await {
            return failure;
        }
        tokio::time::sleep(read_interval(began.elapsed())).await;
    }
}

/// Returns the failure if one of the locks is busy because of an outer command.
pub(crate) async fn find_conflict(zoolock: &Zoolock, wanted: &Wanted) -> Option<Failure> {
    if wanted.outer.is_empty() {
        return None;
    }
    let mut locks = Locks::new(zoolock, wanted);
    let looked = async {
        loop {
            let found = locks.look().await;
            if found.is_some() || locks.blocking_waiter.is_none() {
                return found;
            }
            tokio::time::sleep(read_interval(Duration::ZERO)).await;
        }
    };
    tokio::time::timeout(LOOK_TIMEOUT, looked).await.ok().flatten()
}

struct Locks<'a> {
    wanted: &'a Wanted,
    glances: Vec<(&'a str, Glances)>,
    /// A waiter before this command that waits for an outer command: its znode, and the time at which it was first seen.
    blocking_waiter: Option<(String, Instant)>,
}

/// The reason why this command waits for an outer command.
enum Waits {
    /// This command cannot hold the lock together with the outer commands.
    Itself,
    /// A waiter before this command cannot hold the lock together with the outer commands. This is its znode.
    BehindWaiter(String),
}

impl<'a> Locks<'a> {
    fn new(zoolock: &Zoolock, wanted: &'a Wanted) -> Self {
        // An exclusive contender waits for every holder. Only the other kinds need a look at the waiters.
        let waiters = match wanted.kind {
            Kind::Exclusive | Kind::Write => 0,
            Kind::Shared | Kind::Permits { .. } => usize::MAX,
        };
        let glances = wanted.names.iter().map(|name| (name.as_str(), zoolock.mutex(name).glances(waiters)));
        Self { wanted, glances: glances.collect(), blocking_waiter: None }
    }

    /// Reads each lock once. Ignores errors, because the acquisition reports them.
    async fn look(&mut self) -> Option<Failure> {
        let mut blocking_waiter = None;
        for (name, glances) in &mut self.glances {
            let Ok(glance) = glances.look().await else { continue };
            match waits_for_outer(&glance.lock, self.wanted) {
                None => continue,
                Some(Waits::Itself) => {}
                Some(Waits::BehindWaiter(waiter)) => {
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

/// Returns why the lock is granted to this command only after an outer command has released it, if that is so.
fn waits_for_outer(lock: &Snapshot, wanted: &Wanted) -> Option<Waits> {
    let holders = || lock.holder.iter().chain(&lock.beside);
    let is_outer = |entry: &&Entry| entry.id.as_ref().is_some_and(|id| wanted.outer.contains(id));
    let outer: Vec<&Entry> = holders().filter(is_outer).collect();
    if outer.is_empty() || holders().any(is_this_process) {
        return None;
    }
    let taken: u64 = outer.iter().map(|entry| u64::from(entry.weight)).sum();
    let waits = |role: &str, weight: u32| match role {
        "exclusive" => true,
        "permit" => lock.permits.is_some_and(|permits| taken + u64::from(weight) > u64::from(permits)),
        _ => outer.iter().any(|entry| entry.role == "exclusive"),
    };
    let (role, weight) = match wanted.kind {
        Kind::Exclusive | Kind::Write => ("exclusive", 1),
        Kind::Shared => ("shared", 1),
        Kind::Permits { take, .. } => ("permit", take),
    };
    if waits(role, weight) {
        return Some(Waits::Itself);
    }
    let mut before = lock.waiters.iter().take_while(|waiter| !is_this_process(waiter));
    let waiter = before.find(|waiter| waits(waiter.role, waiter.weight))?;
    Some(Waits::BehindWaiter(waiter.node.clone()))
}
