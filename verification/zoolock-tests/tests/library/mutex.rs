//! The public behaviour of the mutex, on both servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock::{Error, LossReason, Previous, Zoolock};
use zoolock_tests::locks::{
    await_guard, connect, directory, lock_and_release, lock_in_background, settings, until_queued,
};
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{Embedded, Judge, ServerOptions, TestFailure, on_both_servers, tree};

on_both_servers!(free_lock_is_acquired_and_released, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("nightly");
    let guard = mutex.lock().await.expect("lock acquired");
    assert!(guard.is_valid());
    assert!(guard.valid_until().remaining() > Duration::from_secs(5));
    assert_eq!(guard.path(), "/locks/nightly");
    assert_eq!(guard.previous(), Previous::Unknown, "the lock had no previous holder");
    let first = guard.token();
    guard.release().await.expect("release succeeds");
    let guard = mutex.lock().await.expect("lock acquired again");
    assert_eq!(guard.previous(), Previous::Clean);
    assert!(guard.token() > first);
    drop(guard);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "nightly")).await;
    zl.close().await;
});

on_both_servers!(held_lock_times_out, |place| async move {
    let (ours, theirs) = (connect(&place).await, connect(&place).await);
    let held = theirs.mutex("busy").lock().await.expect("lock acquired");
    assert!(ours.mutex("busy").try_lock().await.expect("attempt succeeds").is_none());
    let began = Instant::now();
    let error = ours.mutex("busy").lock_timeout(Duration::from_millis(300)).await.expect_err("lock is held");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("busy"), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(300));
    // The timed-out waiter leaves no znode in the queue.
    let next = ours.mutex("busy");
    let next = tokio::spawn(async move { next.lock().await });
    until_queued(&theirs, "busy", 2).await;
    held.release().await.expect("release succeeds");
    await_guard(next).await.release().await.expect("release succeeds");
    assert!(ours.mutex("busy").try_lock().await.expect("attempt succeeds").is_some());
    tree::assert_no_contenders(&place.addr(), &directory(&place, "busy")).await;
});

on_both_servers!(tasks_of_many_sessions_exclude_each_other, |place| async move {
    let judge = Arc::new(Judge::new());
    let mut tasks = tokio::task::JoinSet::new();
    for session in 0..4 {
        let zl = connect(&place).await;
        for task in 0..5 {
            let (zl, judge) = (zl.clone(), judge.clone());
            tasks.spawn(async move {
                for _ in 0..10 {
                    let guard = zl.mutex("shared").lock().await.expect("lock granted");
                    judge.enter(format!("{session}.{task}"), guard.token());
                    tokio::task::yield_now().await;
                    judge.exit(&format!("{session}.{task}"));
                    guard.release().await.expect("release succeeds");
                }
            });
        }
    }
    tasks.join_all().await;
    assert_eq!(judge.checked_grants().len(), 200);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "shared")).await;
});

on_both_servers!(deleted_lock_directory_loses_the_lock, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("doomed").lock().await.expect("lock acquired");
    let waiting = lock_in_background(&zl.mutex("doomed"));
    until_queued(&zl, "doomed", 2).await;
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    let directory = directory(&place, "doomed");
    for child in ["lock-0000000001", "lock-0000000000"] {
        operator.delete(&format!("{directory}/{child}"), None).await.expect("znode exists");
    }
    let reason =
        tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.expect("loss reported in time");
    assert_eq!(reason, LossReason::Broken);
    assert!(!guard.is_valid());
    let error = waiting.await.expect("task does not panic").expect_err("the waiter's znode was deleted");
    assert!(matches!(error, Error::Removed { .. }), "{error}");
    assert!(!error.to_string().contains("lost"), "a waiter has no lock to lose: {error}");
    operator.delete(&directory, None).await.expect("directory is empty");
    // The next acquire creates the directory again. The release of the broken guard does not affect the new holder.
    let next = zl.mutex("doomed").lock().await.expect("lock directory created again");
    assert!(matches!(guard.release().await, Err(Error::Lost { reason: LossReason::Broken, .. })));
    assert!(next.is_valid());
    assert!(zl.mutex("doomed").try_lock().await.expect("attempt succeeds").is_none());
    next.release().await.expect("release succeeds");
});

on_both_servers!(foreign_contender_is_waited_for, |place| async move {
    let zl = connect(&place).await;
    let other = tree::connect(&place.addr()).await.expect("session starts");
    let options =
        zookeeper_client::CreateMode::EphemeralSequential.with_acls(zookeeper_client::Acls::anyone_all());
    for (prefix, family) in [
        ("_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301-lock-", "curator"),
        ("lock-3f2504e04f8911d39a0c0305e82c3301-", "aiozk"),
        ("job-", "unknown"),
    ] {
        lock_and_release(&zl.mutex("mixed")).await;
        let prefix = format!("{}/{prefix}", directory(&place, "mixed"));
        let (_, sequence) = other.create(&prefix, b"10.0.0.1", &options).await.expect("znode created");
        assert!(zl.mutex("mixed").try_lock().await.expect("attempt succeeds").is_none());
        let seen = zl.admin().snapshot("mixed").await.expect("snapshot succeeds");
        assert_eq!(seen.holder.expect("lock has a holder").family.as_str(), family);
        let waiting = lock_in_background(&zl.mutex("mixed"));
        until_queued(&zl, "mixed", 2).await;
        other.delete(&format!("{prefix}{sequence}"), None).await.expect("znode exists");
        let guard = await_guard(waiting).await;
        assert_eq!(guard.previous(), Previous::Unknown, "a foreign contender writes no release marker");
        guard.release().await.expect("release succeeds");
    }
});

