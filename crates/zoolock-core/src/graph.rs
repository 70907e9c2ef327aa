//! The graph of owners that wait for each other, and its deadlocks.
//!
//! An owner has contenders in the queues of one or more locks. An owner can continue when it is
//! granted everything that it asks for. Some time later it releases everything. Stuck owners are
//! found by reduction, as R. C. Holt reduces general resource graphs ("Some Deadlock Properties of
//! Computer Systems", ACM Computing Surveys 4 (3), 1972). The conditions for a deadlock are those
//! of E. G. Coffman, M. J. Elphick and A. Shoshani ("System Deadlocks", ibid. 3 (2), 1971). An
//! owner that would be granted everything is removed, which makes room for others. The owners that
//! remain when none can be removed are stuck. So readers and permits are handled correctly. For
//! them a cycle alone proves nothing, because another holder may release.
//!
//! Stuck owners are in a deadlock if they are on a cycle, and would also be stuck if there were no
//! other owners. The other stuck owners wait behind a deadlock, or behind a request for more
//! permits than the semaphore has.

use std::collections::VecDeque;

use crate::names::{Role, Roles};

/// One queue, in the order of grants. A contender waits only for contenders before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// Number of permits; unused if the lock is no semaphore. `None` if the number is unknown: then
    /// a waiter for permits never counts as stuck in this queue.
    pub permits: Option<u64>,
    /// The contenders, in the order of grants.
    pub places: Vec<QueuePosition>,
}

/// One contender in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    /// The contender's owner. Owners are numbered from zero.
    pub owner: usize,
    /// The kind of access that the contender asks for.
    pub role: Role,
    /// Number of permits that the contender asks for.
    pub weight: u32,
    /// Set if the contender holds.
    pub holds: bool,
    /// For the writer of an upgrade: the index of its reader in the same queue. The writer does not wait for that reader.
    pub upgrades: Option<usize>,
}

impl QueuePosition {
    /// Returns whether this contender waits for `other`, which is before it at index `at`. `other_has`: set if `other`
    /// holds.
    fn waits_for(&self, at: usize, other: &QueuePosition, other_has: bool) -> bool {
        match self.upgrades {
            // An upgrade waits only for other holders: the writers between its reader and it wait
            // for that reader.
            Some(reader) => other_has && reader != at,
            None => self.role.waits_for(other.role),
        }
    }
}

/// A deadlock: owners that wait for each other, and for no owner that could continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadlockCycle {
    /// All owners in the deadlock.
    pub owners: Vec<usize>,
    /// A shortest cycle among the owners: each owner waits for the next one, the last for the first.
    pub cycle: Vec<WaitStep>,
    /// Number of other owners that wait for the owners in the deadlock, directly or not. They may also be stuck for another
    /// reason.
    pub behind: usize,
}

/// A part of a cycle: one owner waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitStep {
    /// The owner that waits.
    pub owner: usize,
    /// The queue in which it waits.
    pub queue: usize,
    /// The position of the owner in that queue.
    pub place: usize,
    /// The position in that queue of the next owner in the cycle.
    pub behind: usize,
}

/// A graph of owners, and of the queues in which they hold or wait.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    queues: Vec<Queue>,
    /// By owner: the positions of the owner, as index of the queue and index in that queue.
    places: Vec<Vec<(usize, usize)>>,
    /// By queue: the number of its first position. The positions of all queues are numbered
    /// consecutively.
    base: Vec<usize>,
    count: usize,
}

/// Maximum number of owners from which a shortest cycle is searched. A larger deadlock usually has thousands of waiters in
/// one queue, and few holders. The search starts with the holders.
const MAX_CYCLE_STARTS: usize = 32;

impl Graph {
    /// Creates the graph of these queues.
    pub fn of(queues: Vec<Queue>) -> Graph {
        let mut graph = Graph { queues, ..Graph::default() };
        for (at, queue) in graph.queues.iter().enumerate() {
            graph.base.push(graph.count);
            graph.count += queue.places.len();
            for (place, QueuePosition { owner, .. }) in queue.places.iter().enumerate() {
                if graph.places.len() <= *owner {
                    graph.places.resize_with(owner + 1, Vec::new);
                }
                graph.places[*owner].push((at, place));
            }
        }
        graph
    }

