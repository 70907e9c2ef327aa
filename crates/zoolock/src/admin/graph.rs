//! The wait graph over all locks, for `zoolock why` and `zoolock deadlocks`.
//!
//! [`zoolock_core::graph`] contains the search for deadlocks. This module builds the graph from snapshots. It reads
//! suspected deadlocks again, because the locks change while they are read.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use zoolock_core::graph::{self, Graph};
use zoolock_core::names;

use crate::admin::kinds::{ChainEnd, OwnerKind, Role};
use crate::admin::snapshot::{self, Entry, Snapshot, SnapshotOptions};
use crate::base::error::Error;
use crate::base::path::LockPath;
use crate::base::ticket::Ticket;
use crate::engine::reader::QueueReader;
use crate::lock::context::Context;

/// The wait graph of the owners and the locks in some snapshots.
///
/// An owner holds some locks and waits for others. The graph assumes that an owner releases its locks some time after
/// it has acquired all that it waits for. In a queue, an owner waits for every earlier contender that excludes it,
/// holder or waiter.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WaitGraph {
    /// The owners that hold or wait for a lock with waiters.
    pub owners: Vec<WaitingOwner>,
    #[serde(skip)]
    graph: Graph,
    /// The path of each queue, and its entries in queue order.
    #[serde(skip)]
    queues: Vec<(String, Vec<Entry>)>,
}

/// An owner, with the locks that it holds and waits for.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WaitingOwner {
    /// The owner; see [`Entry::owner`]. Each contender that could not be read counts as an owner of its own.
    pub owner: Option<String>,
    /// The origin of `owner`; see [`Entry::owner_kind`].
    pub owner_kind: OwnerKind,
    /// Set if the owner waits for ever, unless an operator breaks a lock. The owner is then in a
    /// deadlock, waits for a stuck owner, or asks for more permits than the semaphore has.
    pub stuck: bool,
    /// The locks that the owner holds.
    pub holds: Vec<QueueEntry>,
    /// The locks that the owner waits for.
    pub waits: Vec<QueueEntry>,
}

/// A position in the queue of a lock.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct QueueEntry {
    /// Path of the lock directory.
    #[serde(rename = "path")]
    pub lock: String,
    /// Set if the contender holds the lock. Otherwise it waits.
    pub granted: bool,
    /// The contender at this position.
    #[serde(flatten)]
    pub entry: Entry,
}

/// A deadlock: owners that wait for each other for ever.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Deadlock {
    /// A shortest cycle: each owner waits for the next one, the last for the first.
    pub edges: Vec<Edge>,
    /// Number of all owners that wait for each other.
    pub owners: usize,
    /// Number of other owners that wait for these owners, directly or through further owners.
    pub behind: usize,
    /// The contender whose release or deletion ends this cycle. A contender whose program notices the loss is
    /// preferred, then a holder, then the newest contender. `None` if no token in the cycle could
    /// be read.
    pub to_break: Option<BreakTarget>,
}

/// One owner of a cycle.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Edge {
    /// The owner; see [`Entry::owner`].
    pub owner: Option<String>,
    /// The origin of `owner`; see [`Entry::owner_kind`].
    pub owner_kind: OwnerKind,
    /// The queue position that blocks the previous owner of the cycle. This owner holds the lock there, or waits ahead
    /// of the previous owner.
    pub holds: QueueEntry,
    /// The queue position at which this owner waits.
    pub waits_for: QueueEntry,
}

/// The arguments for [`Admin::revoke`](crate::Admin::revoke) and [`Admin::break_lock`](crate::Admin::break_lock).
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct BreakTarget {
    /// Path of the lock directory.
    #[serde(rename = "path")]
    pub lock: String,
    /// The token of the contender whose znode is to be deleted.
    pub token: Ticket,
    /// The contender. Ask it to release first, unless [`Entry::unrevocable`] says that it does not read requests: a job
    /// that releases has ended before the next one starts.
    #[serde(skip)]
    pub entry: Entry,
}

/// The reason why a lock is held: a chain of owners, each of which waits for the next one.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WaitChain {
    /// Path of the lock directory.
    #[serde(rename = "path")]
    pub lock: String,
    /// The holder, the owner that the holder waits for, the owner that this owner waits for, and so
    /// on. If an owner waits for several owners, the chain continues with one of them. It prefers a
    /// [stuck](WaitingOwner::stuck) owner, then a holder, then an owner that itself waits.
    pub chain: Vec<ChainLink>,
    /// The end of the chain.
    pub end: ChainEnd,
    /// The contender whose release or deletion ends the deadlock, as in [`Deadlock::to_break`]; only if `end` is [`ChainEnd::Circle`].
    pub to_break: Option<BreakTarget>,
    /// Number of the waiters of the lock that could be read.
    pub waiting: usize,
    /// The first three of these waiters, in queue order.
    pub waiters: Vec<Entry>,
}

