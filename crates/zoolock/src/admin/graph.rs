//! The wait graph over all locks, for `zoolock why` and `zoolock deadlocks`.
//!
//! [`zoolock_core::graph`] has the search. This module names the vertices. It also confirms results, because the
//! locks change while they are read.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use zoolock_core::graph::{self, Graph};
use zoolock_core::names::Role;

use crate::admin::snapshot::{self, Entry, Snapshot, View};
use crate::base::error::Error;
use crate::base::path::LockPath;
use crate::engine::reader::Reader;
use crate::lock::context::Context;

/// The owners and the locks of some snapshots.
///
/// An owner holds some locks and waits for others. It releases all of them some time after it has them all. In a
/// queue it waits for every earlier contender that excludes it: for holders, and for earlier waiters.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WaitGraph {
    /// The owners that wait, and those for which an owner waits.
    pub owners: Vec<Party>,
    #[serde(skip)]
    graph: Graph,
    /// The path of each queue, and its entries in queue order.
    #[serde(skip)]
    queues: Vec<(String, Vec<Entry>)>,
}

/// An owner, with the locks that it holds and waits for.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Party {
    /// The owner; see [`Entry::owner`]. Each contender that could not be read counts as an owner of its own.
    pub owner: Option<String>,
    /// The origin of `owner`; see [`Entry::owner_kind`].
    pub owner_kind: &'static str,
    /// Set if it waits for ever unless a lock is taken away: it is in a deadlock, or behind one.
    pub stuck: bool,
    /// The locks that it holds.
    pub holds: Vec<Place>,
    /// The locks that it waits for.
    pub waits: Vec<Place>,
}

/// A position in the queue of a lock.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Place {
    /// Path of the lock directory.
    pub lock: String,
    /// Set if it holds the lock; else it waits.
    pub granted: bool,
    /// The contender at this position.
    #[serde(flatten)]
    pub entry: Entry,
}

/// Owners that wait for each other, for ever.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Deadlock {
    /// A shortest cycle: each owner waits for the next one, the last for the first.
    pub edges: Vec<Edge>,
    /// Number of all owners that wait for each other.
    pub owners: usize,
    /// Number of owners that wait behind them.
    pub behind: usize,
    /// The queue position to break so that this cycle ends. Prefers a contender that notices the loss, then a holder,
    /// then the newest one.
    pub to_break: Option<Cut>,
}

/// One owner of a cycle.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Edge {
    /// The owner; see [`Entry::owner`].
    pub owner: Option<String>,
    /// The origin of `owner`; see [`Entry::owner_kind`].
    pub owner_kind: &'static str,
    /// The position for which the previous owner of the cycle waits: a held lock, or an earlier place in the same queue.
    pub holds: Place,
    /// The lock that it waits for.
    pub waits_for: Place,
}

/// The arguments for [`Mutex::break_lock`](crate::Mutex::break_lock).
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Cut {
    /// Path of the lock directory.
    pub lock: String,
    /// The token of the contender to break.
    pub token: String,
}

/// The reason why a lock is not free.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Why {
    /// Path of the lock directory.
    pub lock: String,
    /// The holder, the owner that the holder waits for, the owner that this owner waits for, and so on. If there are
    /// several, an owner that is stuck or waits is preferred.
    pub chain: Vec<Link>,
    /// The end of the chain.
    /// - `free`: the lock has no holder.
    /// - `working`: the last owner waits for nothing that this client sees.
    /// - `circle`: the last owner is in the chain already, so the wait lasts for ever.
    /// - `permits`: the last owner asks for more permits than there are.
    /// - `unsure`: it would be `circle` or `permits` if the semaphore in between recorded its size.
    /// - `unknown`: the last owner could not be read.
    pub end: &'static str,
}

/// One owner in a chain of waits.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Link {
    /// The owner; see [`Entry::owner`].
    pub owner: Option<String>,
    /// The origin of `owner`; see [`Entry::owner_kind`].
    pub owner_kind: &'static str,
    /// The position for which the previous owner of the chain waits.
    pub holds: Place,
    /// Number of other contenders for which the previous owner waits there.
    pub beside: usize,
    /// The lock that it waits for itself, if there is one.
    pub waits_for: Option<Place>,
}

