//! `zoolock ui` with a hundred thousand locks, and ten thousand waiters for one of them.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock_tests::skip::long_or_skip;

use crate::common::{Sandbox, start_server};
use crate::ui::{get, start, status};

const LOCKS: usize = 100_000;
const WAITERS: usize = 10_000;
/// Number of requests in flight during the setup.
const CONCURRENT_REQUESTS: usize = 512;
/// Time limit for one page.
const PAGE_LIMIT: Duration = Duration::from_secs(1);
/// Time limit for reading all locks, also on a busy machine.
const READ_LIMIT: Duration = Duration::from_secs(240);

/// Creates a lock with a holder whose znode has no details, as an old zoolock creates it.
async fn create_held_lock(client: &Client, number: usize) {
    let path = format!("/locks/{number:06}");
    let node = format!("{path}/lock-");
    let (create_directory, create_holder) = (
        client.create(&path, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())),
        client.create(&node, b"{}", &CreateMode::EphemeralSequential.with_acls(Acls::anyone_all())),
    );
    let (directory, holder) = futures_util::future::join(create_directory, create_holder).await;
    directory.expect("lock directory created");
    holder.expect("holder created");
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
    let (_server, connect) = start_server(&sandbox);
    let client = Client::connect(&connect).await.expect("session created");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/locks", b"", &persistent).await.expect("root created");
    futures_util::stream::iter(0..LOCKS)
        .for_each_concurrent(CONCURRENT_REQUESTS, |number| create_held_lock(&client, number))
        .await;
    let waiter = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    futures_util::stream::iter(0..WAITERS)
        .for_each_concurrent(CONCURRENT_REQUESTS, |_| async {
            client.create("/locks/000000/lock-", b"{}", &waiter).await.expect("waiter created");
        })
        .await;

    let (_ui, address) = start(&sandbox, &["--connect", &connect]);
    let begun = Instant::now();
    // Until all locks are read, each request waits for a while, and then gets a page that says so.
    while timed(&address, "/").1.contains("for the first time") {
        assert!(begun.elapsed() < READ_LIMIT, "zoolock ui has not read the locks");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{LOCKS} locks were read in {:?}", begun.elapsed());
    for path in ["/", "/?sort=waiting", "/?q=0999&sort=rate", "/?page=1000"] {
        let (took, text) = timed(&address, path);
        println!("{path}: {took:?}, {} bytes", text.len());
        assert!(took < PAGE_LIMIT, "{path}: {took:?}");
        assert!(text.contains("100\u{202f}000 locks") && text.len() < 200_000, "{path}");
    }
    let (took, text) = timed(&address, "/lock?name=/locks/000000");
    println!("a lock with {WAITERS} waiters: {took:?}, {} bytes", text.len());
    assert!(text.contains("10\u{202f}000 wait") && text.len() < 200_000);
}