/// Maximum number of waiters in a [`WaitChain`].
const NAMED_WAITERS: usize = 3;

/// One owner in a chain of waits.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ChainLink {
    /// The owner; see [`Entry::owner`].
    pub owner: Option<String>,
    /// The origin of `owner`; see [`Entry::owner_kind`].
    pub owner_kind: OwnerKind,
    /// The queue position that blocks the previous owner of the chain. In the first link, a holder's position in the
    /// queue of the lock itself.
    pub holds: QueueEntry,
    /// Number of other contenders that block the previous owner in the same queue.
    pub beside: usize,
    /// The queue position at which this owner waits. `None` if it waits for no lock.
    pub waits_for: Option<QueueEntry>,
}

impl WaitGraph {
    /// Builds the graph of these locks. Other locks that the owners hold or wait for are not in the graph.
    pub fn of(locks: &[Snapshot]) -> WaitGraph {
        let mut numbers = HashMap::new();
        let mut count = 0;
        let mut number = |entry: &Entry, alone: bool| {
            let mut new = || {
                count += 1;
                count - 1
            };
            match &entry.owner {
                Some(owner) if !alone => {
                    *numbers.entry((entry.owner_kind, owner.clone())).or_insert_with(new)
                }
                _ => new(),
            }
        };
        let (mut found, mut queues) = (Vec::new(), Vec::new());
        for lock in locks {
            let holders: Vec<&Entry> = lock.holder.iter().chain(&lock.beside).collect();
            let entries = holders.iter().copied().chain(&lock.waiters);
            let reader_of = |entry: &Entry| {
                let reader = entry.reader_id.as_ref()?;
                entries
                    .clone()
                    .position(|other| other.id.as_ref() == Some(reader) && other.reader_id.is_none())
            };
            // Each of several contenders of one session at one lock counts as an owner of its own, because they are
            // threads: a contender of another client library shows only its session.
            let mut of_session: HashMap<&str, usize> = HashMap::new();
            for owner in entries.clone().filter_map(|entry| entry.owner.as_deref()) {
                *of_session.entry(owner).or_default() += 1;
            }
            let is_thread = |entry: &Entry| {
                let count = entry.owner.as_deref().and_then(|owner| of_session.get(owner));
                entry.owner_kind == OwnerKind::Session && count.is_some_and(|count| *count > 1)
            };
            let places = entries.clone().enumerate().map(|(at, entry)| graph::QueuePosition {
                // The owner does not wait for a position of an earlier session of its own, because it has mostly given up
                // that session, and the position then goes by itself.
                owner: number(entry, is_thread(entry) || entry.is_superseded),
                role: entry.role.into(),
                weight: entry.weight,
                holds: at < holders.len(),
                upgrades: reader_of(entry).filter(|reader| *reader < at),
            });
            let places = places.collect();
            found.push(graph::Queue { permits: lock.permits.map(u64::from), places });
            queues.push((lock.path.clone(), entries.cloned().collect()));
        }
        let mut made = WaitGraph { owners: Vec::new(), graph: Graph::of(found), queues };
        made.owners = made.waiting_owners(count);
        made
    }

    /// Returns the deadlocks.
    pub fn deadlocks(&self) -> Vec<Deadlock> {
        self.graph.deadlocks().into_iter().map(|deadlock| self.deadlock(&deadlock)).collect()
    }

