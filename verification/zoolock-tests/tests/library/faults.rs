//! Lost replies, connections and sessions.

use std::sync::Arc;
use std::time::Duration;

use zoolock::{Error, LockEvent, LossReason, Naming, Zoolock};
use zoolock_tests::locks::{
    await_guard, connect, connect_through, directory, lock_and_release, lock_in_background, settings,
    short_session_settings, until_queued,
};
use zoolock_tests::skip::is_long;
use zoolock_tests::{Proxy, on_both_servers, opcode, tree};

use crate::metrics::{Seen, recorder};

on_both_servers!(create_with_lost_reply_is_found_again, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    lock_and_release(&zl.mutex("lost")).await;
    for happened in [true, false] {
        for _ in 0..3 {
            match happened {
                true => proxy.drop_next_reply(opcode::CREATE2),
                false => proxy.drop_next_request(opcode::CREATE2),
            }
            let guard = zl.mutex("lost").lock_timeout(Duration::from_secs(10)).await.expect("lock acquired");
            assert!(guard.is_valid());
            let seen = zl.admin().snapshot("lost").await.expect("read succeeds");
            assert_eq!(
                seen.holder.expect("lock has a holder").node,
                guard.node_path().rsplit('/').next().expect("node path has a name")
            );
            guard.release().await.expect("release succeeds");
        }
    }
    let stats = proxy.stats();
    assert_eq!((stats.dropped_replies, stats.dropped_requests), (3, 3));
    tree::assert_no_contenders(&place.addr(), &directory(&place, "lost")).await;
});

on_both_servers!(queue_position_survives_lost_replies_and_connections, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (shaky, steady) = (connect_through(&place, &proxy).await, connect(&place).await);
    let held = steady.mutex("queue").lock().await.expect("lock acquired");
    proxy.drop_next_reply(opcode::CREATE2);
    let first = lock_in_background(&shaky.mutex("queue"));
    until_queued(&steady, "queue", 2).await;
    let second = lock_in_background(&steady.mutex("queue"));
    until_queued(&steady, "queue", 3).await;
    // Lose the reply to the request that sets a watch, then the connection several times, then the watch event.
    proxy.drop_next_reply(opcode::GET_DATA);
    for _ in 0..3 {
        let before = proxy.stats().connections.len();
        proxy.close_connections().await;
        proxy.until("another connection", |stats| stats.connections.len() > before).await;
    }
    proxy.refuse(true).await;
    proxy.close_connections().await;
    held.release().await.expect("release succeeds");
    proxy.refuse(false).await;
    let guard = await_guard(first).await;
    assert!(!second.is_finished(), "the second waiter is still queued");
    guard.release().await.expect("release succeeds");
    await_guard(second).await.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "queue")).await;
});

on_both_servers!(release_with_lost_reply_happens_once, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (shaky, steady) = (connect_through(&place, &proxy).await, connect(&place).await);
    for happened in [true, false, true, false] {
        let guard = shaky.mutex("once").lock().await.expect("lock acquired");
        let waiting = lock_in_background(&steady.mutex("once"));
        until_queued(&steady, "once", 2).await;
        match happened {
            true => proxy.drop_next_reply(opcode::MULTI),
            false => proxy.drop_next_request(opcode::MULTI),
        }
        guard.release().await.expect("release succeeds");
        let next = await_guard(waiting).await;
        assert!(next.is_valid());
        next.release().await.expect("release succeeds");
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, "once")).await;
});

on_both_servers!(waiter_cancelled_while_disconnected_leaves_nothing, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (shaky, steady) = (connect_through(&place, &proxy).await, connect(&place).await);
    let held = steady.mutex("ghost").lock().await.expect("lock acquired");
    // The acquisition is cancelled during the create, and the client never receives the outcome of the create.
    proxy.drop_next_reply(opcode::CREATE2);
    let error = shaky.mutex("ghost").lock_timeout(Duration::from_millis(5)).await.expect_err("lock is held");
    // The wait was too short to be reported as an outage.
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    // The waiter is cancelled in the queue, and the client deletes its znode. One round loses the
    // reply to this delete, and the other round loses the request.
    for happened in [true, false] {
        let waiting = lock_in_background(&shaky.mutex("ghost"));
        until_queued(&steady, "ghost", 2).await;
        match happened {
            true => proxy.drop_next_reply(opcode::DELETE),
            false => proxy.drop_next_request(opcode::DELETE),
        }
        waiting.abort();
        let _ = waiting.await;
        proxy.until("the dropped message", |stats| stats.dropped_replies + stats.dropped_requests > 0).await;
    }
    let next = tokio::spawn({
        let mutex = steady.mutex("ghost");
        async move { mutex.lock_timeout(Duration::from_secs(10)).await }
    });
    held.release().await.expect("release succeeds");
    next.await
        .expect("task does not panic")
        .expect("no stale znode blocks the queue")
        .release()
        .await
        .expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "ghost")).await;
});

