//! Whoever drops a guard and asks again at once: both are one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};
use zoolock::{Error, Previous};
use zoolock_tests::locks::{connect, connect_through, directory};
use zoolock_tests::proxy::Counts;
use zoolock_tests::{Direction, Proxy, on_both_arms, opcode, tree};

/// Longer than anything takes, shorter than a session lasts.
const SOON: Duration = Duration::from_secs(8);

/// How often something is tried that takes two requests as one only if a thread does not come in between.
const TRIES: usize = 20;

/// Whether a drop and the next question went out as one.
fn were_one(proxy: &Proxy, before: &Counts) -> bool {
    proxy.counts().since(before).requests(opcode::CREATE2) == 0
}

on_both_arms!(letting_go_and_asking_again_is_one_transaction, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let mutex = zl.mutex("loop");
    let mut guard = mutex.lock().await.expect("lock acquired");
    let before = proxy.counts();
    let mut as_one = 0;
    for turn in 0..TRIES * 10 {
        let between = turn % 10 == 3;
        if between {
            // Ours is not the next number then.
            let path = format!("{}/other-", directory(&place, "loop"));
            let lines = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
            let (_, number) = stranger.create(&path, b"", &lines).await.expect("znode created");
            stranger.delete(&format!("{path}{number}"), None).await.expect("znode exists");
        }
        let (token, before) = (guard.token(), proxy.counts());
        drop(guard);
        guard = mutex.lock().await.expect("lock acquired");
        as_one += usize::from(were_one(&proxy, &before));
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

on_both_arms!(whatever_else_is_asked_goes_out_behind_the_release, |place| async move {
    let zl = connect(&place).await;
    let looks = tree::connect(&place.addr()).await.expect("session starts");
    let [one, two, three] = ["one", "two", "three"].map(|name| directory(&place, name));
    // There are the directories.
    zl.multi(["two", "three"])
        .lock()
        .await
        .expect("lock acquired")
        .release()
        .await
        .expect("release succeeds");
    for turn in 0..TRIES {
        let guard = zl.mutex("one").lock().await.expect("lock acquired");
        drop(guard);
        // The release writes what it leaves.
        let left = async || looks.check_stat(&one).await.expect("read succeeds").expect("znode exists").mzxid;
        if turn % 2 == 0 {
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

on_both_arms!(a_dropped_lock_waits_for_no_answer, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let before = proxy.counts();
    let guard = zl.mutex("deaf").lock().await.expect("lock acquired");
    proxy.blackhole_towards(Direction::ToClient, true);
    // Its own node, a while after the grant; the answer is not to come.
    proxy.until("the watch", |stats| stats.total.since(&before).requests(opcode::GET_DATA) > 1).await;
    drop(guard);
    let released = proxy.until("the release", |stats| stats.total.since(&before).requests(opcode::MULTI) > 0);
    tokio::time::timeout(SOON / 4, released).await.expect("before anything is answered");
    proxy.blackhole_towards(Direction::ToClient, false);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "deaf")).await;
    zl.close().await;
});

on_both_arms!(what_is_dropped_is_let_go_while_its_thread_goes_on, |place| async move {
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

on_both_arms!(who_was_broken_just_before_gets_in_all_the_same, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let mutex = zl.mutex("broken");
    for tried in 1.. {
        let guard = mutex.lock().await.expect("lock acquired");
        let first = guard.token();
        // It is not to hear of it.
        proxy.blackhole_towards(Direction::ToClient, true);
        let nodes =
            tree::ephemerals(&place.addr(), &directory(&place, "broken")).await.expect("read succeeds");
        stranger.delete(&nodes[0], None).await.expect("znode exists");
        let before = proxy.counts();
        drop(guard);
        let asked = async {
            // What is asked behind the create.
            proxy.until("all", |stats| stats.total.since(&before).requests(opcode::GET_DATA) > 0).await;
            let as_one = were_one(&proxy, &before);
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
        assert!(tried < TRIES, "they never went out as one");
    }
    zl.close().await;
});

on_both_arms!(nothing_is_left_where_the_answer_to_both_is_lost, |place| async move {
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
            // It is asked for again, once.
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
            assert!(tried < TRIES, "they never went out as one");
        }
    }
});

on_both_arms!(who_may_not_ask_again_has_let_go, |place| async move {
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
        let error = zl.mutex("closed").lock().await.expect_err("it may not");
        assert!(matches!(error, Error::Denied { .. }), "{error}");
        let as_one = were_one(&proxy, &before);
        tree::assert_no_contenders(&place.addr(), &directory(&place, "closed")).await;
        allow(Permission::ALL).await;
        if as_one {
            break;
        }
        assert!(tried < TRIES, "they never went out as one");
    }
    zl.close().await;
});