    /// Follows the waits from the holder of the lock at `path`. Stops at an owner that waits for nothing, or that is in
    /// the chain already.
    pub fn why(&self, path: &str) -> WaitChain {
        let mut why = WaitChain {
            lock: path.to_owned(),
            chain: Vec::new(),
            end: ChainEnd::Free,
            to_break: None,
            waiting: 0,
            waiters: Vec::new(),
        };
        let Some(lock) = self.queues.iter().position(|(other, _)| other == path) else { return why };
        let stuck: HashSet<usize> = self.graph.stuck().into_iter().collect();
        let places = |queue: usize| &self.graph.queues()[queue].places;
        // `seen`: the owners of the chain, and whether each of them waits for a semaphore of unknown size.
        let (mut queue, mut seen) = (lock, Vec::<(usize, bool)>::new());
        let (mut blockers, waiters): (Vec<usize>, Vec<usize>) =
            (0..places(lock).len()).partition(|at| places(lock)[*at].holds);
        why.waiting = waiters.len();
        why.waiters = waiters.iter().take(NAMED_WAITERS).map(|at| self.queues[lock].1[*at].clone()).collect();
        loop {
            let best = blockers.iter().copied().min_by_key(|&at| {
                let place = &places(queue)[at];
                let waits = self.waits(place.owner).next().is_some();
                (!stuck.contains(&place.owner), !place.holds, !waits)
            });
            let Some(at) = best else {
                if let Some(last) = why.chain.last() {
                    let permits =
                        last.waits_for.as_ref().is_some_and(|place| place.entry.role == Role::Permit);
                    why.end = match seen.last() {
                        Some((_, true)) => ChainEnd::Unsure,
                        _ if permits => ChainEnd::Permits,
                        _ => ChainEnd::Working,
                    };
                }
                return why;
            };
            let owner = places(queue)[at].owner;
            let holds = self.queue_entry(queue, at);
            // Prefers a position at which the owner is stuck.
            let is_stuck_here = |&(queue, at): &(usize, usize)| {
                let mut before = self.graph.waits_for(queue, at).peekable();
                before.peek().is_none() || before.any(|at| stuck.contains(&places(queue)[at].owner))
            };
            let mut waits: Vec<(usize, usize)> = self.waits(owner).collect();
            waits.sort_by_key(|place| !is_stuck_here(place));
            let waits = waits.first().copied();
            why.chain.push(ChainLink {
                owner: holds.entry.owner.clone(),
                owner_kind: holds.entry.owner_kind,
                holds,
                beside: blockers.len() - 1,
                waits_for: waits.map(|(queue, at)| self.queue_entry(queue, at)),
            });
            if let Some(first) = seen.iter().position(|(before, _)| *before == owner) {
                let unsure = seen[first..].iter().any(|(_, unsure)| *unsure);
                why.end = if unsure { ChainEnd::Unsure } else { ChainEnd::Circle };
                let deadlock = self.graph.deadlocks().into_iter().find(|found| found.owners.contains(&owner));
                why.to_break = deadlock.filter(|_| !unsure).and_then(|found| self.deadlock(&found).to_break);
                return why;
            }
            let is_unsure = |(queue, at): (usize, usize)| {
                let found = &self.graph.queues()[queue];
                found.permits.is_none() && found.places[at].role == names::Role::Permit
            };
            seen.push((owner, waits.is_some_and(is_unsure)));
            let Some((next, place)) = waits else {
                let known = why.chain.last().is_some_and(|last| last.owner.is_some());
                why.end = if known { ChainEnd::Working } else { ChainEnd::Unknown };
                return why;
            };
            blockers = self.graph.waits_for(next, place).collect();
            queue = next;
        }
    }

    fn waiting_owners(&self, count: usize) -> Vec<WaitingOwner> {
        let stuck: HashSet<usize> = self.graph.stuck().into_iter().collect();
        let waited_at: Vec<bool> =
            self.graph.queues().iter().map(|queue| queue.places.iter().any(|place| !place.holds)).collect();
        let party = |owner: usize| {
            let places = self.graph.positions_of(owner);
            let concerns = places.iter().any(|&(queue, _)| waited_at[queue]);
            let &(first, at) = places.first().filter(|_| concerns)?;
            let Entry { owner: name, owner_kind, .. } = &self.queues[first].1[at];
            let all = places.iter().map(|&(queue, at)| self.queue_entry(queue, at));
            let (holds, waits) = all.partition(|place| place.granted);
            let (owner_kind, stuck) = (*owner_kind, stuck.contains(&owner));
            Some(WaitingOwner { owner: name.clone(), owner_kind, stuck, holds, waits })
        };
        (0..count).filter_map(party).collect()
    }

    fn waits(&self, owner: usize) -> impl Iterator<Item = (usize, usize)> {
        let waits = move |&(queue, at): &(usize, usize)| !self.graph.queues()[queue].places[at].holds;
        self.graph.positions_of(owner).iter().copied().filter(waits)
    }

    fn queue_entry(&self, queue: usize, at: usize) -> QueueEntry {
        let (lock, entries) = &self.queues[queue];
        let granted = self.graph.queues()[queue].places[at].holds;
        QueueEntry { lock: lock.clone(), granted, entry: entries[at].clone() }
    }

