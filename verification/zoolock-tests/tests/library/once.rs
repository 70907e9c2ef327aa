//! Work that is done once for each key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use zoolock::internals::{OncePlan, OnceStart};
use zoolock::{Error, OnceOutcome, Previous, Zoolock};
use zoolock_tests::locks::{connect, directory, settings, short_session_settings};
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{Proxy, on_both_servers};
use zoolock_wire::{Reply, Request, op};

/// Longest wait for a lock.
const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "team/nightly";

/// Does the work of a key, with this result.
async fn work(
    zl: &Zoolock,
    key: &str,
    result: Result<u32, &'static str>,
) -> OnceOutcome<Result<u32, &'static str>> {
    let once = zl.mutex(NAME).once(key).attempts(2);
    once.run(PATIENCE, async |_| result).await.expect("the servers answer")
}

/// Returns the key, the number and the end of each attempt, newest first.
async fn attempts(zl: &Zoolock) -> Vec<(String, u32, Option<String>)> {
    let runs = zl.admin().runs(NAME).await.expect("the record is readable");
    runs.into_iter().map(|run| (run.key, run.attempt, run.end)).collect()
}

fn attempt(key: &str, number: u32, end: &str) -> (String, u32, Option<String>) {
    (key.to_owned(), number, Some(end.to_owned()))
}

on_both_servers!(failed_work_is_done_by_the_next, |place| async move {
    let (one, other) = (connect(&place).await, connect(&place).await);
    assert_eq!(attempts(&one).await, []);
    assert_eq!(work(&one, "a", Err("no disk")).await, OnceOutcome::Ran(Err("no disk")));
    assert_eq!(work(&other, "a", Ok(7)).await, OnceOutcome::Ran(Ok(7)));
    for zl in [&one, &other] {
        assert_eq!(work(zl, "a", Ok(8)).await, OnceOutcome::AlreadyDone);
    }
    assert_eq!(work(&one, "b", Ok(9)).await, OnceOutcome::Ran(Ok(9)));
    let expected = [attempt("b", 1, "done"), attempt("a", 2, "done"), attempt("a", 1, "failed")];
    assert_eq!(attempts(&one).await, expected);
    let runs = one.admin().runs(NAME).await.expect("readable");
    assert!(runs.iter().all(|run| run.began.is_some() && run.ended >= run.began), "{runs:?}");
    // The record is no lock.
    let locks = one.admin().locks(None, 0).await.expect("readable");
    assert!(locks.iter().all(|lock| !lock.path.contains(".once")), "{locks:?}");
});

on_both_servers!(work_that_fails_twice_is_given_up, |place| async move {
    let zl = connect(&place).await;
    for _ in 0..2 {
        assert_eq!(work(&zl, "a", Err("no disk")).await, OnceOutcome::Ran(Err("no disk")));
    }
    assert_eq!(work(&zl, "a", Ok(7)).await, OnceOutcome::GaveUp);
    assert_eq!(work(&zl, "b", Ok(7)).await, OnceOutcome::Ran(Ok(7)));
});

on_both_servers!(dropped_work_counts_as_an_attempt, |place| async move {
    let zl = connect(&place).await;
    let once = zl.mutex(NAME).once("a");
    let (started, begun) = tokio::sync::oneshot::channel();
    let running = once.run(PATIENCE, async |_| {
        let _ = started.send(());
        std::future::pending::<Result<(), ()>>().await
    });
    tokio::select! {
        outcome = running => panic!("the work ended: {outcome:?}"),
        _ = begun => {}
    }
    assert_eq!(work(&zl, "a", Ok(7)).await, OnceOutcome::Ran(Ok(7)));
    assert_eq!(attempts(&zl).await, [attempt("a", 2, "done"), ("a".to_owned(), 1, None)]);
});

on_both_servers!(many_waiters_do_the_work_once, |place| async move {
    const CLIENTS: usize = 8;
    let keys = if zoolock_tests::skip::is_long() { 500 } else { 20 };
    let done: Arc<Vec<AtomicU32>> = Arc::new((0..keys).map(|_| AtomicU32::new(0)).collect());
    let clients = (0..CLIENTS).map(async |client| {
        let zl = connect(&place).await;
        let mut random = fastrand::Rng::with_seed(client as u64);
        for (key, done) in done.iter().enumerate() {
            let once = zl.mutex(NAME).once(key.to_string()).attempts(u32::MAX);
            loop {
                let (fails, time) = (random.u8(..4) == 0, Duration::from_millis(random.u64(..5)));
                let work = async |_: &zoolock::Guard| {
                    tokio::time::sleep(time).await;
                    if fails { Err(()) } else { Ok(done.fetch_add(1, Ordering::SeqCst)) }
                };
                match once.run(PATIENCE, work).await.expect("the servers answer") {
                    OnceOutcome::Ran(Err(())) => {}
                    OnceOutcome::Ran(Ok(earlier)) => break assert_eq!(earlier, 0, "key {key}"),
                    OnceOutcome::AlreadyDone => break,
                    OnceOutcome::GaveUp => panic!("gave up"),
                }
            }
            assert_eq!(done.load(Ordering::SeqCst), 1, "key {key}");
        }
    });
    finish_in_time(futures_util::future::join_all(clients)).await;
});