impl WaitGraph {
    /// Makes the graph of these locks. Owners may also hold and wait for other locks. These are not in the graph.
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
            // Another client library shows only its session: two contenders of one session at one lock are two
            // threads, and no cycle.
            let mut of_session: HashMap<&str, usize> = HashMap::new();
            for owner in entries.clone().filter_map(|entry| entry.owner.as_deref()) {
                *of_session.entry(owner).or_default() += 1;
            }
            let is_thread = |entry: &Entry| {
                let count = entry.owner.as_deref().and_then(|owner| of_session.get(owner));
                entry.owner_kind == "session" && count.is_some_and(|count| *count > 1)
            };
            let places = entries.clone().enumerate().map(|(at, entry)| graph::Place {
                owner: number(entry, is_thread(entry)),
                role: role(entry),
                weight: entry.weight,
                holds: at < holders.len(),
                upgrades: reader_of(entry).filter(|reader| *reader < at),
            });
            let places = places.collect();
            found.push(graph::Queue { permits: lock.permits.map(u64::from), places });
            queues.push((lock.path.clone(), entries.cloned().collect()));
        }
        let mut made = WaitGraph { owners: Vec::new(), graph: Graph::of(found), queues };
        made.owners = made.parties(count);
        made
    }

    /// Returns the deadlocks.
    pub fn deadlocks(&self) -> Vec<Deadlock> {
        self.graph.knots().into_iter().map(|knot| self.deadlock(&knot)).collect()
    }

    /// Follows the waits from the holder of the lock at `path`. Ends at an owner that waits for nothing, or that is
    /// in the chain already.
    pub fn why(&self, path: &str) -> Why {
        let mut why = Why { lock: path.to_owned(), chain: Vec::new(), end: "free" };
        let Some(lock) = self.queues.iter().position(|(other, _)| other == path) else { return why };
        let stuck: HashSet<usize> = self.graph.stuck().into_iter().collect();
        let places = |queue: usize| &self.graph.queues()[queue].places;
        // The owners of the chain, and whether each waits for a semaphore of unknown size.
        let (mut queue, mut seen) = (lock, Vec::<(usize, bool)>::new());
        let mut blockers: Vec<usize> = (0..places(lock).len()).filter(|at| places(lock)[*at].holds).collect();
        loop {
            let best = blockers.iter().copied().min_by_key(|&at| {
                let place = &places(queue)[at];
                let waits = self.waits(place.owner).next().is_some();
                (!stuck.contains(&place.owner), !place.holds, !waits)
            });
            let Some(at) = best else {
                if let Some(last) = why.chain.last() {
                    let permits = last.waits_for.as_ref().is_some_and(|place| place.entry.role == "permit");
                    why.end = match seen.last() {
                        Some((_, true)) => "unsure",
                        _ if permits => "permits",
                        _ => "working",
                    };
                }
                return why;
            };
            let owner = places(queue)[at].owner;
            let holds = self.place(queue, at);
            // For a stuck owner, prefer a position at which it is stuck.
            let is_stuck_here = |&(queue, at): &(usize, usize)| {
                let mut before = self.graph.waits_for(queue, at).peekable();
                before.peek().is_none() || before.any(|at| stuck.contains(&places(queue)[at].owner))
            };
            let mut waits: Vec<(usize, usize)> = self.waits(owner).collect();
            waits.sort_by_key(|place| !is_stuck_here(place));
            let waits = waits.first().copied();
            why.chain.push(Link {
                owner: holds.entry.owner.clone(),
                owner_kind: holds.entry.owner_kind,
                holds,
                beside: blockers.len() - 1,
                waits_for: waits.map(|(queue, at)| self.place(queue, at)),
            });
            if let Some(first) = seen.iter().position(|(before, _)| *before == owner) {
                let unsure = seen[first..].iter().any(|(_, unsure)| *unsure);
                why.end = if unsure { "unsure" } else { "circle" };
                return why;
            }
            let is_unsure = |(queue, at): (usize, usize)| {
                let found = &self.graph.queues()[queue];
                found.permits.is_none() && found.places[at].role == Role::Permit
            };
            seen.push((owner, waits.is_some_and(is_unsure)));
            let Some((next, place)) = waits else {
                let known = why.chain.last().is_some_and(|last| last.owner.is_some());
                why.end = if known { "working" } else { "unknown" };
                return why;
            };
            blockers = self.graph.waits_for(next, place).collect();
            queue = next;
        }
    }

    fn parties(&self, count: usize) -> Vec<Party> {
        let stuck: HashSet<usize> = self.graph.stuck().into_iter().collect();
        let waited_at: Vec<bool> =
            self.graph.queues().iter().map(|queue| queue.places.iter().any(|place| !place.holds)).collect();
        let party = |owner: usize| {
            let places = self.graph.places(owner);
            let concerns = places.iter().any(|&(queue, _)| waited_at[queue]);
            let &(first, at) = places.first().filter(|_| concerns)?;
            let Entry { owner: name, owner_kind, .. } = &self.queues[first].1[at];
            let all = places.iter().map(|&(queue, at)| self.place(queue, at));
            let (holds, waits) = all.partition(|place| place.granted);
            let (owner_kind, stuck) = (*owner_kind, stuck.contains(&owner));
            Some(Party { owner: name.clone(), owner_kind, stuck, holds, waits })
        };
        (0..count).filter_map(party).collect()
    }

    fn waits(&self, owner: usize) -> impl Iterator<Item = (usize, usize)> {
        let waits = move |&(queue, at): &(usize, usize)| !self.graph.queues()[queue].places[at].holds;
        self.graph.places(owner).iter().copied().filter(waits)
    }

    fn place(&self, queue: usize, at: usize) -> Place {
        let (lock, entries) = &self.queues[queue];
        let granted = self.graph.queues()[queue].places[at].holds;
        Place { lock: lock.clone(), granted, entry: entries[at].clone() }
    }

    fn deadlock(&self, knot: &graph::Knot) -> Deadlock {
        let circle = &knot.circle;
        let edge = |(at, step): (usize, &graph::Step)| {
            let before = &circle[(at + circle.len() - 1) % circle.len()];
            let waits_for = self.place(step.queue, step.place);
            Edge {
                owner: waits_for.entry.owner.clone(),
                owner_kind: waits_for.entry.owner_kind,
                holds: self.place(before.queue, before.behind),
                waits_for,
            }
        };
        let edges: Vec<Edge> = circle.iter().enumerate().map(edge).collect();
        let notices_loss = |place: &Place| matches!(place.entry.owner_kind, "owner" | "task");
        let last = edges.iter().map(|edge| &edge.holds).filter(|place| place.entry.token.is_some());
        let last = last.max_by_key(|place| (notices_loss(place), place.granted, place.entry.since_ms));
        let cut = |place: &Place| Some(Cut { lock: place.lock.clone(), token: place.entry.token.clone()? });
        let to_break = last.and_then(cut);
        Deadlock { edges, owners: knot.owners.len(), behind: knot.behind, to_break }
    }

    /// Returns the paths of the locks in whose queues the owners of the deadlocks are.
    fn suspect_locks(&self) -> HashSet<String> {
        let knots = self.graph.knots();
        let owners = knots.iter().flat_map(|knot| &knot.owners);
        let queues = owners.flat_map(|&owner| self.graph.places(owner)).map(|&(queue, _)| queue);
        queues.map(|queue| self.queues[queue].0.clone()).collect()
    }
}

