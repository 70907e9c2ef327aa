//! Shared holds: the tasks of one client pass a hold on to each other, on both servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use zookeeper_client::{Acls, CreateMode};
use zoolock::{Connection, Error, Guard, LockEvent, LossReason, Previous, SharedHold};
use zoolock_tests::locks::{
    await_guard, connect, connect_through, directory, lock_and_release, short_session_settings, until_queued,
};
use zoolock_tests::{Direction, Judge, Proxy, on_both_servers, opcode, tree};

/// Time limit of each step, much longer than a step takes.
const LONG: Duration = Duration::from_secs(30);

/// Polls a condition until it holds.
async fn eventually(what: &str, mut is_met: impl AsyncFnMut() -> bool) {
    let look = async {
        while !is_met().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, look).await.is_ok(), "waited {LONG:?} until {what}");
}

/// Starts a task that acquires the lock. Returns once the task has begun to acquire.
fn soon_locked(mutex: &SharedHold) -> tokio::task::JoinHandle<Result<Guard, Error>> {
    let mutex = mutex.clone();
    let mut locking = Box::pin(async move { mutex.lock().await });
    assert!(locking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    tokio::spawn(locking)
}

/// Starts `count` tasks that acquire clones of `mutex`. Each task records its hold.
fn crowd(mutex: &SharedHold, count: usize, judge: &Arc<Judge<usize>>) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for who in 0..count {
        let (mutex, judge) = (mutex.clone(), judge.clone());
        tasks.spawn(async move {
            let guard = mutex.lock().await.expect("lock granted");
            judge.enter(who, guard.token());
            tokio::task::yield_now().await;
            assert!(guard.is_valid());
            judge.exit(&who);
            guard.release().await.expect("release succeeds");
        });
    }
    tasks
}

on_both_servers!(tasks_of_a_handle_share_a_hold, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, other) = (connect_through(&place, &proxy).await, connect(&place).await);
    // After a release, the client `zl` keeps the lock for a while, so that a late task needs no
    // second znode.
    let mutex = zl.mutex("shared").shared_hold(Duration::from_secs(1));
    let held = other.mutex("shared").lock().await.expect("lock acquired");
    let judge = Arc::new(Judge::new());
    let before = proxy.counts();
    let tasks = crowd(&mutex, 200, &judge);
    until_queued(&other, "shared", 2).await;
    held.release().await.expect("release succeeds");
    tasks.join_all().await;
    judge.checked_grants();
    let sent = proxy.counts().since(&before);
    assert_eq!(sent.requests(opcode::CREATE2), 1, "{sent:?}");
    assert_eq!(sent.requests(opcode::MULTI), 0, "{sent:?}");
    drop(mutex);
    eventually("the lock is released", async || {
        other.admin().snapshot("shared").await.expect("read succeeds").holder.is_none()
    })
    .await;
});

on_both_servers!(reacquiring_a_kept_lock_sends_no_request, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, other) = (connect_through(&place, &proxy).await, connect(&place).await);
    let mutex = zl.mutex("kept").shared_hold(LONG);
    let clone = mutex.clone();
    let first = mutex.lock().await.expect("lock acquired");
    let token = first.token();
    drop(first);
    // The check for foreign contenders follows the grant. Its requests must not be counted below.
    proxy
        .until("the check for foreign contenders", |stats| stats.total.replies(opcode::GET_CHILDREN2) > 0)
        .await;
    let before = proxy.counts();
    for pass in 1..1000 {
        let guard = match pass % 3 {
            0 => mutex.lock().await.expect("lock acquired"),
            1 => clone.lock().await.expect("lock acquired"),
            _ => mutex.try_lock().await.expect("attempt succeeds").expect("lock acquired"),
        };
        assert_eq!((guard.token().czxid(), guard.token().pass()), (token.czxid(), pass));
        assert_eq!(guard.previous(), Previous::Clean);
        assert!(guard.is_valid());
        if pass % 2 == 0 {
            guard.release().await.expect("release succeeds");
        }
    }
    let sent = proxy.counts().since(&before);
    assert_eq!((sent.requests(opcode::CREATE2), sent.requests(opcode::MULTI)), (0, 0), "{sent:?}");
    // The client `zl` gives up the kept lock at once for another client.
    let theirs = tokio::time::timeout(LONG / 2, other.mutex("kept").lock()).await;
    let theirs = theirs.expect("the lock is given to another client in time").expect("lock acquired");
    assert!(theirs.token() > token);
    assert!(mutex.try_lock().await.expect("attempt succeeds").is_none());
    theirs.release().await.expect("release succeeds");
    // The client `zl` keeps the lock again, and releases it when the last handle is dropped.
    drop(mutex.try_lock().await.expect("attempt succeeds").expect("lock acquired"));
    tree::assert_contenders(&place.addr(), &directory(&place, "kept"), 1).await;
    drop((mutex, clone));
    eventually("the lock is released", async || {
        other.mutex("kept").try_lock().await.expect("attempt succeeds").is_some()
    })
    .await;
});

