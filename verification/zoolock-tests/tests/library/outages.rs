//! Outages in which every holder must keep its lock, and changes of a server's settings that must
//! not lead to two holders.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zoolock::{Connection, Error, Guard, Zoolock};
use zoolock_tests::locks::{
    await_guard, directory, lock_in_background, settings, short_session_settings, until_queued,
};
use zoolock_tests::tree::assert_contenders;
use zoolock_tests::wait::{finish_in_time, retry_until_ok};
use zoolock_tests::{Proxy, ServerOptions, TestFailure, on_both_servers};

use crate::metrics::{Seen, recorder};

/// The session timeout of these tests.
const T: Duration = Duration::from_secs(12);

/// Time limit of each step, much longer than a step takes.
const BOUND: Duration = Duration::from_secs(60);

/// Number of pairs of a holder and a rival.
const PAIRS: usize = 20;

async fn open(connect_string: &str) -> Zoolock {
    settings().session_timeout(T).connect(connect_string).await.expect("session starts")
}

async fn until(guard: &Guard, wanted: Connection) {
    let mut connection = guard.connection_changes();
    let reached = timeout(BOUND, connection.wait_for(|connection| connection == wanted)).await;
    reached.expect("in time");
}

on_both_servers!(private shorter_timeout_leads_to_no_second_holder, |place| async move {
    let shorter = Duration::from_secs(2);
    let proxy = Arc::new(Proxy::start(&place.addr()).await.expect("proxy starts"));
    let mut pairs = Vec::new();
    for number in 0..PAIRS {
        let name = format!("shorter{number}");
        let (holder, rival) = (open(&place.connect_string_through(&proxy.addr())).await, open(&place.connect_string()).await);
        let guard = holder.mutex(&name).lock().await.expect("lock acquired");
        let waiting = lock_in_background(&rival.mutex(&name));
        until_queued(&rival, &name, 2).await;
        pairs.push((holder, guard, rival, waiting));
    }
    place.server().restart_with_limit(shorter).await.expect("server restarts");
    for (holder, guard, ..) in &pairs {
        let attached = || async {
            match holder.session_timeout() {
                Some(timeout) if timeout == shorter => Ok(()),
                other => Err(TestFailure::new(format!("{other:?}"))),
            }
        };
        retry_until_ok("the holder is attached again", BOUND, attached).await.expect("a shorter timeout");
        assert!(guard.valid_until().remaining() < shorter, "{:?}", guard.valid_until().remaining());
    }
    // The locks are kept, with shorter leases.
    sleep(shorter * 2).await;
    assert!(pairs.iter().all(|(_, guard, ..)| guard.is_valid()));
    // From now on no holder reaches the server, as if the processes of the holders were stopped.
    proxy.blackhole(true);
    for (_, guard, _, waiting) in &mut pairs {
        let next = timeout(BOUND, waiting).await.expect("in time").expect("task does not panic");
        assert!(!guard.is_valid(), "two holders");
        next.expect("lock granted").release().await.expect("release succeeds");
    }
    proxy.blackhole(false);
});

/// Opens `count` sessions, each of which acquires a lock of its own.
async fn holders(connect_string: &str, count: usize) -> Vec<(Zoolock, Guard)> {
    let mut holders = Vec::new();
    for number in 0..count {
        let zl = open(connect_string).await;
        let guard = zl.mutex(format!("held{number}")).lock().await.expect("lock acquired");
        holders.push((zl, guard));
    }
    holders
}

