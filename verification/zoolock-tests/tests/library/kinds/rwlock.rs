//! Read-write locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;
use zoolock::{Error, NotUpgraded, Zoolock};
use zoolock_tests::{on_both_servers, tree};

use zoolock_tests::locks::{connect, directory, settings, until_queued};

/// Time limit of each step, generous enough for a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Counts the holders: each reader as 1, a writer as -1.
#[derive(Default)]
struct HolderCount(AtomicI64);

impl HolderCount {
    fn read<T>(&self, work: impl FnOnce() -> T) -> T {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) >= 0, "a reader beside a writer");
        let value = work();
        self.0.fetch_sub(1, Ordering::SeqCst);
        value
    }

    async fn write(&self) {
        assert_eq!(self.0.fetch_sub(1, Ordering::SeqCst), 0, "a writer beside another holder");
        tokio::task::yield_now().await;
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

on_both_servers!(readers_share_and_writers_exclude, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let lock = zl.rwlock("config");
    let first = lock.read().await.expect("lock acquired");
    let second = timeout(SOON, other.rwlock("config").read())
        .await
        .expect("read lock acquired")
        .expect("lock acquired");
    assert!(other.rwlock("config").try_write().await.expect("attempt succeeds").is_none());
    assert!(
        other.mutex("config").try_lock().await.expect("attempt succeeds").is_none(),
        "a mutex counts as a writer"
    );
    let writer = tokio::spawn(async move { other.rwlock("config").write().await });
    until_queued(&zl, "config", 3).await;
    assert!(lock.try_read().await.expect("attempt succeeds").is_none(), "a writer waits");
    first.release().await.expect("release succeeds");
    assert!(!writer.is_finished());
    second.release().await.expect("release succeeds");
    let writer = timeout(SOON, writer)
        .await
        .expect("lock granted")
        .expect("task does not panic")
        .expect("lock granted");
    assert!(lock.try_read().await.expect("attempt succeeds").is_none());
    writer.release().await.expect("release succeeds");
    let mutex = zl.mutex("config").lock().await.expect("lock acquired");
    assert!(lock.try_read().await.expect("attempt succeeds").is_none(), "a mutex counts as a writer");
    drop(mutex);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "config")).await;
});

on_both_servers!(downgraded_writer_admits_readers_only, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let write = zl.rwlock("on").write().await.expect("lock acquired");
    let token = write.token();
    let queued = tokio::spawn({
        let other = other.clone();
        async move { other.rwlock("on").write().await }
    });
    until_queued(&zl, "on", 2).await;
    let read = write.downgrade().await.expect("downgrade succeeds");
    assert!(read.is_valid());
    assert!(!queued.is_finished());
    // The downgrade is complete, and still no writer is granted the lock.
    assert!(zl.rwlock("on").try_write().await.expect("attempt succeeds").is_none());
    read.release().await.expect("release succeeds");
    let writer = timeout(SOON, queued)
        .await
        .expect("lock granted")
        .expect("task does not panic")
        .expect("lock granted");
    assert!(writer.token() > token);
    drop(writer);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "on")).await;
});

/// Returns the number of rounds: 10,000 if `ZOOLOCK_LONG` is set, and otherwise 500.
fn rounds() -> u64 {
    if zoolock_tests::skip::is_long() { 10_000 } else { 500 }
}

on_both_servers!(no_writer_intervenes_during_a_downgrade, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let (version, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let other_writer = tokio::spawn({
        let (version, stop) = (version.clone(), stop.clone());
        async move {
            let mut grants = 0;
            while stop.load(Ordering::SeqCst) == 0 {
                let guard = other.rwlock("between").write().await.expect("lock granted");
                version.fetch_add(1, Ordering::SeqCst);
                grants += 1;
                guard.release().await.expect("release succeeds");
            }
            grants
        }
    });
    let lock = zl.rwlock("between");
    for _ in 0..rounds() {
        let write = lock.write().await.expect("lock granted");
        let written = version.fetch_add(1, Ordering::SeqCst) + 1;
        let read = write.downgrade().await.expect("downgrade succeeds");
        assert_eq!(
            version.load(Ordering::SeqCst),
            written,
            "another writer held the lock during the downgrade"
        );
        tokio::task::yield_now().await;
        assert_eq!(version.load(Ordering::SeqCst), written, "another writer held the lock beside a reader");
        read.release().await.expect("release succeeds");
    }
    stop.store(1, Ordering::SeqCst);
    let grants = timeout(SOON, other_writer).await.expect("finishes in time").expect("task does not panic");
    assert!(grants >= rounds() / 2, "the other writer had {grants} grants of {}", rounds());
    tree::assert_no_contenders(&place.addr(), &directory(&place, "between")).await;
});