on_both_servers!(kept_lock_is_released_after_the_limit, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let keep = Duration::from_millis(300);
    let mutex = zl.mutex("a-while").shared_hold(keep);
    let guard = mutex.lock().await.expect("lock acquired");
    let began = Instant::now();
    drop(guard);
    eventually("the lock is released", async || {
        other.admin().snapshot("a-while").await.expect("read succeeds").holder.is_none()
    })
    .await;
    let kept = began.elapsed();
    assert!(keep <= kept && kept < keep + Duration::from_secs(5), "{kept:?}");
    mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
});

on_both_servers!(others_wait_no_longer_than_the_limit, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("timed").shared_hold(Duration::from_millis(200));
    let turns = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (mutex, turns) = (mutex.clone(), turns.clone());
        tasks.spawn(async move {
            loop {
                let _guard = mutex.lock().await.expect("lock granted");
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
    eventually("the tasks are granted the lock", async || turns.load(Ordering::Relaxed) > 10).await;
    let theirs = tokio::time::timeout(LONG, other.mutex("timed").lock()).await;
    theirs
        .expect("other client is not starved")
        .expect("lock granted")
        .release()
        .await
        .expect("release succeeds");
    let before = turns.load(Ordering::Relaxed);
    eventually("the tasks continue", async || turns.load(Ordering::Relaxed) > before + 10).await;
});

on_both_servers!(cancelled_task_leaves_nothing, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("quitter").shared_hold(LONG);
    let theirs = other.mutex("quitter").lock().await.expect("lock acquired");
    let error = mutex.lock_timeout(Duration::from_millis(100)).await.expect_err("lock is held");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(mutex.try_lock().await.expect("attempt succeeds").is_none());
    // The first of two waiting tasks is aborted. The second task keeps the queue position.
    let gone = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await.map(drop) }
    });
    let stays = soon_locked(&mutex);
    until_queued(&other, "quitter", 2).await;
    gone.abort();
    theirs.release().await.expect("release succeeds");
    await_guard(stays).await.release().await.expect("release succeeds");
    // If a waiter is granted the lock, and is dropped before it is polled again, another client gets the lock.
    let mine = mutex.lock().await.expect("lock acquired");
    let mut unseen = Box::pin(mutex.lock());
    assert!(unseen.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(mine);
    drop(unseen);
    lock_and_release(&other.mutex("quitter")).await;
    tree::assert_no_contenders(&place.addr(), &directory(&place, "quitter")).await;
});

on_both_servers!(panic_ends_the_hold_and_is_reported, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("panics").shared_hold(LONG);
    let first = mutex.lock().await.expect("lock acquired");
    let token = first.token();
    let panics = tokio::spawn(async move {
        let _held = first;
        panic!("on purpose");
    });
    let next = mutex.lock().await.expect("lock granted");
    assert!(panics.await.expect_err("the task panics").is_panic());
    assert_eq!(next.previous(), Previous::Crashed);
    assert!(next.token().czxid() > token.czxid(), "the next holder has a new znode");
});

