//! A hundred thousand locks, and ten thousand who wait for one.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock_tests::skip::long_or_skip;
use zoolock_tests::{Serving, ZoolockBinary};

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

async fn get(address: &str, path: &str) -> (Duration, String) {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    (begun.elapsed(), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_locks_are_painted_within_a_second() {
    if !long_or_skip("a_hundred_thousand_locks_are_painted_within_a_second") {
        return;
    }
    let binary = ZoolockBinary::find().expect("the command has been built");
    let server = Serving::start(binary.command(["serve", "--listen", "127.0.0.1:0"])).await.expect("up");
    let connect = server.addr().to_string();
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

    let (mut ui, url) =
        super::pages(binary.command(["ui", "--listen", "127.0.0.1:0", "--connect", &connect])).await;
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let begun = Instant::now();
    // The first one waits for a while, and says that it reads.
    while get(&address, "/").await.1.contains("for the first time") {
        assert!(begun.elapsed() < PATIENCE, "it never has a list");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{LOCKS} locks were read in {:?}", begun.elapsed());
    for path in ["/", "/?sort=waiting", "/?q=0999&sort=rate", "/?page=1000"] {
        let (took, text) = get(&address, path).await;
        println!("{path}: {took:?}, {} bytes", text.len());
        assert!(took < FIRST_PAINT, "{path}: {took:?}");
        assert!(text.contains("100\u{202f}000 locks") && text.len() < 200_000, "{path}");
    }
    let (took, text) = get(&address, "/lock?name=/locks/000000").await;
    println!("a lock with {WAITERS} waiters: {took:?}, {} bytes", text.len());
    assert!(text.contains("10\u{202f}000 wait") && text.len() < 200_000);
    ui.kill().await.expect("it runs");
}
