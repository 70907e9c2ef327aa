//! Who waits for whom, over all locks: what `zoolock why` and `deadlocks` tell.
//!
//! The search is in [`zoolock_core::graph`]. Here its vertices get names, and what was seen while everything moved is
//! confirmed.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use zoolock_core::graph::{self, Graph};
use zoolock_core::names::Role;

use crate::error::Error;
use crate::path::LockPath;
use crate::snapshot::reader::Reader;
use crate::snapshot::{self, Entry, Snapshot};
use crate::zoolock::Zoolock;

/// Owners and locks, as some snapshots show them.
///
/// An owner holds some locks and waits for others, and lets go of all some time after it has all. It waits at a lock
/// for every contender before it that excludes it: for those who hold, and for those who wait and came first.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WaitGraph {
    /// Those who wait, and those for whom somebody waits.
    pub owners: Vec<Party>,
    #[serde(skip)]
    graph: Graph,
    /// The path of each queue, and the entry at each of its places.
    #[serde(skip)]
    queues: Vec<(String, Vec<Entry>)>,
}

/// An owner, with all that it holds and waits for.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Party {
    /// Who it is; see [`Entry::owner`]. Of those who could not be read each is another one.
    pub owner: Option<String>,
    /// How that is known; see [`Entry::owner_kind`].
    pub owner_kind: &'static str,
    /// Whether it will never go on unless somebody takes a lock away: in a deadlock, or behind one.
    pub stuck: bool,
    /// What it holds.
    pub holds: Vec<Place>,
    /// What it waits for.
    pub waits: Vec<Place>,
}

/// A place in the queue of a lock.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Place {
    /// The lock's directory.
    pub lock: String,
    /// Whether it holds there; else it waits.
    pub granted: bool,
    /// Whose place it is.
    #[serde(flatten)]
    pub entry: Entry,
}

/// Owners who wait for each other, for ever.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Deadlock {
    /// A shortest circle: each waits for the next one, the last for the first.
    pub edges: Vec<Edge>,
    /// How many owners wait for each other, in all.
    pub owners: usize,
    /// How many more wait behind them.
    pub behind: usize,
    /// Which place to break, so that this circle is none any more: the last one that was taken, if possible of one who
    /// notices.
    pub to_break: Option<Cut>,
}

/// One owner of a circle.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Edge {
    /// Who it is; see [`Entry::owner`].
    pub owner: Option<String>,
    /// How that is known; see [`Entry::owner_kind`].
    pub owner_kind: &'static str,
    /// What it has and the one before it in the circle waits for: a lock, or a place before the other one.
    pub holds: Place,
    /// What it waits for.
    pub waits_for: Place,
}

/// What [`Mutex::break_lock`](crate::Mutex::break_lock) asks for.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Cut {
    /// The lock's directory.
    pub lock: String,
    /// The token of whom it is to be taken from.
    pub token: String,
}

/// Why a lock is not free.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Why {
    /// The lock's directory.
    pub lock: String,
    /// Who holds it, for what that one waits, who has that, and so on. Where several stand in the way it is one who is
    /// stuck or waits, if there is one.
    pub chain: Vec<Link>,
    /// How the chain ends: `free`, nobody holds the lock; `working`, the last one waits for nothing that we see;
    /// `circle`, the last one waits for one who is in the chain already, and so for ever; `permits`, it asks for more
    /// permits than there are; `unsure`, it would be one of these two if the semaphore in between said how many permits it
    /// has; `unknown`, who the last one is could not be read.
    pub end: &'static str,
}

/// One in a chain of those who wait.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Link {
    /// Who it is; see [`Entry::owner`].
    pub owner: Option<String>,
    /// How that is known; see [`Entry::owner_kind`].
    pub owner_kind: &'static str,
    /// What it has and the one before it waits for.
    pub holds: Place,
    /// How many others the one before it waits for there.
    pub beside: usize,
    /// What it waits for itself, where it does.
    pub waits_for: Option<Place>,
}

