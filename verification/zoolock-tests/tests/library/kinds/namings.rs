//! Znode naming schemes of other client libraries, and foreign contenders that would ignore
//! zoolock's znodes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock::{Error, LockEvent, Naming, TestServer};
use zoolock_tests::Judge;
use zoolock_tests::{on_both_servers, tree};

use zoolock_tests::locks::{connect, directory, lock_and_release, until_queued};

const SOON: Duration = Duration::from_secs(20);
const UUID: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

/// Creates the znode of a foreign contender that does nothing. Returns its path.
async fn create_foreign_contender(client: &Client, directory: &str, name: &str) -> String {
    let sequential = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let path = format!("{directory}/{name}");
    let (_, sequence) = client.create(&path, b"host7:4711", &sequential).await.expect("znode created");
    format!("{path}{sequence}")
}

on_both_servers!(compatible_namings_share_a_queue, |place| async move {
    for (name, namings) in [
        ("curators", [Naming::Native, Naming::Curator]),
        ("recipes", [Naming::Native, Naming::WriteLock]),
        ("kazoos", [Naming::Kazoo, Naming::Kazoo]),
    ] {
        let judge = Arc::new(Judge::new());
        let mut tasks = Vec::new();
        for (at, naming) in namings.into_iter().cycle().take(6).enumerate() {
            let (zl, judge) = (connect(&place).await, judge.clone());
            tasks.push(tokio::spawn(async move {
                let mutex = zl.mutex(name).naming(naming);
                for _ in 0..15 {
                    let guard = mutex.lock().await.expect("lock granted");
                    judge.enter(at, guard.token());
                    tokio::task::yield_now().await;
                    judge.exit(&at);
                    guard.release().await.expect("release succeeds");
                }
            }));
        }
        for task in tasks {
            task.await.expect("task does not panic");
        }
        assert_eq!(judge.checked_grants().len(), 90);
        tree::assert_no_contenders(&place.addr(), &directory(&place, name)).await;
    }
});

on_both_servers!(rwlock_works_with_every_naming_that_supports_it, |place| async move {
    for naming in [Naming::Native, Naming::Curator, Naming::Kazoo] {
        let zl = connect(&place).await;
        let name = format!("rw-{naming}");
        let rwlock = zl.rwlock(&name).naming(naming);
        let (one, other) =
            (rwlock.read().await.expect("lock acquired"), rwlock.read().await.expect("read lock acquired"));
        assert!(rwlock.try_write().await.expect("attempt succeeds").is_none(), "{naming}: two readers hold");
        other.release().await.expect("release succeeds");
        one.release().await.expect("release succeeds");
        let writer = rwlock.write().await.expect("lock acquired");
        assert!(rwlock.try_read().await.expect("attempt succeeds").is_none(), "{naming}: a writer holds");
        let reader = writer.downgrade().await.expect("downgrade succeeds");
        let beside = rwlock.try_read().await.expect("attempt succeeds").expect("readers share");
        beside.release().await.expect("release succeeds");
        reader.release().await.expect("release succeeds");
        let writer = rwlock.try_write().await.expect("attempt succeeds").expect("lock acquired");
        let waiting = tokio::spawn({
            let rwlock = rwlock.clone();
            async move { rwlock.read().await }
        });
        until_queued(&zl, &name, 2).await;
        let reader = writer.downgrade().await.expect("downgrade succeeds");
        let other = timeout(SOON, waiting)
            .await
            .expect("lock granted")
            .expect("task does not panic")
            .expect("read lock acquired");
        drop((reader, other));
        tree::assert_no_contenders(&place.addr(), &directory(&place, &name)).await;
    }
});

on_both_servers!(multi_lock_works_with_every_naming, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let held = zl.multi(["a", "b"]).naming(Naming::Curator).lock().await.expect("lock acquired");
    let waiting = tokio::spawn({
        let multi = other.multi(["b", "a"]);
        async move { multi.lock().await }
    });
    until_queued(&zl, "a", 2).await;
    assert!(zl.multi(["a", "b"]).try_lock().await.expect("attempt succeeds").is_none());
    held.release().await.expect("release succeeds");
    timeout(SOON, waiting)
        .await
        .expect("lock granted")
        .expect("task does not panic")
        .expect("lock acquired")
        .release()
        .await
        .expect("release succeeds");
});