/// Checks during `time` that no lock is lost.
async fn stay_held(holders: &[(Zoolock, Guard)], time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        for (number, (_, guard)) in holders.iter().enumerate() {
            assert!(guard.is_valid(), "lock {number} was lost after {:?}", begun.elapsed());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

on_both_servers!(outage_of_a_quarter_of_the_timeout_loses_no_lock, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let holders = holders(&place.connect_string_through(&proxy.addr()), 8).await;
    // The first lease on a connection is longer than a renewed lease. In this time, every lease is
    // renewed.
    stay_held(&holders, T / 2).await;
    proxy.refuse(true).await;
    proxy.close_connections().await;
    stay_held(&holders, T / 4).await;
    proxy.refuse(false).await;
    for (_, guard) in &holders {
        until(guard, Connection::Connected).await;
    }
    stay_held(&holders, T).await;
    for (zl, guard) in holders {
        guard.release().await.expect("release succeeds");
        zl.close().await;
    }
});

on_both_servers!(silent_server_of_three_loses_no_lock, |place| async move {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Proxy::start(&place.addr()).await.expect("proxy starts"));
    }
    let addresses: Vec<String> = servers.iter().map(Proxy::addr).collect();
    let holders = holders(&place.connect_string_through(&addresses.join(",")), 24).await;
    stay_held(&holders, T / 2).await;
    // The first server accepts connections, but answers nothing.
    servers[0].blackhole(true);
    stay_held(&holders, T * 2).await;
    for (_, guard) in &holders {
        assert_eq!(guard.connection(), Connection::Connected);
    }
    for (zl, guard) in holders {
        guard.release().await.expect("release succeeds");
        zl.close().await;
    }
});

/// Maximum number of connections of the server: four for holders, and one for another client.
const PLACES: usize = 5;

on_both_servers!(
    private(ServerOptions { max_client_connections: PLACES, ..ServerOptions::default() })
    newcomers_take_no_places_of_holders_after_a_restart,
    |place| async move {
        // The leases outlast the start of a Java virtual machine on a busy machine.
        let long = || settings().session_timeout(T * 4).connect_timeout(BOUND * 2);
        let address = place.connect_string();
        let mut holders = Vec::new();
        for number in 0..PLACES - 1 {
            let zl = long().connect(&address).await.expect("session starts");
            let guard = zl.mutex(format!("held{number}")).lock().await.expect("lock acquired");
            holders.push((zl, guard));
        }
        let last = long().connect(&address).await.expect("session starts");
        let full = settings().connect_timeout(Duration::from_secs(1)).connect(&address).await;
        let error = full.expect_err("the server is at its limit").to_string();
        assert!(error.contains("maxClientCnxns"), "{error}");
        last.close().await;
        place.server().kill().await;
        let (sender, mut newcomers) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..PLACES * 4 {
            let (sender, address) = (sender.clone(), address.clone());
            tokio::spawn(async move { sender.send(long().connect(&address).await) });
        }
        // In this time, the new clients try to connect and fail.
        stay_held(&holders, T / 12).await;
        for (_, guard) in &holders {
            until(guard, Connection::Suspect).await;
        }
        let attached = async {
            for (_, guard) in &holders {
                until(guard, Connection::Connected).await;
            }
        };
        let restart = async {
            place.server().restart().await.expect("server restarts");
            // `restart` may never return: a server at its connection limit answers no four-letter
            // words.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // `restart` is polled first, so that it has stored the new server before the holders are attached.
            biased;
            () = restart => {}
            () = attached => {}
        }
        stay_held(&holders, T / 4).await;
        // Two of the new clients can connect once a holder has closed its session.
        let (zl, guard) = holders.pop().expect("a holder is left");
        guard.release().await.expect("release succeeds");
        zl.close().await;
        for _ in 0..2 {
            let newcomer = timeout(BOUND, newcomers.recv()).await.expect("in time").expect("task reports");
            newcomer.expect("session starts");
        }
    }
);

/// Time limit of a call that does not wait. It is shorter than every timeout of the client.
const PROMPT: Duration = Duration::from_secs(8);

fn is_unavailable<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Unavailable { .. }))
}

