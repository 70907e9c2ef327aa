//! The cost of long queues, and the clean-up after cancelled waiters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock::Zoolock;
use zoolock_tests::both_servers::Sharing;
use zoolock_tests::locks::leftovers::idle_background_tasks;
use zoolock_tests::locks::{
    connect, connect_through, directory, lock_and_release, seed, settings, until_queued, until_quiet,
};
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{Judge, Place, Proxy, TestFailure, on_both_servers, tree};

/// Queues `waiters` waiters, half of them on each of two locks. Each waiter then holds its lock for
/// 5 ms. Returns the average number of bytes that the server sends for a waiter, from the start of
/// its acquire to the end of its release.
async fn bytes_per_waiter(place: &Place, waiters: usize) -> f64 {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let sessions = [connect_through(place, &proxy).await, connect_through(place, &proxy).await];
    let names = [format!("left-{waiters}"), format!("right-{waiters}")];
    let before = proxy.counts();
    let mut held = Vec::new();
    for name in &names {
        held.push(sessions[0].mutex(name).lock().await.expect("lock acquired"));
    }
    let judges = [Arc::new(Judge::new()), Arc::new(Judge::new())];
    let mut tasks = tokio::task::JoinSet::new();
    for waiter in 0..waiters {
        let (zl, name) = (sessions[waiter / 2 % 2].clone(), names[waiter % 2].clone());
        let judge = judges[waiter % 2].clone();
        tasks.spawn(async move {
            let guard = zl.mutex(&name).lock().await.expect("lock granted");
            judge.enter(waiter, guard.token());
            tokio::time::sleep(Duration::from_millis(5)).await;
            judge.exit(&waiter);
            guard.release().await.expect("release succeeds");
        });
    }
    let observer = connect(place).await;
    for name in &names {
        until_queued(&observer, name, waiters / 2 + 1).await;
    }
    for guard in held {
        guard.release().await.expect("release succeeds");
    }
    tasks.join_all().await;
    for judge in judges {
        // A token is the zxid of the create of a znode. So rising tokens mean that the lock was granted in queue order.
        assert_eq!(judge.checked_grants().len(), waiters / 2, "every waiter was granted the lock");
    }
    for name in &names {
        tree::assert_no_contenders(&place.addr(), &directory(place, name)).await;
    }
    let read = proxy.counts().since(&before);
    assert_eq!(read.requests(zoolock_tests::opcode::GET_CHILDREN), 0, "no waiter lists the queue");
    read.bytes_to_client as f64 / waiters as f64
}

on_both_servers!(bytes_per_waiter_are_independent_of_queue_length, |place| async move {
    let few = bytes_per_waiter(&place, 200).await;
    let many = bytes_per_waiter(&place, 2000).await;
    println!("bytes read per waiter: {few:.0} with 200, {many:.0} with 2,000");
    // Depending on the timing, some waiters make one read more. A cost that grows with the queue would be ten times as high.
    assert!(many <= few * 1.25, "{few:.0} bytes per waiter with 200, {many:.0} with 2,000");
    place.assert_no_watches().await;
});

