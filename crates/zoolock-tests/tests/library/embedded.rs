//! The server in the process, and what it lets others do to test their own lock code.

use std::time::Duration;

use tokio::net::TcpStream;
use zoolock::{LossReason, TestServer, Zoolock};
use zoolock_tests::wait::eventually;

const SOON: Duration = Duration::from_secs(20);

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("finishes in time")
}

#[tokio::test]
async fn locks_in_one_process_exclude_and_know_nothing_of_another_server() {
    let ours = Zoolock::embedded().await.expect("server starts");
    let others = Zoolock::embedded().await.expect("server starts");
    let guard = ours.mutex("nightly").lock().await.expect("lock acquired");
    assert!(ours.mutex("nightly").try_lock().await.expect("attempt succeeds").is_none());
    assert!(others.mutex("nightly").try_lock().await.expect("attempt succeeds").is_some());
    guard.release().await.expect("release succeeds");
    ours.close().await;
    others.close().await;
}

#[tokio::test]
async fn a_server_ends_with_its_last_client() {
    let server = TestServer::start().await.expect("server starts");
    let address = server.address();
    drop(server);
    let gone = eventually("the port is free", SOON, async || {
        let connected = TcpStream::connect(&address).await;
        if connected.is_ok() { Err(zoolock_tests::Failure::new("somebody listens")) } else { Ok(()) }
    });
    gone.await.expect("finishes in time");
}

#[tokio::test]
async fn the_holder_hears_that_its_session_was_expired_and_the_next_one_holds() {
    let server = TestServer::start().await.expect("server starts");
    let (ours, theirs) =
        (server.connect().await.expect("session starts"), server.connect().await.expect("session starts"));
    assert!(!server.expire_holder("/locks/nightly"));
    let guard = ours.mutex("nightly").lock().await.expect("lock acquired");
    let next = theirs.mutex("nightly");
    let next = next.lock();
    tokio::pin!(next);
    assert!(server.expire_holder("/locks/nightly"));
    assert_eq!(soon(guard.lost()).await, LossReason::SessionExpired);
    assert!(!guard.is_valid());
    let next = soon(next).await.expect("lock granted");
    assert!(next.token() > guard.token());
    assert!(server.expire_sessions() >= 1);
    assert_eq!(soon(next.lost()).await, LossReason::SessionExpired);
}

#[tokio::test]
async fn a_lock_outlives_cut_connections_and_a_server_that_starts_again() {
    let server = TestServer::start().await.expect("server starts");
    let (ours, theirs) =
        (server.connect().await.expect("session starts"), server.connect().await.expect("session starts"));
    let guard = ours.mutex("nightly").lock().await.expect("lock acquired");
    let waiter = tokio::spawn(async move {
        let guard = theirs.mutex("nightly").lock().await.expect("lock granted");
        (guard, theirs)
    });
    let queue = ours.mutex("nightly");
    let both = eventually("both stand in the queue", SOON, async || match queue.snapshot().await {
        Ok(snapshot) if snapshot.waiters.len() == 1 => Ok(()),
        other => Err(zoolock_tests::Failure::new(format!("{other:?}"))),
    });
    both.await.expect("they queue");
    server.cut_connections();
    server.stop().await;
    assert_eq!(server.sessions(), 0, "stopped");
    server.start_again().await.expect("the port is still free");
    assert!(server.sessions() >= 2);
    assert!(guard.is_valid(), "its session lives");
    let token = guard.token();
    soon(guard.release()).await.expect("release succeeds");
    let (next, theirs) = soon(waiter).await.expect("task does not panic");
    assert!(next.token() > token, "tokens rise over a restart");
    next.release().await.expect("release succeeds");
    theirs.close().await;
}

#[tokio::test]
async fn time_that_is_moved_on_expires_sessions_by_their_timeout() {
    let server = TestServer::start().await.expect("server starts");
    let address = server.address();
    let short = server.client().session_timeout(Duration::from_secs(5)).connect(&address);
    let short = short.await.expect("session starts");
    let long = server.client().session_timeout(Duration::from_secs(60)).connect(&address);
    let long = long.await.expect("session starts");
    let (a, b) = (
        short.mutex("a").lock().await.expect("lock acquired"),
        long.mutex("b").lock().await.expect("lock acquired"),
    );
    server.advance(Duration::from_secs(1));
    assert!(a.is_valid() && b.is_valid());
    server.advance(Duration::from_secs(30));
    assert_eq!(soon(a.lost()).await, LossReason::SessionExpired);
    assert!(b.is_valid(), "its timeout is longer");
    b.release().await.expect("release succeeds");
}