on_both_servers!(silent_server_is_not_reported_as_a_busy_lock, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = open(&place.connect_string_through(&proxy.addr())).await;
    let rival = open(&place.connect_string()).await;
    let held = rival.mutex("held").lock().await.expect("lock acquired");
    // The waiter joins the queue and learns that the lock is held. Then the server stops answering.
    let waiting = {
        let mutex = zl.mutex("held");
        tokio::spawn(async move { mutex.lock_timeout(Duration::from_secs(3)).await })
    };
    until_queued(&rival, "held", 2).await;
    proxy.blackhole(true);
    let waited = timeout(BOUND, waiting).await.expect("in time").expect("task does not panic");
    assert!(is_unavailable(&waited), "{waited:?}");
    // Calls that do not wait return soon, whether the session continues or has ended.
    for _ in 0..3 {
        let begun = Instant::now();
        let tried = zl.mutex("held").try_lock().await;
        assert!(is_unavailable(&tried), "{tried:?}");
        assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
        let nothing = zl.rwlock("free").write_timeout(Duration::ZERO).await;
        assert!(is_unavailable(&nothing), "{nothing:?}");
        sleep(T / 3).await;
    }
    proxy.blackhole(false);
    held.release().await.expect("release succeeds");
});

on_both_servers!(short_timeout_still_makes_one_attempt, |place| async move {
    let zl = open(&place.connect_string()).await;
    let rival = open(&place.connect_string()).await;
    for round in 0..50 {
        let patience = Duration::from_millis([0, 1][round % 2]);
        // Each round has new names, because the znode of a waiter that gave up is deleted in the background.
        let (short, permits) = (format!("short-{round}"), format!("permits-{round}"));
        let guard = zl.mutex(&short).lock_timeout(patience).await.expect("a free lock is acquired");
        let busy = rival.mutex(&short).lock_timeout(patience).await;
        assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
        let busy = rival.rwlock(&short).read_timeout(patience).await;
        assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
        guard.release().await.expect("release succeeds");
        let permit = zl.semaphore(&permits, 1).acquire_timeout(1, patience).await.expect("permit acquired");
        let busy = rival.semaphore(&permits, 1).acquire_timeout(1, patience).await;
        assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
        permit.release().await.expect("release succeeds");
    }
    // Another contender gave up after the last holder, so `try_lock` waits for the lock delay. This wait is part of the
    // attempt.
    let last = rival.mutex("careful").lock().await.expect("lock acquired");
    assert!(rival.rwlock("careful").try_read().await.expect("attempt succeeds").is_none());
    last.release().await.expect("release succeeds");
    let careful = zl.mutex("careful").crash_detection().lock_delay(Duration::from_secs(2));
    let guard = careful.try_lock().await.expect("attempt succeeds").expect("the lock is free");
    guard.release().await.expect("release succeeds");
});

on_both_servers!(waiter_waits_through_an_outage, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let patient = settings().session_timeout(T / 2).connect_timeout(Duration::from_secs(1));
    let zl = patient.connect(&place.connect_string_through(&proxy.addr())).await.expect("session starts");
    let rival = open(&place.connect_string()).await;
    let held = rival.mutex("outage").lock().await.expect("lock acquired");
    let forever = lock_in_background(&zl.mutex("outage"));
    until_queued(&rival, "outage", 2).await;
    let limited = {
        let mutex = zl.mutex("outage");
        tokio::spawn(async move { mutex.lock_timeout(BOUND * 5).await })
    };
    until_queued(&rival, "outage", 3).await;
    // The outage lasts until the session has expired, and then longer than the connect timeout.
    proxy.refuse(true).await;
    proxy.close_connections().await;
    assert_contenders(&place.addr(), &directory(&place, "outage"), 1).await;
    sleep(Duration::from_secs(3)).await;
    assert!(!forever.is_finished() && !limited.is_finished(), "a waiter gave up in an outage");
    proxy.refuse(false).await;
    until_queued(&rival, "outage", 3).await;
    held.release().await.expect("release succeeds");
    // The waiters have queued again in either order.
    let served = async |waiter: JoinHandle<Result<Guard, Error>>| {
        let guard = timeout(BOUND, waiter).await.expect("in time").expect("task does not panic");
        guard.expect("lock granted").release().await.expect("release succeeds");
    };
    tokio::join!(served(forever), served(limited));
});

