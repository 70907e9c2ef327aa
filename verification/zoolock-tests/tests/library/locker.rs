//! Tests of the contract of `Locker`, for the in-memory locker and for clients of a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use zoolock::internals::{DEFAULT_ROOT, LockPath};
use zoolock::{Error, ExclusiveGuard, FencingToken, LocalLocker, Locker, LossReason, Zoolock};
use zoolock_tests::locks::leftovers::{assert_none, idle_background_tasks};
use zoolock_tests::locks::{connect, directory};
use zoolock_tests::wait::{finish_in_time, retry_until_ok};
use zoolock_tests::{AnyServer, Judge, Place, TestFailure, on_both_servers, tree};

/// Time limit of each step, much longer than a step takes.
const SOON: Duration = Duration::from_secs(20);

/// An environment in which a test of `Locker` runs: one process's memory, or a server. All lockers
/// of one environment share the same locks.
trait World {
    type L: Locker<Guard: std::fmt::Debug> + Clone + 'static;

    fn locker(&self) -> Self::L;

    /// Returns a second locker. If lockers are clients of a server, it has a session of its own.
    fn another(&self) -> Self::L;

    /// Waits until exactly `count` contenders hold the lock or wait for it.
    async fn until_queued(&self, key: &str, count: usize);

    /// Makes the holder lose the lock. Returns the loss reason that the holder's guard must report.
    async fn take_away(&self, key: &str) -> LossReason;

    /// Waits until lock `key` has no contender. Asserts that no watch, task or other state of it
    /// remains.
    async fn assert_nothing_left(&self, key: &str);
}

type Held<W> = <<W as World>::L as Locker>::Guard;

#[derive(Default)]
struct InMemory(LocalLocker);

impl World for InMemory {
    type L = LocalLocker;

    fn locker(&self) -> LocalLocker {
        self.0.clone()
    }

    fn another(&self) -> LocalLocker {
        self.0.clone()
    }

    async fn until_queued(&self, key: &str, count: usize) {
        let queued = retry_until_ok("the contenders are queued", SOON, async || match self.0.queued(key) {
            queued if queued == count => Ok(()),
            queued => Err(TestFailure::new(format!("{queued} instead of {count} at {key}"))),
        });
        queued.await.expect("contenders are queued in time");
    }

    async fn take_away(&self, key: &str) -> LossReason {
        assert!(self.0.expire(key), "the lock has a holder");
        LossReason::SessionExpired
    }

    async fn assert_nothing_left(&self, key: &str) {
        self.until_queued(key, 0).await;
        assert_eq!(format!("{:?}", self.0), "LocalLocker { locks: 0, .. }");
    }
}

struct Served {
    place: Place,
    ours: Zoolock,
    other: Zoolock,
    tasks: [usize; 2],
}

impl Served {
    async fn at(place: Place) -> Served {
        let (ours, other) = (connect(&place).await, connect(&place).await);
        let tasks = [idle_background_tasks(&ours).await, idle_background_tasks(&other).await];
        Served { place, ours, other, tasks }
    }
}

impl World for Served {
    type L = Zoolock;

    fn locker(&self) -> Zoolock {
        self.ours.clone()
    }

    fn another(&self) -> Zoolock {
        self.other.clone()
    }

    async fn until_queued(&self, key: &str, count: usize) {
        tree::assert_contenders(&self.place.addr(), &directory(&self.place, key), count).await;
    }

    async fn take_away(&self, key: &str) -> LossReason {
        let directory = directory(&self.place, key);
        match self.place.server() {
            AnyServer::Embedded(server) => {
                let first = server.inspect(|server| server.children(&directory)).into_iter().min();
                let (_, session) = first.expect("the lock has a holder");
                assert!(server.inspect(|server| server.expire_session(session)));
                LossReason::SessionExpired
            }
            // Apache ZooKeeper expires no session on demand, so delete the holder's znode instead.
            AnyServer::Apache(_) | AnyServer::SharedApache(..) => {
                let operator = tree::connect(&self.place.addr()).await.expect("session starts");
                let first = operator.list_children(&directory).await.expect("znode exists").into_iter().min();
                let node = format!("{directory}/{}", first.expect("the lock has a holder"));
                operator.delete(&node, None).await.expect("znode exists");
                LossReason::Broken
            }
        }
    }

    async fn assert_nothing_left(&self, key: &str) {
        assert_none(&self.place, &self.ours, self.tasks[0], key).await;
        assert_none(&self.place, &self.other, self.tasks[1], key).await;
    }
}

