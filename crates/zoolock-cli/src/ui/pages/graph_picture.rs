//! The picture of the wait-for graph. A waiting owner is drawn to the right of the owners for which it waits.

use std::collections::{HashMap, HashSet};

use maud::{Markup, html};
use zoolock::{Deadlock, Entry, QueueEntry, WaitingOwner};

use super::elements::{format_count, format_counted};
use super::pictures::wrap;
use crate::base::reporter::escape_unprintable;
use crate::render::status::describe_contender;
use crate::render::text::describe_role;

/// Maximum number of boxes in the picture.
const MAX_DRAWN: usize = 40;
/// Maximum number of holders of one lock shown per waiter, in the picture and the table.
const MAX_HOLDERS_PER_WAITER: usize = 8;
/// Maximum number of edges on the page. The edges of cycles are always shown, even if there are
/// more.
const MAX_EDGES: usize = 5_000;
/// Size of the boxes, and the distance between them.
const WIDTH: usize = 208;
const HEIGHT: usize = 64;
const ACROSS: usize = WIDTH + 150;
const DOWN: usize = HEIGHT + 34;
/// Space below the boxes for edges that lead from left to right.
const BELOW: usize = 56;
/// Maximum number of layers, which are the columns of boxes. In a longer chain of waiters, the last
/// owners share the last layer.
const LAYERS: usize = 12;
/// Maximum number of letters and lines in a box, and of letters at an edge.
const LETTERS: usize = 25;
const LINES: usize = 3;
const EDGE_LETTERS: usize = 18;

/// A box of the graph.
enum GraphNode<'a> {
    Owner(DrawnOwner<'a>),
    Semaphore(DrawnSemaphore<'a>),
}

/// An owner in the graph.
struct DrawnOwner<'a> {
    /// The contender that describes the owner: its waiter in a cycle, or else its first waiter, or else its first holder.
    entry: &'a Entry,
    waits: bool,
    stuck: bool,
}

/// A semaphore in the graph, with all its holders.
struct DrawnSemaphore<'a> {
    lock: &'a str,
    permits: Option<u32>,
    held: u64,
    holders: usize,
}

/// An edge of the graph: an owner waits for an owner or for a semaphore, or a semaphore is held by an owner.
pub(super) struct DrawnEdge<'a> {
    from: usize,
    to: usize,
    lock: &'a str,
    /// Queue entry of the waiting owner. `None` if the edge begins at a semaphore.
    pub(super) waiter: Option<&'a QueueEntry>,
    /// Queue entry of the owner that it waits for. `None` if the edge ends at a semaphore.
    pub(super) holder: Option<&'a QueueEntry>,
    pub(super) in_cycle: bool,
    /// Set on the last edge of a cycle, which leads to the cycle's first owner.
    closing: bool,
}

/// The owners that wait or are waited for, the semaphores that they wait for, and the edges between them.
pub(super) struct DrawnGraph<'a> {
    nodes: Vec<GraphNode<'a>>,
    /// The node of the owner of each contender, by lock and znode.
    owner_nodes: HashMap<(&'a str, &'a str), usize>,
    pub(super) edges: Vec<DrawnEdge<'a>>,
    /// Set if there are more than [`MAX_EDGES`] edges.
    more_edges: bool,
    /// Set if an owner waits for a lock with more than [`MAX_HOLDERS_PER_WAITER`] holders.
    more_holders: bool,
}

