//! Sends the same requests to this server and to Apache ZooKeeper, and compares every reply and every event.
//!
//! `ZOOLOCK_SEED=n` repeats a random run. `ZOOLOCK_LONG=1` sends a million requests.

mod expiry;
mod plan;
mod play;
mod script;
mod server;
mod tally;

use std::time::Duration;

use fastrand::Rng;
use zoolock_server::{Limits, ServerHandle};
use zoolock_tests::{Apache, ServerOptions, apache};

use self::play::{Mismatch, Pair};
use crate::common::builder;

/// The digest of the super user `super:test`, for both servers.
const SUPER: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";

/// A period that never ends within a test.
const NEVER: Duration = Duration::from_secs(1_000_000);

/// Number of steps in a round. In a short round, znodes have few children, and few steps precede a
/// mismatch.
const ROUND: usize = 2_000;

/// Starts this server and Apache ZooKeeper with the same options.
async fn servers(container_check: Duration, extended_types: bool) -> (ServerHandle, Apache) {
    let options = ServerOptions {
        container_check,
        max_session_timeout: Duration::from_secs(3600),
        fsync: false,
        super_digest: Some(SUPER.to_owned()),
        properties: vec![format!("zookeeper.extendedTypesEnabled={extended_types}")],
        ..Default::default()
    };
    let server = builder()
        .tick(options.tick)
        .max_session_timeout(options.max_session_timeout)
        .container_check(container_check)
        .super_digest(SUPER)
        .limits(Limits { extended_types, ..Limits::default() });
    let apache = Apache::start(options).await.expect("it starts");
    (server.start().await.expect("there is a free port"), apache)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_apache_zookeeper() {
    if !apache::availability().or_skip("answers_are_those_of_apache_zookeeper") {
        return;
    }
    let (server, apache) = servers(NEVER, false).await;
    let steps = script::script();
    if let Err(mismatch) = Pair::new(server.local_addr(), apache.socket_addr()).play(&steps).await {
        panic!("{mismatch}\nApache ZooKeeper's log ends with\n{}", apache.log_tail());
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_are_answered_as_by_apache_zookeeper() {
    if !apache::availability().or_skip("random_calls_are_answered_as_by_apache_zookeeper") {
        return;
    }
    let seed = zoolock_tests::locks::seed();
    let wanted = if zoolock_tests::skip::is_long() { 1_000_000 } else { 100_000 };
    let (server, apache) = servers(NEVER, true).await;
    let mut pair = Pair::new(server.local_addr(), apache.socket_addr());
    let mut random = Rng::with_seed(seed);
    let mut calls = 0;
    while calls < wanted {
        let steps = plan::plan(random.u64(..), ROUND);
        match pair.play(&steps).await {
            Ok(()) => calls += steps.len(),
            Err(mismatch) => {
                eprintln!("{mismatch}\nshrinking the round");
                let (steps, mismatch) = pair.shrink(steps, mismatch).await;
                let tail = apache.log_tail();
                panic!("{}", report(seed, &steps, &mismatch, &tail));
            }
        }
    }
    eprintln!("{calls} calls, {:?}", pair.tally);
    assert_eq!(pair.tally.missing(), [""; 0], "the run lacks required replies, ZOOLOCK_SEED={seed}");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn znodes_expire_as_on_apache_zookeeper() {
    if !apache::availability().or_skip("znodes_expire_as_on_apache_zookeeper") {
        return;
    }
    let seed = zoolock_tests::locks::seed();
    let (server, apache) = servers(Duration::from_millis(150), true).await;
    let ours = expiry::play("ours", server.local_addr(), seed, 8);
    let theirs = expiry::play("theirs", apache.socket_addr(), seed, 8);
    tokio::join!(ours, theirs);
    server.shutdown().await;
}

fn report(seed: u64, steps: &[plan::Step], mismatch: &Mismatch, log: &str) -> String {
    let shown = steps.len().saturating_sub(30);
    let steps: Vec<String> =
        steps[shown..].iter().map(|step| format!("  {}: {:?}", step.slot, step.action)).collect();
    format!(
        "the servers differ, ZOOLOCK_SEED={seed}\nthe last steps:\n{}\n{mismatch}\nApache ZooKeeper's log ends with\n{log}",
        steps.join("\n")
    )
}
