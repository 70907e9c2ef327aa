//! Semaphores.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock::{Error, Naming, Semaphore};
use zoolock_tests::{on_both_servers, tree};

use zoolock_tests::locks::{await_guard, connect, directory, until_queued};

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "leases/_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301-lease-0000000000";
const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

on_both_servers!(semaphore_grants_at_most_its_size, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let semaphore = zl.semaphore("five", 5);
    let three = semaphore.acquire(3).await.expect("lock acquired");
    let one = other.semaphore("five", 5).acquire(1).await.expect("lock acquired");
    assert!(semaphore.try_acquire(2).await.expect("attempt succeeds").is_none());
    let last = semaphore.try_acquire(1).await.expect("attempt succeeds").expect("one permit is free");
    assert!(semaphore.try_acquire(1).await.expect("attempt succeeds").is_none());
    let error =
        semaphore.acquire_timeout(1, Duration::from_millis(100)).await.expect_err("no permit is free");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let two = tokio::spawn(async move { other.semaphore("five", 5).acquire(2).await });
    until_queued(&zl, "five", 4).await;
    drop(last);
    drop(one);
    let two = timeout(SOON, await_guard(two)).await.expect("granted in time");
    drop((three, two));
    tree::assert_no_contenders(&place.addr(), &directory(&place, "five")).await;
});

on_both_servers!(semaphore_size_is_checked_and_resizable, |place| async move {
    let zl = connect(&place).await;
    let semaphore = zl.semaphore("sized", 2);
    let error = zl.semaphore("sized", 2).resize(3).await.expect_err("semaphore does not exist yet");
    assert!(matches!(error, Error::WrongKind { .. } | Error::Unavailable { .. }), "{error}");
    let held = semaphore.acquire(2).await.expect("lock acquired");
    let error = zl.semaphore("sized", 3).acquire(1).await.expect_err("size differs");
    assert!(matches!(error, Error::WrongSize { expected: 3, actual: 2, .. }), "{error}");
    assert_eq!((error.path(), error.is_retryable()), (Some("/locks/sized"), false));
    for (permits, size) in [(0, 2), (3, 2), (1, 0)] {
        let error = zl.semaphore("sized", size).acquire(permits).await.expect_err("numbers are invalid");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    // A larger size wakes waiters.
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(1).await }
    });
    until_queued(&zl, "sized", 2).await;
    semaphore.resize(3).await.expect("resize succeeds");
    assert_eq!(semaphore.permits(), 3);
    let third = timeout(SOON, await_guard(waiting)).await.expect("granted in time");
    assert!(
        zl.semaphore("sized", 2).try_acquire(1).await.is_err(),
        "the old size is refused after the resize"
    );
    // A smaller size revokes no permit. New requests wait until enough permits are free.
    semaphore.resize(1).await.expect("resize succeeds");
    assert!(held.is_valid() && third.is_valid());
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(1).await }
    });
    until_queued(&zl, "sized", 3).await;
    let behind = tokio::spawn({
        let zl = zl.clone();
        async move { zl.semaphore("sized", 1).acquire(1).await }
    });
    until_queued(&zl, "sized", 4).await;
    held.release().await.expect("release succeeds");
    assert!(semaphore.try_acquire(1).await.expect("attempt succeeds").is_none());
    third.release().await.expect("release succeeds");
    for waiter in [waiting, behind] {
        let guard = timeout(SOON, await_guard(waiter)).await.expect("granted in time");
        guard.release().await.expect("release succeeds");
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, "sized")).await;
});

on_both_servers!(semaphores_and_locks_refuse_each_other, |place| async move {
    let zl = connect(&place).await;
    let held = zl.semaphore("permits", 5).acquire(1).await.expect("lock acquired");
    for error in [
        zl.mutex("permits").lock().await.expect_err("lock kind differs"),
        zl.rwlock("permits").read().await.expect_err("lock kind differs"),
        zl.rwlock("permits").write().await.expect_err("lock kind differs"),
        zl.multi(["permits", "other"]).lock().await.expect_err("lock kind differs"),
    ] {
        assert!(
            matches!(error, Error::WrongKind { .. }) && error.to_string().contains("semaphore"),
            "{error}"
        );
    }
    held.release().await.expect("release succeeds");
    let error = zl.mutex("permits").lock().await.expect_err("directory is still a semaphore");
    assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    let guard = zl.mutex("plain").lock().await.expect("lock acquired");
    let error = zl.semaphore("plain", 5).acquire(1).await.expect_err("a mutex is held");
    assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    guard.release().await.expect("release succeeds");
    let error = zl.semaphore("plain", 5).acquire(1).await.expect_err("directory record names a mutex");
    assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    for name in ["permits", "plain", "other"] {
        tree::assert_no_contenders(&place.addr(), &directory(&place, name)).await;
    }
});