    fn deadlock(&self, deadlock: &graph::DeadlockCycle) -> Deadlock {
        let cycle = &deadlock.cycle;
        let edge = |(at, step): (usize, &graph::WaitStep)| {
            let before = &cycle[(at + cycle.len() - 1) % cycle.len()];
            let waits_for = self.queue_entry(step.queue, step.place);
            Edge {
                owner: waits_for.entry.owner.clone(),
                owner_kind: waits_for.entry.owner_kind,
                holds: self.queue_entry(before.queue, before.behind),
                waits_for,
            }
        };
        let edges: Vec<Edge> = cycle.iter().enumerate().map(edge).collect();
        let notices_loss =
            |place: &QueueEntry| matches!(place.entry.owner_kind, OwnerKind::Owner | OwnerKind::Task);
        let last = edges.iter().map(|edge| &edge.holds).filter(|place| place.entry.token.is_some());
        let last = last.max_by_key(|place| (notices_loss(place), place.granted, place.entry.since));
        let cut = |place: &QueueEntry| {
            let QueueEntry { lock, entry, .. } = place;
            Some(BreakTarget { lock: lock.clone(), token: entry.token?, entry: entry.clone() })
        };
        let to_break = last.and_then(cut);
        Deadlock { edges, owners: deadlock.owners.len(), behind: deadlock.behind, to_break }
    }

    /// Returns the paths of all locks that an owner in a deadlock holds or waits for.
    fn suspect_locks(&self) -> HashSet<String> {
        let deadlocks = self.graph.deadlocks();
        let owners = deadlocks.iter().flat_map(|deadlock| &deadlock.owners);
        let queues = owners.flat_map(|&owner| self.graph.positions_of(owner)).map(|&(queue, _)| queue);
        queues.map(|queue| self.queues[queue].0.clone()).collect()
    }
}

/// Returns the deadlocks among these locks; see [`Admin::deadlocks_among`](crate::Admin::deadlocks_among).
pub(crate) async fn find_deadlocks(context: &Context, locks: &[Snapshot]) -> Result<Vec<Deadlock>, Error> {
    if WaitGraph::of(locks).deadlocks().is_empty() {
        return Ok(Vec::new());
    }
    Ok(build_wait_graph(context, locks.to_vec()).await?.deadlocks())
}

/// Returns why the lock at this path, which is among these locks, is not free.
pub(crate) async fn find_chain(
    context: &Context,
    locks: Vec<Snapshot>,
    path: &str,
) -> Result<WaitChain, Error> {
    // The graph has only contenders that can be read.
    let unread_end =
        locks.iter().find(|lock| lock.path == path).and_then(|lock| match lock.unread.is_empty() {
            false => Some(ChainEnd::Unread),
            true => lock
                .foreign_semaphore
                .as_ref()
                .filter(|foreign| foreign.leases > 0)
                .map(|_| ChainEnd::Foreign),
        });
    let chain = build_wait_graph(context, locks).await?.why(path);
    match unread_end.filter(|_| chain.end == ChainEnd::Free) {
        Some(end) => Ok(WaitChain { end, ..chain }),
        None => Ok(chain),
    }
}

/// Returns the graph of these locks. First reads again the locks with owners that seem to be in a
/// deadlock. Of these locks, drops the contenders that are not in both reads.
async fn build_wait_graph(context: &Context, mut locks: Vec<Snapshot>) -> Result<WaitGraph, Error> {
    let graph = WaitGraph::of(&locks);
    let suspects = graph.suspect_locks();
    if suspects.is_empty() {
        return Ok(graph);
    }
    let zk = context.zk().await?;
    let (reader, view) = (QueueReader::new(&*zk), SnapshotOptions::of(context));
    for lock in locks.iter_mut().filter(|lock| suspects.contains(&lock.path)) {
        let path = LockPath::from_server(format!("{}{}", view.chroot, lock.path));
        let now = snapshot::read(&reader, path, &view).await?;
        *lock = present_in_both(lock, now);
    }
    Ok(WaitGraph::of(&locks))
}

/// Returns the second read of a lock, with only the contenders that were in the first read, too. A contender in both
/// reads was in the queue during the whole time between the two passes over the locks. So all remaining contenders were
/// in their queues at the same time.
fn present_in_both(before: &Snapshot, now: Snapshot) -> Snapshot {
    let all = before.holder.iter().chain(&before.beside).chain(&before.waiters);
    let there: HashSet<(&str, Option<Ticket>)> =
        all.map(|entry| (entry.node.as_str(), entry.token)).collect();
    let was_there = |entry: &Entry| there.contains(&(entry.node.as_str(), entry.token));
    let mut holders = now.holder.into_iter().chain(now.beside).filter(was_there);
    let holder = holders.next();
    let beside = holders.collect();
    let waiters: Vec<Entry> = now.waiters.into_iter().filter(was_there).collect();
    let waiting = waiters.len();
    Snapshot { holder, beside, waiters, waiting, ..now }
}

#[cfg(test)]
mod tests;
