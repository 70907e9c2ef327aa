//! What every locker does, the one in memory as the one on a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use zoolock::{DEFAULT_ROOT, Error, FencingToken, Hold, LocalLocker, LockPath, Locker, LossReason, Zoolock};
use zoolock_tests::locks::leftovers::{assert_none, settle};
use zoolock_tests::locks::{connect, directory};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, Recorder, Server, on_both_arms, tree};

/// Far longer than anything here takes, far shorter than for ever.
const SOON: Duration = Duration::from_secs(20);

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("finishes in time")
}

/// A place with lockers.
trait World {
    type L: Locker<Guard: std::fmt::Debug> + Clone + 'static;

    fn locker(&self) -> Self::L;

    /// One that does not share the fate of the first.
    fn another(&self) -> Self::L;

    /// Waits until exactly so many hold the lock or wait for it.
    async fn until_queued(&self, key: &str, count: usize);

    /// Takes the lock away from its holder, and says what the holder should hear.
    async fn take_away(&self, key: &str) -> LossReason;

    /// What nobody uses any more is not kept anywhere.
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
        let queued = eventually("they queue", SOON, async || match self.0.queued(key) {
            queued if queued == count => Ok(()),
            queued => Err(Failure::new(format!("{queued} instead of {count} at {key}"))),
        });
        queued.await.expect("they are awaited");
    }

    async fn take_away(&self, key: &str) -> LossReason {
        assert!(self.0.expire(key), "somebody holds it");
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
        let tasks = [settle(&ours).await, settle(&other).await];
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
            Server::Embedded(server) => {
                let first = server.inspect(|server| server.children(&directory)).into_iter().min();
                let (_, session) = first.expect("somebody holds it");
                assert!(server.inspect(|server| server.expire_session(session)));
                LossReason::SessionExpired
            }
            // It expires no session on demand, but lets an operator delete.
            Server::Apache(_) | Server::SharedApache(..) => {
                let operator = tree::connect(&self.place.addr()).await.expect("session starts");
                let first = operator.list_children(&directory).await.expect("znode exists").into_iter().min();
                let node = format!("{directory}/{}", first.expect("somebody holds it"));
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

/// Makes three tests of one body.
macro_rules! on_every_locker {
    ($name:ident, |$world:ident| $body:block) => {
        mod $name {
            use super::*;

            async fn body<W: World>($world: W) $body

            #[tokio::test(flavor = "multi_thread")]
            async fn memory() {
                body(InMemory::default()).await;
            }

            on_both_arms!(server, |place| async move { body(Served::at(place).await).await });
        }
    };
}

/// Work that is done when it begins.
async fn rest<G>(guard: G) {
    drop(guard);
}

/// Holds the lock until it is told to let go.
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
    soon(entered).await.expect("lock acquired");
    let_go
}

on_every_locker!(work_has_the_lock_alone_and_its_value_comes_back, |world| {
    let (locker, another) = (world.locker(), world.another());
    let began = Instant::now();
    let work = |guard: Held<W>| async move {
        assert!(guard.is_valid());
        let patience = Duration::from_millis(300);
        let error = another.with_lock("key", patience, rest).await.expect_err("lock is held");
        assert!(matches!(&error, Error::Timeout { path, .. } if path == "/locks/key"), "{error}");
        // The same lock under its full name.
        let error = another.with_lock("/locks/key", patience, rest).await.expect_err("lock is held");
        assert!(matches!(&error, Error::Timeout { waited, .. } if *waited >= patience), "{error}");
        another.with_lock("other", patience, rest).await.expect("a lock of its own");
        guard.token()
    };
    let token = soon(locker.with_lock("key", SOON, work)).await.expect("lock acquired");
    assert!(began.elapsed() >= Duration::from_millis(600));
    let next = locker.with_lock("key", SOON, |guard| async move { guard.token() });
    assert!(soon(next).await.expect("lock acquired again") > token);
    world.assert_nothing_left("key").await;
    world.assert_nothing_left("other").await;
});

on_every_locker!(waiters_have_their_turns_in_the_order_in_which_they_came, |world| {
    let held = hold(world.locker(), "fair").await;
    let recorder = Arc::new(Recorder::new());
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..6usize {
        let locker = if number % 2 == 0 { world.locker() } else { world.another() };
        let inside = recorder.clone();
        waiting.spawn(async move {
            let work = |guard: Held<W>| async move {
                inside.enter(number, guard.token());
                tokio::task::yield_now().await;
                inside.exit(number, guard.token());
            };
            locker.with_lock("fair", SOON, work).await
        });
        world.until_queued("fair", number + 2).await;
    }
    held.send(()).expect("znode exists");
    waiting.join_all().await.into_iter().for_each(|outcome| outcome.expect("lock granted"));
    let history = recorder.history();
    history.one_holder().expect("one holder at a time");
    history.tokens_rise().expect("tokens increase");
    assert_eq!(history.entered(), ["0", "1", "2", "3", "4", "5"]);
    world.assert_nothing_left("fair").await;
});

on_every_locker!(who_gives_up_leaves_no_trace, |world| {
    let held = hold(world.locker(), "busy").await;
    let locker = world.another();
    let late = locker.with_lock("busy", Duration::from_millis(100), |_| async { panic!("never ours") });
    assert!(matches!(soon(late).await, Err(Error::Timeout { .. })));
    world.until_queued("busy", 1).await;
    let patient = world.another();
    let cancelled =
        tokio::spawn(
            async move { patient.with_lock("busy", SOON, |_| async { panic!("never ours") }).await },
        );
    world.until_queued("busy", 2).await;
    cancelled.abort();
    world.until_queued("busy", 1).await;
    held.send(()).expect("znode exists");
    soon(locker.with_lock("busy", SOON, rest)).await.expect("lock granted");
    world.assert_nothing_left("busy").await;
});

on_every_locker!(bad_keys_are_refused_in_the_same_words, |world| {
    for key in ["", "..", "a//b", "a\0b", "a/", "/", "a/lock-0000000000", "/zookeeper/x", ".sessions"] {
        let locker = world.locker();
        let outcome = locker.with_lock(key, SOON, |_| async { panic!("no lock, no work") });
        let outcome: Result<(), Error> = soon(outcome).await;
        let error = outcome.expect_err(key);
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        let expected = LockPath::parse(key, DEFAULT_ROOT).expect_err(key);
        assert_eq!(error.to_string(), expected.to_string());
    }
});

on_every_locker!(work_that_does_not_take_the_guard_along_is_not_begun, |world| {
    let locker = world.locker();
    // The guard goes when the closure returns, before its future is polled for the first time.
    let outcome = locker.with_lock("slip", SOON, |_guard| async move { panic!("without the lock") });
    let outcome: Result<(), Error> = soon(outcome).await;
    let error = outcome.expect_err("no lock, no work");
    assert!(matches!(&error, Error::Invalid { input, .. } if input == "lock /locks/slip"), "{error}");
    assert!(error.to_string().contains("let _guard = guard"), "{error}");
    world.assert_nothing_left("slip").await;
});

on_every_locker!(work_that_panics_or_is_dropped_lets_go, |world| {
    let locker = world.locker();
    let panics = tokio::spawn(async move {
        let work = |guard| async move {
            let _guard = guard;
            panic!("on purpose")
        };
        locker.with_lock::<(), _, _>("rough", SOON, work).await
    });
    assert!(soon(panics).await.expect_err("it panics").is_panic());
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
    soon(entered).await.expect("lock acquired");
    dropped.abort();
    soon(world.another().with_lock("rough", SOON, rest)).await.expect("lock granted");
    world.assert_nothing_left("rough").await;
});

on_every_locker!(a_lock_that_is_taken_away_goes_to_the_next_and_the_work_hears_of_it, |world| {
    let (locker, another) = (world.locker(), world.another());
    let (inside, entered) = oneshot::channel();
    let holder = tokio::spawn(async move {
        let work = |guard: Held<W>| async move {
            let said = tokio::time::timeout(Duration::from_millis(50), guard.lost()).await;
            assert!(said.is_err(), "nothing was lost yet");
            inside.send(guard.token()).expect("receiver is alive");
            let reason = guard.lost().await;
            assert!(!guard.is_valid());
            assert_eq!(guard.lost().await, reason, "for ever");
            // Lost is lost, also for those who never asked.
            drop(guard);
            reason
        };
        locker.with_lock("doomed", SOON, work).await
    });
    let token = soon(entered).await.expect("lock acquired");
    let next = tokio::spawn(async move {
        another.with_lock("doomed", SOON, |guard| async move { (guard.is_valid(), guard.token()) }).await
    });
    world.until_queued("doomed", 2).await;
    let expected = world.take_away("doomed").await;
    match soon(holder).await.expect("task does not panic") {
        Err(Error::Lost { path, reason }) => assert_eq!((path.as_str(), reason), ("/locks/doomed", expected)),
        other => panic!("{other:?}"),
    }
    let (valid, later) = soon(next).await.expect("task does not panic").expect("lock granted");
    assert!(valid && later > token);
    world.assert_nothing_left("doomed").await;
});

on_every_locker!(a_guard_may_go_before_the_work_ends_or_outlive_it, |world| {
    let (locker, another) = (world.locker(), world.another());
    let work = |guard: Held<W>| async move {
        drop(guard);
        soon(another.with_lock("early", SOON, rest)).await.expect("free while the work goes on");
    };
    soon(locker.with_lock("early", SOON, work)).await.expect("released in the middle");
    world.assert_nothing_left("early").await;

    let guard = soon(locker.with_lock("late", SOON, |guard| async { guard })).await.expect("lock acquired");
    assert!(guard.is_valid());
    let busy = world.another().with_lock("late", Duration::from_millis(100), rest).await;
    assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
    let reason = world.take_away("late").await;
    assert_eq!(soon(guard.lost()).await, reason);
    drop(guard);
    // What was lost inside, and is still there, is the caller's to look at.
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
        soon(entered).await.expect("lock acquired");
        world.take_away("late").await;
        soon(holder).await.expect("task does not panic").expect("handed out")
    };
    assert!(!lost.is_valid());
    drop(lost);
    world.assert_nothing_left("late").await;
});

