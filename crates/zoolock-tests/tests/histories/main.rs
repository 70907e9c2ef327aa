//! Random programs over all kinds of locks, and a referee that knows nothing of how they are made.
//!
//! `ZOOLOCK_SEED` repeats the choices of a run, though not its timing; `ZOOLOCK_LONG` makes it minutes.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod leftovers;

mod guards;
mod hall;
mod meeting;
mod operator;
mod rules;
mod storm;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{brisk, brisk_settings, settings};
use hall::Hall;
use operator::Operator;
use rules::Room;
use tokio::task::JoinSet;
use worker::{LOCKS, SEMAPHORES, TRACKED, Worker};
use zoolock::Zoolock;
use zoolock_tests::{Place, Proxy, Random, on_both_arms, tree};

/// How many tasks each client has.
const TASKS: usize = 5;

fn long() -> Duration {
    Duration::from_secs(if std::env::var_os("ZOOLOCK_LONG").is_some() { 120 } else { 5 })
}

fn seed() -> u64 {
    match std::env::var("ZOOLOCK_SEED") {
        Ok(seed) => seed.parse().expect("ZOOLOCK_SEED is a number"),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.expect("after 1970").as_nanos() as u64
        }
    }
}

fn rooms() -> impl Iterator<Item = Room> {
    let locks = LOCKS.map(|name| Room::new(name, None, name == "exact"));
    let semaphores = SEMAPHORES.map(|(name, size)| Room::new(name, Some(size), false));
    locks.into_iter().chain(semaphores)
}

on_both_arms!(private random_programs_keep_the_rules_through_lost_connections, |place| async move {
    play(place, false).await;
});

on_both_arms!(private(brisk()) random_programs_keep_the_rules_through_lost_sessions, |place| async move {
    play(place, true).await;
});

/// Two clients with a good connection, two through proxies that lose it. `expiring`: their sessions, too.
async fn play(place: Place, expiring: bool) {
    let seed = seed();
    println!("ZOOLOCK_SEED={seed}");
    let mut random = Random::new(seed);
    let hall = Arc::new(Hall::new(seed, rooms()));
    let steady =
        || if expiring { brisk_settings().session_timeout(Duration::from_secs(10)) } else { settings() };
    let shaky = || if expiring { brisk_settings() } else { settings() };
    let (mut clients, mut proxies) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let zl = steady().connect(&place.connect_string()).await.expect("a session");
        clients.push((zl, false));
    }
    for _ in 0..2 {
        let proxy = Arc::new(Proxy::start(&place.addr()).await.expect("a proxy"));
        let zl = shaky().connect(&place.through(&proxy.addr())).await.expect("a session");
        clients.push((zl, expiring));
        proxies.push(proxy);
    }
    let zl = steady().connect(&place.connect_string()).await.expect("a session");
    prepare(&zl).await;
    let resting = rest(&clients).await;
    let until = Instant::now() + long();
    let mut tasks = JoinSet::new();
    for (number, (client, mortal)) in clients.iter().enumerate() {
        for task in 0..TASKS {
            let worker = Worker {
                who: format!("{number}.{task}"),
                zl: client.clone(),
                operator: zl.clone(),
                hall: hall.clone(),
                random: Random::new(random.number()),
                mortal: *mortal,
            };
            tasks.spawn(worker.run(until));
        }
    }
    let operator = Operator {
        zl: zl.clone(),
        client: tree::connect(&place.addr()).await.expect("a session"),
        root: format!("{}/locks", place.chroot()),
        hall: hall.clone(),
        random: Random::new(random.number()),
    };
    let mut others = JoinSet::new();
    others.spawn(operator.run());
    others.spawn(storm::rage(proxies.clone(), Random::new(random.number()), expiring));
    loop {
        tokio::select! {
            done = tasks.join_next() => match done {
                Some(done) => passed_on(done),
                None => break,
            },
            Some(done) = others.join_next() => passed_on(done),
        }
    }
    others.shutdown().await;
    for proxy in &proxies {
        proxy.blackhole(false);
        proxy.refuse(false).await;
    }
    println!("{}", hall.summary());
    at_the_end(&place, &clients, &resting, expiring).await;
    for what in ["Writer", "Reader", "Upgradable", "Permits", "upgrades", "downgrades", "revoked", "broken"] {
        assert!(hall.counted(what) > 0, "no {what} in {}", hall.summary());
    }
}

/// A task that fails has said why.
fn passed_on(done: Result<(), tokio::task::JoinError>) {
    if let Err(error) = done {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// The first holder of a tracked name asks for it.
async fn prepare(zl: &Zoolock) {
    for name in LOCKS {
        let mutex = zl.mutex(name);
        let mutex = if TRACKED.contains(&name) { mutex.crash_detection() } else { mutex };
        mutex.lock().await.expect("free").release().await.expect("ours");
    }
}

async fn rest(clients: &[(Zoolock, bool)]) -> Vec<usize> {
    let mut resting = Vec::new();
    for (client, _) in clients {
        resting.push(leftovers::settle(client).await);
    }
    resting
}

async fn at_the_end(place: &Place, clients: &[(Zoolock, bool)], resting: &[usize], expiring: bool) {
    for name in LOCKS.into_iter().chain(SEMAPHORES.map(|(name, _)| name)) {
        tree::assert_no_contenders(&place.addr(), &common::directory(place, name)).await;
    }
    if !expiring {
        place.server().assert_no_watches().await;
    }
    for ((client, mortal), tasks) in clients.iter().zip(resting) {
        if !mortal {
            common::until_quiet(client, *tasks).await;
        }
    }
}
