//! Znodes that the server removes after a time: empty containers, and znodes past their time to live.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep};
use zoolock_wire::{EventKind, Reply, Request, op};

use super::plan::pick;

use super::plan::{Act, ROOT};
use super::side::{Said, Side};
use crate::common::create_with;

/// Times to live in milliseconds. The first ends soon, the second after some checks, the third not within the test.
const TTLS: [i64; 3] = [1, 300, 3_600_000];

const PATIENCE: Duration = Duration::from_secs(30);

/// A tree to build, and the znodes that the server must remove and keep.
struct Forest {
    ops: Vec<Request>,
    doomed: BTreeSet<String>,
    left: BTreeSet<String>,
}

/// Properties of a znode while a forest is planned.
struct Kind {
    container: bool,
    ttl: Option<i64>,
    had_child: bool,
}

fn forest(random: &mut Rng) -> Forest {
    let mut nodes: BTreeMap<String, Kind> = BTreeMap::new();
    let mut ops = Vec::new();
    for n in 0..20 {
        let parents: Vec<String> = nodes.keys().cloned().collect();
        let parent = if parents.is_empty() || random.u8(..100) < 30 {
            ROOT.to_owned()
        } else {
            pick(random, &parents)
        };
        let path = format!("{parent}/{n}");
        let (op, flags, ttl) = match random.u64(..3) {
            0 => (op::CREATE, 0, -1),
            1 => (op::CREATE_CONTAINER, 4, -1),
            _ => (op::CREATE_TTL, 5, pick(random, &TTLS)),
        };
        ops.push(create_with(op, &path, flags, ttl));
        if let Some(above) = nodes.get_mut(&parent) {
            above.had_child = true;
        }
        let ttl = (op == op::CREATE_TTL).then_some(ttl);
        nodes.insert(path, Kind { container: op == op::CREATE_CONTAINER, ttl, had_child: false });
    }
    let paths: Vec<String> = nodes.keys().cloned().collect();
    for path in paths.iter().rev().filter(|_| random.u8(..100) < 30) {
        if childless(&nodes, path) {
            ops.push(Request::Delete { path: path.clone(), version: -1 });
            nodes.remove(path);
        }
    }
    let all: BTreeSet<String> = nodes.keys().cloned().collect();
    loop {
        let goes = |(path, kind): (&String, &Kind)| {
            let mortal = kind.container && kind.had_child || kind.ttl.is_some_and(|ttl| ttl < 1000);
            (mortal && childless(&nodes, path)).then(|| path.clone())
        };
        let Some(gone) = nodes.iter().find_map(goes) else { break };
        nodes.remove(&gone);
    }
    let left: BTreeSet<String> = nodes.into_keys().collect();
    Forest { ops, doomed: all.difference(&left).cloned().collect(), left }
}

fn childless(nodes: &BTreeMap<String, Kind>, path: &str) -> bool {
    let below = format!("{path}/");
    !nodes.keys().any(|other| other.starts_with(&below))
}

/// Builds forests on one server, and waits until the doomed znodes are removed. At the end checks again that the others
/// stay.
pub(crate) async fn play(name: &'static str, addr: SocketAddr, seed: u64, rounds: usize) {
    let mut random = Rng::with_seed(seed);
    let mut side = Side::new(name, addr);
    let mut kept = Vec::new();
    for round in 0..rounds {
        let root = format!("/d{round:05}");
        side.begin(&root).await;
        ask(&mut side, create_with(op::CREATE, ROOT, 0, -1)).await;
        ask(&mut side, Request::AddWatch { path: ROOT.to_owned(), mode: 1 }).await;
        let Forest { ops, doomed, left } = forest(&mut random);
        let said = ask(&mut side, Request::Multi(ops)).await;
        let mut told = deleted(&said);
        // Znodes that the multi itself deleted have events, too.
        told.retain(|path| doomed.contains(path));
        let deadline = Instant::now() + PATIENCE;
        while !doomed.is_subset(&told) {
            assert!(
                Instant::now() < deadline,
                "{name}, seed {seed}, round {round}: {told:?} went, not all of {doomed:?}"
            );
            sleep(Duration::from_millis(20)).await;
            told.extend(deleted(&ask(&mut side, Request::Ping).await));
        }
        assert_eq!(told, doomed, "{name}, seed {seed}, round {round}: what went");
        assert_eq!(tree(&mut side).await, left, "{name}, seed {seed}, round {round}: what stayed");
        kept.push((root, left));
    }
    for (root, left) in kept {
        side.begin(&root).await;
        assert_eq!(tree(&mut side).await, left, "{name}, seed {seed}, {root}: what stayed for long");
    }
}

async fn ask(side: &mut Side, request: Request) -> Vec<Said> {
    let said = side.talk(0, &[(1, Act::Ask(request.clone()))]).await;
    assert!(matches!(said.last(), Some(Said::Reply { err: 0, .. })), "{}: {request:?} {said:?}", side.name);
    said
}

fn deleted(said: &[Said]) -> BTreeSet<String> {
    let path = |said: &Said| match said {
        Said::Event(EventKind::Deleted, path) => Some(path.clone()),
        _ => None,
    };
    said.iter().filter_map(path).collect()
}

async fn tree(side: &mut Side) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut todo = vec![ROOT.to_owned()];
    while let Some(path) = todo.pop() {
        let said = ask(side, Request::GetChildren { path: path.clone(), watch: false }).await;
        let Some(Said::Reply { reply: Reply::Children(names), .. }) = said.last() else { continue };
        todo.extend(names.iter().map(|name| format!("{path}/{name}")));
        found.insert(path);
    }
    found.remove(ROOT);
    found
}