on_every_locker!(many_tasks_have_their_turns_alone, |world| {
    let recorder = Arc::new(Recorder::new());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..12usize {
        let locker = if task % 2 == 0 { world.locker() } else { world.another() };
        let recorder = recorder.clone();
        tasks.spawn(async move {
            for round in 0..15u64 {
                let inside = recorder.clone();
                let work = |guard: Held<W>| async move {
                    // Leaves before the guard goes, also where the work is dropped in the middle.
                    let _inside = Inside::enter(inside, task, guard.token());
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
    let history = recorder.history();
    history.one_holder().expect("one holder at a time");
    history.tokens_rise().expect("tokens increase");
    assert!(history.entered().len() >= 120);
    world.assert_nothing_left("crowd").await;
});

struct Inside {
    recorder: Arc<Recorder<FencingToken>>,
    who: usize,
    token: FencingToken,
}

impl Inside {
    fn enter(recorder: Arc<Recorder<FencingToken>>, who: usize, token: FencingToken) -> Inside {
        recorder.enter(who, token);
        Inside { recorder, who, token }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.recorder.exit(self.who, self.token);
    }
}

#[test]
fn the_locker_in_memory_needs_no_runtime() {
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
async fn only_a_holder_can_be_expired() {
    let locker = LocalLocker::new();
    assert!(!locker.expire("free") && !locker.expire("a//b"));
    assert_eq!((locker.queued("free"), locker.queued("a//b")), (0, 0));
    let guard = locker.with_lock("held", SOON, |guard| async { guard }).await.expect("lock acquired");
    assert!(!locker.expire("free"));
    assert!(locker.expire("/locks/held"));
    assert!(!locker.expire("held"), "nobody holds it any more");
    // The old guard takes nothing from the new holder.
    let next = locker.with_lock("held", SOON, |guard| async { guard }).await.expect("lock acquired");
    drop(guard);
    assert!(next.is_valid());
    assert_eq!(locker.queued("held"), 1);
    drop(next);
    assert_eq!(format!("{locker:?}"), "LocalLocker { locks: 0, .. }");
}
