//! A guard is dropped just before the next acquire. The client sends the release and the create of
//! the new znode in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};
use zoolock::{Error, Previous};
use zoolock_tests::locks::{connect, connect_through, directory};
use zoolock_tests::proxy::FrameCounts;
use zoolock_tests::{Direction, Proxy, on_both_servers, opcode, tree};

/// Time limit of each step, longer than a step takes and shorter than the session timeout.
const SOON: Duration = Duration::from_secs(8);

/// Number of attempts. Release and create are merged only if no background task sends the release
/// before the next acquire.
const TRIES: usize = 20;

/// Returns whether the release and the next create were sent in one transaction.
fn was_merged(proxy: &Proxy, before: &FrameCounts) -> bool {
    proxy.counts().since(before).requests(opcode::CREATE2) == 0
}

on_both_servers!(release_and_next_acquire_share_a_transaction, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let mutex = zl.mutex("loop");
    let mut guard = mutex.lock().await.expect("lock acquired");
    let before = proxy.counts();
    let mut as_one = 0;
    for round in 0..TRIES * 10 {
        let between = round % 10 == 3;
        if between {
            // Another contender takes the next sequence number.
            let path = format!("{}/other-", directory(&place, "loop"));
            let lines = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
            let (_, number) = stranger.create(&path, b"", &lines).await.expect("znode created");
            stranger.delete(&format!("{path}{number}"), None).await.expect("znode exists");
        }
        let (token, before) = (guard.token(), proxy.counts());
        drop(guard);
        guard = mutex.lock().await.expect("lock acquired");
        as_one += usize::from(was_merged(&proxy, &before));
        assert!(guard.token() > token);
        assert!(guard.is_valid());
        assert_eq!(guard.previous(), if between { Previous::Unknown } else { Previous::Clean });
    }
    let sent = proxy.counts().since(&before);
    assert_eq!(sent.requests(opcode::MULTI), TRIES as u64 * 10, "{sent:?}");
    assert!(as_one > TRIES, "{as_one} of {}", TRIES * 10);
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "loop")).await;
    zl.close().await;
});

on_both_servers!(other_requests_follow_the_release, |place| async move {
    let zl = connect(&place).await;
    let looks = tree::connect(&place.addr()).await.expect("session starts");
    let [one, two, three] = ["one", "two", "three"].map(|name| directory(&place, name));
    // Create the directories first.
    zl.multi(["two", "three"])
        .lock()
        .await
        .expect("lock acquired")
        .release()
        .await
        .expect("release succeeds");
    for round in 0..TRIES {
        let guard = zl.mutex("one").lock().await.expect("lock acquired");
        drop(guard);
        // Returns the zxid of the release: the release writes its marker into the directory, which
        // sets the directory's mzxid.
        let left = async || looks.check_stat(&one).await.expect("read succeeds").expect("znode exists").mzxid;
        if round % 2 == 0 {
            let next = zl.mutex("two").lock().await.expect("lock acquired");
            assert!(next.token().czxid().0 > left().await);
            next.release().await.expect("release succeeds");
        } else {
            let next = zl.multi(["two", "three"]).lock().await.expect("lock acquired");
            let nodes = looks.list_children(&three).await.expect("znode exists");
            let stat = looks.check_stat(&format!("{three}/{}", nodes[0])).await.expect("read succeeds");
            assert!(stat.expect("znode exists").czxid > left().await);
            next.release().await.expect("release succeeds");
        }
    }
    for directory in [one, two, three] {
        tree::assert_no_contenders(&place.addr(), &directory).await;
    }
    zl.close().await;
});

on_both_servers!(release_is_sent_while_a_reply_is_missing, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let before = proxy.counts();
    let guard = zl.mutex("deaf").lock().await.expect("lock acquired");
    proxy.blackhole_towards(Direction::ToClient, true);
    // The holder reads its own znode some time after the grant. The reply to that read does not
    // arrive before the release.
    proxy.until("the watch", |stats| stats.total.since(&before).requests(opcode::GET_DATA) > 1).await;
    drop(guard);
    let released = proxy.until("the release", |stats| stats.total.since(&before).requests(opcode::MULTI) > 0);
    tokio::time::timeout(SOON / 4, released).await.expect("release is sent before any reply");
    proxy.blackhole_towards(Direction::ToClient, false);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "deaf")).await;
    zl.close().await;
});