on_both_servers!(error_names_incompatible_contenders_and_the_remedy, |place| async move {
    let (zl, foreign_client) =
        (connect(&place).await, tree::connect(&place.addr()).await.expect("session starts"));
    lock_and_release(&zl.mutex("q")).await;
    let directory = directory(&place, "q");
    let kazoo = create_foreign_contender(&foreign_client, &directory, &format!("{HEX}__lock__")).await;
    let refused = |error: Error| match error {
        Error::ForeignContender { message, .. } => message,
        other => panic!("{other}"),
    };
    for outcome in [zl.mutex("q").lock().await.map(drop), zl.mutex("q").try_lock().await.map(drop)] {
        let message = refused(outcome.expect_err("kazoo would ignore our znode"));
        for word in [
            "a lock of kazoo",
            "number 0000000001",
            "naming kazoo",
            "extra_lock_patterns",
            "kazoo-pattern in --naming",
        ] {
            assert!(message.contains(word), "{word} is not in: {message}");
        }
    }
    tree::assert_contenders(&place.addr(), &directory, 1).await;
    // An attempt with a compatible naming is not refused. It fails only because kazoo's contender is ahead.
    assert!(zl.mutex("q").naming(Naming::Kazoo).try_lock().await.expect("attempt succeeds").is_none());
    assert!(zl.mutex("q").kazoo_pattern().try_lock().await.expect("attempt succeeds").is_none());
    // Beside contenders of both kazoo and Curator every naming is refused, because these two ignore each other.
    let curator = create_foreign_contender(&foreign_client, &directory, &format!("{UUID}-lock-")).await;
    for lock in [zl.mutex("q"), zl.mutex("q").naming(Naming::Kazoo), zl.mutex("q").kazoo_pattern()] {
        let message = refused(lock.lock().await.map(drop).expect_err("two contenders could hold the lock"));
        assert!(message.contains("Curator") && message.contains("kazoo"), "{message}");
    }
    foreign_client.delete(&kazoo, None).await.expect("znode exists");
    assert!(zl.mutex("q").try_lock().await.expect("Curator sees our znode").is_none());
    let message =
        refused(zl.rwlock("q").write().await.map(drop).expect_err("Curator's mutex ignores writers"));
    assert!(message.contains("as a mutex"), "{message}");
    foreign_client.delete(&curator, None).await.expect("znode exists");
    let writer = create_foreign_contender(&foreign_client, &directory, &format!("{UUID}-__WRIT__")).await;
    let message =
        refused(zl.mutex("q").lock().await.map(drop).expect_err("Curator's writer ignores mutexes"));
    assert!(message.contains("--naming native,rw"), "{message}");
    assert!(zl.rwlock("q").try_write().await.expect("attempt succeeds").is_none());
    foreign_client.delete(&writer, None).await.expect("znode exists");
    lock_and_release(&zl.mutex("q")).await;
});