// The client learns the tick after a third of the session timeout, and the lease then follows another interval. The test
// holds for longer than that, or for two minutes with `ZOOLOCK_LONG=1`. Each kind of lock has a session of its own.
on_both_servers!(healthy_server_makes_no_renewal_overdue, |place| async move {
    let (snapshotter, _turn) = recorder().await;
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    proxy.delay(Duration::from_millis(50));
    let connect_string = place.connect_string_through(&proxy.addr());
    let connect = async || {
        let settings =
            Zoolock::builder().session_timeout(Duration::from_secs(if is_long() { 30 } else { 12 }));
        settings.connect(&connect_string).await.expect("session starts")
    };
    let mut guards: Vec<Box<dyn std::any::Any + Send>> = Vec::new();
    let mut events = Vec::new();
    macro_rules! hold {
        ($handle:expr, $acquire:ident($($count:expr)?)) => {
            let zl = connect().await;
            let handle = $handle(&zl);
            events.push(handle.events());
            // The session has sent its first request before it has an acquisition.
            zl.admin().snapshot(handle.name()).await.expect("read succeeds");
            guards.push(Box::new(handle.$acquire($($count)?).await.expect("lock acquired")));
        };
    }
    hold!(|zl: &Zoolock| zl.mutex("mutex"), lock());
    hold!(|zl: &Zoolock| zl.mutex("careful").crash_detection(), lock());
    hold!(|zl: &Zoolock| zl.mutex("curator").naming(Naming::Curator), lock());
    hold!(|zl: &Zoolock| zl.rwlock("shared"), read());
    hold!(|zl: &Zoolock| zl.rwlock("written"), write());
    hold!(|zl: &Zoolock| zl.semaphore("permits", 2), acquire(2));
    let rwlock = connect().await.rwlock("upgraded");
    events.push(rwlock.events());
    let reader = rwlock.upgradable_read().await.expect("lock acquired");
    guards.push(Box::new(reader.upgrade().await.expect("reader upgrades")));
    let multi = connect().await.multi(["first", "second"]);
    events.push(multi.events());
    guards.push(Box::new(multi.lock().await.expect("locks acquired")));
    let shared = connect().await.mutex("passed-on").shared_hold(Duration::from_secs(1));
    events.push(shared.mutex().events());
    guards.push(Box::new(shared.lock().await.expect("lock acquired")));

    let time = Duration::from_secs(if is_long() { 120 } else { 8 });
    let overdue = events.into_iter().map(|mut events| {
        Box::pin(async move {
            loop {
                match events.next().await {
                    Some(LockEvent::Suspect(_)) | None => return,
                    Some(_) => {}
                }
            }
        })
    });
    let overdue = tokio::time::timeout(time, futures_util::future::select_all(overdue)).await;
    assert!(overdue.is_err(), "a renewal was overdue");
    let mut seen = Seen::default();
    seen.look(snapshotter);
    assert_eq!(seen.of("zoolock_renewals_total", &[("outcome", "failed")]), 0.0);
    assert!(seen.of("zoolock_renewals_total", &[("outcome", "confirmed")]) >= 9.0);
});