on_both_servers!(private cancelled_waiters_leave_no_znode_watch_or_task, |place| async move {
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let (zl, other) = (connect(&place).await, connect(&place).await);
    lock_and_release(&zl.mutex("crowd")).await;
    let tasks = idle_background_tasks(&zl).await;
    let directory = directory(&place, "crowd");
    // Each acquisition is dropped at a random moment. Some have been granted the lock by then.
    let crowd = async |random: &mut fastrand::Rng, count: usize| {
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..count {
            let (mutex, patience) = (zl.mutex("crowd"), Duration::from_micros(random.u64(..600_000)));
            waiting.spawn(async move {
                let _ = tokio::time::timeout(patience, mutex.lock()).await;
            });
        }
        waiting
    };
    // At first the waiters queue behind a holder that keeps the lock. Each waiter that comes second in the queue watches
    // the znode of the holder.
    let held = other.mutex("crowd").lock().await.expect("lock acquired");
    crowd(&mut random, 500).await.join_all().await;
    tree::assert_contenders(&place.addr(), &directory, 1).await;
    // The holder watches its own znode. The cancelled waiters can leave one more watch on this
    // znode. That watch ends when the znode is deleted.
    let watches = retry_until_ok("the waiters' watches are gone", Duration::from_secs(15), async || {
        match place.server().watch_count().await? {
            1 | 2 => Ok(()),
            watches => Err(TestFailure::new(format!("{watches} watches"))),
        }
    });
    watches.await.expect("no watch remains");
    until_quiet(&zl, tasks).await;
    // Then waiters are cancelled while the lock passes from waiter to waiter.
    let waiting = crowd(&mut random, 500).await;
    tokio::time::sleep(Duration::from_millis(random.u64(..400))).await;
    held.release().await.expect("release succeeds");
    waiting.join_all().await;
    tree::assert_no_contenders(&place.addr(), &directory).await;
    place.assert_no_watches().await;
    until_quiet(&zl, tasks).await;
    // The lock can still be acquired.
    zl.mutex("crowd")
        .lock_timeout(Duration::from_secs(5))
        .await
        .expect("lock acquired")
        .release()
        .await
        .expect("release succeeds");
});

on_both_servers!(waiters_on_long_paths_survive_a_reconnect, |place| async move {
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
    assert!(proxy.stats().open() >= 3, "200 waiters of 1.8 KiB each do not fit into two sessions of 100 KiB");
    proxy.close_connections().await;
    held.release().await.expect("release succeeds");
    while let Some(done) = waiting.join_next().await {
        done.expect("task does not panic").expect("lock granted");
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, &name)).await;
});

/// Sets the counter of sequence numbers of a lock directory to `counter`. Then 16 contenders
/// acquire the lock 80 times in total. Meanwhile, the library must delete the directory and create
/// it again.
async fn acquire_past_the_sequence_limit(counter: i32) {
    let body = |place: Place| async move {
        let zl = settings().connect(&place.connect_string()).await.expect("session starts");
        lock_and_release(&zl.mutex("old")).await;
        let path = directory(&place, "old");
        let set = match place.server() {
            zoolock_tests::AnyServer::Embedded(server) => {
                server.inspect(|handle| handle.set_child_counter(&path, counter))
            }
            _ => unreachable!("only the embedded server lets a test set the counter"),
        };
        assert!(set, "there is no {path}");
        let judge = Arc::new(Judge::new());
        let mut tasks = tokio::task::JoinSet::new();
        for contender in 0..16 {
            let zl = match contender % 4 {
                0 => connect(&place).await,
                _ => zl.clone(),
            };
            let judge = judge.clone();
            tasks.spawn(async move {
                for _ in 0..5 {
                    let guard =
                        zl.mutex("old").lock_timeout(Duration::from_secs(30)).await.expect("lock granted");
                    judge.enter(contender, guard.token());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    judge.exit(&contender);
                    guard.release().await.expect("release succeeds");
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(judge.checked_grants().len(), 80);
        let client = tree::connect(&place.addr()).await.expect("session starts");
        tree::assert_no_contenders(&place.addr(), &path).await;
        // The directory was created again, so the next sequence number is small.
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
    zoolock_tests::both_servers::run(
        zoolock_tests::ServerKind::Embedded,
        sharing,
        "acquire_past_the_sequence_limit",
        body,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_is_retired_before_sequence_numbers_run_out() {
    acquire_past_the_sequence_limit(i32::MAX - (1 << 20) - 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_is_retired_at_the_last_sequence_numbers() {
    acquire_past_the_sequence_limit(i32::MAX - 3).await;
}

/// Measures the fastest of five acquires (several requests that are sent together) and of five
/// releases (one request).
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

// With Nagle's algorithm, the second request of an acquire would wait until the first one is acknowledged.
on_both_servers!(acquire_takes_one_round_trip, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    proxy.delay(Duration::from_millis(25));
    for connection in ["first", "second"] {
        let (flight, request) = flight_and_request(&zl).await;
        assert!(flight < request * 3 / 2, "{connection} connection: {flight:?}, one request {request:?}");
        let before = proxy.stats().connections.len();
        proxy.close_connections().await;
        proxy.until("another connection", |stats| stats.connections.len() > before).await;
    }
});