    /// Returns the queues.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns the positions of this owner, as index of the queue and index in that queue.
    pub fn positions_of(&self, owner: usize) -> &[(usize, usize)] {
        self.places.get(owner).map_or(&[], Vec::as_slice)
    }

    /// Returns the positions for which the contender at `place` waits. All of them are earlier in
    /// the same queue.
    pub fn waits_for(&self, queue: usize, place: usize) -> impl Iterator<Item = usize> {
        let places = &self.queues[queue].places;
        let ours = &places[place];
        let before = places[..place].iter().enumerate();
        before.filter(move |(at, other)| ours.waits_for(*at, other, other.holds)).map(|(at, _)| at)
    }

    /// Returns the owners that wait for ever, unless another client takes a lock away from an owner.
    pub fn stuck(&self) -> Vec<usize> {
        self.reduce(&self.all_owners()).stuck
    }

    /// Returns the deadlocks.
    pub fn deadlocks(&self) -> Vec<DeadlockCycle> {
        let all = self.reduce(&self.all_owners());
        let edges = self.wait_edges(&all);
        let mut deadlocks = Vec::new();
        let mut suspects = strongly_connected_components(&all.stuck, &edges);
        while let Some(members) = suspects.pop() {
            let alone = self.reduce(&members);
            for part in strongly_connected_components(&alone.stuck, &self.wait_edges(&alone)) {
                if part.len() < members.len() {
                    suspects.push(part);
                    continue;
                }
                let cycle = self.shortest_cycle(&alone);
                let behind = count_waiting_for(&part, &edges) - part.len();
                deadlocks.push(DeadlockCycle { owners: part, cycle, behind });
            }
        }
        deadlocks.sort_by(|a, b| a.owners.cmp(&b.owners));
        deadlocks
    }

    fn all_owners(&self) -> Vec<usize> {
        (0..self.places.len()).collect()
    }

    fn place(&self, (queue, place): (usize, usize)) -> &QueuePosition {
        &self.queues[queue].places[place]
    }

    fn waiting_positions(&self, owner: usize) -> impl Iterator<Item = (usize, usize)> {
        self.positions_of(owner).iter().copied().filter(move |&at| !self.place(at).holds)
    }

    /// Removes every owner that can continue, in a graph of `members` alone.
    fn reduce(&self, members: &[usize]) -> Reduction {
        let mut removed = vec![true; self.places.len()];
        let mut missing = vec![0; self.places.len()];
        let mut has: Vec<bool> =
            self.queues.iter().flat_map(|queue| &queue.places).map(|place| place.holds).collect();
        let (mut due, mut is_due) = (VecDeque::new(), vec![false; self.queues.len()]);
        for &owner in members {
            missing[owner] = self.waiting_positions(owner).count();
            removed[owner] = missing[owner] == 0;
            for (queue, _) in self.waiting_positions(owner) {
                if !std::mem::replace(&mut is_due[queue], true) {
                    due.push_back(queue);
                }
            }
        }
        while let Some(queue) = due.pop_front() {
            is_due[queue] = false;
            let mut before = EarlierCounts::default();
            for (at, place) in self.queues[queue].places.iter().enumerate() {
                let (owner, number) = (place.owner, self.base[queue] + at);
                if removed[owner] {
                    continue;
                }
                if !has[number] {
                    let reader = place.upgrades.map(|reader| self.place((queue, reader)).owner);
                    let reads = reader.is_some_and(|reader| !removed[reader]);
                    if before.grants(place, reads, self.queues[queue].permits) {
                        has[number] = true;
                        missing[owner] -= 1;
                    }
                    if missing[owner] == 0 {
                        removed[owner] = true;
                        // This loop visits the contenders behind this position next. The owner's
                        // other queues need another visit. So does this queue, if the owner has an
                        // earlier position in it.
                        for &(other, another) in self.positions_of(owner) {
                            if (other != queue || another < at)
                                && !std::mem::replace(&mut is_due[other], true)
                            {
                                due.push_back(other);
                            }
                        }
                        continue;
                    }
                }
                before.add(place, has[number]);
            }
        }
        let stuck = members.iter().copied().filter(|&owner| !removed[owner]).collect();
        Reduction { stuck, removed, has }
    }