on_both_servers!(disconnected_holder_loses_before_next_grant, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = short_session_settings()
        .connect(&place.connect_string_through(&proxy.addr()))
        .await
        .expect("session starts");
    let rival = short_session_settings().connect(&place.connect_string()).await.expect("session starts");
    for link in ["silent", "dead"] {
        let guard = zl.mutex("cut").lock().await.expect("lock acquired");
        let waiting = lock_in_background(&rival.mutex("cut"));
        until_queued(&rival, "cut", 2).await;
        if link == "silent" {
            proxy.blackhole(true);
        } else {
            proxy.refuse(true).await;
            proxy.close_connections().await;
        }
        let reason = guard.lost().await;
        assert_eq!(reason, LossReason::Unreachable, "{link}");
        assert!(!waiting.is_finished(), "{link}: the rival was granted the lock too early");
        assert!(!guard.is_valid());
        assert!(guard.valid_until().has_passed());
        let next = await_guard(waiting).await;
        assert!(next.token() > guard.token());
        // The connection is restored; the guard stays lost.
        proxy.blackhole(false);
        proxy.refuse(false).await;
        assert!(!guard.is_valid(), "{link}");
        assert_eq!(guard.lost().await, LossReason::Unreachable, "{link}: the loss reason stays the same");
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
        next.release().await.expect("release succeeds");
    }
    // The client opens a new session for the next acquire.
    let guard = zl.mutex("cut").lock_timeout(Duration::from_secs(20)).await.expect("lock acquired");
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "cut")).await;
});

on_both_servers!(lease_is_renewed_while_the_lock_is_held, |place| async move {
    // The session timeout is longer than a pause of a busy machine. A lease without renewal ends
    // before the test does.
    let timeout = Duration::from_secs(6);
    let knows_tick = settings().session_timeout(timeout);
    let knows_tick = knows_tick.connect(&place.connect_string()).await.expect("session starts");
    let learns_tick = Zoolock::builder().session_timeout(timeout);
    let learns_tick = learns_tick.connect(&place.connect_string()).await.expect("session starts");
    let clients = [("known", knows_tick), ("learned", learns_tick)];
    let mut guards = Vec::new();
    for (name, zl) in &clients {
        guards.push((name, zl.mutex(name).lock().await.expect("lock acquired")));
    }
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for (name, guard) in &guards {
            assert!(guard.is_valid(), "{name}");
        }
    }
    for (name, guard) in guards {
        guard.release().await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
});

on_both_servers!(private holder_survives_a_server_restart, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("restart").lock().await.expect("lock acquired");
    let token = guard.token();
    place.server().restart().await.expect("server starts");
    guard.release().await.expect("session survived the restart");
    let guard = zl.mutex("restart").lock_timeout(Duration::from_secs(20)).await.expect("lock acquired");
    assert!(guard.token() > token, "tokens never decrease");
    guard.release().await.expect("release succeeds");
});

on_both_servers!(random_disconnects_preserve_exclusion, |place| async move {
    let judge = Arc::new(zoolock_tests::Judge::new());
    let mut proxies = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..4 {
        let proxy = Arc::new(Proxy::start(&place.addr()).await.expect("proxy starts"));
        let zl =
            settings().connect(&place.connect_string_through(&proxy.addr())).await.expect("session starts");
        proxies.push(proxy);
        for task in 0..3 {
            let (mutex, judge, who) = (zl.mutex("storm"), judge.clone(), format!("{client}.{task}"));
            tasks.spawn(async move {
                for round in 0..25 {
                    if (round + task) % 4 == 0 {
                        // Cancels the acquisition a little later in each round.
                        let _ = tokio::time::timeout(Duration::from_millis(7 * round), mutex.lock()).await;
                        continue;
                    }
                    let guard = mutex.lock().await.expect("lock granted");
                    judge.enter(who.clone(), guard.token());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    assert!(guard.is_valid(), "short disconnects lose no lock");
                    judge.exit(&who);
                    guard.release().await.expect("release succeeds");
                }
            });
        }
    }
    let storm = tokio::spawn(async move {
        let ops = [opcode::CREATE2, opcode::MULTI, opcode::DELETE, opcode::GET_DATA, opcode::GET_CHILDREN];
        for round in 0.. {
            let proxy: &Arc<Proxy> = &proxies[round % proxies.len()];
            match round % 3 {
                0 => proxy.drop_next_reply(ops[round / 3 % ops.len()]),
                1 => proxy.drop_next_request(ops[round / 3 % ops.len()]),
                _ => proxy.close_connections().await,
            }
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    });
    tasks.join_all().await;
    storm.abort();
    judge.checked_grants();
    tree::assert_no_contenders(&place.addr(), &directory(&place, "storm")).await;
});
