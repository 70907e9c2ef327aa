//! The blocking API on both servers: on plain threads and on threads of async runtimes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::coop;
use zoolock::admin::PreviousEnd;
use zoolock::{Connection, Error, Guard, LockEvent, LossReason, Mutex, Owner, Previous, Wait, Zoolock};
use zoolock_tests::locks::leftovers::{assert_none, idle_background_tasks};
use zoolock_tests::locks::{connect, settings, short_session_settings};
use zoolock_tests::{Judge, Place, on_both_servers, tree};

/// Time limit of each step, much longer than a step takes.
const SOON: Duration = Duration::from_secs(60);

/// Runs a blocking closure on its own thread. Panics if it does not return in time.
async fn in_time<T: Send + 'static>(program: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        let _ = done.send(program());
    });
    let outcome = tokio::time::timeout(SOON, outcome).await.expect("program returns in time");
    outcome.expect("task does not panic")
}

fn program_at(place: &Place) -> Zoolock {
    settings().connect(&place.connect_string()).wait().expect("session starts")
}

/// Calls every function of the lock kinds other than the mutex.
fn other_kinds(zl: &Zoolock) {
    // Each call of this function uses new names, because the lock directory of a semaphore keeps
    // the size that an earlier call set.
    static ROUND: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let round = ROUND.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    let named = |name: &str| format!("kinds/{round}/{name}");
    let path = |name: &str| format!("/locks/{}", named(name));
    let patience = Duration::from_millis(20);
    let lock = zl.rwlock(named("rw")).crash_detection().lock_delay(Duration::ZERO);
    assert_eq!((lock.name(), &*lock.path()), (&*named("rw"), &*path("rw")));
    let read = lock.upgradable_read().wait().expect("lock acquired");
    let beside = lock.try_read().wait().expect("attempt succeeds").expect("read lock acquired");
    assert!(lock.try_write().wait().expect("attempt succeeds").is_none());
    assert!(matches!(lock.write_timeout(patience).wait(), Err(Error::Timeout { held_here: true, .. })));
    let lost = read.upgrade_timeout(patience).wait().expect_err("another reader holds");
    assert!(matches!(lost.error, Error::Timeout { .. }), "{}", lost.error);
    let read = lost.guard.try_upgrade().wait().expect_err("another reader holds").guard;
    beside.release().wait().expect("release succeeds");
    let write = read.upgrade().wait().expect("upgrade succeeds");
    zl.admin().revoke(lock.name(), write.ticket()).wait().expect("contender exists");
    assert!(
        !zl.admin().snapshot(lock.name()).wait().expect("read succeeds").waiters.is_empty()
            || write.is_valid()
    );
    let read = write.downgrade().wait().expect("downgrade succeeds");
    assert!(
        read.revoked().wait_timeout(SOON).is_some() && read.is_revoked(),
        "the reader reports the writer's revocation"
    );
    drop((read, lock.read_timeout(SOON).wait().expect("lock acquired")));
    let write = lock.write().wait().expect("lock acquired");
    assert!(
        write.check().path.ends_with(write.node_path().rsplit('/').next().expect("node path has a name"))
    );
    assert_eq!((write.path(), write.previous()), (&*path("rw"), Previous::Clean));
    drop(write);
    let up = lock.upgradable_read().wait().expect("lock acquired");
    assert!(lock.try_upgradable_read().wait().expect("attempt succeeds").is_none());
    assert!(lock.upgradable_read_timeout(patience).wait().is_err());
    let write = up.try_upgrade().wait().expect("upgrade succeeds");
    zl.admin().break_lock(lock.name(), write.ticket()).wait().expect("znode exists");
    assert_eq!(write.lost().wait_timeout(SOON), Some(LossReason::Broken));
    drop(write);

    let permits = zl.semaphore(named("permits"), 2);
    let mut events = permits.events();
    let one = permits.acquire(1).wait().expect("permits acquired");
    assert!(
        matches!(events.next().wait_timeout(SOON), Some(Some(LockEvent::Acquired(ticket))) if ticket == one.ticket())
    );
    assert!(permits.try_acquire(2).wait().expect("attempt succeeds").is_none());
    assert!(permits.acquire_timeout(2, patience).wait().is_err());
    permits.resize(3).wait().expect("resize succeeds");
    assert_eq!((permits.permits(), one.path()), (3, &*path("permits")));
    drop(one);
    drop(permits.acquire(3).wait().expect("permits acquired"));

    let multi = zl.multi([named("a"), named("b")]).crash_detection().lock_delay(Duration::ZERO);
    let all = multi.lock().wait().expect("lock acquired");
    assert_eq!(all.paths(), [path("a"), path("b")]);
    assert!(
        multi.try_lock().wait().expect("attempt succeeds").is_none()
            && multi.try_read().wait().expect("attempt succeeds").is_none()
    );
    assert!(multi.lock_timeout(patience).wait().is_err());
    let token = all.token();
    all.release().wait().expect("release succeeds");
    let reads = [
        multi.read().wait().expect("lock acquired"),
        multi.read_timeout(SOON).wait().expect("lock acquired"),
    ];
    assert_eq!(reads[1].paths().len(), 2);
    drop(reads);
    assert!(multi.lock_timeout(SOON).wait().expect("lock acquired").token() > token);
}

