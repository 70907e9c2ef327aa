//! Znodes that the server removes after a time: empty containers, and znodes past their time to live.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep};
use zoolock_wire::{EventKind, Reply, Request, op};

use super::plan::{Action, ROOT, pick};
use super::server::{Message, ServerUnderTest};
use crate::common::create_with;

/// Times to live in milliseconds. The first one ends at once, the second one after some container
/// checks, and the third one after the test.
const TTLS: [i64; 3] = [1, 300, 3_600_000];

const PATIENCE: Duration = Duration::from_secs(30);

/// A tree to build, and the znodes that the server must remove and keep.
struct TreePlan {
    ops: Vec<Request>,
    to_remove: BTreeSet<String>,
    to_keep: BTreeSet<String>,
}

/// Properties of a znode while a tree is planned.
struct PlannedZnode {
    container: bool,
    ttl: Option<i64>,
    had_child: bool,
}

fn plan_tree(random: &mut Rng) -> TreePlan {
    let mut nodes: BTreeMap<String, PlannedZnode> = BTreeMap::new();
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
        if let Some(parent_znode) = nodes.get_mut(&parent) {
            parent_znode.had_child = true;
        }
        let ttl = (op == op::CREATE_TTL).then_some(ttl);
        nodes.insert(path, PlannedZnode { container: op == op::CREATE_CONTAINER, ttl, had_child: false });
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
        let removable_path = |(path, znode): (&String, &PlannedZnode)| {
            let expires = znode.container && znode.had_child || znode.ttl.is_some_and(|ttl| ttl < 1000);
            (expires && childless(&nodes, path)).then(|| path.clone())
        };
        let Some(gone) = nodes.iter().find_map(removable_path) else { break };
        nodes.remove(&gone);
    }
    let to_keep: BTreeSet<String> = nodes.into_keys().collect();
    TreePlan { ops, to_remove: all.difference(&to_keep).cloned().collect(), to_keep }
}

fn childless(nodes: &BTreeMap<String, PlannedZnode>, path: &str) -> bool {
    let below = format!("{path}/");
    !nodes.keys().any(|other| other.starts_with(&below))
}

/// Builds trees on one server, and waits until the server has removed the planned znodes. At the end, checks again that
/// the server has kept the other znodes.
pub(crate) async fn play(name: &'static str, addr: SocketAddr, seed: u64, rounds: usize) {
    let mut random = Rng::with_seed(seed);
    let mut server = ServerUnderTest::new(name, addr);
    let mut kept = Vec::new();
    for round in 0..rounds {
        let root = format!("/d{round:05}");
        server.begin(&root).await;
        call_ok(&mut server, create_with(op::CREATE, ROOT, 0, -1)).await;
        call_ok(&mut server, Request::AddWatch { path: ROOT.to_owned(), mode: 1 }).await;
        let TreePlan { ops, to_remove, to_keep } = plan_tree(&mut random);
        let messages = call_ok(&mut server, Request::Multi(ops)).await;
        let mut deleted_paths = deleted(&messages);
        // The events of znodes that the multi itself deleted are ignored.
        deleted_paths.retain(|path| to_remove.contains(path));
        let deadline = Instant::now() + PATIENCE;
        while !to_remove.is_subset(&deleted_paths) {
            assert!(
                Instant::now() < deadline,
                "{name}, seed {seed}, round {round}: {deleted_paths:?} deleted, but not all of {to_remove:?}"
            );
            sleep(Duration::from_millis(20)).await;
            deleted_paths.extend(deleted(&call_ok(&mut server, Request::Ping).await));
        }
        assert_eq!(deleted_paths, to_remove, "{name}, seed {seed}, round {round}: deleted znodes");
        assert_eq!(tree(&mut server).await, to_keep, "{name}, seed {seed}, round {round}: kept znodes");
        kept.push((root, to_keep));
    }
    for (root, to_keep) in kept {
        server.begin(&root).await;
        assert_eq!(tree(&mut server).await, to_keep, "{name}, seed {seed}, {root}: znodes kept to the end");
    }
}

async fn call_ok(server: &mut ServerUnderTest, request: Request) -> Vec<Message> {
    let messages = server.exchange(0, &[(1, Action::Request(request.clone()))]).await;
    assert!(
        matches!(messages.last(), Some(Message::Reply { err: 0, .. })),
        "{}: {request:?} {messages:?}",
        server.name
    );
    messages
}

fn deleted(messages: &[Message]) -> BTreeSet<String> {
    let path = |message: &Message| match message {
        Message::Event(EventKind::Deleted, path) => Some(path.clone()),
        _ => None,
    };
    messages.iter().filter_map(path).collect()
}

async fn tree(server: &mut ServerUnderTest) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut todo = vec![ROOT.to_owned()];
    while let Some(path) = todo.pop() {
        let messages = call_ok(server, Request::GetChildren { path: path.clone(), watch: false }).await;
        let Some(Message::Reply { reply: Reply::Children(names), .. }) = messages.last() else { continue };
        todo.extend(names.iter().map(|name| format!("{path}/{name}")));
        found.insert(path);
    }
    found.remove(ROOT);
    found
}
