//! Numbered slots for the holders of permits: `run --slot`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use zoolock::{Error, Zoolock};
use zoolock_tests::locks::{connect, settings, short_session_settings};
use zoolock_tests::skip::is_long;
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{Place, Proxy, on_both_servers};

const NAME: &str = "team/encoders";

/// The state that all clients of the test share.
struct Fleet {
    /// Set while a client works in the slot.
    works: Vec<AtomicBool>,
    /// Number of finished holds.
    holds: AtomicU32,
    /// Number of holders that were lost, and that found no slot in time.
    lost: AtomicU32,
    starved: AtomicU32,
    goal: u32,
}

impl Fleet {
    /// Works in a slot until the time has passed or the permits are lost.
    async fn work(&self, slot: u32, lost: impl Future, time: Duration, grace: Duration) -> bool {
        let works = &self.works[slot as usize];
        assert!(!works.swap(true, Ordering::SeqCst), "two clients work in slot {slot}");
        let is_lost = tokio::select! {
            _ = lost => {
                // The command has its grace.
                tokio::time::sleep(grace).await;
                true
            }
            () = tokio::time::sleep(time) => false,
        };
        works.store(false, Ordering::SeqCst);
        is_lost
    }
}

/// Holds a permit and a slot, again and again. A client that is cut off ends its work when it learns of the loss.
async fn churn(fleet: Arc<Fleet>, place: Place, number: usize) {
    let mut random = fastrand::Rng::new();
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let connect = async || {
        let settings = short_session_settings();
        settings.connect(&place.connect_string_through(&proxy.addr())).await.expect("session starts")
    };
    let mut zl = connect().await;
    while fleet.holds.load(Ordering::SeqCst) < fleet.goal {
        let size = u32::try_from(fleet.works.len()).expect("a small number");
        let semaphore = zl.semaphore(NAME, size).adopt_size();
        let permit = match semaphore.acquire_timeout(1, Duration::from_secs(20)).await {
            Ok(permit) => permit,
            // After an outage.
            Err(error) if error.is_retryable() || error.is_lost() => {
                zl = connect().await;
                continue;
            }
            Err(error) => panic!("client {number}: {error}"),
        };
        let slots = match permit.take_slots(semaphore.permits(), 1, Duration::MAX).await {
            Ok(slots) => slots,
            Err(Error::Lost { .. }) => continue,
            Err(Error::Conflict { .. }) => {
                fleet.starved.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            Err(error) => panic!("client {number}: {error}"),
        };
        let is_cut = random.u32(..fleet.goal / 3) == 0;
        let time = match is_cut {
            true => {
                proxy.blackhole(true);
                Duration::from_secs(60)
            }
            false => Duration::from_millis(random.u64(..4)),
        };
        // A lost session may expire soon, so only a holder whose permit was broken has time.
        let grace = if is_cut { Duration::ZERO } else { Duration::from_millis(random.u64(..30)) };
        if fleet.work(slots.numbers()[0], permit.lost(), time, grace).await {
            fleet.lost.fetch_add(1, Ordering::SeqCst);
        }
        slots.free(&permit);
        let _ = permit.release().await;
        if is_cut {
            proxy.blackhole(false);
            drop(zl);
            zl = connect().await;
        }
        fleet.holds.fetch_add(1, Ordering::SeqCst);
    }
    zl.close().await;
}

/// Breaks a holder, or changes the size, now and then.
async fn disturb(fleet: Arc<Fleet>, zl: Zoolock) {
    let mut random = fastrand::Rng::new();
    let size = u32::try_from(fleet.works.len()).expect("a small number");
    let semaphore = zl.semaphore(NAME, size).adopt_size();
    while fleet.holds.load(Ordering::SeqCst) < fleet.goal {
        tokio::time::sleep(Duration::from_millis(random.u64(20..100))).await;
        if random.bool() {
            let _ = semaphore.resize(random.u32(size / 2..=size)).await;
            continue;
        }
        let seen = zl.admin().snapshot(NAME).await.expect("snapshot read");
        let holders: Vec<_> = seen.holders().filter_map(|holder| holder.token).collect();
        if let Some(token) = random.choice(holders) {
            let _ = zl.admin().break_lock(NAME, token).await;
        }
    }
}

on_both_servers!(no_slot_has_two_owners, |place| async move {
    let (clients, slots, goal) = if is_long() { (50, 16, 10_000) } else { (8, 4, 150) };
    let works = (0..slots).map(|_| AtomicBool::new(false)).collect();
    let (holds, lost, starved) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let fleet = Arc::new(Fleet { works, holds, lost, starved, goal });
    let zl = connect(&place).await;
    let disturbing = tokio::spawn(disturb(fleet.clone(), zl.clone()));
    let churns = (0..clients).map(|number| tokio::spawn(churn(fleet.clone(), place.clone(), number)));
    for client in futures_util::future::join_all(churns).await {
        client.expect("no slot has two owners");
    }
    disturbing.await.expect("the operator ends");
    let count = |number: &AtomicU32| number.load(Ordering::SeqCst);
    assert!(count(&fleet.lost) > 0, "the operator broke holders");
    assert_eq!(count(&fleet.starved), 0, "a holder had no slot for a session timeout");
    // The sessions of clients that were cut off expire soon.
    let all_free = async {
        while !zl.admin().slots(NAME).await.expect("slots read").is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    finish_in_time(all_free).await;
    assert!(zl.admin().locks(None, 0).await.expect("locks read").len() <= 1, "slots are no locks");
});

on_both_servers!(slot_whose_create_had_no_reply_is_kept, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = settings().connect(&place.connect_string_through(&proxy.addr())).await.expect("session starts");
    // The directory exists afterwards.
    let first = zl.semaphore(NAME, 2).acquire(1).await.expect("acquired");
    first.take_slots(2, 1, Duration::MAX).await.expect("a slot").free(&first);
    first.release().await.expect("released");
    let permit = zl.semaphore(NAME, 2).acquire(1).await.expect("acquired");
    proxy.drop_next_reply(zoolock_tests::opcode::CREATE2);
    let slots = finish_in_time(permit.take_slots(2, 1, Duration::MAX)).await.expect("a slot");
    assert_eq!(slots.numbers(), [0], "the first create has succeeded");
    assert_eq!(zl.admin().slots(NAME).await.expect("slots read"), [0]);
    permit.release().await.expect("released");
});

on_both_servers!(holder_without_a_slot_waits_for_one, |place| async move {
    let (one, two) = (connect(&place).await, connect(&place).await);
    let broken = one.semaphore(NAME, 1).acquire(1).await.expect("acquired");
    let slots = broken.take_slots(1, 1, Duration::MAX).await.expect("a slot");
    two.admin().break_lock(NAME, broken.ticket()).await.expect("broken");
    finish_in_time(broken.lost()).await;
    let next = finish_in_time(two.semaphore(NAME, 1).acquire(1)).await.expect("acquired");
    let begun = Instant::now();
    let patience = Duration::from_millis(300);
    let error = finish_in_time(next.take_slots(1, 1, patience)).await.expect_err("the slot is taken");
    assert!(
        matches!(&error, Error::Conflict { .. }) && error.to_string().contains("no free slot"),
        "{error}"
    );
    assert!(begun.elapsed() >= patience, "it gave up early");
    // The command of the broken holder has ended.
    slots.free(&broken);
    let slots = finish_in_time(next.take_slots(1, 1, Duration::MAX)).await.expect("the slot is free");
    assert_eq!(slots.numbers(), [0]);
});
