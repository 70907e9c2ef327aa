//! Regression tests for rare conditions.

use std::time::{Duration, Instant};

use zoolock::{Connection, Error, Zoolock};
use zoolock_tests::locks::leftovers::{assert_none, idle_background_tasks};
use zoolock_tests::locks::{
    await_guard, connect, connect_through, directory, lock_and_release, settings, short_session_settings,
    until_queued, until_quiet,
};
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{Direction, Place, Proxy, TestFailure, on_both_servers, opcode, tree};

on_both_servers!(async_api_works_without_a_tokio_runtime, |place| async move {
    let address = place.connect_string();
    let program = std::thread::spawn(move || {
        // This thread has no tokio runtime.
        futures_lite::future::block_on(async {
            let zl = settings().connect(&address).await.expect("session starts");
            let guard = zl.mutex("a").lock_timeout(Duration::from_secs(3)).await.expect("lock acquired");
            let error =
                zl.mutex("a").lock_timeout(Duration::from_millis(50)).await.expect_err("lock is held");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            guard.release().await.expect("release succeeds");
            zl.close().await;
        });
    });
    program.join().expect("task does not panic");
});

on_both_servers!(private locks_and_waiters_need_no_own_tasks, |place| async move {
    const LOCKS: usize = 200;
    let (zl, other) = (connect(&place).await, connect(&place).await);
    // After one acquisition each, both sessions are connected and idle.
    for zl in [&zl, &other] {
        lock_and_release(&zl.mutex("first")).await;
    }
    let (tasks, others) = (idle_background_tasks(&zl).await, idle_background_tasks(&other).await);
    let mutexes = |zl: &Zoolock| (0..LOCKS).map(|at| zl.mutex(at.to_string())).collect::<Vec<_>>();
    let (ours, theirs) = (mutexes(&zl), mutexes(&other));
    let held = futures_util::future::try_join_all(ours.iter().map(|mutex| mutex.lock())).await.expect("lock acquired");
    let mut waiting = Box::pin(futures_util::future::try_join_all(theirs.iter().map(|mutex| mutex.lock())));
    // Each holder watches its own znode. Each waiter watches the znode of the holder of its lock.
    let watched = async {
        while place.server().watch_count().await.expect("read succeeds") < 2 * LOCKS as u64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        _ = &mut waiting => panic!("locks are held"),
        () = watched => {}
    }
    until_quiet(&zl, tasks).await;
    until_quiet(&other, others).await;
    drop(held);
    for guard in waiting.await.expect("lock acquired") {
        guard.release().await.expect("release succeeds");
    }
    assert_none(&place, &zl, tasks, "0").await;
    until_quiet(&other, others).await;
});

on_both_servers!(kept_guard_does_not_delay_close, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    lock_and_release(&zl.mutex("kept")).await;
    let before = proxy.counts();
    let guard = zl.mutex("kept").lock().await.expect("lock acquired");
    proxy.blackhole_towards(Direction::ToClient, true);
    // The holder reads the directory, and then its own znode. The second read gets no reply before the close.
    proxy.until("the watch", |stats| stats.total.since(&before).requests(opcode::GET_DATA) > 1).await;
    let (address, queue) = (place.addr(), directory(&place, "kept"));
    let gone = tree::assert_no_contenders(&address, &queue);
    let closed = tokio::spawn(async move { zl.close().await });
    tokio::time::timeout(Duration::from_secs(4), gone).await.expect("closes before the session expires");
    assert!(!guard.is_valid());
    proxy.blackhole_towards(Direction::ToClient, false);
    closed.await.expect("task does not panic");
    drop(guard);
});

/// Deletes the lock directory and its children, as an operator can.
async fn remove(place: &Place, name: &str) {
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    let directory = directory(place, name);
    for child in operator.list_children(&directory).await.expect("znode exists") {
        operator.delete(&format!("{directory}/{child}"), None).await.expect("znode exists");
    }
    operator.delete(&directory, None).await.expect("directory is empty");
}