on_both_servers!(dropped_guard_releases_while_its_thread_is_busy, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let guard = zl.mutex("busy").lock().await.expect("lock acquired");
    let done = Arc::new(AtomicBool::new(false));
    let stop = done.clone();
    let busy = tokio::spawn(async move {
        drop(guard);
        let begun = Instant::now();
        while !stop.load(Ordering::Acquire) && begun.elapsed() < SOON * 2 {
            std::hint::spin_loop();
        }
    });
    let theirs = tokio::time::timeout(SOON, other.mutex("busy").lock()).await;
    done.store(true, Ordering::Release);
    theirs.expect("finishes in time").expect("lock acquired").release().await.expect("release succeeds");
    busy.await.expect("task does not panic");
});

on_both_servers!(acquire_succeeds_right_after_a_break, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let mutex = zl.mutex("broken");
    for tried in 1.. {
        let guard = mutex.lock().await.expect("lock acquired");
        let first = guard.token();
        // The holder must not learn of the break.
        proxy.blackhole_towards(Direction::ToClient, true);
        let nodes =
            tree::ephemerals(&place.addr(), &directory(&place, "broken")).await.expect("read succeeds");
        stranger.delete(&nodes[0], None).await.expect("znode exists");
        let before = proxy.counts();
        drop(guard);
        let asked = async {
            // Wait for the requests that follow the create.
            proxy
                .until("all requests", |stats| stats.total.since(&before).requests(opcode::GET_DATA) > 0)
                .await;
            let as_one = was_merged(&proxy, &before);
            proxy.blackhole_towards(Direction::ToClient, false);
            as_one
        };
        let (guard, as_one) = tokio::join!(tokio::time::timeout(SOON, mutex.lock()), asked);
        let guard = guard.expect("finishes in time").expect("lock acquired");
        assert!(guard.token() > first);
        guard.release().await.expect("release succeeds");
        tree::assert_no_contenders(&place.addr(), &directory(&place, "broken")).await;
        if as_one {
            break;
        }
        assert!(tried < TRIES, "release and create were never merged");
    }
    zl.close().await;
});

on_both_servers!(lost_reply_to_merged_transaction_leaves_no_znode, |place| async move {
    for lost in ["answer", "question"] {
        for tried in 1.. {
            let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
            match lost {
                "answer" => proxy.drop_next_reply(opcode::MULTI),
                _ => proxy.drop_next_request(opcode::MULTI),
            }
            let zl = connect_through(&place, &proxy).await;
            let guard = zl.mutex("lost").lock().await.expect("lock acquired");
            let (first, before) = (guard.token(), proxy.counts());
            drop(guard);
            let guard = tokio::time::timeout(SOON, zl.mutex("lost").lock()).await;
            let guard = guard.expect("finishes in time").expect("lock acquired");
            // If the lost transaction had the create in it, the create is sent again, alone.
            let as_one = proxy.counts().since(&before).requests(opcode::CREATE2) == 1;
            let stats = proxy.stats();
            assert_eq!(stats.dropped_replies + stats.dropped_requests, 1, "{lost}");
            assert!(guard.token() > first);
            assert!(guard.is_valid());
            tree::assert_contenders(&place.addr(), &directory(&place, "lost"), 1).await;
            guard.release().await.expect("release succeeds");
            tree::assert_no_contenders(&place.addr(), &directory(&place, "lost")).await;
            zl.close().await;
            if as_one {
                break;
            }
            assert!(tried < TRIES, "release and create were never merged");
        }
    }
});

on_both_servers!(denied_acquire_still_releases, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let allow = async |what: Permission| {
        let acl = [Acl::new(what, AuthId::anyone())];
        stranger.set_acl(&directory(&place, "closed"), &acl, None).await.expect("znode exists");
    };
    for tried in 1.. {
        let guard = zl.mutex("closed").lock().await.expect("lock acquired");
        allow(Permission::READ | Permission::WRITE | Permission::DELETE | Permission::ADMIN).await;
        let before = proxy.counts();
        drop(guard);
        let error = zl.mutex("closed").lock().await.expect_err("create is denied");
        assert!(matches!(error, Error::Denied { .. }), "{error}");
        let as_one = was_merged(&proxy, &before);
        tree::assert_no_contenders(&place.addr(), &directory(&place, "closed")).await;
        allow(Permission::ALL).await;
        if as_one {
            break;
        }
        assert!(tried < TRIES, "release and create were never merged");
    }
    zl.close().await;
});
