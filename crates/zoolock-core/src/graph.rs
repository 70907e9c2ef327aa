//! The graph of owners that wait for each other, and its deadlocks.
//!
//! Owners are queued for locks. An owner goes on when it is granted everything that it asks for, and releases everything
//! some time after that. Stuck owners are found by reduction, as R. C. Holt reduces general resource graphs ("Some Deadlock
//! Properties of Computer Systems", ACM Computing Surveys 4 (3), 1972). The conditions are those of E. G. Coffman, M. J.
//! Elphick and A. Shoshani ("System Deadlocks", ibid. 3 (2), 1971). An owner that would be granted everything is removed,
//! which makes room for others. The owners that remain when none can be removed are stuck. So readers and permits are
//! handled correctly. For them a cycle alone proves nothing, because another holder may release.
//!
//! Stuck owners are in a deadlock if they are on a cycle, and would be stuck without all other owners, too. The other stuck
//! owners wait behind a deadlock.

use std::collections::VecDeque;

use crate::names::Role;

/// One queue, in the order of grants: the holders come first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// Number of permits; unused if there is no semaphore. `None` if it is unknown: then a waiter for permits never counts
    /// as stuck in this queue.
    pub permits: Option<u64>,
    /// The contenders, in order.
    pub places: Vec<Place>,
}

/// One contender in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its owner. Owners are numbered from zero.
    pub owner: usize,
    /// The kind of access that it asks for.
    pub role: Role,
    /// Number of permits that it asks for.
    pub weight: u32,
    /// Set if it holds.
    pub holds: bool,
    /// The position in the same queue of its reader, if this is the writer of an upgrade. It does not wait for that reader.
    pub upgrades: Option<usize>,
}

impl Place {
    /// Returns whether it waits for `other`, which is before it at `at` and does not leave. `other_has`: set if `other`
    /// holds.
    fn waits_for(&self, at: usize, other: &Place, other_has: bool) -> bool {
        match self.role {
            // Writers between the reader and this contender wait for the reader.
            _ if self.upgrades.is_some() => other_has && self.upgrades != Some(at),
            Role::Exclusive | Role::Permit => true,
            Role::Shared => other.role == Role::Exclusive,
            Role::Upgradable => matches!(other.role, Role::Exclusive | Role::Upgradable),
        }
    }
}

/// A deadlock: owners that wait for each other, and for no owner that could go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knot {
    /// All its owners.
    pub owners: Vec<usize>,
    /// A shortest cycle among them: each owner waits for the next one, the last for the first.
    pub circle: Vec<Step>,
    /// Number of other owners that wait for these, directly or not. They may be stuck for another reason, too.
    pub behind: usize,
}

/// A part of a cycle: one owner waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The owner that waits.
    pub owner: usize,
    /// The queue in which it waits.
    pub queue: usize,
    /// Its position there.
    pub place: usize,
    /// The position there of the next owner in the cycle.
    pub behind: usize,
}