fn rounds() -> u32 {
    if zoolock_tests::skip::is_long() { 10_000 } else { 500 }
}

on_both_servers!(requests_for_all_permits_never_deadlock, |place| async move {
    let clients = [connect(&place).await, connect(&place).await];
    request_all_permits(clients.map(|zl| zl.semaphore("two", 2)), rounds()).await;
    tree::assert_no_contenders(&place.addr(), &directory(&place, "two")).await;
});

on_both_servers!(many_mixed_requests_are_all_granted, |place| async move {
    let clients = [connect(&place).await, connect(&place).await, connect(&place).await];
    run_mixed_requests(&clients.map(|zl| zl.semaphore("crowd", 7)), 30, 10).await;
    tree::assert_no_contenders(&place.addr(), &directory(&place, "crowd")).await;
});

/// Time limit for a grant of permits.
const BOUND: Duration = Duration::from_secs(60);

/// Runs two clients that each acquire both permits of a semaphore, again and again.
///
/// Curator's client acquires permits one by one. Two such clients would deadlock with one permit each.
async fn request_all_permits(semaphores: [Semaphore; 2], rounds: u32) {
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = JoinSet::new();
    for semaphore in semaphores {
        let inside = inside.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let guard = timeout(BOUND, semaphore.acquire(2))
                    .await
                    .expect("granted in time")
                    .expect("lock granted");
                assert_eq!(inside.fetch_add(2, Ordering::SeqCst), 0);
                inside.fetch_sub(2, Ordering::SeqCst);
                guard.release().await.expect("release succeeds");
            }
        });
    }
    tasks.join_all().await;
}