on_both_servers!(delayed_release_spares_a_later_znode, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, steady) = (connect_through(&place, &proxy).await, connect(&place).await);
    let guard = zl.mutex("x").lock().await.expect("lock acquired");
    let mut connection = guard.connection_changes();
    proxy.refuse(true).await;
    proxy.close_connections().await;
    connection.wait_for(|now| now == Connection::Suspect).await;
    remove(&place, "x").await;
    let other_guard = steady.mutex("x").lock().await.expect("lock acquired");
    assert_eq!(other_guard.node_path(), guard.node_path());
    let released = tokio::spawn(guard.release());
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.refuse(false).await;
    assert!(matches!(released.await.expect("task does not panic"), Err(Error::Lost { .. })));
    assert!(other_guard.is_valid(), "the other holder's znode was deleted");
    other_guard.release().await.expect("release succeeds");
});

on_both_servers!(timeout_during_outage_spares_a_later_znode, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, steady) = (connect_through(&place, &proxy).await, connect(&place).await);
    let held = steady.mutex("x").lock().await.expect("lock acquired");
    proxy.refuse(true).await;
    // The client sends a read together with the create. The reply to this read is lost, and the
    // client cannot repeat the read during the outage.
    proxy.drop_next_reply(opcode::GET_DATA);
    let waiting = tokio::spawn({
        let mutex = zl.mutex("x");
        async move { mutex.lock_timeout(Duration::from_millis(1500)).await }
    });
    until_queued(&steady, "x", 2).await;
    proxy.until("the lost reply", |stats| stats.dropped_replies == 1).await;
    remove(&place, "x").await;
    drop(held);
    lock_and_release(&steady.mutex("x")).await;
    let other_guard = steady.mutex("x").lock().await.expect("lock acquired");
    assert!(other_guard.node_path().ends_with("/lock-0000000001"), "{}", other_guard.node_path());
    waiting.await.expect("task does not panic").expect_err("lock is held");
    proxy.refuse(false).await;
    // Within this time the clean-up of the timed-out waiter reaches the server.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(other_guard.is_valid(), "the other holder's znode was deleted");
    other_guard.release().await.expect("release succeeds");
});

on_both_servers!(waiters_with_lost_replies_never_share_a_znode, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, steady) = (connect_through(&place, &proxy).await, connect(&place).await);
    let held = steady.mutex("x").lock().await.expect("lock acquired");
    let path = directory(&place, "x");
    let lose_a_create = || {
        proxy.drop_next_reply(opcode::CREATE2);
        let mutex = zl.mutex("x");
        tokio::spawn(async move { mutex.lock().await })
    };
    let settled = async |count: usize| {
        proxy.until("the lost reply", |stats| stats.dropped_replies == count as u64).await;
        // In this time, the client deletes the duplicate znode, if it created one because of the
        // lost reply.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        tree::assert_contenders(&place.addr(), &path, count + 1).await;
    };
    let first = lose_a_create();
    settled(1).await;
    // Another client overwrites the data that identifies the waiter's znode.
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    operator.set_data(&format!("{path}/lock-0000000001"), b"__REVOKE__", None).await.expect("znode exists");
    let second = lose_a_create();
    settled(2).await;
    held.release().await.expect("release succeeds");
    let guard = await_guard(first).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!second.is_finished(), "two holders");
    guard.release().await.expect("release succeeds");
    await_guard(second).await.release().await.expect("release succeeds");
});

on_both_servers!(lost_guard_has_no_lease_left, |place| async move {
    let zl = connect(&place).await;
    let (guard, _other) = (
        zl.mutex("x").lock().await.expect("lock acquired"),
        zl.mutex("y").lock().await.expect("lock acquired"),
    );
    assert!(!guard.valid_until().has_passed());
    remove(&place, "x").await;
    guard.lost().await;
    assert!(guard.valid_until().has_passed(), "the lease has ended although the session continues");
});

on_both_servers!(name_with_120_parts_is_acquired, |place| async move {
    let zl = connect(&place).await;
    let name = ["deep"; 120].join("/");
    let guard = zl.mutex(&name).lock().await.expect("lock acquired");
    assert!(guard.is_valid());
    guard.release().await.expect("release succeeds");
});