impl WaitGraph {
    /// Makes the graph of these locks. Owners hold and wait for others than these, too, perhaps: what is not in the
    /// snapshots is not in the graph.
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
                let reader = entry.of.as_ref()?;
                entries.clone().position(|other| other.id.as_ref() == Some(reader) && other.of.is_none())
            };
            // Of a client of another make only the session is known: two of one lock are two threads, and no circle.
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

    /// The deadlocks.
    pub fn deadlocks(&self) -> Vec<Deadlock> {
        self.graph.knots().into_iter().map(|knot| self.deadlock(&knot)).collect()
    }

    /// Follows who holds the lock at `path`, for what that one waits, and who has that, to one who waits for nothing,
    /// or to one who came before.
    pub fn why(&self, path: &str) -> Why {
        let mut why = Why { lock: path.to_owned(), chain: Vec::new(), end: "free" };
        let Some(lock) = self.queues.iter().position(|(other, _)| other == path) else { return why };
        let stuck: HashSet<usize> = self.graph.stuck().into_iter().collect();
        let places = |queue: usize| &self.graph.queues()[queue].places;
        // Those of the chain, and whether each waits for one of nobody knows how many permits.
        let (mut queue, mut seen) = (lock, Vec::<(usize, bool)>::new());
        let mut in_the_way: Vec<usize> =
            (0..places(lock).len()).filter(|at| places(lock)[*at].holds).collect();
        loop {
            let best = in_the_way.iter().copied().min_by_key(|&at| {
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
            // Of one who is stuck, where it is so.
            let hopeless = |&(queue, at): &(usize, usize)| {
                let mut before = self.graph.waits_for(queue, at).peekable();
                before.peek().is_none() || before.any(|at| stuck.contains(&places(queue)[at].owner))
            };
            let mut waits: Vec<(usize, usize)> = self.waits(owner).collect();
            waits.sort_by_key(|place| !hopeless(place));
            let waits = waits.first().copied();
            why.chain.push(Link {
                owner: holds.entry.owner.clone(),
                owner_kind: holds.entry.owner_kind,
                holds,
                beside: in_the_way.len() - 1,
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
            in_the_way = self.graph.waits_for(next, place).collect();
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
        let heeds = |place: &Place| matches!(place.entry.owner_kind, "owner" | "task");
        let last = edges.iter().map(|edge| &edge.holds).filter(|place| place.entry.token.is_some());
        let last = last.max_by_key(|place| (heeds(place), place.granted, place.entry.since_ms));
        let cut = |place: &Place| Some(Cut { lock: place.lock.clone(), token: place.entry.token.clone()? });
        let to_break = last.and_then(cut);
        Deadlock { edges, owners: knot.owners.len(), behind: knot.behind, to_break }
    }

    /// The locks at which those stand who are in a deadlock.
    fn suspects(&self) -> HashSet<String> {
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

impl Zoolock {
    /// The deadlocks among the owners of the locks under the root, or under `prefix`: who waits for whom in a circle.
    ///
    /// Locks are read one after the other, and meanwhile they change hands: a circle that was only seen so is not told.
    /// What is told was so at one moment, and so is still, unless somebody gave up or was broken. Who belongs together
    /// is what [`Entry::owner_kind`] says, no more.
    ///
    /// # Errors
    /// As [`Zoolock::locks`].
    pub async fn deadlocks(&self, prefix: Option<&str>) -> Result<Vec<Deadlock>, Error> {
        Ok(self.confirmed(self.locks(prefix).await?).await?.deadlocks())
    }

    /// The graph of these locks, those that seem to be in a circle looked at once more.
    async fn confirmed(&self, mut locks: Vec<Snapshot>) -> Result<WaitGraph, Error> {
        let graph = WaitGraph::of(&locks);
        let suspects = graph.suspects();
        if suspects.is_empty() {
            return Ok(graph);
        }
        let keeper = self.keeper().await?;
        let (reader, view) = (Reader::new(&*keeper), self.view());
        for lock in locks.iter_mut().filter(|lock| suspects.contains(&lock.path)) {
            let path = LockPath::from_server(format!("{}{}", view.chroot, lock.path));
            let now = snapshot::read(&reader, path, &view).await?;
            *lock = in_both(lock, now);
        }
        Ok(WaitGraph::of(&locks))
    }

    /// Why the lock `name` is not free: who holds it, for what under the root that one waits itself, who has that, and
    /// so on.
    ///
    /// # Errors
    /// As [`Zoolock::locks`]; [`Error::Invalid`] for a bad name.
    pub async fn why(&self, name: &str) -> Result<Why, Error> {
        let path = self.path(name)?;
        let path = self.shown(path.as_str()).to_owned();
        let mut locks = self.locks(None).await?;
        if locks.iter().all(|lock| lock.path != path) {
            locks.push(self.mutex(name).snapshot().await?);
        }
        Ok(self.confirmed(locks).await?.why(&path))
    }
}

/// The lock as it is now, with those alone who were there before. Whoever is in the first look at one lock and in the
/// second look at another was there between the two; if all are, all were there at the same time.
fn in_both(before: &Snapshot, now: Snapshot) -> Snapshot {
    let everybody = before.holder.iter().chain(&before.beside).chain(&before.waiters);
    let there: HashSet<(&str, Option<&str>)> =
        everybody.map(|entry| (entry.node.as_str(), entry.token.as_deref())).collect();
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
