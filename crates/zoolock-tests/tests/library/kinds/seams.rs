//! Where kinds, operators and give-ups meet: one test for each that once went wrong.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use zoolock::{Error, LockEvent, LossReason, PermitGuard, Previous, TestServer, Ticket};
use zoolock_tests::{Proxy, opcode, tree};

use zoolock_tests::locks::until_queued;

const SOON: Duration = Duration::from_secs(5);

async fn server() -> TestServer {
    TestServer::start().await.expect("it works")
}

/// A tracked lock whose holder crashed.
async fn crash(server: &TestServer, name: &str) {
    let zl = server.connect().await.expect("it works");
    let guard = zl.mutex(name).crash_detection().lock().await.expect("it works");
    assert!(server.expire_holder(&format!("/locks/{name}")));
    guard.lost().await;
    drop(guard);
    zl.close().await;
}

/// Waits for a permit of a semaphore of this size, which was resized: it watches the others when this returns.
async fn waiting(
    server: &TestServer,
    name: &str,
    size: u32,
) -> (Proxy, JoinHandle<Result<PermitGuard, Error>>) {
    let proxy = Proxy::start(&server.address()).await.expect("it works");
    let zl = server.client().connect(&proxy.addr()).await.expect("it works");
    let semaphore = zl.semaphore(name, size);
    let waiting = tokio::spawn(async move { semaphore.acquire().await });
    // Once it looks who is there, and then again with a watch.
    let watches = |stats: &zoolock_tests::proxy::Stats| stats.total.replies(opcode::GET_CHILDREN2) >= 2;
    proxy.until("it watches", watches).await;
    (proxy, waiting)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_writer_that_crashes_is_known() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("it works"), s.connect().await.expect("it works"));
    let r = a.rwlock("x").crash_detection().upgradable_read().await.expect("it works");
    let w = r.upgrade().await.map_err(|e| e.error).expect("it works");
    assert!(s.expire_holder("/locks/x"));
    w.lost().await;
    let next =
        timeout(SOON, b.rwlock("x").crash_detection().write()).await.expect("it works").expect("it works");
    assert_eq!(next.previous(), Previous::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_multi_lock_that_only_tries_does_not_wash_a_crash_away() {
    let s = server().await;
    crash(&s, "a").await;
    let (a, b) = (s.connect().await.expect("it works"), s.connect().await.expect("it works"));
    let _busy = b.mutex("b").lock().await.expect("it works");
    assert!(a.multi(["a", "b"]).try_lock().await.expect("it works").is_none());
    let next = b.mutex("a").crash_detection().lock().await.expect("it works");
    assert_eq!(next.previous(), Previous::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_nobody_saw_does_not_wash_a_crash_away() {
    let s = server().await;
    let a = s.connect().await.expect("it works");
    let m = a.mutex("a").crash_detection();
    loop {
        crash(&s, "a").await;
        let mut ev = m.events();
        let mut fut = Box::pin(m.lock());
        if let Some(seen) = futures_lite::future::poll_once(fut.as_mut()).await {
            // This thread was held up for longer than the grant took: once more.
            seen.expect("it works").release().await.expect("it works");
            continue;
        }
        assert!(matches!(timeout(SOON, ev.next()).await.expect("granted"), Some(LockEvent::Acquired(_))));
        // select! in the caller takes another branch: the grant is never seen
        break;
    }
    let next = m.lock().await.expect("it works");
    assert_eq!(next.previous(), Previous::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_behind_holders_of_a_larger_semaphore_is_woken() {
    let s = server().await;
    let a = s.connect().await.expect("it works");
    let mut sem = a.semaphore("s", 3);
    let (h1, h2, h3) = (
        sem.acquire().await.expect("it works"),
        sem.acquire().await.expect("it works"),
        sem.acquire().await.expect("it works"),
    );
    sem.resize(2).await.expect("it works");
    let (_proxy, w) = waiting(&s, "s", 2).await;
    h1.release().await.expect("it works");
    h2.release().await.expect("it works");
    let _ = timeout(SOON, w)
        .await
        .expect("one of two is held: it should be granted")
        .expect("it works")
        .expect("it works");
    drop(h3);
}

#[tokio::test(flavor = "multi_thread")]
async fn breaking_a_reader_that_writes_frees_the_lock() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("it works"), s.connect().await.expect("it works"));
    let r = a.rwlock("x").upgradable_read().await.expect("it works");
    let w = r.upgrade().await.map_err(|e| e.error).expect("it works");
    let holder =
        b.rwlock("x").snapshot().await.expect("it works").holder.expect("it works").token.expect("it works");
    assert_eq!(holder, w.token().to_string());
    b.rwlock("x").break_lock(w.token()).await.expect("it works");
    w.lost().await;
    // the one that was broken hangs: it does not drop its guard
    let got = timeout(SOON, b.rwlock("x").write()).await;
    assert!(
        got.is_ok(),
        "broken, and yet it keeps everybody out: {:#?}",
        b.rwlock("x").snapshot().await.expect("it works")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_release_of_a_broken_upgrade_says_that_it_was_lost() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("it works"), s.connect().await.expect("it works"));
    let r = a.rwlock("x").upgradable_read().await.expect("it works");
    let w = r.upgrade().await.map_err(|e| e.error).expect("it works");
    let beside = b.rwlock("x").snapshot().await.expect("it works").beside[0].token.clone().expect("it works");
    b.rwlock("x").break_lock(beside.parse::<Ticket>().expect("it works")).await.expect("it works");
    assert_eq!(w.lost().await, LossReason::Broken);
    assert!(matches!(w.release().await, Err(Error::Lost { .. })), "release() says Ok of a lost lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_future_is_heard_to_give_up() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("it works"), s.connect().await.expect("it works"));
    let _busy = b.mutex("x").lock().await.expect("it works");
    let m = a.mutex("x");
    let mut ev = m.events();
    let w = tokio::spawn(async move { m.lock().await.map(drop) });
    assert_eq!(timeout(SOON, ev.next()).await.expect("it works"), Some(LockEvent::Queued { ahead: 1 }));
    w.abort();
    assert_eq!(timeout(SOON, ev.next()).await.expect("nothing more is heard"), Some(LockEvent::GaveUp));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_beside_a_reader_is_not_heard_to_queue() {
    let s = server().await;
    let a = s.connect().await.expect("it works");
    let rw = a.rwlock("x");
    let _r = rw.read().await.expect("it works");
    let mut ev = rw.events();
    let _r2 = rw.read().await.expect("it works");
    let e = timeout(SOON, ev.next()).await.expect("it works");
    assert!(matches!(e, Some(LockEvent::Acquired(_))), "{e:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_after_a_downgrade_name_the_reader() {
    let s = server().await;
    let a = s.connect().await.expect("it works");
    let rw = a.rwlock("x");
    let mut ev = rw.events();
    let w = rw.write().await.expect("it works");
    let r = w.downgrade().await.expect("it works");
    let t = r.ticket();
    rw.revoke(t).await.expect("it works");
    r.revoked().await;
    loop {
        if let Some(LockEvent::Revoked(heard)) = timeout(SOON, ev.next()).await.expect("it works") {
            assert_eq!(heard, t);
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn breaking_a_reader_does_not_wash_a_crash_away() {
    let s = server().await;
    crash(&s, "a").await;
    let a = s.connect().await.expect("it works");
    let rw = a.rwlock("a");
    let r = rw.read().await.expect("it works");
    assert_eq!(r.previous(), Previous::Crashed);
    rw.break_lock(r.ticket()).await.expect("it works");
    r.lost().await;
    drop(r);
    let w = rw.write().await.expect("it works");
    assert_eq!(w.previous(), Previous::Crashed);
}

#[test]
fn a_listener_may_block() {
    let zl = zoolock::blocking::Zoolock::embedded().expect("it works");
    let m = zl.mutex("x");
    let m2 = zl.mutex("x");
    m.listen(move |_| {
        let _ = m2.snapshot();
    });
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let g = m.lock();
        let r = g.expect("it works").release();
        tx.send(r).expect("it works");
    });
    assert!(rx.recv_timeout(Duration::from_secs(8)).is_ok(), "everything hangs");
}

#[tokio::test(flavor = "multi_thread")]
async fn breaking_one_that_has_not_begun_does_not_wash_a_crash_away() {
    let s = server().await;
    crash(&s, "a").await;
    let (a, b) = (s.connect().await.expect("it works"), s.connect().await.expect("it works"));
    let m = a.mutex("a").lock_delay(Duration::from_secs(30));
    let w = tokio::spawn(async move { m.lock().await.map(|_| ()) });
    until_queued(&b, "a", 1).await;
    let snap = b.mutex("a").snapshot().await.expect("it works");
    let t: Ticket = snap.holder.expect("it works").token.expect("it works").parse().expect("it works");
    b.mutex("a").break_lock(t).await.expect("it works");
    w.abort();
    let next = b.mutex("a").lock().await.expect("it works");
    assert_eq!(next.previous(), Previous::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_multi_lock_that_only_tries_does_not_wash_a_panic_away() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("it works"), s.connect().await.expect("it works"));
    let m = a.mutex("a");
    let _ = tokio::spawn(async move {
        let _g = m.lock().await.expect("it works");
        panic!("on purpose")
    })
    .await;
    tree::assert_no_contenders(&s.address(), "/locks/a").await;
    let _busy = b.mutex("b").lock().await.expect("it works");
    assert!(a.multi(["a", "b"]).try_lock().await.expect("it works").is_none());
    let next = b.mutex("a").lock().await.expect("it works");
    assert_ne!(next.previous(), Previous::Clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_whose_reader_is_broken_ends() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("it works"), s.connect().await.expect("it works"));
    let r = a.rwlock("x").read().await.expect("it works");
    let other = b.rwlock("x").read().await.expect("it works");
    let ticket = r.ticket();
    let up = tokio::spawn(async move { r.upgrade().await.map(|_| ()).map_err(|e| e.error) });
    until_queued(&b, "x", 3).await;
    b.rwlock("x").break_lock(ticket).await.expect("it works");
    let out = timeout(SOON, up).await;
    drop(other);
    assert!(out.is_ok(), "the reader is broken, and its upgrade() still waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_survives_a_lost_reply_and_a_revocation_in_anothers_words() {
    let s = server().await;
    let proxy = Proxy::start(&s.address()).await.expect("it works");
    let a = s.client().connect(&proxy.addr()).await.expect("it works");
    let raw = tree::connect(&s.address()).await.expect("it works");
    let w = a.rwlock("x").write().await.expect("it works");
    proxy.drop_next_reply(14);
    let down = tokio::spawn(async move { w.downgrade().await });
    proxy.until("the reply is lost", |stats| stats.dropped_replies == 1).await;
    raw.set_data("/locks/x/__READ__0000000000", b"__REVOKE__", None).await.expect("it works");
    let reader = timeout(SOON, down).await.expect("it works").expect("it works").expect("it reads");
    drop(reader);
    tree::assert_no_contenders(&s.address(), "/locks/x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_an_upgrade_is_heard() {
    let s = server().await;
    let a = s.connect().await.expect("it works");
    let rw = a.rwlock("x");
    let mut ev = rw.events();
    let w =
        rw.upgradable_read().await.expect("it works").upgrade().await.map_err(|e| e.error).expect("it works");
    let beside = rw.snapshot().await.expect("it works").beside[0].token.clone().expect("it works");
    rw.break_lock(beside.parse::<Ticket>().expect("it works")).await.expect("it works");
    w.lost().await;
    loop {
        match timeout(Duration::from_secs(3), ev.next()).await.expect("no event says that the guard is lost")
        {
            Some(LockEvent::Lost(..)) => break,
            other => eprintln!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_that_grows_again_wakes_who_waits() {
    let s = server().await;
    let a = s.connect().await.expect("it works");
    let mut sem = a.semaphore("s", 3);
    let _h = (
        sem.acquire().await.expect("it works"),
        sem.acquire().await.expect("it works"),
        sem.acquire().await.expect("it works"),
    );
    sem.resize(2).await.expect("it works");
    let (_proxy, w) = waiting(&s, "s", 2).await;
    sem.resize(100).await.expect("it works");
    let _ = timeout(SOON, w).await.expect("97 permits are free").expect("it works").expect("it works");
}