/// Calls every function of the blocking API.
fn every_call(address: &str) {
    // A busy machine can pause for a second. The client must not report that as an outage.
    let patient = settings().answer_timeout(Duration::from_secs(20));
    let zl = patient.connect(address).wait().expect("session starts");
    let other = zl.clone();
    let mutex = zl.mutex("calls");
    assert_eq!((mutex.name(), mutex.path().as_str()), ("calls", "/locks/calls"));

    let guard = mutex.lock().wait().expect("lock acquired");
    assert!(guard.is_valid() && guard.valid_until().remaining() > Duration::from_secs(3));
    assert_eq!(
        (guard.path(), guard.loss(), guard.connection()),
        ("/locks/calls", None, Connection::Connected)
    );
    assert!(guard.node_path().starts_with("/locks/calls/lock-"));
    assert_eq!(guard.lost().wait_timeout(Duration::ZERO), None);
    assert_eq!(guard.lost().wait_timeout(Duration::from_millis(20)), None);
    assert!(other.mutex("calls").try_lock().wait().expect("attempt succeeds").is_none());
    let patience = Duration::from_millis(20);
    assert!(matches!(mutex.lock_timeout(patience).wait(), Err(Error::Timeout { .. })));
    assert!(matches!(
        mutex.lock_as_timeout(&Owner::current_thread(), patience).wait(),
        Err(Error::Timeout { .. })
    ));
    assert!(mutex.try_lock_as(&Owner::current_thread()).wait().expect("attempt succeeds").is_none());
    let holder =
        zl.admin().snapshot("calls").wait().expect("read succeeds").holder.expect("lock has a holder");
    assert_eq!(holder.token, Some(guard.ticket()));
    assert!(!zl.admin().locks(None, usize::MAX).wait().expect("read succeeds").is_empty());
    assert_eq!(zl.admin().locks(Some("calls"), usize::MAX).wait().expect("read succeeds").len(), 1);
    let token = guard.token();
    guard.release().wait().expect("release succeeds");

    let guard = mutex.lock_timeout(SOON).wait().expect("lock acquired");
    assert!(guard.token() > token);
    drop(guard);
    let guard = mutex.lock().wait().expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean);
    guard.release().wait().expect("release succeeds");

    let owner = Owner::new();
    let one = mutex.lock_as(&owner).wait().expect("lock acquired");
    let two = mutex.try_lock_as(&owner).wait().expect("attempt succeeds").expect("lock acquired");
    let three = mutex.lock_as_timeout(&owner, patience).wait().expect("lock acquired");
    let four = mutex.lock_as_timeout(&owner, Duration::ZERO).wait().expect("lock acquired");
    assert_eq!((four.depth(), four.token(), four.previous()), (4, one.token(), Previous::Clean));
    assert!(
        four.node_path() == one.node_path()
            && four.is_valid()
            && four.lost().wait_timeout(patience).is_none()
    );
    two.release().wait().expect("release succeeds");
    drop((three, one));
    four.release().wait().expect("release succeeds");

    let one = mutex.lock_as(&Owner::current_thread()).wait().expect("lock acquired");
    let two =
        mutex.try_lock_as(&Owner::current_thread()).wait().expect("attempt succeeds").expect("lock acquired");
    let three = mutex.lock_as_timeout(&Owner::current_thread(), patience).wait().expect("lock acquired");
    assert_eq!((one.depth(), two.token(), three.path()), (3, one.token(), "/locks/calls"));
    one.release().wait().expect("release succeeds");
    two.release().wait().expect("release succeeds");
    three.release().wait().expect("release succeeds");

    other_kinds(&zl);
    assert!(matches!(zl.mutex("a//b").lock().wait(), Err(Error::Invalid { .. })));

    let guard = mutex.lock().wait().expect("lock acquired");
    zl.close().wait();
    assert_eq!(guard.lost().wait(), LossReason::Closed);
    assert_eq!(guard.lost().wait_timeout(SOON), Some(LossReason::Closed));
    assert!(matches!(guard.release().wait(), Err(Error::Lost { reason: LossReason::Closed, .. })));
}