on_both_servers!(upgradable_reader_is_unique_and_has_priority, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let reader = other.rwlock("up").read().await.expect("lock acquired");
    let upgradable = zl.rwlock("up").upgradable_read().await.expect("upgradable read lock acquired");
    assert!(other.rwlock("up").try_upgradable_read().await.expect("attempt succeeds").is_none());
    let NotUpgraded { guard: upgradable, error, .. } =
        upgradable.try_upgrade().await.expect_err("a reader holds the lock");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let writing = tokio::spawn(async move { upgradable.upgrade().await.map_err(Error::from) });
    until_queued(&zl, "up", 3).await;
    assert!(other.rwlock("up").try_read().await.expect("attempt succeeds").is_none(), "a writer waits");
    reader.release().await.expect("release succeeds");
    let writer = timeout(SOON, writing)
        .await
        .expect("lock granted")
        .expect("task does not panic")
        .expect("lock granted");
    writer.release().await.expect("release succeeds");
    // An upgrade that times out leaves no writer in the queue.
    let reader = other.rwlock("up").read().await.expect("lock acquired");
    let upgradable = zl.rwlock("up").upgradable_read().await.expect("upgradable read lock acquired");
    let wait = Duration::from_millis(200);
    let lost = upgradable.upgrade_timeout(wait).await.expect_err("a reader holds the lock");
    assert!(matches!(lost.error, Error::Timeout { .. }), "{}", lost.error);
    let third = timeout(SOON, zl.rwlock("up").read()).await.expect("no writer waits").expect("lock granted");
    drop((reader, lost.guard, third));
    tree::assert_no_contenders(&place.addr(), &directory(&place, "up")).await;
});

/// Runs readers and writers of two clients for this time. Checks the exclusion, and that writers do not starve.
async fn crowd(zl: Zoolock, other: Zoolock, name: &str, readers: usize, writers: usize, long: Duration) {
    let room = Arc::new(HolderCount::default());
    let until = Instant::now() + long;
    let mut tasks = JoinSet::new();
    for reader in 0..readers {
        let (lock, room) = ([&zl, &other][reader % 2].rwlock(name), room.clone());
        tasks.spawn(async move {
            let (mut grants, mut longest) = (0u32, Duration::ZERO);
            while Instant::now() < until {
                let began = Instant::now();
                let guard = lock.read().await.expect("lock granted");
                longest = longest.max(began.elapsed());
                room.read(|| grants += 1);
                guard.release().await.expect("release succeeds");
            }
            ("reader", grants, longest)
        });
    }
    for writer in 0..writers {
        let (lock, room) = ([&zl, &other][writer % 2].rwlock(name), room.clone());
        tasks.spawn(async move {
            let (mut grants, mut longest) = (0u32, Duration::ZERO);
            while Instant::now() < until {
                let began = Instant::now();
                let guard = lock.write().await.expect("lock granted");
                longest = longest.max(began.elapsed());
                room.write().await;
                grants += 1;
                guard.release().await.expect("release succeeds");
            }
            ("writer", grants, longest)
        });
    }
    let mut seen = Vec::new();
    while let Some(done) = tasks.join_next().await {
        seen.push(done.expect("task does not panic"));
    }
    let of = |who| seen.iter().filter(move |one| one.0 == who);
    let (fewest, most) = (of("writer").map(|w| w.1).min(), of("reader").map(|r| r.1).max());
    let longest = |who| of(who).map(|one| one.2).max().unwrap_or_default();
    println!(
        "{readers} readers and {writers} writers for {long:?}: a writer had {fewest:?} grants at least, a reader {most:?} \
         at most; longest wait of a writer {:?}, of a reader {:?}",
        longest("writer"),
        longest("reader")
    );
    // In a fair queue all tasks are granted the lock about equally often.
    let (fewest, most) = (fewest.unwrap_or(0), most.unwrap_or(0));
    assert!(fewest * 3 + 3 >= most, "writers starve: {fewest} grants where a reader had {most}");
}

on_both_servers!(fifty_readers_do_not_starve_five_writers, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let long = if zoolock_tests::skip::is_long() { 60 } else { 4 };
    crowd(zl, other, "crowd", 50, 5, Duration::from_secs(long)).await;
    tree::assert_no_contenders(&place.addr(), &directory(&place, "crowd")).await;
});

on_both_servers!(a_writer_waits_only_for_the_readers_ahead_of_it, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mut ahead = Vec::new();
    for _ in 0..10 {
        ahead.push(other.rwlock("ahead").read().await.expect("lock acquired"));
    }
    let writer = tokio::spawn({
        let zl = zl.clone();
        async move { zl.rwlock("ahead").write().await }
    });
    until_queued(&zl, "ahead", 11).await;
    let mut behind = JoinSet::new();
    for _ in 0..10 {
        let other = other.clone();
        behind.spawn(async move { other.rwlock("ahead").read().await });
    }
    until_queued(&zl, "ahead", 21).await;
    drop(ahead);
    let writer = timeout(SOON, writer)
        .await
        .expect("lock granted")
        .expect("task does not panic")
        .expect("lock granted");
    assert!(behind.try_join_next().is_none(), "no reader behind the writer was granted the lock first");
    drop(writer);
    let mut reading = Vec::new();
    while let Some(reader) = timeout(SOON, behind.join_next()).await.expect("lock granted") {
        reading.push(reader.expect("task does not panic").expect("lock granted"));
    }
    assert_eq!(reading.len(), 10);
    drop(reading);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "ahead")).await;
});

on_both_servers!(upgraded_reader_is_lost_with_its_session, |place| async move {
    let zl = settings().connect(&place.connect_string()).await.expect("session starts");
    let writer = zl
        .rwlock("gone")
        .upgradable_read()
        .await
        .expect("lock acquired")
        .upgrade()
        .await
        .expect("upgrade succeeds");
    zl.close().await;
    assert_eq!(
        timeout(SOON, writer.lost()).await.expect("loss reported in time"),
        zoolock::LossReason::Closed
    );
    assert!(!writer.is_valid());
    let error = writer.downgrade().await.expect_err("lock is lost");
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "gone")).await;
});
