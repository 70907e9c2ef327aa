//! What a long queue costs, and what is left of those who leave it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock::Zoolock;
use zoolock_tests::arm::Sharing;
use zoolock_tests::locks::{connect, connect_through, directory, settings, until_queued, until_quiet};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, Proxy, Recorder, on_both_arms, tree};

/// Queues `waiters` on two locks and lets everybody have a turn of 5 ms. Gives the bytes read per waiter, the joins
/// included.
async fn bytes_per_waiter(place: &Place, waiters: usize) -> f64 {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let sessions = [connect_through(place, &proxy).await, connect_through(place, &proxy).await];
    let names = [format!("left-{waiters}"), format!("right-{waiters}")];
    let before = proxy.counts();
    let mut held = Vec::new();
    for name in &names {
        held.push(sessions[0].mutex(name).lock().await.expect("lock acquired"));
    }
    let recorders = [Arc::new(Recorder::new()), Arc::new(Recorder::new())];
    let mut tasks = tokio::task::JoinSet::new();
    for waiter in 0..waiters {
        let (zl, name) = (sessions[waiter / 2 % 2].clone(), names[waiter % 2].clone());
        let recorder = recorders[waiter % 2].clone();
        tasks.spawn(async move {
            let guard = zl.mutex(&name).lock().await.expect("lock granted");
            recorder.enter(waiter, guard.token());
            // The work.
            tokio::time::sleep(Duration::from_millis(5)).await;
            recorder.exit(waiter, guard.token());
            guard.release().await.expect("release succeeds");
        });
    }
    let observer = connect(place).await;
    for name in &names {
        until_queued(&observer, name, waiters / 2 + 1).await;
    }
    // The order in which they stand, which the token shows: it is the transaction that queued them.
    for guard in held {
        guard.release().await.expect("release succeeds");
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("task does not panic");
    }
    for recorder in recorders {
        let history = recorder.history();
        history.one_holder().expect("one holder at a time");
        // Tokens are queue positions, so that they rise means that the queue was served in its order.
        history.tokens_rise().expect("in the order of the queue");
        assert_eq!(history.entered().len(), waiters / 2, "everyone had a turn");
    }
    for name in &names {
        tree::assert_no_contenders(&place.addr(), &directory(place, name)).await;
    }
    let read = proxy.counts().since(&before);
    assert_eq!(read.requests(zoolock_tests::opcode::GET_CHILDREN), 0, "nobody listed");
    read.bytes_to_client as f64 / waiters as f64
}

on_both_arms!(two_thousand_waiters_on_two_locks_cost_no_more_each_than_two_hundred, |place| async move {
    let few = bytes_per_waiter(&place, 200).await;
    let many = bytes_per_waiter(&place, 2000).await;
    println!("bytes read per waiter: {few:.0} with 200, {many:.0} with 2,000");
    assert!(many <= few * 1.1, "{few:.0} bytes per waiter with 200, {many:.0} with 2,000");
    place.assert_no_watches().await;
});

/// A small generator of our own: the seed is all there is to a run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }
}

on_both_arms!(private a_thousand_cancelled_waiters_leave_no_node_no_watch_no_task, |place| async move {
    let seed = std::env::var("ZOOLOCK_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64));
    println!("ZOOLOCK_SEED={seed}");
    let mut dice = Dice(seed);
    let (zl, other) = (connect(&place).await, connect(&place).await);
    zl.mutex("crowd").lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let tasks = settle(&zl).await;
    let directory = directory(&place, "crowd");
    // Dropped in the middle of whatever they are doing; some are granted the lock when they are dropped.
    let crowd = async |dice: &mut Dice, count: usize| {
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..count {
            let (mutex, patience) = (zl.mutex("crowd"), Duration::from_micros(dice.roll(600_000)));
            waiting.spawn(async move {
                let _ = tokio::time::timeout(patience, mutex.lock()).await;
            });
        }
        waiting
    };
    // First behind a holder that stays, whose node everybody who was second once has watched ...
    let held = other.mutex("crowd").lock().await.expect("lock acquired");
    crowd(&mut dice, 500).await.join_all().await;
    tree::assert_contenders(&place.addr(), &directory, 1).await;
    let watches = eventually("only the holder's own watch is left", Duration::from_secs(15), async || {
        match place.server().watch_count().await? {
            1 => Ok(()),
            watches => Err(Failure::new(format!("{watches} watches"))),
        }
    });
    watches.await.expect("no watch remains");
    until_quiet(&zl, tasks).await;
    // ... then while the lock goes from hand to hand.
    let waiting = crowd(&mut dice, 500).await;
    tokio::time::sleep(Duration::from_millis(dice.roll(400))).await;
    held.release().await.expect("release succeeds");
    waiting.join_all().await;
    tree::assert_no_contenders(&place.addr(), &directory).await;
    place.assert_no_watches().await;
    until_quiet(&zl, tasks).await;
    // And the lock works.
    zl.mutex("crowd")
        .lock_timeout(Duration::from_secs(5))
        .await
        .expect("lock acquired")
        .release()
        .await
        .expect("release succeeds");
});

/// The number of background tasks of a session at rest.
async fn settle(zl: &Zoolock) -> usize {
    let mut least = zl.background_tasks();
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        least = least.min(zl.background_tasks());
    }
    least
}

