//! Every view of queues in which clients of three makes stand says what ZooKeeper's own command line lists: who is there,
//! in which order, and who holds.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::timeout;
use zoolock::{Naming, WaitGraph, Zoolock};
use zoolock_tests::tmux::{self, Tmux};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, ZoolockBinary, on_both_arms, tree};

use crate::everybody::make::{Make, curator_or_skip, kazoo};
use crate::everybody::queue::{holders, shown, waiters, zoolock};
use crate::everybody::zkcli::{listed, number, zkcli_or_skip};
use zoolock_tests::locks::{connect, directory};

const SOON: Duration = Duration::from_secs(60);
const NAMES: [&str; 2] = ["java", "python"];

/// The nodes of a queue in the order of their turns, as they are listed.
async fn in_order(place: &Place, name: &str) -> Vec<String> {
    let mut nodes = listed(place, &directory(place, name)).await;
    nodes.sort_by_key(|node| number(node));
    nodes
}

async fn json(place: &Place, arguments: &[&str]) -> Value {
    let said = zoolock(place, &[arguments, &["--json"]].concat()).await;
    assert_eq!(said.code, Some(0), "{}", said.notes);
    serde_json::from_str(&said.output).expect("JSON")
}

/// The nodes that `watch` tells of first.
async fn watched(place: &Place, name: &str, count: usize) -> Vec<String> {
    let binary = ZoolockBinary::find().expect("the command has been built");
    let mut watch = binary.spawn(["--connect", &place.connect_string(), "watch", name, "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("it is piped")).lines();
    let mut nodes = Vec::new();
    for at in 0..count {
        let line = timeout(SOON, lines.next_line()).await.expect("in time").expect("text").expect("a line");
        let event: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(event["event"], if at == 0 { "holds" } else { "waits" }, "{line}");
        nodes.push(event["contender"]["node"].as_str().expect("text").to_owned());
    }
    watch.kill().await.expect("it runs");
    nodes
}

/// `zoolock ui`, and where it is.
async fn pages(binary: &ZoolockBinary, place: &Place) -> (Child, String) {
    let mut command = binary.command(["ui", "--listen", "127.0.0.1:0", "--connect", &place.connect_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let mut said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let url = timeout(SOON, said.next_line()).await.expect("in time").expect("text").expect("an address");
    (child, url.trim_start_matches("http://").trim_end_matches('/').to_owned())
}

async fn page(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// The nodes that a page names, in its order.
fn on_page(page: &str) -> Vec<&str> {
    page.split("<code class=\"node\">").skip(1).filter_map(|rest| rest.split('<').next()).collect()
}

/// Who holds and waits at a lock in the graph of all.
async fn in_graph(zl: &Zoolock, name: &str) -> (Vec<String>, Vec<String>) {
    let graph = WaitGraph::of(&zl.locks(None).await.expect("a look"));
    assert_eq!(graph.deadlocks().len(), 0);
    let path = format!("/locks/{name}");
    let places = graph.owners.iter().flat_map(|party| party.holds.iter().chain(&party.waits));
    let here = places.filter(|place| place.lock == path);
    let (holds, waits): (Vec<_>, Vec<_>) = here.partition(|place| place.granted);
    let sorted = |places: Vec<&zoolock::Place>| {
        let mut nodes: Vec<_> = places.into_iter().map(|place| place.entry.node.clone()).collect();
        nodes.sort_by_key(|node| number(node));
        nodes
    };
    (sorted(holds), sorted(waits))
}

async fn assert_every_view(place: &Place, zl: &Zoolock, ui: &str, screen: Option<&Tmux>) {
    let (mut waiting, mut longest) = (0, Vec::new());
    for name in NAMES {
        let nodes = in_order(place, name).await;
        waiting += nodes.len() - 1;
        longest.push((name, nodes.len() - 1));
        // `show`, and with it `ls`.
        let lock = shown(place, name).await;
        assert_eq!(holders(&lock, "node"), [&nodes[0]]);
        assert_eq!(waiters(&lock, "node"), nodes[1..].iter().collect::<Vec<_>>());
        let why = json(place, &["why", name]).await;
        assert_eq!(
            (&why["chain"][0]["holds"]["node"], &why["end"]),
            (&nodes[0].clone().into(), &"working".into())
        );
        assert_eq!(in_graph(zl, name).await, (nodes[..1].to_vec(), nodes[1..].to_vec()));
        assert_eq!(watched(place, name, nodes.len()).await, nodes);
        let seen = eventually("the page has it", SOON, async || {
            let page = page(ui, &format!("/lock?name={name}")).await;
            if on_page(&page) == nodes {
                Ok(())
            } else {
                Err(Failure::new(format!("{nodes:?} and not {page}")))
            }
        });
        seen.await.expect("the page of the lock");
    }
    assert_eq!(json(place, &["deadlocks"]).await["deadlocks"], Value::Array(Vec::new()));
    let seen = eventually("the figures are those", SOON, async || {
        let figures = page(ui, "/metrics").await;
        let has = |line: String| figures.lines().any(|it| it.trim() == line);
        let of_each = longest
            .iter()
            .all(|(name, waiters)| has(format!("zoolock_lock_waiters{{lock=\"/locks/{name}\"}} {waiters}")));
        let count = NAMES.len();
        let all = has(format!("zoolock_locks {count}")) && has(format!("zoolock_locks_held {count}"));
        match of_each && all && has(format!("zoolock_locks_waiting {waiting}")) {
            true => Ok(()),
            false => Err(Failure::new(figures)),
        }
    });
    seen.await.expect("the exporter");
    if let Some(screen) = screen {
        let row = |screen: &str, name: &str, waiters: usize| {
            screen.lines().any(|line| {
                let mut words = line.trim_start_matches('>').split_whitespace();
                words.next() == Some(name) && words.next() == Some(waiters.to_string().as_str())
            })
        };
        let is_right = |screen: &str| longest.iter().all(|(name, waiters)| row(screen, name, *waiters));
        screen.until("the list is as it should be", is_right).await;
    }
}

on_both_arms!(every_view_agrees_with_zkcli, |place| async move {
    let test = format!("every_view_agrees_with_zkcli::{}", place.arm());
    if !zkcli_or_skip(&test) || !curator_or_skip(&test) || !kazoo().or_skip(&test) {
        return;
    }
    let (mut java, mut python) = (Make::curator(&place), Make::kazoo(&place));
    java.told("mutex /locks/java").await;
    java.says("holds /locks/java").await;
    java.told("mutex /locks/java").await;
    python.told("lock /locks/python job-1").await;
    python.says("job-1 holds /locks/python").await;
    python.told("lock /locks/python job-2").await;
    for name in NAMES {
        tree::assert_contenders(&place.addr(), &directory(&place, name), 2).await;
    }
    let zl = connect(&place).await;
    let mut ours = Vec::new();
    for (name, naming) in [("java", Naming::Native), ("python", Naming::Kazoo)] {
        let mutex = zl.mutex(name).naming(naming);
        ours.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
        tree::assert_contenders(&place.addr(), &directory(&place, name), 3).await;
    }

    let binary = ZoolockBinary::find().expect("the command has been built");
    let (mut ui, address) = pages(&binary, &place).await;
    let screen = if tmux::availability().or_skip(&test) {
        let home = binary.home().to_str().expect("a plain name");
        let screen = Tmux::start(&[("HOME", home), ("NO_COLOR", "")]).await.expect("a terminal");
        let connect = place.connect_string();
        screen.run(&format!("{} --connect {connect} top --interval 200ms", binary.path().display()));
        Some(screen)
    } else {
        None
    };
    assert_every_view(&place, &zl, &address, screen.as_ref()).await;

    // The lock is handed over.
    let lock = shown(&place, "java").await;
    let token = holders(&lock, "token")[0].as_str().expect("text");
    let broken = zoolock(&place, &["break", "java", "--token", token]).await;
    assert_eq!(broken.code, Some(0), "{}", broken.notes);
    java.says("holds /locks/java").await;
    assert_every_view(&place, &zl, &address, screen.as_ref()).await;
    ui.kill().await.expect("it runs");
    ours.iter().for_each(tokio::task::JoinHandle::abort);
});
