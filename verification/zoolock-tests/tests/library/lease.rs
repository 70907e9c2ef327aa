//! Leases as values: they outlive guards and clients, and show how a hold ended.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::timeout;
use zoolock::{AnyGuard, End, Lease, LossReason, Owner, Zoolock};
use zoolock_tests::locks::connect;
use zoolock_tests::on_both_servers;

/// Time limit of each step, much longer than a step takes.
const SOON: Duration = Duration::from_secs(60);

/// Returns how the hold ended, after checks that the lease shows the end in every way.
async fn await_end(lease: &Lease) -> End {
    let end = timeout(SOON, lease.ended()).await.expect("the hold ends in time");
    assert_eq!(lease.end(), Some(end));
    assert!(!lease.is_valid() && lease.valid_until().remaining().is_zero(), "{lease:?}");
    end
}

/// Returns a task that already waits for the end of the hold.
async fn waiting_for_end(lease: &Lease) -> JoinHandle<End> {
    let mut ended = Box::pin(lease.ended());
    assert_eq!(futures_lite::future::poll_once(&mut ended).await, None, "the hold has not ended");
    tokio::spawn(ended)
}

/// Returns the number of threads of zoolock's sessions in this process.
fn session_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the tasks are readable");
    let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "zoolock-session").count()
}

/// Waits until a client that was dropped has ended.
async fn wait_for_fewer_session_threads(before: usize) {
    let began = Instant::now();
    while session_threads() >= before {
        assert!(began.elapsed() < SOON, "the thread of a dropped client has not ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Acquires a lock of each kind. Returns its name, its guard, and whether it has a token.
async fn one_of_each_kind(zl: &Zoolock) -> Vec<(&'static str, AnyGuard, bool)> {
    let granted = "lock acquired";
    let rwlock = |name| zl.rwlock(name);
    vec![
        ("mutex", zl.mutex("mutex").lock().await.expect(granted).into(), true),
        ("read", rwlock("read").read().await.expect(granted).into(), false),
        ("write", rwlock("write").write().await.expect(granted).into(), true),
        ("upgradable", rwlock("upgradable").upgradable_read().await.expect(granted).into(), false),
        ("permits", zl.semaphore("permits", 3).acquire(2).await.expect(granted).into(), false),
        ("multi", zl.multi(["one", "two"]).lock().await.expect(granted).into(), true),
        ("owner", zl.mutex("owner").lock_as(&Owner::new()).await.expect(granted).into(), true),
    ]
}

on_both_servers!(lease_of_each_kind_shows_the_release, |place| async move {
    let zl = connect(&place).await;
    for by_drop in [false, true] {
        for (kind, guard, has_token) in one_of_each_kind(&zl).await {
            let lease = guard.lease();
            let before = guard.valid_until();
            assert!(lease.is_valid() && lease.end().is_none() && lease.valid_until() >= before, "{kind}");
            assert_eq!((lease.token().is_some(), lease.token()), (has_token, guard.token()), "{kind}");
            assert_eq!(lease.path(), guard.paths().join(", "), "{kind}");
            let waiting = waiting_for_end(&lease).await;
            let (heard, hears) = mpsc::channel();
            lease.on_lost(move |reason| heard.send(reason).expect("receiver is alive"));
            if by_drop {
                drop(guard)
            } else {
                guard.release().await.expect("release succeeds")
            }
            assert_eq!(await_end(&lease).await, End::Released, "{kind}");
            assert_eq!(waiting.await.expect("task does not panic"), End::Released, "{kind}");
            let heard = tokio::task::spawn_blocking(move || hears.recv_timeout(SOON)).await;
            assert_eq!(
                heard.expect("task does not panic"),
                Err(RecvTimeoutError::Disconnected),
                "{kind}: no call"
            );
        }
    }
});

on_both_servers!(lease_shows_a_loss_and_keeps_it, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("doomed").lock().await.expect("lock acquired");
    let lease = guard.lease();
    zl.admin().break_lock("doomed", guard.ticket()).await.expect("znode exists");
    assert_eq!(await_end(&lease).await, End::Lost(LossReason::Broken));
    drop(guard);
    assert_eq!(await_end(&lease).await, End::Lost(LossReason::Broken));
});

on_both_servers!(lease_keeps_neither_the_client_nor_the_lock, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let guard = zl.mutex("kept").lock().await.expect("lock acquired");
    let lease = guard.lease();
    let before = session_threads();
    let waiting = waiting_for_end(&lease).await;
    drop((zl, guard));
    let granted = timeout(SOON, other.mutex("kept").lock()).await.expect("granted in time");
    drop(granted.expect("lock acquired"));
    assert_eq!(
        (await_end(&lease).await, waiting.await.expect("task does not panic")),
        (End::Released, End::Released)
    );
    wait_for_fewer_session_threads(before).await;
});

on_both_servers!(closing_the_client_is_a_loss, |place| async move {
    let zl = connect(&place).await;
    let threads = session_threads();
    let guard = zl.mutex("closed").lock().await.expect("lock acquired");
    let lease = guard.lease();
    let waiting = waiting_for_end(&lease).await;
    let (heard, hears) = mpsc::channel();
    let late = heard.clone();
    lease.on_lost(move |reason| heard.send(reason).expect("receiver is alive"));
    zl.close().await;
    let lost = End::Lost(LossReason::Closed);
    assert_eq!((await_end(&lease).await, waiting.await.expect("task does not panic")), (lost, lost));
    drop((guard, zl));
    wait_for_fewer_session_threads(threads).await;
    // A callback that comes after the end of the client gets the loss, too.
    lease.on_lost(move |reason| late.send(reason).expect("receiver is alive"));
    let heard =
        tokio::task::spawn_blocking(move || [hears.recv_timeout(SOON), hears.recv_timeout(SOON)]).await;
    assert_eq!(heard.expect("task does not panic"), [Ok(LossReason::Closed); 2]);
});

on_both_servers!(lease_of_a_task_ends_when_the_hold_is_passed_on, |place| async move {
    let zl = connect(&place).await;
    let shared = zl.mutex("shared").shared_hold(SOON);
    let first = shared.lock().await.expect("lock acquired");
    let lease = first.lease();
    let waiting = waiting_for_end(&lease).await;
    drop(first);
    let second = shared.lock().await.expect("lock acquired");
    assert_eq!(timeout(SOON, waiting).await.expect("ends in time").expect("no panic"), End::Released);
    // A later loss of the hold is not one of the first task.
    zl.admin().break_lock("shared", second.ticket()).await.expect("znode exists");
    assert_eq!(await_end(&second.lease()).await, End::Lost(LossReason::Broken));
    assert_eq!(await_end(&lease).await, End::Released);
});

on_both_servers!(request_to_release_reaches_the_lease, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("asked").lock().await.expect("lock acquired");
    let (lease, ticket) = (guard.lease(), guard.ticket());
    let asked = tokio::spawn(lease.revoked());
    assert!(!lease.is_revoked());
    zl.admin().revoke("asked", ticket).await.expect("contender exists");
    timeout(SOON, asked).await.expect("asked in time").expect("task does not panic");
    assert!(lease.is_revoked() && lease.is_valid());
    guard.release().await.expect("release succeeds");
});