on_both_servers!(waiter_retries_a_session_that_cannot_be_opened, |place| async move {
    let (snapshotter, _turn) = recorder().await;
    let mut seen = Seen::default();
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let rival = open(&place.connect_string()).await;
    let held = rival.mutex("forever").lock().await.expect("lock acquired");
    let written = rival.rwlock("limited").write().await.expect("lock acquired");
    let brisk = short_session_settings().connect_timeout(Duration::from_secs(1));
    let address = place.connect_string_through(&proxy.addr());
    let open_brisk =
        async || brisk.clone().connect(&address).await.map_err(|error| TestFailure::new(error.to_string()));
    let zl = retry_until_ok("a session starts", BOUND, open_brisk).await.expect("in time");
    let forever = lock_in_background(&zl.mutex("forever"));
    let limited = {
        let lock = zl.rwlock("limited");
        tokio::spawn(async move { lock.write_timeout(BOUND * 5).await })
    };
    for name in ["forever", "limited"] {
        until_queued(&rival, name, 2).await;
    }
    proxy.refuse(true).await;
    proxy.close_connections().await;
    // Each waiter loses its session, and then fails to open another session.
    let failed = || {
        seen.look(snapshotter);
        let count = |kind| seen.of("zoolock_acquire_seconds", &[("outcome", "unavailable"), ("kind", kind)]);
        let counts = ["mutex", "writer"].map(count);
        async move {
            if counts.iter().all(|count| *count >= 1.0) {
                Ok(())
            } else {
                Err(TestFailure::new(format!("{counts:?}")))
            }
        }
    };
    retry_until_ok("each waiter fails to open a session", BOUND, failed).await.expect("in time");
    proxy.refuse(false).await;
    for name in ["forever", "limited"] {
        until_queued(&rival, name, 2).await;
    }
    held.release().await.expect("release succeeds");
    written.release().await.expect("release succeeds");
    finish_in_time(await_guard(forever)).await.release().await.expect("release succeeds");
    finish_in_time(await_guard(limited)).await.release().await.expect("release succeeds");
});

on_both_servers!(close_ends_every_clone_of_the_client, |place| async move {
    let (zl, rival) = (open(&place.connect_string()).await, open(&place.connect_string()).await);
    let held = rival.mutex("closed").lock().await.expect("lock acquired");
    let waiting = lock_in_background(&zl.mutex("closed"));
    until_queued(&rival, "closed", 2).await;
    let clone = zl.clone();
    zl.close().await;
    let is_closed = |error: &Error| matches!(error, Error::Closed);
    let waited = timeout(BOUND, waiting).await.expect("in time").expect("task does not panic");
    let error = waited.expect_err("the client is closed");
    assert!(is_closed(&error) && !error.to_string().contains("lost"), "{error}");
    for _ in 0..3 {
        let error = clone.mutex("free").lock().await.expect_err("the client is closed");
        assert!(is_closed(&error), "{error}");
    }
    assert!(is_closed(&clone.mutex("free").try_lock().await.expect_err("closed")));
    assert!(is_closed(&clone.mutex("free").shared_hold(T).lock().await.expect_err("closed")));
    assert!(is_closed(&clone.admin().locks(None, usize::MAX).await.expect_err("closed")));
    clone.close().await;
    held.release().await.expect("release succeeds");
    let seen = rival.admin().snapshot("free").await.expect("snapshot read");
    assert!(seen.holder.is_none() && seen.waiters.is_empty(), "{seen:?}");
});