    /// Returns for each owner the stuck owners that it waits for. A contender that waits for all
    /// earlier contenders represents them: a later contender has an edge to it, and no edges to the
    /// earlier ones. So a long queue has few edges.
    fn wait_edges(&self, reduced: &Reduction) -> Vec<Vec<usize>> {
        let Reduction { stuck, removed, has } = reduced;
        let mut edges = vec![Vec::new(); self.places.len()];
        let waits = |&(queue, place): &(usize, usize)| !has[self.base[queue] + place];
        let mut queues: Vec<usize> = stuck
            .iter()
            .flat_map(|&owner| self.waiting_positions(owner))
            .filter(waits)
            .map(|(queue, _)| queue)
            .collect();
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            let (mut before, mut holders) = (Vec::new(), Vec::new());
            // By role: the earlier owners to which a later contender that waits for this role needs
            // an edge.
            let mut by_role = Role::ALL.map(|_| Vec::<usize>::new());
            for (at, place) in self.queues[queue].places.iter().enumerate() {
                let owner = place.owner;
                if removed[owner] {
                    continue;
                }
                let has = has[self.base[queue] + at];
                if !has {
                    let of: &mut Vec<usize> = &mut edges[owner];
                    let waits = |older: &Role| place.role.waits_for(*older);
                    if place.upgrades.is_some() {
                        let others = holders.iter().filter(|(holder, _)| place.upgrades != Some(*holder));
                        of.extend(others.map(|&(_, owner)| owner));
                    } else if Role::ALL.iter().all(waits) {
                        of.append(&mut before);
                        by_role.iter_mut().for_each(Vec::clear);
                    } else {
                        for older in Role::ALL.into_iter().filter(waits) {
                            of.extend(&by_role[older as usize]);
                        }
                        if waits(&place.role) {
                            by_role[place.role as usize].clear();
                        }
                    }
                }
                before.push(owner);
                by_role[place.role as usize].push(owner);
                if has {
                    holders.push((at, owner));
                }
            }
        }
        for of in &mut edges {
            of.sort_unstable();
            of.dedup();
        }
        edges
    }

    /// Returns a shortest cycle through one of the first `MAX_CYCLE_STARTS` stuck owners, holders
    /// first. Every stuck owner is on a cycle.
    fn shortest_cycle(&self, reduced: &Reduction) -> Vec<WaitStep> {
        let holds = |owner: usize| self.positions_of(owner).iter().any(|&at| self.place(at).holds);
        let mut starts = reduced.stuck.clone();
        starts.sort_by_key(|&owner| !holds(owner));
        let cycles =
            starts.iter().take(MAX_CYCLE_STARTS).filter_map(|&start| self.cycle_from(start, reduced));
        // Of several shortest cycles, take the first one, so that the result depends only on the graph.
        cycles.min_by_key(Vec::len).unwrap_or_default()
    }

    fn cycle_from(&self, start: usize, reduced: &Reduction) -> Option<Vec<WaitStep>> {
        let Reduction { removed, has, .. } = reduced;
        let mut reached_by: Vec<Option<WaitStep>> = vec![None; self.places.len()];
        let mut next = VecDeque::from([start]);
        while let Some(owner) = next.pop_front() {
            for (queue, place) in self.waiting_positions(owner) {
                if has[self.base[queue] + place] {
                    continue;
                }
                let ours = self.place((queue, place));
                for (behind, other) in self.queues[queue].places[..place].iter().enumerate() {
                    let theirs_has = has[self.base[queue] + behind];
                    if removed[other.owner] || !ours.waits_for(behind, other, theirs_has) {
                        continue;
                    }
                    let step = WaitStep { owner, queue, place, behind };
                    if other.owner == start {
                        let mut cycle = vec![step];
                        while let Some(step) = reached_by[cycle[cycle.len() - 1].owner] {
                            cycle.push(step);
                        }
                        cycle.reverse();
                        return Some(cycle);
                    }
                    if reached_by[other.owner].is_none() {
                        reached_by[other.owner] = Some(step);
                        next.push_back(other.owner);
                    }
                }
            }
        }
        None
    }
}

