//! The picture of the wait-for graph. A waiting owner is drawn to the right of the owners for which it waits.

use std::collections::{HashMap, HashSet};

use maud::{Markup, html};
use zoolock::{Deadlock, QueueEntry, WaitingOwner};

use super::elements::{describe_entry, format_count};
use super::pictures::cut;
use crate::base::reporter::escape_unprintable;

/// Maximum number of owners in the picture.
const MAX_DRAWN: usize = 40;
/// Maximum number of holders of one lock shown per waiter, in the picture and the table.
const MAX_HOLDERS_PER_WAITER: usize = 8;
/// Maximum number of edges on the page. The edges of cycles are always shown, even if there are
/// more.
const MAX_EDGES: usize = 5_000;
/// Size of the boxes, and the distance between them.
const WIDTH: usize = 180;
const HEIGHT: usize = 48;
const ACROSS: usize = WIDTH + 150;
const DOWN: usize = HEIGHT + 34;
/// Space below the boxes for edges that lead from left to right.
const BELOW: usize = 56;
/// Maximum number of layers, which are the columns of boxes. In a longer chain of waiters, the last
/// owners share the last layer.
const LAYERS: usize = 12;
const LETTERS: usize = 18;

/// An edge of the graph: one owner waits for another.
pub(super) struct DrawnEdge<'a> {
    from: usize,
    to: usize,
    /// Queue entry of the waiting owner.
    pub(super) waiter: &'a QueueEntry,
    /// Queue entry of the owner that it waits for.
    pub(super) holder: &'a QueueEntry,
    pub(super) in_cycle: bool,
    /// Set on the last edge of a cycle, which leads to the cycle's first owner.
    closing: bool,
}

/// The owners that wait or are waited for, and the edges between them.
pub(super) struct DrawnGraph<'a> {
    owners: &'a [WaitingOwner],
    pub(super) edges: Vec<DrawnEdge<'a>>,
    /// Set if there are more than [`MAX_EDGES`] edges.
    more_edges: bool,
    /// Set if an owner waits for a lock with more than [`MAX_HOLDERS_PER_WAITER`] holders.
    more_holders: bool,
}

impl<'a> DrawnGraph<'a> {
    pub(super) fn of(owners: &'a [WaitingOwner], deadlocks: impl Iterator<Item = &'a Deadlock>) -> Self {
        let mut at: HashMap<(&str, &str), usize> = HashMap::new();
        let mut holders: HashMap<&str, Vec<(usize, &QueueEntry)>> = HashMap::new();
        for (number, owner) in owners.iter().enumerate() {
            for place in owner.holds.iter().chain(&owner.waits) {
                at.insert((&place.lock, &place.entry.node), number);
            }
            for place in &owner.holds {
                holders.entry(&place.lock).or_default().push((number, place));
            }
        }
        let of = |place: &QueueEntry| at.get(&(place.lock.as_str(), place.entry.node.as_str())).copied();
        let mut edges = Vec::new();
        let mut drawn = HashSet::new();
        for deadlock in deadlocks {
            let around = deadlock.edges.iter().zip(deadlock.edges.iter().cycle().skip(1));
            for (number, (edge, next)) in around.enumerate() {
                let (waiter, holder) = (&edge.waits_for, &next.holds);
                if let (Some(from), Some(to)) = (of(waiter), of(holder)) {
                    drawn.insert((from, to, waiter.lock.as_str()));
                    let closing = number + 1 == deadlock.edges.len();
                    edges.push(DrawnEdge { from, to, waiter, holder, in_cycle: true, closing });
                }
            }
        }
        let (mut more_edges, mut more_holders) = (false, false);
        'all: for (from, owner) in owners.iter().enumerate() {
            for waiter in &owner.waits {
                let all = holders.get(waiter.lock.as_str()).map_or(&[][..], Vec::as_slice);
                more_holders |= all.len() > MAX_HOLDERS_PER_WAITER;
                for &(to, holder) in all.iter().take(MAX_HOLDERS_PER_WAITER) {
                    if edges.len() >= MAX_EDGES {
                        more_edges = true;
                        break 'all;
                    }
                    if drawn.insert((from, to, &waiter.lock)) {
                        edges.push(DrawnEdge { from, to, waiter, holder, in_cycle: false, closing: false });
                    }
                }
            }
        }
        Self { owners, edges, more_edges, more_holders }
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

    /// Returns the owners to draw, in this order: owners in a cycle, owners that wait for a cycle,
    /// owners in the middle of a chain, and owners that many wait for.
    fn choose_owners(&self) -> Vec<usize> {
        let mut in_cycle = vec![false; self.owners.len()];
        let mut waited_for = vec![0_usize; self.owners.len()];
        for edge in &self.edges {
            in_cycle[edge.from] |= edge.in_cycle;
            in_cycle[edge.to] |= edge.in_cycle;
            waited_for[edge.to] += 1;
        }
        let waits = |at: usize| !self.owners[at].waits.is_empty();
        let mut all: Vec<usize> =
            (0..self.owners.len()).filter(|&at| waits(at) || waited_for[at] > 0).collect();
        all.sort_by_key(|&at| {
            let between = waits(at) && waited_for[at] > 0;
            (!in_cycle[at], !self.owners[at].stuck, !between, usize::MAX - waited_for[at])
        });
        all.truncate(MAX_DRAWN);
        all
    }

    /// Returns the layer of each owner. The layer is the distance from the owners that wait for no
    /// lock.
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