on_both_servers!(expired_session_hands_lock_to_local_waiter, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let connect_timeout = Duration::from_secs(2);
    let (zl, other) = (
        short_session_settings()
            .connect_timeout(connect_timeout)
            .connect(&place.connect_string_through(&proxy.addr()))
            .await
            .expect("session starts"),
        short_session_settings().connect(&place.connect_string()).await.expect("session starts"),
    );
    let mutex = zl.mutex("gone").shared_hold(LONG);
    let guard = mutex.lock().await.expect("lock acquired");
    let token = guard.token();
    let waiting = soon_locked(&mutex);
    proxy.refuse(true).await;
    proxy.close_connections().await;
    let reason = tokio::time::timeout(LONG, guard.lost()).await.expect("loss reported in time");
    assert!(matches!(reason, LossReason::Unreachable | LossReason::SessionExpired), "{reason:?}");
    assert!(!guard.is_valid());
    eventually("the session has ended", async || {
        other.admin().snapshot("gone").await.expect("read succeeds").holder.is_none()
    })
    .await;
    assert!(!waiting.is_finished(), "a lost lock is not handed over");
    // The client has given up its session by then, and no new one can start within its connect timeout.
    tokio::time::sleep(connect_timeout * 2).await;
    assert!(!waiting.is_finished(), "a task that waits survives an outage of any length");
    proxy.refuse(false).await;
    let next = tokio::time::timeout(LONG, waiting)
        .await
        .expect("finishes in time")
        .expect("task does not panic")
        .expect("lock granted");
    assert!(next.token().czxid() > token.czxid());
    assert!(next.is_valid());
    let error = guard.release().await.expect_err("lock is lost");
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(next.is_valid(), "the late release does not affect the new holder");
    next.release().await.expect("release succeeds");
});

on_both_servers!(doubtful_znode_stays_until_its_holder_releases, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, other) = (
        short_session_settings()
            .connect(&place.connect_string_through(&proxy.addr()))
            .await
            .expect("session starts"),
        short_session_settings().connect(&place.connect_string()).await.expect("session starts"),
    );
    let mutex = zl.mutex("doubt").shared_hold(LONG);
    let guard = mutex.lock().await.expect("lock acquired");
    let waiting = soon_locked(&mutex);
    // The server receives the client's requests and keeps the session. Its replies do not reach the
    // client.
    proxy.blackhole_towards(Direction::ToClient, true);
    let reason = tokio::time::timeout(LONG, guard.lost()).await.expect("loss reported in time");
    assert_eq!(reason, LossReason::Unreachable);
    proxy.blackhole_towards(Direction::ToClient, false);
    let mut connection = guard.connection_changes();
    let confirmed = connection.wait_for(|connection| connection == Connection::Connected);
    tokio::time::timeout(LONG, confirmed).await.expect("finishes in time");
    let holder =
        other.admin().snapshot("doubt").await.expect("read succeeds").holder.expect("znode still exists");
    assert_eq!(holder.node, guard.node_path().rsplit('/').next().expect("node path has a name"));
    assert!(!waiting.is_finished(), "the old holder has not released yet");
    let error = guard.release().await.expect_err("lock is lost");
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    let next = tokio::time::timeout(LONG, waiting)
        .await
        .expect("finishes in time")
        .expect("task does not panic")
        .expect("lock granted");
    next.release().await.expect("release succeeds");
});

on_both_servers!(release_of_a_lost_lock_fails, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("taken").shared_hold(LONG);
    for _ in 0..20 {
        let guard = mutex.lock().await.expect("lock acquired");
        other.admin().break_lock("taken", guard.ticket()).await.expect("znode exists");
        assert_eq!(
            tokio::time::timeout(LONG, guard.lost()).await.expect("loss reported in time"),
            LossReason::Broken
        );
        let error = guard.release().await.expect_err("lock is lost");
        assert!(matches!(error, Error::Lost { reason: LossReason::Broken, .. }), "{error}");
    }
});

on_both_servers!(closing_the_client_fails_its_waiters, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("closed").shared_hold(LONG);
    let guard = mutex.lock().await.expect("lock acquired");
    let waiting = soon_locked(&mutex);
    // The holder drops its guard as soon as it learns of the close.
    let holder = tokio::spawn(async move { guard.lost().await });
    zl.close().await;
    let told = tokio::time::timeout(LONG, holder)
        .await
        .expect("event arrives in time")
        .expect("task does not panic");
    assert_eq!(told, LossReason::Closed);
    let error =
        tokio::time::timeout(LONG, waiting).await.expect("finishes in time").expect("task does not panic");
    let error = error.expect_err("client is closed");
    assert!(matches!(error, Error::Closed), "{error}");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "closed")).await;
});