impl<'a> DrawnGraph<'a> {
    /// Builds the graph. `permits` returns the number of permits of the semaphore at a path, if it is recorded.
    pub(super) fn of(
        owners: &'a [WaitingOwner],
        deadlocks: impl Iterator<Item = &'a Deadlock>,
        permits: impl Fn(&str) -> Option<u32>,
    ) -> Self {
        let mut owner_nodes: HashMap<(&str, &str), usize> = HashMap::new();
        let mut holders: HashMap<&str, Vec<(usize, &QueueEntry)>> = HashMap::new();
        let mut nodes = Vec::new();
        for owner in owners {
            // Every owner has at least one queue entry.
            let Some(place) = owner.waits.first().or(owner.holds.first()) else { continue };
            let number = nodes.len();
            let (entry, waits) = (&place.entry, !owner.waits.is_empty());
            nodes.push(GraphNode::Owner(DrawnOwner { entry, waits, stuck: owner.stuck }));
            for place in owner.holds.iter().chain(&owner.waits) {
                owner_nodes.insert((&place.lock, &place.entry.node), number);
            }
            for place in &owner.holds {
                holders.entry(&place.lock).or_default().push((number, place));
            }
        }
        let mut semaphores: HashMap<&str, usize> = HashMap::new();
        for place in owners.iter().flat_map(|owner| &owner.waits).filter(|place| place.entry.role == "permit")
        {
            semaphores.entry(&place.lock).or_insert_with(|| {
                let holders = holders.get(place.lock.as_str()).map_or(&[][..], Vec::as_slice);
                let held = holders.iter().map(|(_, holder)| u64::from(holder.entry.weight)).sum();
                let (lock, holders) = (place.lock.as_str(), holders.len());
                nodes.push(GraphNode::Semaphore(DrawnSemaphore {
                    lock,
                    permits: permits(lock),
                    held,
                    holders,
                }));
                nodes.len() - 1
            });
        }
        let mut graph =
            Self { nodes, owner_nodes, edges: Vec::new(), more_edges: false, more_holders: false };
        let drawn = graph.add_cycles(deadlocks, &semaphores);
        graph.add_other_edges(owners, &holders, &semaphores, drawn);
        graph
    }

    /// Adds the edges of the deadlocks. Returns the ends and the lock of each edge.
    fn add_cycles(
        &mut self,
        deadlocks: impl Iterator<Item = &'a Deadlock>,
        semaphores: &HashMap<&'a str, usize>,
    ) -> HashSet<(usize, usize, &'a str)> {
        let mut drawn = HashSet::new();
        for deadlock in deadlocks {
            let around = deadlock.edges.iter().zip(deadlock.edges.iter().cycle().skip(1));
            for (number, (edge, next)) in around.enumerate() {
                let (waiter, holder) = (&edge.waits_for, &next.holds);
                let (Some(from), Some(to)) = (self.owner_node(waiter), self.owner_node(holder)) else {
                    continue;
                };
                if let Some(GraphNode::Owner(owner)) = self.nodes.get_mut(from) {
                    owner.entry = &waiter.entry;
                }
                let closing = number + 1 == deadlock.edges.len();
                let lock = waiter.lock.as_str();
                let mut add = |from, to, waiter, holder, closing| {
                    if drawn.insert((from, to, lock)) {
                        self.edges.push(DrawnEdge {
                            from,
                            to,
                            lock,
                            waiter,
                            holder,
                            in_cycle: true,
                            closing,
                        });
                    }
                };
                // Only a holder is part of the box of a semaphore. A waiter that is ahead in the queue is not.
                match semaphores.get(lock).filter(|_| holder.granted) {
                    Some(&semaphore) => {
                        add(from, semaphore, Some(waiter), None, false);
                        add(semaphore, to, None, Some(holder), closing);
                    }
                    None => add(from, to, Some(waiter), Some(holder), closing),
                }
            }
        }
        drawn
    }

