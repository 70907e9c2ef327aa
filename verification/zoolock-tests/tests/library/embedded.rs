//! The embedded server, and the test hooks that it offers to programs that use locks.

use std::time::Duration;

use tokio::net::TcpStream;
use zoolock::{LossReason, TestServer, Zoolock};
use zoolock_tests::wait::{finish_in_time, retry_until_ok};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn embedded_servers_are_independent() {
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
async fn embedded_server_stops_with_its_last_handle() {
    let server = TestServer::start().await.expect("server starts");
    let address = server.address();
    drop(server);
    let gone = retry_until_ok("the port is free", SOON, async || {
        let connected = TcpStream::connect(&address).await;
        if connected.is_ok() {
            Err(zoolock_tests::TestFailure::new("the port still accepts connections"))
        } else {
            Ok(())
        }
    });
    gone.await.expect("finishes in time");
}

#[tokio::test]
async fn expired_holder_is_told_and_successor_granted() {
    let server = TestServer::start().await.expect("server starts");
    let (ours, theirs) =
        (server.connect().await.expect("session starts"), server.connect().await.expect("session starts"));
    assert!(!server.expire_holder("/locks/nightly"));
    let guard = ours.mutex("nightly").lock().await.expect("lock acquired");
    let next = theirs.mutex("nightly");
    let next = next.lock();
    tokio::pin!(next);
    assert!(server.expire_holder("/locks/nightly"));
    assert_eq!(finish_in_time(guard.lost()).await, LossReason::SessionExpired);
    assert!(!guard.is_valid());
    let next = finish_in_time(next).await.expect("lock granted");
    assert!(next.token() > guard.token());
    assert!(server.expire_sessions() >= 1);
    assert_eq!(finish_in_time(next.lost()).await, LossReason::SessionExpired);
}

#[tokio::test]
async fn lock_survives_disconnects_and_server_restart() {
    let server = TestServer::start().await.expect("server starts");
    let (ours, theirs) =
        (server.connect().await.expect("session starts"), server.connect().await.expect("session starts"));
    let guard = ours.mutex("nightly").lock().await.expect("lock acquired");
    let waiter = tokio::spawn(async move {
        let guard = theirs.mutex("nightly").lock().await.expect("lock granted");
        (guard, theirs)
    });
    let admin = ours.admin();
    let both =
        retry_until_ok("both contenders are queued", SOON, async || match admin.snapshot("nightly").await {
            Ok(snapshot) if snapshot.waiters.len() == 1 => Ok(()),
            other => Err(zoolock_tests::TestFailure::new(format!("{other:?}"))),
        });
    both.await.expect("both contenders queue in time");
    server.cut_connections();
    server.stop().await;
    assert_eq!(server.sessions(), 0, "a stopped server has no sessions");
    server.start_again().await.expect("the port is still free");
    assert!(server.sessions() >= 2);
    assert!(guard.is_valid(), "its session continues");
    let token = guard.token();
    finish_in_time(guard.release()).await.expect("release succeeds");
    let (next, theirs) = finish_in_time(waiter).await.expect("task does not panic");
    assert!(next.token() > token, "tokens rise over a restart");
    next.release().await.expect("release succeeds");
    theirs.close().await;
}

#[tokio::test]
async fn advancing_time_expires_sessions_by_timeout() {
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
    assert_eq!(finish_in_time(a.lost()).await, LossReason::SessionExpired);
    assert!(b.is_valid(), "its timeout is longer");
    b.release().await.expect("release succeeds");
}
