//! Outages that must cost no lock, and changes of a server that must not lead to two holders.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use zoolock::{Connection, Guard, Zoolock};
use zoolock_tests::locks::{lock_in_background, settings, until_queued};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Proxy, on_both_arms};

/// The session timeout of these tests.
const T: Duration = Duration::from_secs(12);

/// More time than any step needs.
const BOUND: Duration = Duration::from_secs(60);

/// Pairs of a holder and a rival.
const PAIRS: usize = 20;

async fn open(connect_string: &str) -> Zoolock {
    settings().session_timeout(T).connect(connect_string).await.expect("session starts")
}

async fn until(guard: &Guard, wanted: Connection) {
    let mut connection = guard.connection();
    let reached = timeout(BOUND, connection.wait_for(|connection| *connection == wanted)).await;
    reached.expect("in time").expect("the session lives");
}

on_both_arms!(private shorter_timeout_leads_to_no_second_holder, |place| async move {
    let shorter = Duration::from_secs(2);
    let proxy = Arc::new(Proxy::start(&place.addr()).await.expect("proxy starts"));
    let mut pairs = Vec::new();
    for number in 0..PAIRS {
        let name = format!("shorter{number}");
        let (holder, rival) = (open(&place.through(&proxy.addr())).await, open(&place.connect_string()).await);
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
                other => Err(Failure::new(format!("{other:?}"))),
            }
        };
        eventually("the holder is attached again", BOUND, attached).await.expect("a shorter timeout");
        assert!(guard.valid_until().remaining() < shorter, "{:?}", guard.valid_until().remaining());
    }
    // The locks are kept, with shorter leases.
    sleep(shorter * 2).await;
    assert!(pairs.iter().all(|(_, guard, ..)| guard.is_valid()));
    // From now on no holder reaches the server, as if it were stopped.
    proxy.blackhole(true);
    for (_, guard, _, waiting) in &mut pairs {
        let next = timeout(BOUND, waiting).await.expect("in time").expect("task does not panic");
        assert!(!guard.is_valid(), "two holders");
        next.expect("lock granted").release().await.expect("release succeeds");
    }
    proxy.blackhole(false);
});

/// Returns clients through these addresses, each with a lock that it holds.
async fn holders(connect_string: &str, count: usize) -> Vec<(Zoolock, Guard)> {
    let mut holders = Vec::new();
    for number in 0..count {
        let zl = open(connect_string).await;
        let guard = zl.mutex(format!("held{number}")).lock().await.expect("lock acquired");
        holders.push((zl, guard));
    }
    holders
}

/// Checks for this time that all locks are held.
async fn stay_held(holders: &[(Zoolock, Guard)], time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        for (number, (_, guard)) in holders.iter().enumerate() {
            assert!(guard.is_valid(), "lock {number} was lost after {:?}", begun.elapsed());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

on_both_arms!(outage_of_a_quarter_of_the_timeout_loses_no_lock, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let holders = holders(&place.through(&proxy.addr()), 8).await;
    // Until the leases are steady.
    stay_held(&holders, T / 2).await;
    proxy.refuse(true).await;
    proxy.cut().await;
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

on_both_arms!(silent_server_of_three_loses_no_lock, |place| async move {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Proxy::start(&place.addr()).await.expect("proxy starts"));
    }
    let addresses: Vec<String> = servers.iter().map(Proxy::addr).collect();
    let holders = holders(&place.through(&addresses.join(",")), 24).await;
    stay_held(&holders, T / 2).await;
    // It accepts connections, and answers nothing.
    servers[0].blackhole(true);
    stay_held(&holders, T * 2).await;
    for (_, guard) in &holders {
        assert_eq!(*guard.connection().borrow(), Connection::Connected);
    }
    for (zl, guard) in holders {
        guard.release().await.expect("release succeeds");
        zl.close().await;
    }
});