on_both_servers!(every_call_works_on_a_plain_thread, |place| async move {
    let address = place.connect_string();
    in_time(move || every_call(&address)).await;
    tree::assert_no_ephemerals(&place.addr(), place.chroot()).await;
    place.assert_no_watches().await;
});

on_both_servers!(every_call_works_inside_any_runtime, |place| async move {
    let address = place.connect_string();
    in_time(move || {
        let current =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime starts");
        // Run the calls on the thread of `block_on`, in a task, in a local task and on a thread of `spawn_blocking`.
        current().block_on(async { every_call(&address) });
        let task = address.clone();
        current().block_on(async {
            tokio::spawn(async move { every_call(&task) }).await.expect("task does not panic")
        });
        let task = address.clone();
        tokio::task::LocalSet::new().block_on(&current(), async {
            tokio::task::spawn_local(async move { every_call(&task) }).await.expect("task does not panic");
        });
        let task = address.clone();
        current().block_on(async {
            tokio::task::spawn_blocking(move || every_call(&task)).await.expect("task does not panic");
        });
        // Run the calls in a multi-threaded runtime without timers and I/O.
        let threads =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("runtime starts");
        let task = address.clone();
        threads.block_on(async {
            tokio::spawn(async move { every_call(&task) }).await.expect("task does not panic")
        });
        // Run the calls in an executor that is similar to the one that blocking calls use
        // themselves.
        futures_lite::future::block_on(async { every_call(&address) });
    })
    .await;
    tree::assert_no_ephemerals(&place.addr(), place.chroot()).await;
    place.assert_no_watches().await;
});

on_both_servers!(blocking_task_continues_with_exhausted_budget, |place| async move {
    let address = place.connect_string();
    in_time(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime starts");
        runtime.block_on(async move {
            let task = tokio::spawn(async move {
                // A tokio task has a budget of operations on channels and timers. Once it is used up, these
                // operations are pending until the task yields its thread.
                while coop::has_budget_remaining() {
                    coop::consume_budget().await;
                }
                every_call(&address);
            });
            task.await.expect("task does not panic");
        });
    })
    .await;
    tree::assert_no_ephemerals(&place.addr(), place.chroot()).await;
});

on_both_servers!(lease_is_renewed_while_only_thread_blocks, |place| async move {
    let address = place.connect_string();
    in_time(move || {
        let zl = short_session_settings().connect(&address).wait().expect("session starts");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime starts");
        runtime.block_on(async move {
            let guard = zl.mutex("held").lock().wait().expect("lock acquired");
            let first = guard.valid_until();
            // With a session timeout of 2 s, a lease lasts 1.3 s unless it is renewed.
            assert_eq!(guard.lost().wait_timeout(Duration::from_secs(3)), None);
            assert!(guard.is_valid() && guard.valid_until() > first);
            guard.release().wait().expect("release succeeds");
        });
    })
    .await;
});

