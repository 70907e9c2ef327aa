//! A hundred thousand locks, and ten thousand who wait for one.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock_tests::skip::long_or_skip;

use crate::common::{Sandbox, server};
use crate::ui::{get, start, status};

const LOCKS: usize = 100_000;
const WAITERS: usize = 10_000;
const AT_ONCE: usize = 512;
/// What people are promised.
const FIRST_PAINT: Duration = Duration::from_secs(1);
/// Reading all of it, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(240);

/// Makes a lock with somebody who holds it, as an old client of ours would.
async fn lock(client: &Client, number: usize) {
    let path = format!("/locks/{number:06}");
    let node = format!("{path}/lock-");
    let (made, held) = (
        client.create(&path, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())),
        client.create(&node, b"{}", &CreateMode::EphemeralSequential.with_acls(Acls::anyone_all())),
    );
    let (made, held) = futures_util::future::join(made, held).await;
    made.expect("a directory");
    held.expect("a holder");
}

/// Returns a page, and how long the request took.
fn timed(address: &str, path: &str) -> (Duration, String) {
    let begun = Instant::now();
    let answer = get(address, path, "");
    assert_eq!(status(&answer), "200", "{answer}");
    (begun.elapsed(), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn hundred_thousand_locks_render_within_a_second() {
    if !long_or_skip("hundred_thousand_locks_render_within_a_second") {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, connect) = server(&sandbox);
    let client = Client::connect(&connect).await.expect("a session");
    let acls = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/locks", b"", &acls).await.expect("the root");
    futures_util::stream::iter(0..LOCKS).for_each_concurrent(AT_ONCE, |number| lock(&client, number)).await;
    let waiter = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    futures_util::stream::iter(0..WAITERS)
        .for_each_concurrent(AT_ONCE, |_| async {
            client.create("/locks/000000/lock-", b"{}", &waiter).await.expect("a waiter");
        })
        .await;

    let (_ui, address) = start(&sandbox, &["--connect", &connect]);
    let begun = Instant::now();
    // The first one waits for a while, and says that it reads.
    while timed(&address, "/").1.contains("for the first time") {
        assert!(begun.elapsed() < PATIENCE, "it never has a list");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{LOCKS} locks were read in {:?}", begun.elapsed());
    for path in ["/", "/?sort=waiting", "/?q=0999&sort=rate", "/?page=1000"] {
        let (took, text) = timed(&address, path);
        println!("{path}: {took:?}, {} bytes", text.len());
        assert!(took < FIRST_PAINT, "{path}: {took:?}");
        assert!(text.contains("100\u{202f}000 locks") && text.len() < 200_000, "{path}");
    }
    let (took, text) = timed(&address, "/lock?name=/locks/000000");
    println!("a lock with {WAITERS} waiters: {took:?}, {} bytes", text.len());
    assert!(text.contains("10\u{202f}000 wait") && text.len() < 200_000);
}