/// Runs `crowd` tasks that acquire different numbers of permits.
async fn run_mixed_requests(semaphores: &[Semaphore], crowd: u32, rounds: u32) {
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = JoinSet::new();
    for (task, semaphore) in (0..crowd).zip(semaphores.iter().cycle().cloned()) {
        let (size, inside) = (semaphore.permits(), inside.clone());
        tasks.spawn(async move {
            for round in 0..rounds {
                let take = 1 + (task + round) % size;
                if (task + round) % 4 == 0 {
                    // Some tasks time out at a random moment. Their successors must not wait for them.
                    let patience = Duration::from_millis(u64::from((task * 3 + round) % 9));
                    match semaphore.acquire_timeout(take, patience).await {
                        Ok(guard) => drop(guard),
                        Err(Error::Timeout { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    continue;
                }
                let guard = timeout(BOUND, semaphore.acquire(take)).await;
                let guard =
                    guard.unwrap_or_else(|_| panic!("task {task} was not granted {take} permits in time"));
                let guard = guard.expect("lock granted");
                let now = inside.fetch_add(take.into(), Ordering::SeqCst) + i64::from(take);
                assert!(now <= size.into(), "{now} of {size} permits are held");
                tokio::task::yield_now().await;
                inside.fetch_sub(take.into(), Ordering::SeqCst);
                guard.release().await.expect("release succeeds");
            }
        });
    }
    tasks.join_all().await;
}

/// Semaphores of other libraries: the name, the data and the children of the lock directory, and the library.
const FOREIGN: [(&str, &str, &[&str], &str); 4] = [
    ("curators", "", &["locks", "leases", LEASE], "Curator"),
    // Curator's `locks` is a container. The server deletes it when it is empty, so it is missing here.
    ("reaped", "", &["leases", LEASE], "Curator"),
    ("kazoos", "3", &[HEX], "kazoo"),
    ("idle", "3", &[], "kazoo"),
];

on_both_servers!(foreign_semaphore_is_refused_before_anything_is_created, |place| async move {
    let zl = connect(&place).await;
    let client = tree::connect(&place.addr()).await.expect("session starts");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    for (name, data, children, library) in FOREIGN {
        let directory = directory(&place, name);
        client.mkdir(&directory, &persistent).await.expect("directory created");
        client.set_data(&directory, data.as_bytes(), None).await.expect("data written");
        for child in children {
            let options = if child.len() > HEX.len() - 1 { &ephemeral } else { &persistent };
            client.create(&format!("{directory}/{child}"), b"", options).await.expect("znode created");
        }
        let stat =
            async || client.check_stat(&directory).await.expect("attempt succeeds").expect("znode exists");
        let before = stat().await;
        let semaphore = zl.semaphore(name, 3);
        let refusals = [
            semaphore.acquire(1).await.map(drop),
            semaphore.try_acquire(1).await.map(drop),
            semaphore.acquire_timeout(3, SOON).await.map(drop),
            zl.semaphore(name, 3).acquire(1).await.map(drop),
            semaphore.resize(4).await,
        ];
        let after = stat().await;
        assert_eq!((after.cversion, after.version), (before.cversion, before.version), "{name} was changed");
        for refusal in refusals {
            assert_foreign(refusal.expect_err(name), library);
        }
    }
    // The other lock kinds of zoolock are refused too, but only after they have created a znode.
    for (name, _, _, library) in FOREIGN.into_iter().filter(|(name, ..)| *name != "reaped") {
        let refusals = [
            zl.mutex(name).lock().await.map(drop),
            zl.mutex(name).try_lock().await.map(drop),
            zl.rwlock(name).read().await.map(drop),
            zl.rwlock(name).write().await.map(drop),
            zl.multi([name, "other"]).lock().await.map(drop),
        ];
        for refusal in refusals {
            assert_foreign(refusal.expect_err(name), library);
        }
    }
});

fn assert_foreign(error: Error, library: &str) {
    let told = error.to_string();
    assert!(matches!(error, Error::WrongKind { .. }), "{told}");
    let what = format!("is a semaphore of {library}");
    let remedy = format!("use another name, or acquire them with {library}");
    assert!(told.contains(&what) && told.contains(&remedy), "{told}");
}

on_both_servers!(semaphore_without_native_naming_is_refused, |place| async move {
    let zl = connect(&place).await;
    for naming in [Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
        let error = zl.semaphore("x", 2).naming(naming).acquire(1).await.expect_err("no such semaphore");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("only native has one"), "{error}");
    }
    let client = tree::connect(&place.addr()).await.expect("session starts");
    let made = client.check_stat(&directory(&place, "x")).await.expect("attempt succeeds");
    assert_eq!(made.map(|stat| stat.czxid), None, "nothing is created");
});

on_both_servers!(handle_that_adopts_the_size_follows_it, |place| async move {
    let zl = connect(&place).await;
    let strict = zl.semaphore("rolled", 2);
    let old = strict.clone().adopt_size();
    assert_eq!(old.available_permits().await.expect("read succeeds"), 2);
    let one = old.acquire(1).await.expect("permit acquired");
    assert_eq!(old.available_permits().await.expect("read succeeds"), 1);
    strict.resize(4).await.expect("resize succeeds");
    assert_eq!((strict.permits(), old.permits()), (4, 2));
    // An old handle, and one with the size of the next version, before and after the roll-out.
    let two = old.acquire(3).await.expect("the handle learns the size first");
    assert_eq!((old.permits(), two.permits()), (4, 3));
    let new = zl.semaphore("rolled", 9).adopt_size();
    assert!(new.try_acquire(1).await.expect("attempt succeeds").is_none());
    assert_eq!((new.permits(), new.available_permits().await.expect("read succeeds")), (4, 0));
    let error = new.acquire(5).await.expect_err("more than the size");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let error = zl.semaphore("rolled", 2).acquire(1).await.expect_err("size differs");
    assert!(matches!(error, Error::WrongSize { .. }), "{error}");
    drop((one, two));
    let held = zl.mutex("rolled-mutex").lock().await.expect("lock acquired");
    let error = zl.semaphore("rolled-mutex", 2).available_permits().await.expect_err("a mutex is held");
    assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    held.release().await.expect("release succeeds");
    let counted = zl.semaphore("rolled", 4).with_permits(4, SOON, async |guard| guard.permits()).await;
    assert_eq!(counted.expect("work is done"), 4);
});