    /// Adds the edges that are in no deadlock, except those in `drawn`.
    fn add_other_edges(
        &mut self,
        owners: &'a [WaitingOwner],
        holders: &HashMap<&'a str, Vec<(usize, &'a QueueEntry)>>,
        semaphores: &HashMap<&'a str, usize>,
        mut drawn: HashSet<(usize, usize, &'a str)>,
    ) {
        let holders_of = |lock: &str| holders.get(lock).map_or(&[][..], Vec::as_slice);
        for waiter in owners.iter().flat_map(|owner| &owner.waits) {
            let Some(from) = self.owner_node(waiter) else { continue };
            let all = holders_of(&waiter.lock);
            let mut add = |from, to, waiter_or_none, holder| {
                if self.edges.len() >= MAX_EDGES {
                    self.more_edges = true;
                } else if drawn.insert((from, to, waiter.lock.as_str())) {
                    self.edges.push(DrawnEdge {
                        from,
                        to,
                        lock: &waiter.lock,
                        waiter: waiter_or_none,
                        holder,
                        in_cycle: false,
                        closing: false,
                    });
                }
            };
            if let Some(&semaphore) = semaphores.get(waiter.lock.as_str()) {
                add(from, semaphore, Some(waiter), None);
                // The box of the semaphore counts all holders. Only the waiting holders continue a chain.
                let is_waiting =
                    |at: usize| matches!(&self.nodes[at], GraphNode::Owner(owner) if owner.waits);
                let mut waiting = all.iter().filter(|(at, _)| is_waiting(*at));
                for &(to, holder) in waiting.by_ref().take(MAX_HOLDERS_PER_WAITER) {
                    add(semaphore, to, None, Some(holder));
                }
                self.more_holders |= waiting.next().is_some();
            } else {
                for &(to, holder) in all.iter().take(MAX_HOLDERS_PER_WAITER) {
                    add(from, to, Some(waiter), Some(holder));
                }
                self.more_holders |= all.len() > MAX_HOLDERS_PER_WAITER;
            }
            if self.more_edges {
                return;
            }
        }
    }

    fn owner_node(&self, place: &QueueEntry) -> Option<usize> {
        self.owner_nodes.get(&(place.lock.as_str(), place.entry.node.as_str())).copied()
    }

    /// Describes the owner of a contender. The list of deadlocks, the table and the picture use the same description.
    pub(super) fn describe_owner(&self, place: &QueueEntry) -> String {
        match self.owner_node(place).map(|at| &self.nodes[at]) {
            Some(GraphNode::Owner(owner)) => describe_contender(owner.entry),
            _ => describe_contender(&place.entry),
        }
    }

