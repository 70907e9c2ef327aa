//! Futures that are granted a lock and not polled: the grant is given back.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fastrand::Rng;
use zoolock::{Builder, Error, LockEvent, Owner, Previous, SharedHold, Zoolock};
use zoolock_tests::locks::{await_guard, directory, lock_in_background, seed, settings, until_queued};
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{Place, on_both_servers, tree};

const CLAIM: Duration = Duration::from_millis(700);

/// The future of an acquisition of any kind. Its result is the guard; `None` if the lock was busy.
type Acquire = Pin<Box<dyn Future<Output = Result<Option<Box<dyn Send>>, Error>> + Send>>;

/// A way to acquire a lock, and the number of contenders that it has in the queue of its first lock.
type Kind = (&'static str, fn(&Clients, &str) -> Acquire);

/// A client, with the handles that several calls share.
struct Clients {
    zl: Zoolock,
    owner: Owner,
    shared: SharedHold,
}

impl Clients {
    async fn new(place: &Place, settings: Builder, name: &str) -> Clients {
        let zl = settings.connect(&place.connect_string()).await.expect("session starts");
        let shared = zl.mutex(name).shared_hold(Duration::from_secs(60));
        Clients { zl, owner: Owner::new(), shared }
    }
}

/// Makes a future that returns the boxed guard.
macro_rules! acquire {
    ($handle:expr, |$lock:ident| $call:expr) => {{
        let $lock = $handle;
        Box::pin(async move { Ok(Some(Box::new($call.await?) as Box<dyn Send>)) })
    }};
}

const KINDS: [Kind; 9] = [
    ("mutex", |c, name| acquire!(c.zl.mutex(name), |lock| lock.lock())),
    ("tracked", |c, name| acquire!(c.zl.mutex(name).crash_detection(), |lock| lock.lock())),
    ("write", |c, name| acquire!(c.zl.rwlock(name), |lock| lock.write())),
    ("read", |c, name| acquire!(c.zl.rwlock(name), |lock| lock.read())),
    ("upgradable", |c, name| acquire!(c.zl.rwlock(name), |lock| lock.upgradable_read())),
    ("permits", |c, name| acquire!(c.zl.semaphore(format!("{name}-permits"), 3), |lock| lock.acquire(2))),
    ("multi", |c, name| acquire!(c.zl.multi([name, &format!("{name}-2")]), |lock| lock.lock())),
    ("owner", |c, name| acquire!((c.zl.mutex(name), c.owner.clone()), |lock| lock.0.lock_as(&lock.1))),
    ("shared", |c, _| acquire!(c.shared.clone(), |lock| lock.lock())),
];

fn poll_once(future: &mut Acquire) -> Poll<Result<Option<Box<dyn Send>>, Error>> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn with_claim_timeout() -> Builder {
    settings().claim_timeout(CLAIM)
}

on_both_servers!(forgotten_grant_passes_to_the_next_waiter, |place| async move {
    // The tasks of a shared hold, and the calls of an owner, have tests of their own.
    for (kind, acquire) in KINDS.into_iter().filter(|(kind, _)| !matches!(*kind, "owner" | "shared")) {
        let one = Clients::new(&place, with_claim_timeout(), kind).await;
        let two = Clients::new(&place, with_claim_timeout(), kind).await;
        let held = finish_in_time(acquire(&two, kind)).await.expect("lock acquired");
        // A reader beside a reader would be granted at once.
        let forgotten = if kind == "read" { KINDS[2].1 } else { acquire };
        let mut forgotten = forgotten(&one, kind);
        let name = if kind == "permits" { "permits-permits" } else { kind };
        // Polled until it is queued, and not any more.
        tokio::select! {
            _ = &mut forgotten => panic!("{kind} is held"),
            () = until_queued(&two.zl, name, 2) => {}
        }
        let next = tokio::spawn(acquire(&two, kind));
        until_queued(&two.zl, name, 3).await;
        let released = Instant::now();
        drop(held);
        let next = finish_in_time(next).await.expect("the task does not panic").expect("lock acquired");
        let took = released.elapsed();
        println!("{kind}: granted {took:?} after the release, claim timeout {CLAIM:?}");
        assert!(took >= CLAIM, "{kind}: {took:?}");
        drop(next);
        // Polled again, the future queues anew.
        let again = finish_in_time(forgotten).await.expect("lock acquired");
        assert!(again.is_some(), "{kind}");
        drop(again);
        one.zl.close().await;
        two.zl.close().await;
    }
});

on_both_servers!(forgotten_task_of_a_shared_hold_passes_it_on, |place| async move {
    let one = Clients::new(&place, with_claim_timeout(), "tasks").await;
    let held = finish_in_time(one.shared.lock()).await.expect("lock acquired");
    let token = held.token();
    let mut forgotten = Box::pin(one.shared.lock());
    assert!(forgotten.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let next = tokio::spawn({
        let shared = one.shared.clone();
        async move { shared.lock().await }
    });
    let released = Instant::now();
    drop(held);
    let next = await_guard(next).await;
    assert!(released.elapsed() >= CLAIM && next.token() > token);
    assert_eq!(next.token().czxid(), token.czxid(), "the client keeps its znode");
    drop(next);
    finish_in_time(forgotten).await.expect("lock acquired").release().await.expect("release succeeds");
});

on_both_servers!(forgotten_call_of_an_owner_keeps_nothing, |place| async move {
    let one = Clients::new(&place, with_claim_timeout(), "owned").await;
    let two = Clients::new(&place, with_claim_timeout(), "owned").await;
    let held = finish_in_time(two.zl.mutex("owned").lock()).await.expect("lock acquired");
    let owner = Owner::new();
    let mutex = one.zl.mutex("owned");
    let mut forgotten = Box::pin(mutex.lock_as(&owner));
    assert!(forgotten.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let polled = tokio::spawn({
        let (mutex, owner) = (one.zl.mutex("owned"), owner.clone());
        async move { mutex.lock_as(&owner).await }
    });
    until_queued(&two.zl, "owned", 2).await;
    held.release().await.expect("release succeeds");
    // The call that is polled gets the lock. Its release releases the lock, although the other call still has the
    // result of the acquisition.
    await_guard(polled).await.release().await.expect("release succeeds");
    let next = finish_in_time(two.zl.mutex("owned").lock()).await.expect("lock acquired");
    drop(next);
    finish_in_time(forgotten).await.expect("lock acquired").release().await.expect("release succeeds");
});

on_both_servers!(forgotten_grant_is_no_hold, |place| async move {
    let one = Clients::new(&place, with_claim_timeout(), "unseen").await;
    let two = Clients::new(&place, with_claim_timeout(), "unseen").await;
    let tracked = |clients: &Clients| clients.zl.mutex("unseen").crash_detection();
    let held = finish_in_time(tracked(&two).lock()).await.expect("lock acquired");
    let mutex = tracked(&one);
    let mut events = mutex.events();
    let mut forgotten = Box::pin(mutex.lock());
    assert!(forgotten.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    until_queued(&two.zl, "unseen", 2).await;
    let next = lock_in_background(&tracked(&two));
    until_queued(&two.zl, "unseen", 3).await;
    std::thread::spawn(move || {
        let _held = held;
        panic!("on purpose");
    })
    .join()
    .expect_err("the task panics");
    // The forgotten future was granted the lock in between, and did not work under it.
    let next = await_guard(next).await;
    assert_eq!(next.previous(), Previous::Crashed);
    next.release().await.expect("release succeeds");
    // The listener hears of no lock that no caller had, and of the end once the future is dropped.
    assert!(matches!(finish_in_time(events.next()).await, Some(LockEvent::Queued { .. })));
    drop(forgotten);
    assert_eq!(finish_in_time(events.next()).await, Some(LockEvent::GaveUp));
});

on_both_servers!(call_that_nobody_polls_makes_one_more_attempt, |place| async move {
    let one = Clients::new(&place, with_claim_timeout(), "late").await;
    let two = Clients::new(&place, with_claim_timeout(), "late").await;
    let (mutex, theirs) = (one.zl.mutex("late"), two.zl.mutex("late"));
    for busy in [false, true] {
        let held = finish_in_time(theirs.lock()).await.expect("lock acquired");
        let mut late = Box::pin(mutex.lock_timeout(12 * CLAIM));
        tokio::select! {
            _ = &mut late => panic!("the lock is held"),
            () = until_queued(&two.zl, "late", 2) => {}
        }
        drop(held);
        // The deadline passes while the future has, and then loses, its grant.
        tokio::time::sleep(13 * CLAIM).await;
        let next = finish_in_time(theirs.lock()).await.expect("lock acquired");
        if busy {
            let error = finish_in_time(late).await.expect_err("the lock is held");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            next.release().await.expect("release succeeds");
        } else {
            next.release().await.expect("release succeeds");
            finish_in_time(late).await.expect("lock acquired").release().await.expect("release succeeds");
        }
    }
    let mut tries = Box::pin(mutex.try_lock());
    if tries.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        // Waits for the znode of the attempt, because the lock request of the other session could reach the server
        // first, and then the attempt finds a held lock. On a slow machine the grant may be given back already.
        tokio::select! {
            () = until_queued(&two.zl, "late", 1) => {}
            () = tokio::time::sleep(2 * CLAIM) => {}
        }
        // Queues behind the grant that nobody takes.
        finish_in_time(theirs.lock())
            .await
            .expect("lock acquired")
            .release()
            .await
            .expect("release succeeds");
        assert!(finish_in_time(tries).await.expect("attempt succeeds").is_some());
    }
});

/// One step of a random program.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Makes a future of this kind, and polls it once.
    Begin(usize, usize),
    Poll,
    Drop,
    /// Never polls the future again.
    Forget,
    /// Awaits the future for some milliseconds.
    Await(u64),
    Release,
    Sleep(u64),
}

impl Step {
    fn of(rng: &mut Rng) -> Step {
        match rng.u8(..12) {
            0..4 => Step::Begin(rng.usize(..2), rng.usize(..KINDS.len())),
            4 => Step::Poll,
            5 => Step::Drop,
            6 | 7 => Step::Forget,
            8 | 9 => Step::Await(rng.u64(..40)),
            10 => Step::Release,
            _ => Step::Sleep(rng.u64(..30)),
        }
    }
}

/// Runs a program of random steps on one lock. At the end, it keeps the futures that it has forgotten, and another client
/// must get the lock in each way.
async fn run_program(seed: u64, clients: [Clients; 2], other: Clients, name: String) {
    let mut rng = Rng::with_seed(seed);
    let (mut begun, mut forgotten, mut held) = (Vec::new(), Vec::new(), Vec::new());
    let mut steps = Vec::new();
    for _ in 0..rng.usize(5..30) {
        let step = Step::of(&mut rng);
        steps.push(step);
        match step {
            Step::Begin(client, kind) => {
                let mut future = KINDS[kind].1(&clients[client], &name);
                match poll_once(&mut future) {
                    Poll::Pending => begun.push(future),
                    Poll::Ready(guard) => held.push(guard.expect("lock acquired")),
                }
            }
            Step::Sleep(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Step::Release => {
                held.pop();
            }
            _ if begun.is_empty() => {}
            other => {
                let mut future = begun.swap_remove(rng.usize(..begun.len()));
                match other {
                    Step::Forget => forgotten.push(future),
                    Step::Drop => drop(future),
                    Step::Await(ms) => {
                        match tokio::time::timeout(Duration::from_millis(ms), &mut future).await {
                            Ok(guard) => held.push(guard.expect("lock acquired")),
                            Err(_) => begun.push(future),
                        }
                    }
                    _ => match poll_once(&mut future) {
                        Poll::Pending => begun.push(future),
                        Poll::Ready(guard) => held.push(guard.expect("lock acquired")),
                    },
                }
            }
        }
    }
    held.clear();
    forgotten.append(&mut begun);
    for (kind, acquire) in KINDS {
        let guard = tokio::time::timeout(Duration::from_secs(120), acquire(&other, &name)).await;
        let guard = guard.unwrap_or_else(|_| panic!("{kind} is stuck, seed {seed}: {steps:?}"));
        drop(guard.expect("lock acquired"));
    }
    let count = forgotten.len();
    // The futures that were forgotten still work.
    for future in forgotten {
        drop(finish_in_time(future).await.unwrap_or_else(|error| panic!("seed {seed}, {count}: {error}")));
    }
}

on_both_servers!(no_random_program_blocks_a_lock, |place| async move {
    const PROGRAMS: u64 = 200;
    let first = seed() % 1_000_000;
    println!("programs {first} to {}", first + PROGRAMS);
    let quick = || settings().claim_timeout(Duration::from_millis(300));
    let clients = [0, 1, 2].map(|_| Clients::new(&place, quick(), "unused"));
    let clients = futures_util::future::join_all(clients).await;
    let programs = (first..first + PROGRAMS).map(|seed| {
        let name = format!("program-{seed}");
        let of = |clients: &Clients| Clients {
            zl: clients.zl.clone(),
            owner: Owner::new(),
            shared: clients.zl.mutex(&*name).shared_hold(Duration::from_millis(20)),
        };
        let (one, two, other) = (of(&clients[0]), of(&clients[1]), of(&clients[2]));
        tokio::spawn(run_program(seed, [one, two], other, name))
    });
    for program in futures_util::future::join_all(programs).await {
        program.expect("the program does not panic");
    }
    for name in [format!("program-{first}"), format!("program-{}", first + 1)] {
        tree::assert_no_contenders(&place.addr(), &directory(&place, &name)).await;
    }
});