on_both_servers!(threads_and_tasks_exclude_each_other, |place| async move {
    let (ours, theirs) = (connect(&place).await, connect(&place).await);
    ours.mutex("crowd").lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let tasks = [idle_background_tasks(&ours).await, idle_background_tasks(&theirs).await];
    let judge = Arc::new(Judge::new());
    let history = judge.clone();
    let clients = [ours.clone(), theirs.clone()];
    in_time(move || {
        thread::scope(|scope| {
            for number in 0..6usize {
                let (mutex, judge) = (clients[number % 2].mutex("crowd"), &judge);
                scope.spawn(move || {
                    for round in 0..15 {
                        // Reentrant and plain acquisitions exclude each other.
                        if (number + round) % 3 == 0 {
                            let guard = mutex.lock().wait().expect("lock granted");
                            judge.enter(number, guard.token());
                            thread::yield_now();
                            judge.exit(&number);
                            guard.release().wait().expect("release succeeds");
                        } else {
                            let guard = mutex.lock_as(&Owner::current_thread()).wait().expect("lock granted");
                            let token = guard.token();
                            judge.enter(number, token);
                            let again =
                                mutex.lock_as(&Owner::current_thread()).wait().expect("lock acquired");
                            drop(guard);
                            assert_eq!((again.depth(), again.token()), (1, token));
                            judge.exit(&number);
                            again.release().wait().expect("release succeeds");
                        }
                    }
                });
            }
        });
    })
    .await;
    assert_eq!(history.checked_grants().len(), 90);
    assert_none(&place, &ours, tasks[0], "crowd").await;
    assert_none(&place, &theirs, tasks[1], "crowd").await;
});

on_both_servers!(only_the_owning_thread_reenters, |place| async move {
    let zl = program_at(&place);
    in_time(move || {
        let mutex = zl.mutex("by-thread");
        fn outer(mutex: &Mutex) {
            let guard = mutex.lock_as(&Owner::current_thread()).wait().expect("lock acquired");
            inner(mutex);
            assert_eq!(guard.depth(), 1);
            guard.release().wait().expect("release succeeds");
        }
        fn inner(mutex: &Mutex) {
            let guard = mutex.lock_as(&Owner::current_thread()).wait().expect("lock acquired");
            assert_eq!(guard.depth(), 2);
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(
                        mutex
                            .try_lock_as(&Owner::current_thread())
                            .wait()
                            .expect("attempt succeeds")
                            .is_none()
                    );
                    let late = mutex
                        .lock_as_timeout(&Owner::current_thread(), Duration::from_millis(100))
                        .wait()
                        .expect_err("lock is held");
                    assert!(matches!(late, Error::Timeout { .. }), "{late}");
                });
            });
        }
        outer(&mutex);
        // A thread drops its guard and ends. The lock is released nevertheless.
        thread::scope(|scope| {
            scope.spawn(|| drop(mutex.lock_as(&Owner::current_thread()).wait().expect("lock acquired")));
        });
        mutex.lock_timeout(SOON).wait().expect("lock acquired").release().wait().expect("release succeeds");
        zl.close().wait();
    })
    .await;
    tree::assert_no_ephemerals(&place.addr(), place.chroot()).await;
});

/// Deletes the znode of a holder, as an operator can.
async fn break_lock(place: &Place, node: &str) {
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    operator.delete(&format!("{}{node}", place.chroot()), None).await.expect("znode exists");
}

on_both_servers!(blocking_calls_report_a_loss, |place| async move {
    let (client, zl) = (connect(&place).await, program_at(&place));
    client.mutex("doomed").lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let ours = client.clone();
    let tasks = idle_background_tasks(&client).await;
    let guard = in_time(move || ours.mutex("doomed").lock().wait().expect("lock acquired")).await;
    let (heard, hears) = mpsc::channel();
    let callback = (heard.clone(), zl.clone());
    guard.lease().on_lost(move |reason| {
        let (heard, zl) = callback;
        // The callback is allowed to call blocking functions of this library.
        zl.mutex("elsewhere")
            .lock_timeout(SOON)
            .wait()
            .expect("lock acquired")
            .release()
            .wait()
            .expect("release succeeds");
        heard.send((reason, thread::current().name().map(str::to_owned))).expect("receiver is alive");
    });
    let same = client.clone();
    let (entered, enters) = mpsc::channel();
    guard.lease().on_lost(move |_| {
        // A callback that blocks delays neither lease renewal of other locks nor other callbacks.
        let guard = same.mutex("elsewhere").lock_timeout(SOON).wait().expect("lock acquired");
        entered.send(guard.is_valid()).expect("receiver is alive");
        guard.release().wait().expect("release succeeds");
    });
    let node = guard.node_path();
    let began = Instant::now();
    // Several threads wait for the loss of the same guard, each with a different call.
    let (guard, reasons) = {
        let ready = Arc::new(Barrier::new(3));
        let shared = Arc::new(guard);
        let waiting: Vec<_> = (0..2)
            .map(|way| {
                let (guard, ready) = (shared.clone(), ready.clone());
                thread::spawn(move || {
                    ready.wait();
                    if way == 0 { Some(guard.lost().wait()) } else { guard.lost().wait_timeout(SOON) }
                })
            })
            .collect();
        let started = in_time(move || ready.wait());
        started.await;
        break_lock(&place, &node).await;
        let reasons = in_time(move || {
            waiting.into_iter().map(|w| w.join().expect("task does not panic")).collect::<Vec<_>>()
        });
        (shared.clone(), reasons.await)
    };
    assert_eq!(reasons, [Some(LossReason::Broken); 2]);
    assert!(began.elapsed() < SOON, "the call returned before its timeout");
    let (reason, name) = in_time(move || hears.recv_timeout(SOON).expect("callback runs")).await;
    assert_eq!((reason, name.as_deref()), (LossReason::Broken, Some("zoolock-lost")));
    assert!(in_time(move || enters.recv_timeout(SOON).expect("callback runs")).await);
    assert!(!guard.is_valid() && guard.loss() == Some(LossReason::Broken));
    // A callback registered after the loss runs at once.
    let (late, hears) = mpsc::channel();
    guard.lease().on_lost(move |reason| late.send(reason).expect("receiver is alive"));
    let reason = in_time(move || hears.recv_timeout(SOON)).await;
    assert_eq!(reason, Ok(LossReason::Broken));
    let guard = Arc::into_inner(guard).expect("no thread holds the guard");
    let released = in_time(move || guard.release().wait()).await;
    assert!(matches!(released, Err(Error::Lost { reason: LossReason::Broken, .. })));
    assert_none(&place, &client, tasks, "doomed").await;
    assert_none(&place, &client, tasks, "elsewhere").await;
});