/// Defines three tests with one body: in memory, on the embedded server and on Apache ZooKeeper.
macro_rules! on_every_locker {
    ($name:ident, |$world:ident| $body:block) => {
        mod $name {
            use super::*;

            async fn body<W: World>($world: W) $body

            #[tokio::test(flavor = "multi_thread")]
            async fn memory() {
                body(InMemory::default()).await;
            }

            on_both_servers!(server, |place| async move { body(Served::at(place).await).await });
        }
    };
}

/// Releases the lock at once. Serves as the closure of `with_lock`.
async fn rest<G>(guard: G) {
    drop(guard);
}

/// Acquires the lock in a task. The task holds the lock until the returned sender sends a value or
/// is dropped.
async fn hold<L: Locker + Clone + 'static>(locker: L, key: &'static str) -> oneshot::Sender<()> {
    let (inside, entered) = oneshot::channel();
    let (let_go, end) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let work = |guard| async move {
            let _guard = guard;
            inside.send(()).expect("receiver is alive");
            let _ = end.await;
        };
        locker.with_lock(key, SOON, work).await
    });
    finish_in_time(entered).await.expect("lock acquired");
    let_go
}

on_every_locker!(closure_holds_the_lock_and_returns_its_value, |world| {
    let (locker, another) = (world.locker(), world.another());
    let began = Instant::now();
    let work = |guard: Held<W>| async move {
        assert!(guard.is_valid());
        let patience = Duration::from_millis(300);
        let error = another.with_lock("key", patience, rest).await.expect_err("lock is held");
        assert!(matches!(&error, Error::Timeout { path, .. } if path == "/locks/key"), "{error}");
        // The absolute path names the same lock.
        let error = another.with_lock("/locks/key", patience, rest).await.expect_err("lock is held");
        assert!(matches!(&error, Error::Timeout { waited, .. } if *waited >= patience), "{error}");
        another.with_lock("other", patience, rest).await.expect("another lock is acquired");
        guard.token()
    };
    let token = finish_in_time(locker.with_lock("key", SOON, work)).await.expect("lock acquired");
    assert!(began.elapsed() >= Duration::from_millis(600));
    let next = locker.with_lock("key", SOON, |guard| async move { guard.token() });
    assert!(finish_in_time(next).await.expect("lock acquired again") > token);
    world.assert_nothing_left("key").await;
    world.assert_nothing_left("other").await;
});

on_every_locker!(waiters_run_in_queue_order, |world| {
    let held = hold(world.locker(), "fair").await;
    let judge = Arc::new(Judge::new());
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..6usize {
        let locker = if number % 2 == 0 { world.locker() } else { world.another() };
        let inside = judge.clone();
        waiting.spawn(async move {
            let work = |guard: Held<W>| async move {
                inside.enter(number, guard.token());
                tokio::task::yield_now().await;
                inside.exit(&number);
            };
            locker.with_lock("fair", SOON, work).await
        });
        world.until_queued("fair", number + 2).await;
    }
    held.send(()).expect("receiver is alive");
    waiting.join_all().await.into_iter().for_each(|outcome| outcome.expect("lock granted"));
    assert_eq!(judge.checked_grants(), [0, 1, 2, 3, 4, 5]);
    world.assert_nothing_left("fair").await;
});

on_every_locker!(timed_out_and_cancelled_waiters_leave_no_trace, |world| {
    let held = hold(world.locker(), "busy").await;
    let locker = world.another();
    let late = locker.with_lock("busy", Duration::from_millis(100), |_| async { panic!("lock is held") });
    assert!(matches!(finish_in_time(late).await, Err(Error::Timeout { .. })));
    world.until_queued("busy", 1).await;
    let patient = world.another();
    let cancelled =
        tokio::spawn(
            async move { patient.with_lock("busy", SOON, |_| async { panic!("lock is held") }).await },
        );
    world.until_queued("busy", 2).await;
    cancelled.abort();
    world.until_queued("busy", 1).await;
    held.send(()).expect("receiver is alive");
    finish_in_time(locker.with_lock("busy", SOON, rest)).await.expect("lock granted");
    world.assert_nothing_left("busy").await;
});

on_every_locker!(invalid_keys_give_the_same_errors, |world| {
    for key in ["", "..", "a//b", "a\0b", "a/", "/", "a/lock-0000000000", "/zookeeper/x", ".audit"] {
        let locker = world.locker();
        let outcome = locker.with_lock(key, SOON, |_| async { panic!("key is invalid") });
        let outcome: Result<(), Error> = finish_in_time(outcome).await;
        let error = outcome.expect_err(key);
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        let expected = LockPath::parse(key, DEFAULT_ROOT).expect_err(key);
        assert_eq!(error.to_string(), expected.to_string());
    }
});

on_every_locker!(key_that_ends_like_a_contender_is_refused, |world| {
    for key in ["order-0000000042", "orders/0000000042"] {
        let locker = world.locker();
        let outcome = locker.with_lock(key, SOON, |_| async { panic!("key is invalid") });
        let outcome: Result<(), Error> = finish_in_time(outcome).await;
        let error = outcome.expect_err(key);
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("which ends in ten digits"), "{error}");
    }
});

