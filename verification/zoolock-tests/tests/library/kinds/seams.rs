//! Regression tests that combine lock kinds, operators and cancelled acquisitions.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use zoolock::{Error, LockEvent, LossReason, PermitGuard, Previous, TestServer, Ticket};
use zoolock_tests::{Proxy, opcode, tree};

use zoolock_tests::locks::until_queued;

const SOON: Duration = Duration::from_secs(5);

async fn server() -> TestServer {
    TestServer::start().await.expect("server starts")
}

/// Acquires a lock with crash detection and expires the session of its holder.
async fn crash(server: &TestServer, name: &str) {
    let zl = server.connect().await.expect("session starts");
    let guard = zl.mutex(name).crash_detection().lock().await.expect("lock acquired");
    assert!(server.expire_holder(&format!("/locks/{name}")));
    guard.lost().await;
    drop(guard);
    zl.close().await;
}

/// Starts a waiter on a resized semaphore. Returns once the waiter watches the other contenders.
async fn waiting(
    server: &TestServer,
    name: &str,
    size: u32,
) -> (Proxy, JoinHandle<Result<PermitGuard, Error>>) {
    let proxy = Proxy::start(&server.address()).await.expect("proxy starts");
    let zl = server.client().connect(&proxy.addr()).await.expect("session starts");
    let semaphore = zl.semaphore(name, size);
    let waiting = tokio::spawn(async move { semaphore.acquire(1).await });
    // The waiter first lists the contenders without a watch, then with a watch.
    let watches = |stats: &zoolock_tests::proxy::ProxyStats| stats.total.replies(opcode::GET_CHILDREN2) >= 2;
    proxy.until("the watch on the contenders", watches).await;
    (proxy, waiting)
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_of_upgraded_writer_is_reported() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("session starts"), s.connect().await.expect("session starts"));
    let r = a.rwlock("x").crash_detection().upgradable_read().await.expect("lock acquired");
    let w = r.upgrade().await.map_err(|e| e.error).expect("upgrade succeeds");
    assert!(s.expire_holder("/locks/x"));
    w.lost().await;
    let next = timeout(SOON, b.rwlock("x").crash_detection().write())
        .await
        .expect("granted in time")
        .expect("lock acquired");
    assert_eq!(next.previous(), Previous::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_multi_try_keeps_crash() {
    let s = server().await;
    crash(&s, "a").await;
    let (a, b) = (s.connect().await.expect("session starts"), s.connect().await.expect("session starts"));
    let _busy = b.mutex("b").lock().await.expect("lock acquired");
    assert!(a.multi(["a", "b"]).try_lock().await.expect("attempt succeeds").is_none());
    let next = b.mutex("a").crash_detection().lock().await.expect("lock acquired");
    assert_eq!(next.previous(), Previous::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn unpolled_grant_keeps_crash() {
    let s = server().await;
    let a = s.connect().await.expect("session starts");
    let m = a.mutex("a").crash_detection();
    loop {
        crash(&s, "a").await;
        let mut fut = Box::pin(m.lock());
        if let Some(seen) = futures_lite::future::poll_once(fut.as_mut()).await {
            // The grant arrived before the first poll returned. Try again.
            seen.expect("lock acquired").release().await.expect("release succeeds");
            continue;
        }
        until_queued(&a, "a", 1).await;
        // The caller drops the future, as select! does, without polling the grant.
        break;
    }
    let next = m.lock().await.expect("lock acquired");
    assert_eq!(next.previous(), Previous::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_on_shrunk_semaphore_is_woken() {
    let s = server().await;
    let a = s.connect().await.expect("session starts");
    let sem = a.semaphore("s", 3);
    let (h1, h2, h3) = (
        sem.acquire(1).await.expect("permit acquired"),
        sem.acquire(1).await.expect("permit acquired"),
        sem.acquire(1).await.expect("permit acquired"),
    );
    sem.resize(2).await.expect("resize succeeds");
    let (_proxy, w) = waiting(&s, "s", 2).await;
    h1.release().await.expect("release succeeds");
    h2.release().await.expect("release succeeds");
    let _ = timeout(SOON, w)
        .await
        .expect("one of two permits is free")
        .expect("task does not panic")
        .expect("permit acquired");
    drop(h3);
}

#[tokio::test(flavor = "multi_thread")]
async fn breaking_an_upgraded_reader_frees_the_lock() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("session starts"), s.connect().await.expect("session starts"));
    let r = a.rwlock("x").upgradable_read().await.expect("lock acquired");
    let w = r.upgrade().await.map_err(|e| e.error).expect("upgrade succeeds");
    let holder = b
        .admin()
        .snapshot("x")
        .await
        .expect("snapshot read")
        .holder
        .expect("lock has a holder")
        .token
        .expect("contender has a token");
    assert_eq!(holder, w.ticket());
    b.admin().break_lock("x", w.token()).await.expect("znode exists");
    w.lost().await;
    // The broken holder keeps its guard.
    let got = timeout(SOON, b.rwlock("x").write()).await;
    assert!(
        got.is_ok(),
        "the broken holder still blocks the lock: {:#?}",
        b.admin().snapshot("x").await.expect("snapshot read")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn release_of_broken_upgrade_returns_lost() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("session starts"), s.connect().await.expect("session starts"));
    let r = a.rwlock("x").upgradable_read().await.expect("lock acquired");
    let w = r.upgrade().await.map_err(|e| e.error).expect("upgrade succeeds");
    let beside =
        b.admin().snapshot("x").await.expect("snapshot read").beside[0].token.expect("contender has a token");
    b.admin().break_lock("x", beside).await.expect("znode exists");
    assert_eq!(w.lost().await, LossReason::Broken);
    assert!(matches!(w.release().await, Err(Error::Lost { .. })), "release returned Ok for a lost lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_acquire_sends_gave_up_event() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("session starts"), s.connect().await.expect("session starts"));
    let _busy = b.mutex("x").lock().await.expect("lock acquired");
    let m = a.mutex("x");
    let mut ev = m.events();
    let w = tokio::spawn(async move { m.lock().await.map(drop) });
    assert_eq!(
        timeout(SOON, ev.next()).await.expect("event arrives in time"),
        Some(LockEvent::Queued { ahead: 1 })
    );
    w.abort();
    assert_eq!(timeout(SOON, ev.next()).await.expect("event arrives in time"), Some(LockEvent::GaveUp));
}

#[tokio::test(flavor = "multi_thread")]
async fn second_reader_sends_no_queued_event() {
    let s = server().await;
    let a = s.connect().await.expect("session starts");
    let rw = a.rwlock("x");
    let _r = rw.read().await.expect("lock acquired");
    let mut ev = rw.events();
    let _r2 = rw.read().await.expect("lock acquired");
    let e = timeout(SOON, ev.next()).await.expect("event arrives in time");
    assert!(matches!(e, Some(LockEvent::Acquired(_))), "{e:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_after_downgrade_name_the_reader() {
    let s = server().await;
    let a = s.connect().await.expect("session starts");
    let rw = a.rwlock("x");
    let mut ev = rw.events();
    let w = rw.write().await.expect("lock acquired");
    let r = w.downgrade().await.expect("downgrade succeeds");
    let t = r.ticket();
    a.admin().revoke("x", t).await.expect("contender exists");
    r.revoked().await;
    loop {
        if let Some(LockEvent::Revoked(heard)) =
            timeout(SOON, ev.next()).await.expect("event arrives in time")
        {
            assert_eq!(heard, t);
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn breaking_a_reader_keeps_crash() {
    let s = server().await;
    crash(&s, "a").await;
    let a = s.connect().await.expect("session starts");
    let rw = a.rwlock("a");
    let r = rw.read().await.expect("lock acquired");
    assert_eq!(r.previous(), Previous::Crashed);
    a.admin().break_lock("a", r.ticket()).await.expect("znode exists");
    r.lost().await;
    drop(r);
    let w = rw.write().await.expect("lock acquired");
    assert_eq!(w.previous(), Previous::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn breaking_a_delayed_holder_keeps_crash() {
    let s = server().await;
    crash(&s, "a").await;
    let (a, b) = (s.connect().await.expect("session starts"), s.connect().await.expect("session starts"));
    let m = a.mutex("a").lock_delay(Duration::from_secs(30));
    let w = tokio::spawn(async move { m.lock().await.map(|_| ()) });
    until_queued(&b, "a", 1).await;
    let snap = b.admin().snapshot("a").await.expect("snapshot read");
    let t: Ticket = snap.holder.expect("lock has a holder").token.expect("contender has a token");
    b.admin().break_lock("a", t).await.expect("znode exists");
    w.abort();
    let next = b.mutex("a").lock().await.expect("lock acquired");
    assert_eq!(next.previous(), Previous::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_multi_try_keeps_panic() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("session starts"), s.connect().await.expect("session starts"));
    let m = a.mutex("a");
    let _ = tokio::spawn(async move {
        let _g = m.lock().await.expect("lock acquired");
        panic!("on purpose")
    })
    .await;
    tree::assert_no_contenders(&s.address(), "/locks/a").await;
    let _busy = b.mutex("b").lock().await.expect("lock acquired");
    assert!(a.multi(["a", "b"]).try_lock().await.expect("attempt succeeds").is_none());
    let next = b.mutex("a").lock().await.expect("lock acquired");
    assert_ne!(next.previous(), Previous::Clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_ends_when_its_reader_is_broken() {
    let s = server().await;
    let (a, b) = (s.connect().await.expect("session starts"), s.connect().await.expect("session starts"));
    let r = a.rwlock("x").upgradable_read().await.expect("lock acquired");
    let other = b.rwlock("x").read().await.expect("lock acquired");
    let ticket = r.ticket();
    let up = tokio::spawn(async move { r.upgrade().await.map(|_| ()).map_err(|e| e.error) });
    until_queued(&b, "x", 3).await;
    b.admin().break_lock("x", ticket).await.expect("znode exists");
    let out = timeout(SOON, up).await;
    drop(other);
    assert!(out.is_ok(), "the reader is broken but its upgrade still waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn downgrade_survives_lost_reply_and_foreign_revocation() {
    let s = server().await;
    let proxy = Proxy::start(&s.address()).await.expect("proxy starts");
    let a = s.client().connect(&proxy.addr()).await.expect("session starts");
    let raw = tree::connect(&s.address()).await.expect("session starts");
    let w = a.rwlock("x").write().await.expect("lock acquired");
    proxy.drop_next_reply(opcode::MULTI);
    let down = tokio::spawn(async move { w.downgrade().await });
    proxy.until("the lost reply", |stats| stats.dropped_replies == 1).await;
    raw.set_data("/locks/x/__READ__0000000000", b"__REVOKE__", None).await.expect("znode exists");
    let reader = timeout(SOON, down)
        .await
        .expect("finishes in time")
        .expect("task does not panic")
        .expect("downgrade succeeds");
    drop(reader);
    tree::assert_no_contenders(&s.address(), "/locks/x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_of_upgrade_sends_lost_event() {
    let s = server().await;
    let a = s.connect().await.expect("session starts");
    let rw = a.rwlock("x");
    let mut ev = rw.events();
    let w = rw
        .upgradable_read()
        .await
        .expect("lock acquired")
        .upgrade()
        .await
        .map_err(|e| e.error)
        .expect("upgrade succeeds");
    let beside =
        a.admin().snapshot("x").await.expect("snapshot read").beside[0].token.expect("contender has a token");
    a.admin().break_lock("x", beside).await.expect("znode exists");
    w.lost().await;
    loop {
        match timeout(Duration::from_secs(3), ev.next()).await.expect("lost event arrives in time") {
            Some(LockEvent::Lost(..)) => break,
            other => eprintln!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn growing_semaphore_wakes_waiters() {
    let s = server().await;
    let a = s.connect().await.expect("session starts");
    let sem = a.semaphore("s", 3);
    let _h = (
        sem.acquire(1).await.expect("permit acquired"),
        sem.acquire(1).await.expect("permit acquired"),
        sem.acquire(1).await.expect("permit acquired"),
    );
    sem.resize(2).await.expect("resize succeeds");
    let (_proxy, w) = waiting(&s, "s", 2).await;
    sem.resize(100).await.expect("resize succeeds");
    let _ = timeout(SOON, w)
        .await
        .expect("97 permits are free")
        .expect("task does not panic")
        .expect("permit acquired");
}