on_both_arms!(long_paths_are_spread_over_sessions_that_survive_a_reconnect, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let name = "x".repeat(900);
    let held = zl.mutex(&name).lock().await.expect("lock acquired");
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let mutex = zl.mutex(&name);
        waiting.spawn(async move { mutex.lock().await?.release().await });
    }
    let observer = connect(&place).await;
    until_queued(&observer, &name, 201).await;
    assert!(proxy.stats().open() >= 3, "200 waiters of 1.8 KiB each fit no two sessions of 100 KiB");
    proxy.cut().await;
    held.release().await.expect("release succeeds");
    while let Some(done) = waiting.join_next().await {
        done.expect("task does not panic").expect("lock granted");
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, &name)).await;
});

/// With the counter just below the limit, contenders go on through the end of the directory.
async fn through_the_end_of_the_numbers(counter: i32) {
    let body = |place: Place| async move {
        let zl = settings().connect(&place.connect_string()).await.expect("session starts");
        zl.mutex("old").lock().await.expect("lock acquired").release().await.expect("release succeeds");
        let path = directory(&place, "old");
        let set = match place.server() {
            zoolock_tests::Server::Embedded(server) => {
                server.inspect(|handle| handle.set_child_counter(&path, counter))
            }
            _ => unreachable!("only the embedded server lets a test set the counter"),
        };
        assert!(set, "there is no {path}");
        let recorder = Arc::new(Recorder::new());
        let mut tasks = tokio::task::JoinSet::new();
        for contender in 0..16 {
            let zl = match contender % 4 {
                0 => connect(&place).await,
                _ => zl.clone(),
            };
            let recorder = recorder.clone();
            tasks.spawn(async move {
                for _ in 0..5 {
                    let guard =
                        zl.mutex("old").lock_timeout(Duration::from_secs(30)).await.expect("lock granted");
                    recorder.enter(contender, guard.token());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    recorder.exit(contender, guard.token());
                    guard.release().await.expect("release succeeds");
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("task does not panic");
        }
        let history = recorder.history();
        history.one_holder().expect("one holder at a time");
        history.tokens_rise().expect("tokens increase although sequence numbers restart");
        assert_eq!(history.entered().len(), 80);
        let client = tree::connect(&place.addr()).await.expect("session starts");
        tree::assert_no_contenders(&place.addr(), &path).await;
        // It was made anew: the number of the next contender is small again.
        let guard = zl.mutex("old").lock().await.expect("lock acquired");
        let number: i32 = guard
            .node_path()
            .rsplit("lock-")
            .next()
            .expect("znode name has a sequence number")
            .parse()
            .expect("znode name has a sequence number");
        assert!((0..1000).contains(&number), "{}", guard.node_path());
        drop(client);
        guard.release().await.expect("release succeeds");
    };
    let sharing = Sharing::Private(zoolock_tests::ServerOptions::default());
    zoolock_tests::arm::run(zoolock_tests::Arm::Embedded, sharing, "through_the_end_of_the_numbers", body)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_retired_before_its_numbers_end() {
    through_the_end_of_the_numbers(i32::MAX - (1 << 20) - 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_at_the_very_end_of_its_numbers_is_retired() {
    through_the_end_of_the_numbers(i32::MAX - 3).await;
}

/// The shortest of a few acquires and of as many releases: a flight of several requests, and one request.
async fn flight_and_request(zl: &Zoolock) -> (Duration, Duration) {
    let mutex = zl.mutex("flight");
    let (mut flight, mut request) = (Duration::MAX, Duration::MAX);
    for _ in 0..5 {
        let begun = Instant::now();
        let guard = mutex.lock().await.expect("lock acquired");
        flight = flight.min(begun.elapsed());
        let begun = Instant::now();
        guard.release().await.expect("release succeeds");
        request = request.min(begun.elapsed());
    }
    (flight, request)
}

// Where the sockets have Nagle's algorithm, the second request waits until the first is acknowledged.
on_both_arms!(an_acquire_takes_one_round_trip, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    proxy.delay(Duration::from_millis(25));
    for connection in ["first", "second"] {
        let (flight, request) = flight_and_request(&zl).await;
        assert!(flight < request * 3 / 2, "{connection} connection: {flight:?}, one request {request:?}");
        let before = proxy.stats().connections.len();
        proxy.cut().await;
        proxy.until("another connection", |stats| stats.connections.len() > before).await;
    }
});
