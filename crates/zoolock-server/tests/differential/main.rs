//! Random calls of several sessions on our server and on Apache ZooKeeper, every answer and every event compared.
//!
//! `ZOOLOCK_SEED=n` plays one run again, `ZOOLOCK_LONG=1` a million calls.

mod plan;
mod play;
mod random;
mod side;
mod tally;
mod time;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use play::{Mismatch, Pair};
use random::Random;
use zoolock_server::Server;
use zoolock_tests::{Apache, ServerOptions, apache};

/// `super:test`, as both servers keep it.
const SUPER: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";

/// So long that it never comes: whoever removes what by when is another test's business.
const NEVER: Duration = Duration::from_secs(1_000_000);

/// How many steps a round has. Directories stay small, and what went wrong is found in few steps.
const ROUND: usize = 2_000;

fn seed() -> u64 {
    match std::env::var("ZOOLOCK_SEED") {
        Ok(seed) => seed.parse().expect("ZOOLOCK_SEED is a number"),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
            Random::new(u64::from(now.subsec_nanos()) ^ now.as_secs()).next() % 1_000_000_000
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_are_answered_as_by_apache_zookeeper() {
    if !apache::availability().or_skip("random_calls_are_answered_as_by_apache_zookeeper") {
        return;
    }
    let seed = seed();
    eprintln!("ZOOLOCK_SEED={seed}");
    let wanted = if std::env::var_os("ZOOLOCK_LONG").is_some() { 1_000_000 } else { 100_000 };
    let options = ServerOptions {
        container_check: Duration::from_secs(2_000_000),
        max_session_timeout: Duration::from_secs(3600),
        fsync: false,
        properties: vec![format!("zookeeper.DigestAuthenticationProvider.superDigest={SUPER}")],
        ..Default::default()
    };
    let apache = Apache::start(options).await.expect("it starts");
    let server = Server::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .tick(Duration::from_millis(500))
        .max_session_timeout(Duration::from_secs(3600))
        .container_check(NEVER)
        .super_digest(SUPER)
        .start()
        .await
        .expect("there is a free port");
    let mut pair = Pair::new(server.local_addr(), apache.socket_addr());
    let mut random = Random::new(seed);
    let mut calls = 0;
    while calls < wanted {
        let steps = plan::plan(random.next(), ROUND);
        match pair.play(&steps).await {
            Ok(()) => calls += steps.len(),
            Err(mismatch) => {
                eprintln!("{mismatch}\nmaking it smaller");
                let (steps, mismatch) = pair.shrink(steps, mismatch).await;
                let tail = apache.log_tail();
                panic!("{}", report(seed, &steps, &mismatch, &tail));
            }
        }
    }
    eprintln!("{calls} calls, {:?}", pair.tally);
    assert_eq!(pair.tally.missing(), [""; 0], "this is too little of a test, ZOOLOCK_SEED={seed}");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_removes_what_it_removes_on_apache_zookeeper() {
    if !apache::availability().or_skip("time_removes_what_it_removes_on_apache_zookeeper") {
        return;
    }
    let seed = seed();
    eprintln!("ZOOLOCK_SEED={seed}");
    let container_check = Duration::from_millis(150);
    let options = ServerOptions { container_check, fsync: false, ..Default::default() };
    let apache = Apache::start(options).await.expect("it starts");
    let server = Server::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .tick(Duration::from_millis(500))
        .container_check(container_check)
        .start()
        .await
        .expect("there is a free port");
    let ours = time::play("ours", server.local_addr(), seed, 8);
    let theirs = time::play("theirs", apache.socket_addr(), seed, 8);
    tokio::join!(ours, theirs);
    server.shutdown().await;
}

fn report(seed: u64, steps: &[plan::Step], mismatch: &Mismatch, log: &str) -> String {
    let shown = steps.len().saturating_sub(30);
    let steps: Vec<String> =
        steps[shown..].iter().map(|step| format!("  {}: {:?}", step.slot, step.act)).collect();
    format!(
        "the servers differ, ZOOLOCK_SEED={seed}\nthe last steps:\n{}\n{mismatch}\nApache ZooKeeper's log ends with\n{log}",
        steps.join("\n")
    )
}