    /// Describes the target of an edge.
    pub(super) fn describe_target(&self, edge: &DrawnEdge<'_>) -> String {
        match (edge.holder, &self.nodes[edge.to]) {
            (Some(holder), _) => self.describe_owner(holder),
            (None, GraphNode::Semaphore(semaphore)) => semaphore.describe(),
            (None, GraphNode::Owner(owner)) => describe_contender(owner.entry),
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.more_edges || self.more_holders
    }

    /// Returns warnings about edges and holders that are not shown.
    pub(super) fn omission_warnings(&self) -> Markup {
        html! {
            @if self.more_edges {
                p.alert {
                    "This page is not complete. It shows the first waiters, up to " (format_count(MAX_EDGES))
                    " lines, and every cycle."
                }
            }
            @if self.more_holders {
                p.alert { "If a lock has many holders, only the first " (format_count(MAX_HOLDERS_PER_WAITER)) " of them are shown." }
            }
        }
    }

    /// Returns the nodes with an edge, in this order: nodes in a cycle, nodes that wait for a cycle, nodes in the middle
    /// of a chain, and nodes that many wait for.
    fn nodes_by_importance(&self) -> Vec<usize> {
        let mut in_cycle = vec![false; self.nodes.len()];
        let mut waits = vec![false; self.nodes.len()];
        let mut waited_for = vec![0_usize; self.nodes.len()];
        for edge in &self.edges {
            in_cycle[edge.from] |= edge.in_cycle;
            in_cycle[edge.to] |= edge.in_cycle;
            waits[edge.from] = true;
            waited_for[edge.to] += 1;
        }
        let is_stuck = |at: usize| matches!(&self.nodes[at], GraphNode::Owner(owner) if owner.stuck);
        let mut all: Vec<usize> =
            (0..self.nodes.len()).filter(|&at| waits[at] || waited_for[at] > 0).collect();
        all.sort_by_key(|&at| {
            let between = waits[at] && waited_for[at] > 0;
            (!in_cycle[at], !is_stuck(at), !between, usize::MAX - waited_for[at])
        });
        all
    }

    /// Returns the layer of each node. The layer is the distance from the nodes that wait for no lock.
    fn layers(&self, chosen: &[usize]) -> HashMap<usize, usize> {
        let mut layers: HashMap<usize, usize> = chosen.iter().map(|&at| (at, 0)).collect();
        for _ in 0..LAYERS {
            let mut moved = false;
            for edge in self.edges.iter().filter(|edge| !edge.closing && edge.from != edge.to) {
                let (Some(&from), Some(&to)) = (layers.get(&edge.from), layers.get(&edge.to)) else {
                    continue;
                };
                if from <= to && to + 1 < LAYERS {
                    layers.insert(edge.from, to + 1);
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        layers
    }

    fn nodes_in_cycles(&self) -> HashSet<usize> {
        let edges = self.edges.iter().filter(|edge| edge.in_cycle);
        edges.flat_map(|edge| [edge.from, edge.to]).collect()
    }

    /// Returns the position of each chosen node, and the width and height of the picture. Nodes in cycles are at the top,
    /// with space below them for edges that lead to the right. The other nodes are below, near the nodes that they wait
    /// for.
    fn layout(&self, chosen: &[usize]) -> (HashMap<usize, (usize, usize)>, usize, usize) {
        let (layers, nodes_in_cycles) = (&self.layers(chosen), self.nodes_in_cycles());
        let in_layer = |layer: usize| chosen.iter().copied().filter(move |at| layers[at] == layer);
        let cycles = |layer: usize| in_layer(layer).filter(|at| nodes_in_cycles.contains(at)).count();
        let top = (0..LAYERS).map(cycles).max().unwrap_or_default();
        let mut places: HashMap<usize, (usize, usize)> = HashMap::new();
        let (mut across, mut down) = (0, 0);
        for layer in 0..LAYERS {
            let mut here: Vec<usize> = in_layer(layer).collect();
            here.sort_by_key(|&at| {
                let targets = self.edges.iter().filter(|edge| edge.from == at);
                let rows: Vec<usize> = targets.filter_map(|edge| Some(places.get(&edge.to)?.1)).collect();
                let near = if rows.is_empty() { 0 } else { rows.iter().sum::<usize>() / rows.len() };
                (!nodes_in_cycles.contains(&at), near)
            });
            let (mut cycle, mut other) = (0, 0);
            for at in here {
                let y = if nodes_in_cycles.contains(&at) {
                    cycle += 1;
                    (cycle - 1) * (DOWN + BELOW)
                } else {
                    other += 1;
                    top * (DOWN + BELOW) + (other - 1) * DOWN
                };
                let below = if nodes_in_cycles.contains(&at) { BELOW } else { 0 };
                across = across.max(layer * ACROSS + WIDTH + 4);
                down = down.max(y + HEIGHT + below + 4);
                places.insert(at, (2 + layer * ACROSS, 2 + y));
            }
        }
        (places, across, down)
    }
}

pub(super) fn draw_graph(web: &DrawnGraph<'_>) -> Markup {
    let mut chosen = web.nodes_by_importance();
    let hidden = chosen.len().saturating_sub(MAX_DRAWN);
    chosen.truncate(MAX_DRAWN);
    let (places, width, down) = web.layout(&chosen);
    let shown: Vec<_> = web
        .edges
        .iter()
        .filter_map(|edge| Some((edge, *places.get(&edge.from)?, *places.get(&edge.to)?)))
        .collect();
    let back = |(edge, from, to): &(&DrawnEdge<'_>, (usize, usize), (usize, usize))| {
        from.0 <= to.0 && !edge.in_cycle
    };
    let height = down + if shown.iter().any(back) { BELOW } else { 0 };
    let mut boxes: Vec<_> = places.iter().collect();
    boxes.sort_unstable();
    let cycle = web.nodes_in_cycles();
    let has_semaphore = chosen.iter().any(|at| matches!(web.nodes[*at], GraphNode::Semaphore(_)));
    html! {
        figure.picture {
            div.scroll role="region" aria-label="Picture of the wait-for graph" tabindex="0" {
                svg.web viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="img"
                    aria-label="Wait-for graph, as in the table below"
                {
                    @for (edge, from, to) in &shown { (line(edge, *from, *to)) }
                    @for (at, (x, y)) in boxes { (draw_node(&web.nodes[*at], *x, *y, cycle.contains(at))) }
                }
            }
            figcaption {
                "Arrows lead from a waiter to the holder it waits for. Cycles are drawn thick and dashed, with a ⚠."
                @if has_semaphore {
                    " A semaphore is one box. Its waiters wait until enough of its holders release. Arrows lead from it to the holders that wait, too."
                }
                @if hidden > 0 { " " (format_counted(hidden, "more box is", "more boxes are")) " not drawn." }
            }
        }
    }
}

impl DrawnSemaphore<'_> {
    /// Describes the state of the semaphore.
    fn describe(&self) -> String {
        let held = match self.permits {
            Some(permits) => format!("{} of {permits} permits held", self.held),
            None => format!("{} permits held", self.held),
        };
        format!("{held} by {}", format_counted(self.holders, "holder", "holders"))
    }
}

fn draw_node(node: &GraphNode<'_>, x: usize, y: usize, in_cycle: bool) -> Markup {
    let (class, mut lines, title) = match node {
        GraphNode::Owner(owner) => {
            let class = if owner.waits { "box waits" } else { "box holds" };
            let title = describe_contender(owner.entry);
            (class, wrap(&title, LETTERS, LINES), title)
        }
        GraphNode::Semaphore(semaphore) => {
            let lock = escape_unprintable(semaphore.lock);
            let mut lines = vec![cut_beginning(&lock, LETTERS - 2)];
            lines.extend(wrap(&semaphore.describe(), LETTERS, LINES - 1));
            ("box semaphore", lines, format!("{lock}: {}", semaphore.describe()))
        }
    };
    if in_cycle && let Some(first) = lines.first_mut() {
        first.insert_str(0, "⚠ ");
    }
    html! {
        g {
            title { (title) }
            rect class={ (class) @if in_cycle { " cycle" } } x=(x) y=(y) width=(WIDTH) height=(HEIGHT) rx="8" {}
            // The nested `svg` cuts text at the edge of the box, because wide letters may exceed the box.
            svg x=(x + 12) y=(y) width=(WIDTH - 16) height=(HEIGHT) {
                @for (at, line) in lines.iter().enumerate() {
                    text class=(if at == 0 { "name" } else { "host" }) x="0" y=(20 + at * 17) { (line) }
                }
            }
        }
    }
}

/// Returns the text at an edge: the lock, or at a semaphore the permits.
fn edge_label(edge: &DrawnEdge<'_>) -> String {
    match (edge.waiter, edge.holder) {
        (Some(place), None) | (None, Some(place)) => describe_role(&place.entry),
        _ => cut_beginning(&escape_unprintable(edge.lock), EDGE_LETTERS),
    }
}

fn line(edge: &DrawnEdge<'_>, (from_x, from_y): (usize, usize), (to_x, to_y): (usize, usize)) -> Markup {
    let class = if edge.in_cycle { "edge cycle" } else { "edge" };
    let back = from_x <= to_x;
    let (path, tip, label) = if back {
        // An edge that leads to the right is drawn between the bottoms of the boxes.
        let (x, y) = (from_x + WIDTH / 2, from_y + HEIGHT);
        let (to_x, to_y) = (to_x + WIDTH / 2, to_y + HEIGHT);
        let low = y.max(to_y) + BELOW;
        (
            format!("M{x} {y}C{x} {low} {to_x} {low} {to_x} {}", to_y + 3),
            format!("M{} {}l5 -8l5 8", to_x - 5, to_y + 10),
            ((x + to_x) / 2, y.max(to_y) + BELOW * 3 / 4 + 4),
        )
    } else {
        let (x, y) = (from_x, from_y + HEIGHT / 2);
        let (to_x, to_y) = (to_x + WIDTH, to_y + HEIGHT / 2);
        let middle = (x + to_x) / 2;
        (
            format!("M{x} {y}C{middle} {y} {middle} {to_y} {} {to_y}", to_x + 3),
            format!("M{} {}l-8 5l8 5", to_x + 10, to_y - 5),
            (middle, (y + to_y) / 2 - 7),
        )
    };
    html! {
        g {
            title { (escape_unprintable(edge.lock)) }
            path class=(class) d=(path) fill="none" {}
            path class={ (class) " tip" } d=(tip) fill="none" {}
            text.label x=(label.0) y=(label.1) text-anchor="middle" { (edge_label(edge)) }
        }
    }
}

/// Cuts `text` at its beginning, because paths of locks differ at their ends.
fn cut_beginning(text: &str, letters: usize) -> String {
    let hidden = text.chars().count().saturating_sub(letters);
    if hidden == 0 {
        text.to_owned()
    } else {
        ['…'].into_iter().chain(text.chars().skip(hidden + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use zoolock::WaitGraph;

    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    /// Returns the omission warnings for one lock with this number of holders and waiters.
    fn left_out(holders: usize, waiters: usize) -> String {
        let contender = |number: usize| {
            let mut entry = entry(&format!("lock-{number:010}"), &format!("0.{number}"));
            entry.owner = Some(format!("owner-{number}"));
            entry
        };
        let waiting = (holders..holders + waiters).map(contender).collect();
        let mut lock = lock("/locks/x", Some(contender(0)), waiting);
        lock.beside = (1..holders).map(contender).collect();
        let graph = WaitGraph::of(&[lock]);
        let web = DrawnGraph::of(&graph.owners, std::iter::empty(), |_| None);
        assert_eq!(web.is_cut(), !web.omission_warnings().into_string().is_empty());
        web.omission_warnings().into_string()
    }

    #[test]
    fn omissions_are_reported() {
        assert_eq!(left_out(1, 20), "");
        assert_eq!(left_out(MAX_HOLDERS_PER_WAITER, MAX_EDGES / MAX_HOLDERS_PER_WAITER), "");
        assert!(left_out(1, MAX_EDGES + 1).contains("up to 5\u{202f}000 lines"));
        assert!(left_out(MAX_HOLDERS_PER_WAITER + 1, 1).contains("the first 8 of them"));
    }

    /// Returns a contender of an owner for one permit.
    fn permit(owner: &str, number: u32) -> Entry {
        let mut entry = entry(&format!("permit-{number:010}"), &format!("0.{number}"));
        (entry.owner, entry.note) = (Some(owner.to_owned()), Some(format!("note of {owner}")));
        entry.role = "permit";
        entry
    }

    #[test]
    fn semaphore_is_one_box() {
        let mut pool = lock("/locks/pool", Some(permit("a", 0)), vec![permit("d", 3), permit("e", 4)]);
        pool.beside = vec![permit("b", 1), permit("c", 2)];
        pool.permits = Some(3);
        let graph = WaitGraph::of(&[pool]);
        let web = DrawnGraph::of(&graph.owners, std::iter::empty(), |_| Some(3));
        let text = draw_graph(&web).into_string();
        assert_eq!(text.matches("<rect").count(), 3, "one semaphore and two waiters: {text}");
        assert_eq!(text.matches("class=\"edge\"").count(), 2, "{text}");
        assert!(text.contains("/locks/pool: 3 of 3 permits held by 3 holders"), "{text}");
        assert!(!text.contains("note of a"), "a holder that does not wait has no box: {text}");
    }

    #[test]
    fn cycle_leads_through_semaphore() {
        let mut pool = lock("/locks/pool", Some(permit("a", 0)), vec![permit("b", 1)]);
        pool.permits = Some(1);
        let (mut holder, mut waiter) = (permit("b", 2), permit("a", 3));
        (holder.role, waiter.role) = ("exclusive", "exclusive");
        let other = lock("/locks/x", Some(holder), vec![waiter]);
        let graph = WaitGraph::of(&[pool, other]);
        let deadlocks = graph.deadlocks();
        let web = DrawnGraph::of(&graph.owners, deadlocks.iter(), |_| Some(1));
        let text = draw_graph(&web).into_string();
        assert_eq!(text.matches(" cycle\" x=").count(), 3, "two owners and the semaphore: {text}");
        assert_eq!(text.matches("class=\"edge cycle\"").count(), 3, "{text}");
    }

    #[test]
    fn long_path_is_cut_at_its_beginning() {
        assert_eq!(
            (cut_beginning("/locks/a", 8), cut_beginning("/locks/ab", 8)),
            ("/locks/a".to_owned(), "…ocks/ab".to_owned())
        );
    }
}