on_both_servers!(foreign_data_in_the_directory_is_kept, |place| async move {
    let zl = connect(&place).await;
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    let directory = directory(&place, "owned");
    let persistent = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    operator.mkdir(&directory, &persistent).await.expect("znode created");
    operator.set_data(&directory, b"foreign config", None).await.expect("data written");
    operator.create(&format!("{directory}/config"), b"x", &persistent).await.expect("znode created");
    for _ in 0..3 {
        let guard = zl.mutex("owned").lock().await.expect("lock acquired");
        assert!(zl.mutex("owned").try_lock().await.expect("attempt succeeds").is_none());
        guard.release().await.expect("release succeeds");
    }
    let (data, _) = operator.get_data(&directory).await.expect("znode exists");
    assert_eq!(data, b"foreign config");
});

on_both_servers!(closed_client_leaves_no_znodes, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("left").lock().await.expect("lock acquired");
    zl.close().await;
    assert_eq!(guard.lost().await, LossReason::Closed);
    // The session was closed, so its znodes are deleted at once.
    assert_eq!(
        tree::ephemerals(&place.addr(), place.chroot()).await.expect("read succeeds"),
        Vec::<String>::new()
    );
    drop(guard);
    drop(zl);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "left")).await;
});

on_both_servers!(
    private(ServerOptions { container_check: Duration::from_millis(200), ..Default::default() })
    removed_container_directories_are_created_again, |place| async move {
    let zl = connect(&place).await;
    for _ in 0..3 {
        lock_and_release(&zl.mutex("deep/er/still")).await;
        let locks = zl.admin().locks(None, usize::MAX).await.expect("read succeeds");
        assert!(locks.len() <= 1 && locks.iter().all(|lock| lock.path == "/locks/deep/er/still"), "{locks:?}");
        let gone = retry_until_ok("the server deletes empty containers", Duration::from_secs(20), async || {
            match tree::descendants(&place.connect_string(), "/").await?.as_slice() {
                [] => Ok(()),
                left => Err(TestFailure::new(left.join(", "))),
            }
        });
        gone.await.expect("all directories were containers");
    }
    // A directory with a contender is kept.
    let guard = zl.mutex("deep/er/still").lock().await.expect("lock acquired");
    // In this time the server checks for empty containers several times.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(guard.is_valid());
    guard.release().await.expect("release succeeds");
});

#[tokio::test]
async fn connection_errors_name_the_server() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let quick = || settings().connect_timeout(Duration::from_millis(500));
    let http = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port bound");
    let address = http.local_addr().expect("listener has an address").to_string();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = http.accept().await {
            let _ = stream.read(&mut [0; 64]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let closed = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port bound");
        listener.local_addr().expect("listener has an address").to_string()
    };
    let full = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port bound");
    let full_address = full.local_addr().expect("listener has an address").to_string();
    let hanging_up = tokio::spawn(async move { while full.accept().await.is_ok() {} });
    for (address, says) in [
        (full_address.as_str(), "maxClientCnxns"),
        (address.as_str(), "does not speak ZooKeeper"),
        (closed.as_str(), "cannot connect"),
        ("no-such-host.invalid:2181", "does not resolve"),
    ] {
        let error = quick().connect(address).await.expect_err(address);
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(address) && text.contains(says), "{text}");
    }
    server.abort();
    hanging_up.abort();
    for (builder, address, says) in [
        (quick(), "h:port", "port"),
        (quick(), "", "names no host"),
        (quick().root("locks"), "h:1", "root"),
        (quick().session_timeout(Duration::from_millis(100)), "h:1", "three ticks"),
        (quick().grace(Duration::from_secs(9)), "h:1", "too long for a session of"),
    ] {
        let error = builder.connect(address).await.expect_err(says);
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn too_short_a_granted_session_is_refused() {
    let options = ServerOptions { max_session_timeout: Duration::from_secs(4), ..Default::default() };
    let server = Embedded::start(options).await.expect("server starts");
    let error =
        Zoolock::builder().connect(&server.socket_addr().to_string()).await.expect_err("4 s is too short");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("three ticks"), "{error}");
}

on_both_servers!(futures_of_callers_are_small, |place| async move {
    // Thousands of futures can wait at the same time, and allocations above this size are slow.
    const SMALL: usize = 1024;
    let zl = connect(&place).await;
    let mutex = zl.mutex("small");
    let locking = mutex.lock();
    assert!(size_of_val(&locking) <= SMALL, "{} bytes", size_of_val(&locking));
    let releasing = locking.await.expect("lock acquired").release();
    assert!(size_of_val(&releasing) <= SMALL, "{} bytes", size_of_val(&releasing));
    releasing.await.expect("release succeeds");
});