on_every_locker!(closure_that_drops_its_guard_never_runs, |world| {
    let locker = world.locker();
    // The closure drops the guard when it returns its future, so before that future is first
    // polled.
    let outcome = locker.with_lock("slip", SOON, |_guard| async move { panic!("without the lock") });
    let outcome: Result<(), Error> = finish_in_time(outcome).await;
    let error = outcome.expect_err("guard was dropped early");
    assert!(matches!(&error, Error::Invalid { input, .. } if input == "lock /locks/slip"), "{error}");
    assert!(error.to_string().contains("let _guard = guard"), "{error}");
    world.assert_nothing_left("slip").await;
});

on_every_locker!(panicking_or_dropped_closure_releases, |world| {
    let locker = world.locker();
    let panics = tokio::spawn(async move {
        let work = |guard| async move {
            let _guard = guard;
            panic!("on purpose")
        };
        locker.with_lock::<(), _, _>("rough", SOON, work).await
    });
    assert!(finish_in_time(panics).await.expect_err("the task panics").is_panic());
    let (inside, entered) = oneshot::channel();
    let locker = world.locker();
    let dropped = tokio::spawn(async move {
        let work = |guard| async move {
            let _guard = guard;
            inside.send(()).expect("receiver is alive");
            std::future::pending::<()>().await;
        };
        locker.with_lock("rough", SOON, work).await
    });
    finish_in_time(entered).await.expect("lock acquired");
    dropped.abort();
    finish_in_time(world.another().with_lock("rough", SOON, rest)).await.expect("lock granted");
    world.assert_nothing_left("rough").await;
});

on_every_locker!(lost_lock_is_granted_to_the_next_waiter, |world| {
    let (locker, another) = (world.locker(), world.another());
    let (inside, entered) = oneshot::channel();
    let holder = tokio::spawn(async move {
        let work = |guard: Held<W>| async move {
            let said = tokio::time::timeout(Duration::from_millis(50), guard.lost()).await;
            assert!(said.is_err(), "no loss is reported yet");
            inside.send(guard.token()).expect("receiver is alive");
            let reason = guard.lost().await;
            assert!(!guard.is_valid());
            assert_eq!(guard.lost().await, reason, "the loss reason stays the same");
            // `with_lock` reports the loss even if the closure has dropped the guard.
            drop(guard);
            reason
        };
        locker.with_lock("doomed", SOON, work).await
    });
    let token = finish_in_time(entered).await.expect("lock acquired");
    let next = tokio::spawn(async move {
        another.with_lock("doomed", SOON, |guard| async move { (guard.is_valid(), guard.token()) }).await
    });
    world.until_queued("doomed", 2).await;
    let expected = world.take_away("doomed").await;
    match finish_in_time(holder).await.expect("task does not panic") {
        Err(Error::Lost { path, reason, .. }) => {
            assert_eq!((path.as_str(), reason), ("/locks/doomed", expected))
        }
        other => panic!("{other:?}"),
    }
    let (valid, later) = finish_in_time(next).await.expect("task does not panic").expect("lock granted");
    assert!(valid && later > token);
    world.assert_nothing_left("doomed").await;
});

on_every_locker!(closure_may_release_early_or_return_its_guard, |world| {
    let (locker, another) = (world.locker(), world.another());
    let work = |guard: Held<W>| async move {
        drop(guard);
        finish_in_time(another.with_lock("early", SOON, rest))
            .await
            .expect("lock acquired while the closure still runs");
    };
    finish_in_time(locker.with_lock("early", SOON, work)).await.expect("early release succeeds");
    world.assert_nothing_left("early").await;

    let guard =
        finish_in_time(locker.with_lock("late", SOON, |guard| async { guard })).await.expect("lock acquired");
    assert!(guard.is_valid());
    let busy = world.another().with_lock("late", Duration::from_millis(100), rest).await;
    assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
    let reason = world.take_away("late").await;
    assert_eq!(finish_in_time(guard.lost()).await, reason);
    drop(guard);
    // A closure may return a lost guard to the caller.
    let lost = {
        let (locker, (inside, entered)) = (world.locker(), oneshot::channel());
        let holder = tokio::spawn(async move {
            let work = |guard: Held<W>| async move {
                inside.send(()).expect("receiver is alive");
                guard.lost().await;
                guard
            };
            locker.with_lock("late", SOON, work).await
        });
        finish_in_time(entered).await.expect("lock acquired");
        world.take_away("late").await;
        finish_in_time(holder).await.expect("task does not panic").expect("closure returns its guard")
    };
    assert!(!lost.is_valid());
    drop(lost);
    world.assert_nothing_left("late").await;
});