on_both_servers!(short_timeouts_share_one_connection_attempt, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let short = short_session_settings().answer_timeout(Duration::from_millis(350));
    let zl = short.connect(&place.connect_string_through(&proxy.addr())).await.expect("session starts");
    // The proxy refuses connections until the session ends.
    proxy.refuse(true).await;
    proxy.close_connections().await;
    let ended = || async {
        match zl.session_timeout() {
            None => Ok(()),
            Some(timeout) => Err(TestFailure::new(format!("{timeout:?}"))),
        }
    };
    retry_until_ok("the session ends", Duration::from_secs(60), ended).await.expect("in time");
    proxy.refuse(false).await;
    // The handshake and an acquisition together take longer than each acquire timeout.
    proxy.delay(Duration::from_millis(100));
    let (mut acquired, mut refused) = (0, Vec::new());
    // If each call made its own connection attempt, no call would succeed.
    for _ in 0..60 {
        let begun = Instant::now();
        match zl.mutex("x").lock_timeout(Duration::from_millis(350)).await {
            Ok(guard) => {
                drop(guard);
                acquired += 1;
            }
            Err(error) => refused.push(format!("{acquired} acquired, {:?}: {error}", begun.elapsed())),
        }
        if acquired > 5 {
            return;
        }
    }
    panic!("{acquired} acquired; {refused:#?}");
});

// If only few requests could be in flight, the requests of timed-out calls would hold back all later requests.
on_both_servers!(session_recovers_after_a_slow_network, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let short = short_session_settings().answer_timeout(Duration::from_millis(350));
    let zl = short.connect(&place.connect_string_through(&proxy.addr())).await.expect("session starts");
    let try_once = async || {
        let lock = zl.mutex("x").lock_timeout(Duration::from_millis(350)).await;
        lock.map(drop).map_err(|error| error.to_string())
    };
    // The delay of each direction and the number of calls. With the longer delay, no call succeeds in time.
    for (delay, calls) in [(100, 20), (300, 6)] {
        proxy.delay(Duration::from_millis(delay));
        for _ in 0..calls {
            let _ = try_once().await;
        }
    }
    proxy.delay(Duration::from_millis(100));
    let (mut acquired, mut refused) = (0, Vec::new());
    for _ in 0..60 {
        match try_once().await {
            Ok(()) => acquired += 1,
            Err(error) => refused.push(error),
        }
        if acquired > 5 {
            return;
        }
    }
    panic!("{acquired} acquired; {refused:#?}");
});

on_both_servers!(last_release_survives_an_outage, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, steady) = (connect_through(&place, &proxy).await, connect(&place).await);
    let guard = zl.mutex("x").lock().await.expect("lock acquired");
    drop(zl);
    let mut connection = guard.connection_changes();
    proxy.refuse(true).await;
    proxy.close_connections().await;
    connection.wait_for(|now| now == Connection::Suspect).await;
    drop(guard);
    // The outage lasts longer than a closing client waits for its last release.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    proxy.refuse(false).await;
    // The session cannot expire within this time limit. So a grant shows that the release has
    // reached the server.
    let next = steady.mutex("x").lock_timeout(Duration::from_secs(4)).await.expect("lock granted");
    next.release().await.expect("release succeeds");
});

// The drop waits on the only thread of the runtime, so nothing that it waits for may run there.
on_both_servers!(last_drop_in_a_current_thread_runtime_releases, |place| async move {
    let connect_string = place.connect_string();
    let hold_and_drop = move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime starts");
        runtime.block_on(async {
            let zl = settings().connect(&connect_string).await.expect("session starts");
            let _guard = zl.mutex("x").lock().await.expect("lock acquired");
            drop(zl);
        });
    };
    tokio::task::spawn_blocking(hold_and_drop).await.expect("nothing panics");
    // The session cannot expire within this time limit.
    let next =
        connect(&place).await.mutex("x").lock_timeout(Duration::from_secs(4)).await.expect("lock granted");
    next.release().await.expect("release succeeds");
});

#[tokio::test]
async fn out_of_range_durations_are_refused() {
    for builder in [
        Zoolock::builder().session_timeout(Duration::MAX),
        Zoolock::builder().tick_time(Duration::MAX),
        Zoolock::builder().tick_time(Duration::ZERO),
        Zoolock::builder().grace(Duration::MAX),
        Zoolock::builder().answer_timeout(Duration::ZERO),
        Zoolock::builder().answer_timeout(Duration::MAX),
    ] {
        let error = builder.connect("127.0.0.1:1").await.expect_err("duration is out of range");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}
