//! Random programs over all kinds of locks, and a referee that checks them without knowledge of the implementation.
//!
//! `ZOOLOCK_SEED` repeats the choices of a run, but not its timing. `ZOOLOCK_LONG` makes a run last minutes.

mod guards;
mod meeting;
mod operator;
mod referee;
mod rules;
mod storm;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use operator::Operator;
use referee::Referee;
use rules::LockRecord;
use tokio::task::JoinSet;
use worker::{LOCKS, SEMAPHORES, TRACKED, Worker};
use zoolock::Zoolock;
use zoolock_tests::locks::{lock_and_release, seed, settings, short_session_settings};
use zoolock_tests::{Place, Proxy, on_both_servers, tree};

/// Number of tasks per client.
const TASKS: usize = 5;

fn duration() -> Duration {
    Duration::from_secs(if zoolock_tests::skip::is_long() { 120 } else { 5 })
}

fn lock_records() -> impl Iterator<Item = LockRecord> {
    let locks = LOCKS.map(|name| LockRecord::new(name, None, name == "unbroken"));
    let semaphores = SEMAPHORES.map(|(name, size)| LockRecord::new(name, Some(size), false));
    locks.into_iter().chain(semaphores)
}

on_both_servers!(private locks_stay_correct_through_lost_connections, |place| async move {
    run_programs(place, false).await;
});

on_both_servers!(locks_stay_correct_through_lost_sessions, |place| async move {
    run_programs(place, true).await;
});

/// Runs tasks on two clients with a stable connection and on two behind unstable proxies. With `expiring`, the sessions
/// behind the proxies expire too.
async fn run_programs(place: Place, expiring: bool) {
    let seed = seed();
    let mut random = Rng::with_seed(seed);
    let referee = Arc::new(Referee::new(seed, lock_records()));
    let stable_settings = || {
        if expiring { short_session_settings().session_timeout(Duration::from_secs(10)) } else { settings() }
    };
    let unstable_settings = || if expiring { short_session_settings() } else { settings() };
    let (mut clients, mut proxies) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let zl = stable_settings().connect(&place.connect_string()).await.expect("session starts");
        clients.push((zl, false));
    }
    for _ in 0..2 {
        let proxy = Arc::new(Proxy::start(&place.addr()).await.expect("proxy starts"));
        let zl = unstable_settings()
            .connect(&place.connect_string_through(&proxy.addr()))
            .await
            .expect("session starts");
        clients.push((zl, expiring));
        proxies.push(proxy);
    }
    let zl = stable_settings().connect(&place.connect_string()).await.expect("session starts");
    prepare(&zl).await;
    let idle = idle_tasks(&clients).await;
    let until = Instant::now() + duration();
    let mut tasks = JoinSet::new();
    for (number, (client, may_expire)) in clients.iter().enumerate() {
        for task in 0..TASKS {
            let worker = Worker {
                name: format!("{number}.{task}"),
                zl: client.clone(),
                operator: zl.clone(),
                referee: referee.clone(),
                random: Rng::with_seed(random.u64(..)),
                may_expire: *may_expire,
            };
            tasks.spawn(worker.run(until));
        }
    }
    let operator = Operator {
        zl: zl.clone(),
        client: tree::connect(&place.addr()).await.expect("session starts"),
        root: format!("{}/locks", place.chroot()),
        referee: referee.clone(),
        random: Rng::with_seed(random.u64(..)),
    };
    let mut others = JoinSet::new();
    others.spawn(operator.run());
    others.spawn(storm::disturb(proxies.clone(), Rng::with_seed(random.u64(..)), expiring));
    loop {
        tokio::select! {
            done = tasks.join_next() => match done {
                Some(done) => propagate_panic(done),
                None => break,
            },
            Some(done) = others.join_next() => propagate_panic(done),
        }
    }
    others.shutdown().await;
    for proxy in &proxies {
        proxy.blackhole(false);
        proxy.refuse(false).await;
    }
    println!("{}", referee.summary());
    assert_clean_end(&place, &clients, &idle, expiring).await;
    for what in ["Writer", "Reader", "Upgradable", "Permits", "upgrades", "downgrades", "revoked", "broken"] {
        assert!(referee.counted(what) > 0, "no {what} in {}", referee.summary());
    }
}

/// Resumes the panic of a task, if it panicked.
fn propagate_panic(done: Result<(), tokio::task::JoinError>) {
    if let Err(error) = done {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Acquires each lock once. This creates the lock directories, and enables crash detection on the
/// names in [`TRACKED`].
async fn prepare(zl: &Zoolock) {
    for name in LOCKS {
        let mutex = zl.mutex(name);
        let mutex = if TRACKED.contains(&name) { mutex.crash_detection() } else { mutex };
        lock_and_release(&mutex).await;
    }
}

async fn idle_tasks(clients: &[(Zoolock, bool)]) -> Vec<usize> {
    let mut idle = Vec::new();
    for (client, _) in clients {
        idle.push(zoolock_tests::locks::leftovers::idle_background_tasks(client).await);
    }
    idle
}

async fn assert_clean_end(place: &Place, clients: &[(Zoolock, bool)], idle: &[usize], expiring: bool) {
    for name in LOCKS.into_iter().chain(SEMAPHORES.map(|(name, _)| name)) {
        tree::assert_no_contenders(&place.addr(), &zoolock_tests::locks::directory(place, name)).await;
    }
    if !expiring {
        place.assert_no_watches().await;
    }
    for ((client, may_expire), tasks) in clients.iter().zip(idle) {
        if !may_expire {
            zoolock_tests::locks::until_quiet(client, *tasks).await;
        }
    }
}