on_every_locker!(many_tasks_exclude_each_other, |world| {
    let judge = Arc::new(Judge::new());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..12usize {
        let locker = if task % 2 == 0 { world.locker() } else { world.another() };
        let judge = judge.clone();
        tasks.spawn(async move {
            for round in 0..15u64 {
                let inside = judge.clone();
                let work = |guard: Held<W>| async move {
                    // The exit is recorded before the guard is dropped, even if the closure's
                    // future is dropped midway.
                    let _inside = ActiveHold::enter(inside, task, guard.token());
                    tokio::task::yield_now().await;
                };
                if round % 3 == 0 {
                    let patience = Duration::from_micros(500 * round);
                    let _ = tokio::time::timeout(patience, locker.with_lock("crowd", SOON, work)).await;
                } else {
                    locker.with_lock("crowd", SOON, work).await.expect("lock granted");
                }
            }
        });
    }
    tasks.join_all().await;
    assert!(judge.checked_grants().len() >= 120);
    world.assert_nothing_left("crowd").await;
});

/// A recorded hold. Dropping it records the exit.
struct ActiveHold {
    judge: Arc<Judge<usize>>,
    who: usize,
}

impl ActiveHold {
    fn enter(judge: Arc<Judge<usize>>, who: usize, token: FencingToken) -> ActiveHold {
        judge.enter(who, token);
        ActiveHold { judge, who }
    }
}

impl Drop for ActiveHold {
    fn drop(&mut self) {
        self.judge.exit(&self.who);
    }
}

#[test]
fn local_locker_needs_no_runtime() {
    futures_lite::future::block_on(async {
        let locker = LocalLocker::new();
        let nested = locker.with_lock("a", Duration::MAX, |guard| async {
            let _guard = guard;
            locker.with_lock("a", Duration::from_millis(50), rest).await
        });
        let inner = nested.await.expect("lock acquired");
        assert!(matches!(inner, Err(Error::Timeout { .. })), "{inner:?}");
    });
}

#[tokio::test]
async fn local_timeout_reports_a_guard_of_this_client() {
    let locker = LocalLocker::new();
    let held = locker.with_lock("twice", SOON, |guard| async { guard }).await.expect("lock acquired");
    let busy = locker.with_lock("twice", Duration::from_millis(50), rest).await;
    assert!(matches!(busy, Err(Error::Timeout { held_here: true, .. })), "{busy:?}");
    drop(held);
}

#[tokio::test]
async fn only_a_holder_can_be_expired() {
    let locker = LocalLocker::new();
    assert!(!locker.expire("free") && !locker.expire("a//b"));
    assert_eq!((locker.queued("free"), locker.queued("a//b")), (0, 0));
    let guard = locker.with_lock("held", SOON, |guard| async { guard }).await.expect("lock acquired");
    assert!(!locker.expire("free"));
    assert!(locker.expire("/locks/held"));
    assert!(!locker.expire("held"), "the lock has no holder any more");
    // Dropping the old guard does not affect the new holder.
    let next = locker.with_lock("held", SOON, |guard| async { guard }).await.expect("lock acquired");
    drop(guard);
    assert!(next.is_valid());
    assert_eq!(locker.queued("held"), 1);
    drop(next);
    assert_eq!(format!("{locker:?}"), "LocalLocker { locks: 0, .. }");
}

on_both_servers!(lent_guard_is_released_and_work_is_dropped_at_the_loss, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let token =
        finish_in_time(zl.with_lock("lent", SOON, async |guard| guard.token())).await.expect("work is done");
    let rwlock = zl.rwlock("lent");
    let valid = rwlock.with_read(SOON, async |guard| guard.is_valid()).await.expect("work is done");
    let written = rwlock.with_write(SOON, async |guard| guard.token()).await.expect("work is done");
    assert!(valid && written > token);
    let multi = zl.multi(["lent", "lent-2"]);
    assert!(multi.with_lock(SOON, async |guard| guard.token()).await.expect("work is done") > written);
    // The work is dropped when the lock is taken away, and the error says so.
    struct SetOnDrop(std::sync::Arc<std::sync::atomic::AtomicBool>);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let is_dropped = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let work = zl.with_lock("lent", SOON, async |guard| {
        let _flag = SetOnDrop(is_dropped.clone());
        other.admin().break_lock("lent", guard.token()).await.expect("holder exists");
        std::future::pending::<()>().await
    });
    let error = finish_in_time(work).await.expect_err("the lock was taken away");
    assert!(error.is_lost() && error.path() == Some("/locks/lent"), "{error}");
    assert!(is_dropped.load(std::sync::atomic::Ordering::SeqCst));
});