on_both_servers!(released_guard_calls_no_loss_callback, |place| async move {
    let client = connect(&place).await;
    client.mutex("calm").lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let tasks = idle_background_tasks(&client).await;
    let zl = client.clone();
    in_time(move || {
        let mutex = zl.mutex("calm");
        let owner = Owner::new();
        for way in ["release", "drop", "release of an owner", "drop of an owner"] {
            let (heard, hears) = mpsc::channel::<LossReason>();
            let callback = move |reason| heard.send(reason).expect("receiver is alive");
            if way.ends_with("owner") {
                let outer = mutex.lock_as(&owner).wait().expect("lock acquired");
                let inner = mutex.lock_as(&owner).wait().expect("lock acquired");
                inner.lease().on_lost(callback);
                inner.release().wait().expect("release succeeds");
                assert!(outer.is_valid() && outer.lease().end().is_none(), "the owner still holds the lock");
                if way == "release of an owner" {
                    outer.release().wait().expect("release succeeds")
                } else {
                    drop(outer)
                }
            } else {
                let guard = mutex.lock().wait().expect("lock acquired");
                guard.lease().on_lost(callback);
                if way == "release" { guard.release().wait().expect("release succeeds") } else { drop(guard) }
            }
            assert_eq!(
                hears.recv_timeout(SOON),
                Err(RecvTimeoutError::Disconnected),
                "{way}: the callback is dropped"
            );
        }
    })
    .await;
    assert_none(&place, &client, tasks, "calm").await;
});

on_both_servers!(release_during_panic_is_recorded, |place| async move {
    /// A value that releases its guard when it is dropped.
    struct Tidy(Option<Guard>);

    impl Drop for Tidy {
        fn drop(&mut self) {
            self.0.take().expect("guard is present").release().wait().expect("release succeeds");
        }
    }

    let (zl, client) = (program_at(&place), connect(&place).await);
    let job = in_time(move || {
        let guard = zl.mutex("rough").lock().wait().expect("lock acquired");
        catch_unwind(AssertUnwindSafe(|| {
            let _tidy = Tidy(Some(guard));
            panic!("on purpose");
        }))
    });
    assert!(job.await.is_err(), "the task panics");
    assert_eq!(
        client.admin().snapshot("rough").await.expect("snapshot succeeds").previous,
        PreviousEnd::Panicked
    );
});

#[test]
fn blocking_program_may_embed_its_server() {
    let zl = Zoolock::embedded().wait().expect("server starts");
    let guard = zl.mutex("nightly").lock().wait().expect("lock acquired");
    assert!(zl.mutex("nightly").try_lock().wait().expect("attempt succeeds").is_none());
    guard.release().wait().expect("release succeeds");
    zl.close().wait();
    let error = Zoolock::connect("h:port").wait().expect_err("address is invalid");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}
