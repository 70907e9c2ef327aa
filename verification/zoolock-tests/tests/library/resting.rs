//! Tests the requests of sessions that wait behind another waiter, or have no locks.

use std::time::Duration;

use zoolock::{Mutex, Zoolock};
use zoolock_tests::locks::{await_guard, lock_in_background, short_session_settings, until_queued};
use zoolock_tests::{Place, Proxy, on_both_servers, opcode};

/// A client, and the proxy through which it reaches the server.
struct Client {
    proxy: Proxy,
    zl: Zoolock,
}

impl Client {
    async fn new(place: &Place) -> Client {
        let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
        let server = place.connect_string_through(&proxy.addr());
        let zl = short_session_settings().connect(&server).await.expect("session starts");
        Client { proxy, zl }
    }

    /// Returns the number of replies so far: to renewals of the lease, to `sync` and to pings.
    fn replies(&self) -> [u64; 3] {
        let stats = self.proxy.stats();
        [opcode::CHECK, opcode::SYNC, opcode::PING].map(|opcode| stats.total.replies(opcode))
    }
}

/// Holds a lock, and queues two waiters, for longer than the session timeout. Checks what each session sends meanwhile. Then
/// releases the lock, so that each waiter gets it in turn.
async fn wait_behind_another_waiter(place: Place, mutex: fn(&Zoolock) -> Mutex, looks_ahead: bool) {
    let [holder, next, far, idle] = [
        Client::new(&place).await,
        Client::new(&place).await,
        Client::new(&place).await,
        Client::new(&place).await,
    ];
    let held = mutex(&holder.zl).lock().await.expect("lock granted");
    let second = lock_in_background(&mutex(&next.zl));
    until_queued(&idle.zl, "a", 2).await;
    let third = lock_in_background(&mutex(&far.zl));
    until_queued(&idle.zl, "a", 3).await;
    let clients = [&holder, &next, &far, &idle];
    let before = clients.map(Client::replies);
    // Twice the session timeout, so that the leases of the sessions that rest have run out.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let after = clients.map(Client::replies);
    let sent = |at: usize| -> [u64; 3] { std::array::from_fn(|kind| after[at][kind] - before[at][kind]) };
    for (at, client) in ["holder", "next waiter"].iter().enumerate() {
        let [writes, syncs, pings] = sent(at);
        assert!(writes > 0 && syncs > 0 && pings >= syncs, "{client}: {writes}, {syncs}, {pings}");
    }
    for (at, client) in [(2, "waiter behind another waiter"), (3, "session without locks")] {
        let [writes, syncs, pings] = sent(at);
        // On a slow machine a ping may be due before the next `sync`.
        assert!(writes == 0 && syncs > 0 && pings < syncs, "{client}: {writes}, {syncs}, {pings}");
    }
    held.release().await.expect("release succeeds");
    let guard = await_guard(second).await;
    if looks_ahead {
        // The waiter that becomes the next renews its lease before its predecessor releases.
        far.proxy
            .until("a write of the next waiter", |stats| stats.total.replies(opcode::CHECK) > after[2][0])
            .await;
    }
    guard.release().await.expect("release succeeds");
    await_guard(third).await.release().await.expect("release succeeds");
}

on_both_servers!(only_holder_and_next_waiter_send_writes, |place| async move {
    wait_behind_another_waiter(place, |zl| zl.mutex("a"), true).await;
});

on_both_servers!(waiter_without_look_ahead_gets_the_lock_after_a_rest, |place| async move {
    wait_behind_another_waiter(place, |zl| zl.mutex("a").tell_previous(), false).await;
});