    fn owners_in_cycles(&self) -> HashSet<usize> {
        let edges = self.edges.iter().filter(|edge| edge.in_cycle);
        edges.flat_map(|edge| [edge.from, edge.to]).collect()
    }

    /// Returns the position of each drawn owner, and the width and height of the picture. Owners in
    /// cycles are at the top, with space below them for edges that lead to the right. The other
    /// owners are below, near the owners that they wait for.
    fn layout(&self) -> (HashMap<usize, (usize, usize)>, usize, usize) {
        let chosen = self.choose_owners();
        let (layers, owners_in_cycles) = (&self.layers(&chosen), self.owners_in_cycles());
        let in_layer = |layer: usize| chosen.iter().copied().filter(move |at| layers[at] == layer);
        let cycles = |layer: usize| in_layer(layer).filter(|at| owners_in_cycles.contains(at)).count();
        let top = (0..LAYERS).map(cycles).max().unwrap_or_default();
        let mut places: HashMap<usize, (usize, usize)> = HashMap::new();
        let (mut across, mut down) = (0, 0);
        for layer in 0..LAYERS {
            let mut here: Vec<usize> = in_layer(layer).collect();
            here.sort_by_key(|&at| {
                let targets = self.edges.iter().filter(|edge| edge.from == at);
                let rows: Vec<usize> = targets.filter_map(|edge| Some(places.get(&edge.to)?.1)).collect();
                let near = if rows.is_empty() { 0 } else { rows.iter().sum::<usize>() / rows.len() };
                (!owners_in_cycles.contains(&at), near)
            });
            let (mut cycle, mut other) = (0, 0);
            for at in here {
                let y = if owners_in_cycles.contains(&at) {
                    cycle += 1;
                    (cycle - 1) * (DOWN + BELOW)
                } else {
                    other += 1;
                    top * (DOWN + BELOW) + (other - 1) * DOWN
                };
                let below = if owners_in_cycles.contains(&at) { BELOW } else { 0 };
                across = across.max(layer * ACROSS + WIDTH + 4);
                down = down.max(y + HEIGHT + below + 4);
                places.insert(at, (2 + layer * ACROSS, 2 + y));
            }
        }
        (places, across, down)
    }
}

pub(super) fn draw_graph(web: &DrawnGraph<'_>) -> Markup {
    let (places, width, down) = web.layout();
    let shown: Vec<_> = web
        .edges
        .iter()
        .filter_map(|edge| Some((edge, *places.get(&edge.from)?, *places.get(&edge.to)?)))
        .collect();
    let back = |(edge, from, to): &(&DrawnEdge<'_>, (usize, usize), (usize, usize))| {
        from.0 <= to.0 && !edge.in_cycle
    };
    let height = down + if shown.iter().any(back) { BELOW } else { 0 };
    let hidden = web.owners.len() - places.len();
    let mut boxes: Vec<_> = places.iter().collect();
    boxes.sort_unstable();
    let cycle = web.owners_in_cycles();
    html! {
        figure.picture {
            div.scroll role="region" aria-label="Picture of the wait-for graph" tabindex="0" {
                svg.web viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="img"
                    aria-label="Wait-for graph, as in the table below"
                {
                    @for (edge, from, to) in &shown { (line(edge, *from, *to)) }
                    @for (at, (x, y)) in boxes { (draw_owner(&web.owners[*at], *x, *y, cycle.contains(at))) }
                }
            }
            figcaption {
                "Arrows lead from a waiter to the holder it waits for. Cycles are drawn thick and dashed, with a ⚠."
                @if hidden > 0 { " " (format_count(hidden)) " more owners are not drawn." }
            }
        }
    }
}

fn draw_owner(party: &WaitingOwner, x: usize, y: usize, in_cycle: bool) -> Markup {
    let class = match (in_cycle, party.waits.is_empty()) {
        (true, _) => "box cycle",
        (false, true) => "box holds",
        (false, false) => "box waits",
    };
    let Some(place) = party.holds.first().or(party.waits.first()) else { return html! {} };
    let host = place.entry.host.as_deref().map_or_else(|| "–".to_owned(), escape_unprintable);
    let host = match place.entry.pid {
        Some(pid) => format!("{host} · {pid}"),
        None => host,
    };
    html! {
        g {
            title { (describe_entry(&place.entry)) }
            rect class=(class) x=(x) y=(y) width=(WIDTH) height=(HEIGHT) rx="8" {}
            // The nested `svg` cuts text at the edge of the box, because wide letters may exceed the box.
            svg x=(x + 12) y=(y) width=(WIDTH - 16) height=(HEIGHT) {
                text.name x="0" y="21" {
                    @if in_cycle { "⚠ " }
                    (cut(&describe_entry(&place.entry), LETTERS - 2 * usize::from(in_cycle)))
                }
                text.host x="0" y="38" { (cut(&host, LETTERS + 5)) }
            }
        }
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
            title { (escape_unprintable(&edge.waiter.lock)) }
            path class=(class) d=(path) fill="none" {}
            path class={ (class) " tip" } d=(tip) fill="none" {}
            text.label x=(label.0) y=(label.1) text-anchor="middle" { (cut_beginning(&escape_unprintable(&edge.waiter.lock), LETTERS)) }
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
        let web = DrawnGraph::of(&graph.owners, std::iter::empty());
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

    #[test]
    fn long_path_is_cut_at_its_beginning() {
        assert_eq!(
            (cut_beginning("/locks/a", 8), cut_beginning("/locks/ab", 8)),
            ("/locks/a".to_owned(), "…ocks/ab".to_owned())
        );
    }
}