on_both_servers!(holder_is_warned_of_incompatible_contender, |place| async move {
    let (zl, foreign_client) =
        (connect(&place).await, tree::connect(&place.addr()).await.expect("session starts"));
    let mutex = zl.mutex("q");
    let mut events = mutex.events();
    let guard = mutex.lock().await.expect("lock acquired");
    assert!(matches!(events.next().await, Some(LockEvent::Acquired(_))));
    let directory = directory(&place, "q");
    // A compatible contender causes no event.
    create_foreign_contender(&foreign_client, &directory, &format!("{UUID}-lock-")).await;
    assert!(timeout(Duration::from_secs(3), events.next()).await.is_err(), "no event is expected");
    create_foreign_contender(&foreign_client, &directory, &format!("{HEX}__lock__")).await;
    match timeout(SOON, events.next()).await.expect("event arrives in time") {
        Some(LockEvent::ForeignContender(ticket, what)) => {
            assert_eq!(ticket, guard.ticket());
            assert!(what.contains("kazoo"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    guard.release().await.expect("release succeeds");
});

on_both_servers!(holder_is_warned_of_foreign_semaphore, |place| async move {
    let (zl, foreign_client) =
        (connect(&place).await, tree::connect(&place.addr()).await.expect("session starts"));
    let (beside_curator, beside_kazoo) = (zl.mutex("curator"), zl.rwlock("kazoo"));
    let mut told = [beside_curator.events(), beside_kazoo.events()];
    let (mutex, reader) = (
        beside_curator.lock().await.expect("lock acquired"),
        beside_kazoo.read().await.expect("lock acquired"),
    );
    let tickets = [mutex.ticket(), reader.ticket()];
    for (events, ticket) in told.iter_mut().zip(tickets) {
        assert_eq!(events.next().await, Some(LockEvent::Acquired(ticket)));
    }
    let lasting = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for part in ["locks", "leases"] {
        let path = format!("{}/{part}", directory(&place, "curator"));
        foreign_client.create(&path, b"", &lasting).await.expect("znode created");
    }

    let words =
        [["a mutex of zoolock", "a semaphore of Curator"], ["a reader of zoolock", "a semaphore of kazoo"]];
    for ((events, ticket), words) in told.iter_mut().zip(tickets).zip(words) {
        if ticket == reader.ticket() {
            // This data alone makes the directory a semaphore of kazoo. No permit is held, and the
            // reader has already checked the directory.
            let kazoo = directory(&place, "kazoo");
            foreign_client.set_data(&kazoo, b"5", None).await.expect("data written");
        }
        match timeout(SOON, events.next()).await.expect("event arrives in time") {
            Some(LockEvent::ForeignContender(of, what)) => {
                assert_eq!(of, ticket);
                assert!(words.iter().all(|word| what.contains(word)), "{words:?} are not in: {what}");
            }
            other => panic!("{other:?} instead of {words:?}"),
        }
    }
    mutex.release().await.expect("release succeeds");
    reader.release().await.expect("release succeeds");
    // Each holder received only one warning.
    for (events, ticket) in told.iter_mut().zip(tickets) {
        let next = timeout(SOON, events.next()).await.expect("event arrives in time");
        assert_eq!(next, Some(LockEvent::Released(ticket)));
    }
});

on_both_servers!(unsupported_kind_for_naming_is_refused_locally, |place| async move {
    let zl = connect(&place).await;
    let refused = |error: Error| {
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        error.to_string()
    };
    let of = |naming| zl.rwlock("x").naming(naming);
    assert!(
        refused(of(Naming::WriteLock).read().await.map(drop).expect_err("naming does not support this kind"))
            .contains("write-lock")
    );
    assert!(
        refused(
            of(Naming::Curator)
                .upgradable_read()
                .await
                .map(drop)
                .expect_err("naming does not support this kind")
        )
        .contains("native")
    );
});

/// When a session reconnects, the client must be able to set all its watches again in one batch.
/// Otherwise the session is lost.
#[tokio::test(flavor = "multi_thread")]
async fn full_session_of_locks_survives_a_reconnect() {
    let server = TestServer::start().await.expect("server starts");
    let settings = server.client().root("/q").naming(Naming::Curator);
    let zl = settings.connect(&server.address()).await.expect("session starts");
    let mut tasks = tokio::task::JoinSet::new();
    let (mut guards, sessions) = (Vec::new(), server.sessions());
    // With native znode names, one session has room for this number of locks. Curator's names are
    // longer, so the client needs a second session.
    for at in 0..2100 {
        let mutex = zl.mutex(format!("m{at:04}"));
        tasks.spawn(async move { mutex.lock().await.expect("lock acquired") });
        if tasks.len() >= 100 {
            guards.push(tasks.join_next().await.expect("tasks are left").expect("task does not panic"));
        }
    }
    guards.extend(tasks.join_all().await);
    assert!(server.sessions() > sessions, "the locks need a second session");
    server.cut_connections();
    let released = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    for released in released.collect::<Vec<_>>() {
        timeout(SOON, released)
            .await
            .expect("finishes in time")
            .expect("task does not panic")
            .expect("lock is held throughout");
    }
}

/// kazoo creates the directory once for each of its lock objects, and fails if the directory is removed later.
#[tokio::test(flavor = "multi_thread")]
async fn directory_shared_with_kazoo_is_not_removed() {
    let server = TestServer::start().await.expect("server starts");
    let zl = server.connect().await.expect("session starts");
    let shared = [zl.mutex("named").naming(Naming::Kazoo), zl.mutex("sought").kazoo_pattern()];
    for mutex in [&shared[0], &shared[1], &zl.mutex("plain")] {
        lock_and_release(mutex).await;
    }
    let native = zl.semaphore("native", 2);
    native.acquire(1).await.expect("permit acquired").release().await.expect("release succeeds");
    let removed = async {
        loop {
            match native.resize(3).await {
                Ok(()) => server.advance(Duration::from_secs(1)),
                Err(error) => return error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let error = timeout(SOON, removed).await.expect("the unused semaphore is removed in time");
    assert!(error.contains("is not a semaphore"), "{error}");
    let operator = tree::connect(&server.address()).await.expect("session starts");
    for (name, stays) in [("named", true), ("sought", true), ("plain", false)] {
        let stat = operator.check_stat(&format!("/locks/{name}")).await.expect("server answered");
        assert_eq!(stat.is_some(), stays, "{name}");
    }
}
