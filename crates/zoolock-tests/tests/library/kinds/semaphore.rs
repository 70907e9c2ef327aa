//! Permits.

use std::time::Duration;

use tokio::time::timeout;
use zoolock::Error;
use zoolock_tests::{on_both_arms, tree};

use crate::kinds::permits;
use zoolock_tests::locks::{connect, directory, until_queued};

const SOON: Duration = Duration::from_secs(20);

on_both_arms!(so_many_hold_and_no_more, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let semaphore = zl.semaphore("five", 5);
    let three = semaphore.acquire_many(3).await.expect("free");
    let one = other.semaphore("five", 5).acquire().await.expect("free");
    assert!(semaphore.try_acquire(2).await.expect("an answer").is_none());
    let last = semaphore.try_acquire(1).await.expect("an answer").expect("one is left");
    assert!(semaphore.try_acquire(1).await.expect("an answer").is_none());
    let error = semaphore.acquire_timeout(1, Duration::from_millis(100)).await.expect_err("none is left");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let two = tokio::spawn(async move { other.semaphore("five", 5).acquire_many(2).await });
    until_queued(&zl, "five", 4).await;
    drop(last);
    drop(one);
    let two = timeout(SOON, two).await.expect("its turn").expect("no panic").expect("granted");
    drop((three, two));
    tree::assert_no_contenders(&place.addr(), &directory(&place, "five")).await;
});

on_both_arms!(sizes_are_agreed_and_changed_on_purpose, |place| async move {
    let zl = connect(&place).await;
    let mut semaphore = zl.semaphore("sized", 2);
    let error = zl.semaphore("sized", 2).resize(3).await.expect_err("nobody has used it");
    assert!(matches!(error, Error::Invalid { .. } | Error::Unavailable { .. }), "{error}");
    let held = semaphore.acquire_many(2).await.expect("free");
    let error = zl.semaphore("sized", 3).acquire().await.expect_err("another size");
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("2 permits"), "{error}");
    for (permits, size) in [(0, 2), (3, 2), (1, 0)] {
        let error = zl.semaphore("sized", size).acquire_many(permits).await.expect_err("makes no sense");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    // Growing wakes those who wait.
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    });
    until_queued(&zl, "sized", 2).await;
    semaphore.resize(3).await.expect("ours to say");
    assert_eq!(semaphore.permits(), 3);
    let third = timeout(SOON, waiting).await.expect("its turn").expect("no panic").expect("granted");
    assert!(zl.semaphore("sized", 2).try_acquire(1).await.is_err(), "the old size is refused now");
    // Shrinking takes nothing away, and nobody gets in until it fits.
    semaphore.resize(1).await.expect("ours to say");
    assert!(held.is_valid() && third.is_valid());
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    });
    until_queued(&zl, "sized", 3).await;
    let behind = tokio::spawn({
        let zl = zl.clone();
        async move { zl.semaphore("sized", 1).acquire().await }
    });
    until_queued(&zl, "sized", 4).await;
    held.release().await.expect("ours");
    assert!(semaphore.try_acquire(1).await.expect("an answer").is_none());
    third.release().await.expect("ours");
    for waiter in [waiting, behind] {
        let guard = timeout(SOON, waiter).await.expect("its turn").expect("no panic").expect("granted");
        guard.release().await.expect("ours");
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, "sized")).await;
});

on_both_arms!(semaphores_and_locks_refuse_each_other, |place| async move {
    let zl = connect(&place).await;
    let held = zl.semaphore("permits", 5).acquire().await.expect("free");
    for error in [
        zl.mutex("permits").lock().await.expect_err("another kind"),
        zl.rwlock("permits").read().await.expect_err("another kind"),
        zl.rwlock("permits").write().await.expect_err("another kind"),
        zl.multi(["permits", "other"]).lock().await.expect_err("another kind"),
    ] {
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("semaphore"), "{error}");
    }
    held.release().await.expect("ours");
    let error = zl.mutex("permits").lock().await.expect_err("still a semaphore");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let guard = zl.mutex("plain").lock().await.expect("free");
    let error = zl.semaphore("plain", 5).acquire().await.expect_err("a mutex is there");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    guard.release().await.expect("ours");
    let error = zl.semaphore("plain", 5).acquire().await.expect_err("its record says so");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    for name in ["permits", "plain", "other"] {
        tree::assert_no_contenders(&place.addr(), &directory(&place, name)).await;
    }
});

fn rounds() -> u32 {
    if std::env::var_os("ZOOLOCK_LONG").is_some() { 10_000 } else { 500 }
}

on_both_arms!(two_who_want_two_of_two_are_never_stuck, |place| async move {
    let clients = [connect(&place).await, connect(&place).await];
    permits::two_want_two(clients.map(|zl| zl.semaphore("two", 2)), rounds()).await;
    tree::assert_no_contenders(&place.addr(), &directory(&place, "two")).await;
});

on_both_arms!(a_crowd_of_different_appetites_is_served_and_nobody_is_forgotten, |place| async move {
    let clients = [connect(&place).await, connect(&place).await, connect(&place).await];
    permits::a_crowd_is_served(&clients.map(|zl| zl.semaphore("crowd", 7)), 30, 10).await;
    tree::assert_no_contenders(&place.addr(), &directory(&place, "crowd")).await;
});