fn role(entry: &Entry) -> Role {
    match entry.role {
        "shared" => Role::Shared,
        "upgradable" => Role::Upgradable,
        "permit" => Role::Permit,
        _ => Role::Exclusive,
    }
}

/// Returns the graph of these locks. Reads each lock that seems to be in a cycle once more.
pub(crate) async fn reread_suspects(context: &Context, mut locks: Vec<Snapshot>) -> Result<WaitGraph, Error> {
    let graph = WaitGraph::of(&locks);
    let suspects = graph.suspect_locks();
    if suspects.is_empty() {
        return Ok(graph);
    }
    let zk = context.zk().await?;
    let (reader, view) = (Reader::new(&*zk), View::of(context));
    for lock in locks.iter_mut().filter(|lock| suspects.contains(&lock.path)) {
        let path = LockPath::from_server(format!("{}{}", view.chroot, lock.path));
        let now = snapshot::read(&reader, path, &view).await?;
        *lock = present_in_both(lock, now);
    }
    Ok(WaitGraph::of(&locks))
}

/// Returns the lock as it is now, with only the contenders that were there before. A contender that is in the first read of
/// its lock and in the second one was there between the two passes. So all these contenders were there at the same time.
fn present_in_both(before: &Snapshot, now: Snapshot) -> Snapshot {
    let all = before.holder.iter().chain(&before.beside).chain(&before.waiters);
    let there: HashSet<(&str, Option<&str>)> =
        all.map(|entry| (entry.node.as_str(), entry.token.as_deref())).collect();
    let was_there = |entry: &Entry| there.contains(&(entry.node.as_str(), entry.token.as_deref()));
    let mut holders = now.holder.into_iter().chain(now.beside).filter(was_there);
    let holder = holders.next();
    let beside = holders.collect();
    let waiters: Vec<Entry> = now.waiters.into_iter().filter(was_there).collect();
    let waiting = waiters.len();
    Snapshot { holder, beside, waiters, waiting, ..now }
}

#[cfg(test)]
mod tests;