/// Owners and queues.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    queues: Vec<Queue>,
    /// The positions of each owner, as queue and position.
    places: Vec<Vec<(usize, usize)>>,
    /// The number of each queue's first position, if the positions of all queues are numbered in a row.
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
            for (place, Place { owner, .. }) in queue.places.iter().enumerate() {
                if graph.places.len() <= *owner {
                    graph.places.resize_with(owner + 1, Vec::new);
                }
                graph.places[*owner].push((at, place));
            }
        }
        graph
    }

    /// Returns its queues.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns the positions of this owner, as queue and position.
    pub fn places(&self, owner: usize) -> &[(usize, usize)] {
        self.places.get(owner).map_or(&[], Vec::as_slice)
    }

    /// Returns the positions before this one for which it waits.
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
    pub fn knots(&self) -> Vec<Knot> {
        let all = self.reduce(&self.all_owners());
        let edges = self.edges(&all);
        let mut knots = Vec::new();
        let mut suspects = components(&all.stuck, &edges);
        while let Some(members) = suspects.pop() {
            let alone = self.reduce(&members);
            for part in components(&alone.stuck, &self.edges(&alone)) {
                if part.len() < members.len() {
                    suspects.push(part);
                    continue;
                }
                let circle = self.shortest_cycle(&alone);
                let behind = count_waiting_for(&part, &edges) - part.len();
                knots.push(Knot { owners: part, circle, behind });
            }
        }
        knots.sort_by(|a, b| a.owners.cmp(&b.owners));
        knots
    }

    fn all_owners(&self) -> Vec<usize> {
        (0..self.places.len()).collect()
    }

    fn place(&self, (queue, place): (usize, usize)) -> &Place {
        &self.queues[queue].places[place]
    }

    fn waits(&self, owner: usize) -> impl Iterator<Item = (usize, usize)> {
        self.places(owner).iter().copied().filter(move |&at| !self.place(at).holds)
    }

    /// Removes every owner that can go on, in a graph of `members` alone.
    fn reduce(&self, members: &[usize]) -> Reduced {
        let mut removed = vec![true; self.places.len()];
        let mut missing = vec![0; self.places.len()];
        let mut has: Vec<bool> =
            self.queues.iter().flat_map(|queue| &queue.places).map(|place| place.holds).collect();
        let (mut due, mut is_due) = (VecDeque::new(), vec![false; self.queues.len()]);
        for &owner in members {
            missing[owner] = self.waits(owner).count();
            removed[owner] = missing[owner] == 0;
            for (queue, _) in self.waits(owner) {
                if !std::mem::replace(&mut is_due[queue], true) {
                    due.push_back(queue);
                }
            }
        }
        while let Some(queue) = due.pop_front() {
            is_due[queue] = false;
            let mut before = Earlier::default();
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
                        // Contenders behind this position are visited below. The other queues need a visit, and so does this
                        // one if the owner has an earlier position here.
                        for &(other, another) in self.places(owner) {
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
        Reduced { stuck, removed, has }
    }

    /// Returns for each owner the stuck owners that it waits for. A contender that waits for all earlier ones represents
    /// them: later contenders have an edge to it, and not to them. So a long queue has few edges.
    fn edges(&self, reduced: &Reduced) -> Vec<Vec<usize>> {
        let Reduced { stuck, removed, has } = reduced;
        let mut edges = vec![Vec::new(); self.places.len()];
        let waits = |&(queue, place): &(usize, usize)| !has[self.base[queue] + place];
        let mut queues: Vec<usize> =
            stuck.iter().flat_map(|&owner| self.waits(owner)).filter(waits).map(|(queue, _)| queue).collect();
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            let (mut before, mut alone, mut upgradable) = (Vec::new(), Vec::new(), Vec::new());
            let mut holders = Vec::new();
            for (at, place) in self.queues[queue].places.iter().enumerate() {
                let owner = place.owner;
                if removed[owner] {
                    continue;
                }
                let has = has[self.base[queue] + at];
                if !has {
                    let of: &mut Vec<usize> = &mut edges[owner];
                    match place.role {
                        _ if place.upgrades.is_some() => {
                            let others = holders.iter().filter(|(holder, _)| place.upgrades != Some(*holder));
                            of.extend(others.map(|&(_, owner)| owner));
                        }
                        Role::Exclusive | Role::Permit => {
                            of.append(&mut before);
                            alone.clear();
                            upgradable.clear();
                        }
                        Role::Shared => of.extend(&alone),
                        Role::Upgradable => {
                            of.extend(alone.iter().chain(&upgradable));
                            upgradable.clear();
                        }
                    }
                }
                before.push(owner);
                match place.role {
                    Role::Exclusive => alone.push(owner),
                    Role::Upgradable => upgradable.push(owner),
                    Role::Shared | Role::Permit => {}
                }
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

    /// Returns a shortest cycle among the stuck owners. There is at least one.
    fn shortest_cycle(&self, reduced: &Reduced) -> Vec<Step> {
        let holds = |owner: usize| self.places(owner).iter().any(|&at| self.place(at).holds);
        let mut starts = reduced.stuck.clone();
        starts.sort_by_key(|&owner| !holds(owner));
        let cycles =
            starts.iter().take(MAX_CYCLE_STARTS).filter_map(|&start| self.cycle_from(start, reduced));
        // Of several, the first one: the result depends only on the graph.
        cycles.min_by_key(Vec::len).unwrap_or_default()
    }

    fn cycle_from(&self, start: usize, reduced: &Reduced) -> Option<Vec<Step>> {
        let Reduced { removed, has, .. } = reduced;
        let mut reached_by: Vec<Option<Step>> = vec![None; self.places.len()];
        let mut next = VecDeque::from([start]);
        while let Some(owner) = next.pop_front() {
            for (queue, place) in self.waits(owner) {
                if has[self.base[queue] + place] {
                    continue;
                }
                let ours = self.place((queue, place));
                for (behind, other) in self.queues[queue].places[..place].iter().enumerate() {
                    let theirs_has = has[self.base[queue] + behind];
                    if removed[other.owner] || !ours.waits_for(behind, other, theirs_has) {
                        continue;
                    }
                    let step = Step { owner, queue, place, behind };
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
struct Reduced {
    stuck: Vec<usize>,
    /// By owner: set if it can go on, or is not a member.
    removed: Vec<bool>,
    /// By position: set if it holds, or will hold when the removed owners have released.
    has: Vec<bool>,
}

/// Counts of the contenders before a position that were not removed.
#[derive(Default)]
struct Earlier {
    all: usize,
    exclusive: usize,
    upgradable: usize,
    holders: usize,
    weight: u64,
}

impl Earlier {
    fn add(&mut self, place: &Place, has: bool) {
        self.all += 1;
        self.exclusive += usize::from(place.role == Role::Exclusive);
        self.upgradable += usize::from(place.role == Role::Upgradable);
        self.holders += usize::from(has);
        self.weight = self.weight.saturating_add(place.weight.into());
    }

    /// Returns whether the next contender is granted. `reads`: set if the reader that it upgrades was not removed.
    fn grants(&self, place: &Place, reads: bool, permits: Option<u64>) -> bool {
        match place.role {
            _ if place.upgrades.is_some() => self.holders <= usize::from(reads),
            Role::Exclusive => self.all == 0,
            Role::Shared => self.exclusive == 0,
            Role::Upgradable => self.exclusive + self.upgradable == 0,
            Role::Permit => {
                let taken = self.weight.saturating_add(place.weight.into());
                self.exclusive == 0 && permits.is_none_or(|permits| taken <= permits)
            }
        }
    }
}

/// Returns the vertices on cycles, by strongly connected component (R. Tarjan, "Depth-First Search and Linear Graph
/// Algorithms", SIAM Journal on Computing 1 (2), 1972). It does not recurse, because queues are long.
fn components(vertices: &[usize], edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
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

/// Returns the number of owners that wait for one of these, directly or not, themselves included.
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