on_both_servers!(upgraded_reader_has_a_new_lease, |place| async move {
    let zl = connect(&place).await;
    let reader = zl.rwlock("rw").upgradable_read().await.expect("lock acquired");
    let before = reader.lease();
    let writer = reader.upgrade().await.expect("upgrade succeeds");
    let as_writer = writer.lease();
    assert_eq!((before.token(), as_writer.token()), (None, Some(writer.token())));
    let waiting = waiting_for_end(&as_writer).await;
    let reader = writer.downgrade().await.expect("downgrade succeeds");
    assert_eq!(
        (await_end(&as_writer).await, waiting.await.expect("no panic")),
        (End::Released, End::Released)
    );
    assert!(before.is_valid() && reader.is_valid());
    let after = reader.lease();
    zl.admin().break_lock("rw", reader.ticket()).await.expect("znode exists");
    let broken = End::Lost(LossReason::Broken);
    assert_eq!((await_end(&before).await, await_end(&after).await), (broken, broken));
    assert_eq!(await_end(&as_writer).await, End::Released, "an end is final");
});

on_both_servers!(downgrade_of_a_writer_ends_its_lease, |place| async move {
    let zl = connect(&place).await;
    let writer = zl.rwlock("rw").write().await.expect("lock acquired");
    let as_writer = writer.lease();
    let waiting = waiting_for_end(&as_writer).await;
    let reader = writer.downgrade().await.expect("downgrade succeeds");
    assert_eq!(
        (await_end(&as_writer).await, waiting.await.expect("no panic")),
        (End::Released, End::Released)
    );
    let as_reader = reader.lease();
    assert_eq!((as_reader.is_valid(), as_reader.token()), (true, None));
    reader.release().await.expect("release succeeds");
    assert_eq!(await_end(&as_reader).await, End::Released);
});