on_both_servers!(waiter_times_out_after_a_reconnect, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = open(&place.connect_string_through(&proxy.addr())).await;
    let rival = open(&place.connect_string()).await;
    let held = rival.mutex("held").lock().await.expect("lock acquired");
    let readers = rival.rwlock("written").write().await.expect("lock acquired");
    let patience = Duration::from_secs(4);
    let (mutex, rwlock) = (zl.mutex("held"), zl.rwlock("written"));
    let waiting = tokio::spawn(async move { mutex.lock_timeout(patience).await.map(drop) });
    let reading = tokio::spawn(async move { rwlock.read_timeout(patience).await.map(drop) });
    until_queued(&rival, "held", 2).await;
    until_queued(&rival, "written", 2).await;
    proxy.close_connections().await;
    for waiter in [waiting, reading] {
        let waited = timeout(BOUND, waiter).await.expect("in time").expect("task does not panic");
        assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    }
    drop((held, readers));
});

on_both_servers!(multi_lock_times_out_on_any_busy_lock, |place| async move {
    let (zl, rival) = (open(&place.connect_string()).await, open(&place.connect_string()).await);
    for busy in ["a", "b"] {
        let held = rival.mutex(busy).lock().await.expect("lock acquired");
        for patience in [Duration::ZERO, Duration::from_millis(300)] {
            let waited = zl.multi(["a", "b"]).lock_timeout(patience).await;
            assert!(matches!(waited, Err(Error::Timeout { .. })), "{busy}: {waited:?}");
        }
        held.release().await.expect("release succeeds");
    }
});

on_both_servers!(shared_holds_distinguish_outage_from_busy_lock, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, rival) =
        (open(&place.connect_string_through(&proxy.addr())).await, open(&place.connect_string()).await);
    let mutex = zl.mutex("shared").shared_hold(BOUND);
    let (owner, patience) = (zoolock::Owner::new(), Duration::from_millis(300));
    let reentrant = zl.mutex("owned");
    drop(mutex.lock_timeout(Duration::ZERO).await.expect("a free lock is acquired"));
    drop(reentrant.lock_as_timeout(&owner, Duration::ZERO).await.expect("a free lock is acquired"));
    let held = [rival.mutex("shared").lock().await, rival.mutex("owned").lock().await];
    let held = held.map(|guard| guard.expect("lock acquired"));
    for is_silent in [false, true] {
        proxy.blackhole(is_silent);
        for patience in [Duration::ZERO, patience] {
            let shared = mutex.lock_timeout(patience).await.map(drop);
            let owned = reentrant.lock_as_timeout(&owner, patience).await.map(drop);
            for waited in [shared, owned] {
                let is_right = if is_silent {
                    is_unavailable(&waited)
                } else {
                    matches!(waited, Err(Error::Timeout { .. }))
                };
                assert!(is_right, "silent: {is_silent}, {patience:?}: {waited:?}");
            }
        }
    }
    proxy.blackhole(false);
    drop(held);
});

on_both_servers!(lazy_client_connects_with_its_first_request, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let address = place.connect_string_through(&proxy.addr());
    proxy.refuse(true).await;
    let hasty = settings().connect_timeout(Duration::from_millis(300));
    let zl = hasty.connect_lazy(&address).expect("settings are valid");
    assert_eq!(zl.connection(), Connection::Idle);
    let error = finish_in_time(zl.mutex("x").lock()).await.expect_err("no server is reached");
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_retryable(), "{error:?}");
    assert_eq!(zl.connection(), Connection::Idle);
    proxy.refuse(false).await;
    let lock = || async { zl.mutex("x").lock().await.map_err(|error| TestFailure::new(error.to_string())) };
    let guard = retry_until_ok("the first session is opened", BOUND, lock).await.expect("lock acquired");
    assert_eq!(zl.connection(), Connection::Connected);
    proxy.refuse(true).await;
    proxy.close_connections().await;
    until(&guard, Connection::Suspect).await;
    assert_eq!(zl.connection(), Connection::Suspect);
    proxy.refuse(false).await;
    until(&guard, Connection::Connected).await;
    guard.release().await.expect("release succeeds");
    zl.close().await;
    assert_eq!(zl.connection(), Connection::Ended);
});

#[tokio::test]
async fn lazy_client_checks_its_settings_at_once() {
    let error = settings().connect_lazy("host:port").expect_err("no port");
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
}