on_both_servers!(unread_grant_hides_no_crash, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("unseen").crash_detection().shared_hold(LONG);
    for others in [false, true] {
        let theirs = other.mutex("unseen").crash_detection().lock().await.expect("lock acquired");
        let mut unseen = Box::pin(mutex.lock());
        let mut poll_once = || unseen.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        assert!(poll_once());
        let next = others.then(|| soon_locked(&mutex));
        until_queued(&zl, "unseen", 2).await;
        std::thread::spawn(move || {
            let _theirs = theirs;
            panic!("on purpose");
        })
        .join()
        .expect_err("the task panics");
        // The acquisition is granted the lock, but its future is not polled again.
        eventually("the unread grant is the only contender", async || {
            let seen = other.admin().snapshot("unseen").await.expect("read succeeds");
            seen.holder.is_some() && seen.waiters.is_empty()
        })
        .await;
        drop(unseen);
        let guard = match next {
            Some(next) => await_guard(next).await,
            None => other.mutex("unseen").crash_detection().lock().await.expect("lock acquired"),
        };
        assert_eq!(guard.previous(), Previous::Crashed, "others: {others}");
        guard.release().await.expect("release succeeds");
    }
});

on_both_servers!(listener_receives_the_events_of_each_task, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("heard").shared_hold(LONG);
    let mut hears = mutex.mutex().events();
    let guard = mutex.lock().await.expect("lock acquired");
    let ticket = guard.ticket();
    assert_eq!(hears.next().await, Some(LockEvent::Acquired(ticket)));
    mutex.lock_timeout(Duration::from_millis(10)).await.expect_err("lock is held");
    assert_eq!(hears.next().await, Some(LockEvent::Queued { ahead: 1 }));
    assert_eq!(hears.next().await, Some(LockEvent::GaveUp));
    let waiting = soon_locked(&mutex);
    assert_eq!(hears.next().await, Some(LockEvent::Queued { ahead: 1 }));
    guard.release().await.expect("release succeeds");
    assert_eq!(hears.next().await, Some(LockEvent::Released(ticket)));
    assert_eq!(hears.next().await, Some(LockEvent::Acquired(ticket)));
    let guard = await_guard(waiting).await;
    assert_eq!(guard.ticket(), ticket, "both tasks have one znode");
    other.admin().revoke("heard", ticket).await.expect("contender exists");
    tokio::time::timeout(LONG, guard.revoked()).await.expect("revocation reported in time");
    assert_eq!(hears.next().await, Some(LockEvent::Revoked(ticket)));
    guard.release().await.expect("release succeeds");
    assert_eq!(hears.next().await, Some(LockEvent::Released(ticket)));
    drop(mutex);
    assert_eq!(hears.next().await, None);
});

on_both_servers!(revoking_a_kept_lock_releases_it, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("asked").shared_hold(LONG);
    let guard = mutex.lock().await.expect("lock acquired");
    let ticket = guard.ticket();
    drop(guard);
    // The lock is kept, but no task holds it.
    other.admin().revoke("asked", ticket).await.expect("contender exists");
    eventually("the lock is released", async || {
        other.admin().snapshot("asked").await.expect("read succeeds").holder.is_none()
    })
    .await;
});

on_both_servers!(idle_lock_is_not_kept_with_crash_detection, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("both").crash_detection().shared_hold(LONG);
    mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let theirs = other.mutex("both").crash_detection().try_lock().await.expect("attempt succeeds");
    assert_eq!(theirs.expect("lock is free").previous(), Previous::Clean);
});

on_both_servers!(foreign_contender_is_reported, |place| async move {
    let zl = connect(&place).await;
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let mutex = zl.mutex("beside").shared_hold(LONG);
    let mut hears = mutex.mutex().events();
    let first = mutex.lock().await.expect("lock acquired");
    let next = soon_locked(&mutex);
    first.release().await.expect("release succeeds");
    let guard = await_guard(next).await;
    let kazoo = format!("{}/3f2504e04f8911d39a0c0305e82c3301__lock__", directory(&place, "beside"));
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    stranger.create(&kazoo, b"", &options).await.expect("znode created");
    let heard = async {
        loop {
            match hears.next().await {
                Some(LockEvent::ForeignContender(ticket, what)) => return (ticket, what),
                Some(_) => {}
                None => panic!("the events end although the handle exists"),
            }
        }
    };
    let (ticket, what) =
        tokio::time::timeout(LONG, heard).await.expect("foreign contender is reported in time");
    assert_eq!(ticket, guard.ticket());
    assert!(what.contains("kazoo"), "{what}");
});