on_both_servers!(lost_replies_neither_repeat_nor_lose_an_attempt, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let connect = place.connect_string_through(&proxy.addr());
    let zl = settings().connect(&connect).await.expect("session starts");
    work(&zl, "first", Ok(0)).await;
    for (key, opcode) in [("begin", op::MULTI), ("end", op::SET_DATA)] {
        for drops_request in [false, true] {
            let key = format!("{key}-{drops_request}");
            let once = zl.mutex(NAME).once(&key);
            let work = async |_: &zoolock::Guard| {
                if opcode == op::SET_DATA {
                    match drops_request {
                        true => proxy.drop_next_request(opcode),
                        false => proxy.drop_next_reply(opcode),
                    }
                }
                Ok::<_, ()>(())
            };
            // The lock was used before, so its grant needs no transaction.
            if opcode == op::MULTI {
                match drops_request {
                    true => proxy.drop_next_request(opcode),
                    false => proxy.drop_next_reply(opcode),
                }
            }
            let outcome = finish_in_time(once.run(PATIENCE, work)).await;
            assert_eq!(outcome.expect("the servers answer"), OnceOutcome::Ran(Ok(())), "{key}");
            assert_eq!(attempts(&zl).await[0], attempt(&key, 1, "done"));
        }
    }
    let stats = proxy.stats();
    assert_eq!((stats.dropped_requests, stats.dropped_replies), (2, 2));
});

on_both_servers!(skipped_work_does_not_hide_a_crash, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let cut = place.connect_string_through(&proxy.addr());
    let cut = short_session_settings().connect(&cut).await.expect("session starts");
    let guard = cut.mutex(NAME).crash_detection().lock().await.expect("free");
    let plan = OncePlan::new("a", 3).expect("a key");
    let OnceStart::Begun(attempt) = guard.begin_once(&plan).await.expect("held") else { panic!("not begun") };
    let zl = connect(&place).await;
    let waiter = zl.mutex(NAME).crash_detection().once("a");
    let waiting = tokio::spawn(async move { waiter.run(PATIENCE, async |_| Ok::<_, ()>(())).await });
    while zl.admin().snapshot(NAME).await.expect("readable").waiting == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    attempt.finish_done(PATIENCE).await.expect("recorded");
    // The holder crashes before its release.
    proxy.blackhole(true);
    let outcome = finish_in_time(waiting).await.expect("no panic");
    assert_eq!(outcome.expect("the servers answer"), OnceOutcome::AlreadyDone);
    let next = zl.mutex(NAME).crash_detection().lock().await.expect("free");
    assert_eq!(next.previous(), Previous::Crashed);
    drop(guard);
});

on_both_servers!(end_of_an_older_attempt_is_refused, |place| async move {
    let zl = connect(&place).await;
    let plan = OncePlan::new("a", 3).expect("a key");
    let begin = async || {
        let guard = zl.mutex(NAME).lock().await.expect("free");
        match guard.begin_once(&plan).await.expect("held") {
            OnceStart::Begun(attempt) => attempt,
            _ => panic!("not begun"),
        }
    };
    // Each attempt loses its lock when its guard is dropped.
    let (first, second) = (begin().await, begin().await);
    assert_eq!((first.number(), second.number()), (1, 2));
    let late = first.finish_done(PATIENCE).await;
    assert!(matches!(late, Err(Error::Conflict { .. })), "{late:?}");
    second.finish_done(PATIENCE).await.expect("the newest attempt");
    assert_eq!(work(&zl, "a", Ok(7)).await, OnceOutcome::AlreadyDone);
});

on_both_servers!(record_of_another_version_is_kept, |place| async move {
    let zl = connect(&place).await;
    work(&zl, "a", Ok(7)).await;
    let requests = settings().requests(&place.connect_string()).await.expect("session starts");
    let path = directory(&place, "team/.once/nightly");
    let newer = br#"{"format":"zoolock/2 once"}"#;
    requests.write(&path, newer).await.expect("written");
    let refused = zl.mutex(NAME).once("a").run(PATIENCE, async |_| Ok::<_, ()>(())).await;
    assert!(matches!(refused, Err(Error::Protocol { .. })), "{refused:?}");
    assert!(matches!(zl.admin().runs(NAME).await, Err(Error::Protocol { .. })));
    let read = requests.call(&Request::GetData { path, watch: false }).await;
    let Ok(Reply::Data { data, .. }) = read else { panic!("{read:?}") };
    assert_eq!(data.as_deref(), Some(&newer[..]));
});

#[tokio::test]
async fn bad_keys_are_refused() {
    let zl = settings().connect_lazy("127.0.0.1:1").expect("a valid address");
    for key in ["", "two words", "ü", "tab\t", &"x".repeat(65)] {
        let refused = zl.mutex("x").once(key).run(PATIENCE, async |_| Ok::<_, ()>(())).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{key:?}: {refused:?}");
    }
}
