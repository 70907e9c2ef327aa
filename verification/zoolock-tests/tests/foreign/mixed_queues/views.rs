//! Comparison of all displays of a queue with the list of ZooKeeper's own command line: contenders, order and holder.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::timeout;
use zoolock::admin::WaitGraph;
use zoolock::{Naming, Zoolock};
use zoolock_tests::locks::{connect, directory};
use zoolock_tests::tmux::{self, Tmux};
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{Place, TestFailure, ZoolockBinary, on_both_servers, tree};

use crate::clients::{Client, Library};
use crate::mixed_queues::queue::{holders, of_holder, shown, waiters, zoolock};
use crate::mixed_queues::zkcli::{listed, number};
use crate::programs::zkcli_or_skip;

const SOON: Duration = Duration::from_secs(60);
const NAMES: [&str; 2] = ["java", "python"];

/// Returns the znodes that `zkCli.sh` lists for a queue, ordered by their sequence numbers.
async fn in_order(place: &Place, name: &str) -> Vec<String> {
    let mut nodes = listed(place, &directory(place, name)).await;
    nodes.sort_by_key(|node| number(node));
    nodes
}

/// Returns the znodes in the first `count` events of `watch`.
async fn watched(place: &Place, name: &str, count: usize) -> Vec<String> {
    let binary = ZoolockBinary::find().expect("the command has been built");
    let mut watch = binary.spawn(["--connect", &place.connect_string(), "watch", name, "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("stdout is piped")).lines();
    let mut nodes = Vec::new();
    for at in 0..count {
        let line = timeout(SOON, lines.next_line()).await.expect("a line in time").expect("text");
        let line = line.expect("the command runs");
        let event: Value = serde_json::from_str(&line).expect("an event is JSON");
        assert_eq!(event["event"], if at == 0 { "holds" } else { "waits" }, "{line}");
        nodes.push(event["contender"]["node"].as_str().expect("a name is text").to_owned());
    }
    watch.kill().await.expect("the command runs");
    nodes
}

/// Starts `zoolock ui` and returns its address.
async fn start_ui(binary: &ZoolockBinary, place: &Place) -> (Child, String) {
    let mut command = binary.command(["ui", "--listen", "127.0.0.1:0", "--connect", &place.connect_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the command starts");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let url = timeout(SOON, lines.next_line()).await.expect("a line in time").expect("text");
    let url = url.expect("the command runs");
    (child, url.trim_start_matches("http://").trim_end_matches('/').to_owned())
}

/// Requests a page of the ui.
async fn page(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the ui listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the ui reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the ui answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Returns the znodes on a page, in the order of the page.
fn on_page(page: &str) -> Vec<&str> {
    page.split("<code class=\"node\">").skip(1).filter_map(|rest| rest.split('<').next()).collect()
}

/// Returns the holders and the waiters of a lock in the wait graph.
async fn in_graph(zl: &Zoolock, name: &str) -> (Vec<String>, Vec<String>) {
    let graph = WaitGraph::of(&zl.admin().locks(None, usize::MAX).await.expect("locks read"));
    assert_eq!(graph.deadlocks().len(), 0);
    let path = format!("/locks/{name}");
    let positions = graph.owners.iter().flat_map(|party| party.holds.iter().chain(&party.waits));
    let here = positions.filter(|position| position.lock == path);
    let (holds, waits): (Vec<_>, Vec<_>) = here.partition(|position| position.granted);
    let sorted = |positions: Vec<&zoolock::admin::QueueEntry>| {
        let mut nodes: Vec<_> = positions.into_iter().map(|position| position.entry.node.clone()).collect();
        nodes.sort_by_key(|node| number(node));
        nodes
    };
    (sorted(holds), sorted(waits))
}

/// Asserts that each display agrees with the list of ZooKeeper's own command line.
async fn assert_every_view(place: &Place, zl: &Zoolock, ui: &str, screen: Option<&Tmux>) {
    let (mut waiting, mut waiters_of) = (0, Vec::new());
    for name in NAMES {
        let nodes = in_order(place, name).await;
        waiting += nodes.len() - 1;
        waiters_of.push((name, nodes.len() - 1));
        // `shown` also compares with `ls`.
        let lock = shown(place, name).await;
        assert_eq!(holders(&lock, "node"), [&nodes[0]]);
        assert_eq!(waiters(&lock, "node"), nodes[1..].iter().collect::<Vec<_>>());
        let why = zoolock(place, &["why", name, "--json"]).await.json();
        assert_eq!(
            (&why["chain"][0]["holds"]["node"], &why["end"]),
            (&nodes[0].clone().into(), &"working".into())
        );
        assert_eq!(in_graph(zl, name).await, (nodes[..1].to_vec(), nodes[1..].to_vec()));
        assert_eq!(watched(place, name, nodes.len()).await, nodes);
        let agrees = retry_until_ok("the page agrees", SOON, async || {
            let page = page(ui, &format!("/lock?name={name}")).await;
            if on_page(&page) == nodes {
                Ok(())
            } else {
                Err(TestFailure::new(format!("{nodes:?} and not {page}")))
            }
        });
        agrees.await.expect("the page of the lock");
    }
    let deadlocks = zoolock(place, &["deadlocks", "--json"]).await.json();
    assert_eq!(deadlocks["deadlocks"], Value::Array(Vec::new()));
    let agrees = retry_until_ok("the metrics agree", SOON, async || {
        let metrics = page(ui, "/metrics").await;
        let has = |line: String| metrics.lines().any(|it| it.trim() == line);
        let of_each = waiters_of
            .iter()
            .all(|(name, waiters)| has(format!("zoolock_lock_waiters{{lock=\"/locks/{name}\"}} {waiters}")));
        let count = NAMES.len();
        let all = has(format!("zoolock_locks {count}")) && has(format!("zoolock_locks_held {count}"));
        match of_each && all && has(format!("zoolock_locks_waiting {waiting}")) {
            true => Ok(()),
            false => Err(TestFailure::new(metrics)),
        }
    });
    agrees.await.expect("the metrics");
    if let Some(screen) = screen {
        let row = |screen: &str, name: &str, waiters: usize| {
            screen.lines().any(|line| {
                let mut words = line.trim_start_matches('>').split_whitespace();
                words.next() == Some(name) && words.next() == Some(waiters.to_string().as_str())
            })
        };
        let agrees = |screen: &str| waiters_of.iter().all(|(name, waiters)| row(screen, name, *waiters));
        screen.until("the list agrees", agrees).await;
    }
}

on_both_servers!(every_view_agrees_with_zkcli, |place| async move {
    if !zkcli_or_skip(place.test()) || !Library::Java.or_skip(&place) || !Library::Kazoo.or_skip(&place) {
        return;
    }
    let curator = Client::start(Library::Java, &place).await;
    let kazoo = Client::start(Library::Kazoo, &place).await;
    let _curator_holder = curator.hold("curator-revocable-mutex", "/locks/java").await;
    let mut curator_waiter = curator.queue("curator-revocable-mutex", "/locks/java").await;
    let _kazoo_holder = kazoo.hold("lock:job-1", "/locks/python").await;
    let _kazoo_waiter = kazoo.queue("lock:job-2", "/locks/python").await;
    for name in NAMES {
        tree::assert_contenders(&place.addr(), &directory(&place, name), 2).await;
    }
    let zl = connect(&place).await;
    let mut waiting = Vec::new();
    for (name, naming) in [("java", Naming::Native), ("python", Naming::Kazoo)] {
        let mutex = zl.mutex(name).naming(naming);
        waiting.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
        tree::assert_contenders(&place.addr(), &directory(&place, name), 3).await;
    }

    let binary = ZoolockBinary::find().expect("the command has been built");
    let (mut ui, address) = start_ui(&binary, &place).await;
    let screen = if tmux::availability().or_skip(place.test()) {
        let home = binary.home().to_str().expect("the path is text");
        let screen = Tmux::start(&[("HOME", home), ("NO_COLOR", "")]).await.expect("tmux starts");
        let connect = place.connect_string();
        screen.run(&format!("{} --connect {connect} top --interval 200ms", binary.path().display()));
        Some(screen)
    } else {
        None
    };
    assert_every_view(&place, &zl, &address, screen.as_ref()).await;

    // After the holder is broken, the next contender acquires the lock.
    let lock = shown(&place, "java").await;
    let output = zoolock(&place, &["break", "java", "--token", of_holder(&lock, "token")]).await;
    output.assert(0, &[]);
    curator_waiter.receive("acquired").await.expect("lock granted");
    assert_every_view(&place, &zl, &address, screen.as_ref()).await;
    ui.kill().await.expect("the ui runs");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
});