/// The result of a reduction.
struct Reduction {
    stuck: Vec<usize>,
    /// By owner: set if the owner can continue, or is not a member.
    removed: Vec<bool>,
    /// By position: set if the contender there holds, or will hold when the removed owners have
    /// released.
    has: Vec<bool>,
}

/// A summary of the contenders before a position, without those of removed owners.
#[derive(Default)]
struct EarlierCounts {
    roles: Roles,
    holders: usize,
    weight: u64,
}

impl EarlierCounts {
    fn add(&mut self, place: &QueuePosition, has: bool) {
        self.roles.insert(place.role);
        self.holders += usize::from(has);
        self.weight = self.weight.saturating_add(place.weight.into());
    }

    /// Returns whether the next contender is granted. `reads`: for an upgrade, set if its reader was not removed.
    fn grants(&self, place: &QueuePosition, reads: bool, permits: Option<u64>) -> bool {
        match place.role {
            _ if place.upgrades.is_some() => self.holders <= usize::from(reads),
            Role::Permit => {
                let taken = self.weight.saturating_add(place.weight.into());
                !self.roles.contains(Role::Exclusive) && permits.is_none_or(|permits| taken <= permits)
            }
            role => !self.roles.exclude(role),
        }
    }
}

/// Returns the strongly connected components that have a cycle (R. Tarjan, "Depth-First Search and
/// Linear Graph Algorithms", SIAM Journal on Computing 1 (2), 1972). Does not recurse, because
/// queues are long.
fn strongly_connected_components(vertices: &[usize], edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let (mut number, mut low) = (vec![UNSEEN; edges.len()], vec![UNSEEN; edges.len()]);
    let (mut on_stack, mut stack) = (vec![false; edges.len()], Vec::new());
    let (mut path, mut found, mut count) = (Vec::new(), Vec::new(), 0);
    for &root in vertices {
        if number[root] != UNSEEN {
            continue;
        }
        path.push((root, 0));
        while let Some((vertex, at)) = path.pop() {
            if at == 0 {
                (number[vertex], low[vertex]) = (count, count);
                count += 1;
                stack.push(vertex);
                on_stack[vertex] = true;
            } else {
                let child: usize = edges[vertex][at - 1];
                if on_stack[child] {
                    low[vertex] = low[vertex].min(low[child]);
                }
            }
            if let Some(&next) = edges[vertex].get(at) {
                path.push((vertex, at + 1));
                if number[next] == UNSEEN {
                    path.push((next, 0));
                }
                continue;
            }
            if low[vertex] == number[vertex] {
                let mut component = Vec::new();
                while let Some(member) = stack.pop() {
                    on_stack[member] = false;
                    component.push(member);
                    if member == vertex {
                        break;
                    }
                }
                component.sort_unstable();
                if component.len() > 1 || edges[vertex].contains(&vertex) {
                    found.push(component);
                }
            }
        }
    }
    found
}

/// Returns the number of owners in `of` and of all owners that wait for them, directly or not.
fn count_waiting_for(of: &[usize], edges: &[Vec<usize>]) -> usize {
    let mut waiting = vec![Vec::new(); edges.len()];
    for (owner, others) in edges.iter().enumerate() {
        for &other in others {
            waiting[other].push(owner);
        }
    }
    let mut seen = vec![false; edges.len()];
    let mut next = of.to_vec();
    of.iter().for_each(|&owner| seen[owner] = true);
    let mut count = 0;
    while let Some(owner) = next.pop() {
        count += 1;
        for &other in &waiting[owner] {
            if !std::mem::replace(&mut seen[other], true) {
                next.push(other);
            }
        }
    }
    count
}

#[cfg(test)]
mod tests;
