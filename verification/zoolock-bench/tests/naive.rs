//! Tests of the naive locks in the examples, which check the faults that the examples describe.

#[path = "../examples/compare/mod.rs"]
mod compare;
#[path = "../examples/one_node/lock.rs"]
mod one_node;
#[path = "../examples/watch_the_directory/lock.rs"]
mod watch_the_directory;

use std::time::Duration;

use compare::{Figures, Lock, Ours, Plan, run};
use one_node::OneNode;
use watch_the_directory::WatchTheDirectory;
use zoolock::{LossReason, TestServer};
use zoolock_tests::judge::{Judge, Share};
use zoolock_tests::{Place, Proxy, on_both_servers, opcode, tree};

const FEW: usize = 5;
const MANY: usize = 20;

async fn measure<L: Lock>(place: &Place, waiters: usize) -> Figures {
    // Each hold is long enough for the waiters that were woken without a grant. They set their
    // watches again before the next release.
    let work = Duration::from_millis(5);
    let plan = Plan { waiters, sessions: waiters, sections: 2 * waiters, work };
    let figures = run::<L>(&place.addr(), "lock", plan).await.expect("every waiter is granted the lock");
    println!(
        "{}, {waiters} waiters: {:.1} events, {:.1} requests, {:.0} bytes sent, {:.0} received, {} in order",
        L::NAME,
        figures.events(),
        figures.requests(),
        figures.bytes_sent(),
        figures.bytes_received(),
        figures.in_order
    );
    assert_eq!(figures.most_inside, 1, "{} has more than one holder", L::NAME);
    figures
}

on_both_servers!(one_node_wakes_every_waiter, |place| async move {
    let (few, many) = (measure::<OneNode>(&place, FEW).await, measure::<OneNode>(&place, MANY).await);
    assert!(many.events() > 2.0 * few.events(), "each release wakes every waiter");
    assert!(many.requests() > 2.0 * few.requests(), "each woken waiter sends requests");
});

on_both_servers!(watching_the_directory_lists_all_contenders, |place| async move {
    let few = measure::<WatchTheDirectory>(&place, FEW).await;
    let many = measure::<WatchTheDirectory>(&place, MANY).await;
    assert!(many.events() > 2.0 * few.events(), "each release wakes every waiter");
    // Four times as many waiters read four times as much each.
    assert!(many.bytes_received() > 6.0 * few.bytes_received(), "received bytes grow with the square");
    assert_eq!((few.in_order, many.in_order), (FEW, MANY), "the queue is fair");
});

on_both_servers!(cost_of_zoolock_is_independent_of_waiters, |place| async move {
    let (few, many) = (measure::<Ours>(&place, FEW).await, measure::<Ours>(&place, MANY).await);
    assert!(many.events() < 1.2 * few.events(), "a release wakes more waiters");
    assert!(many.requests() < 1.2 * few.requests(), "more requests per release");
    assert!(many.bytes_received() < 1.2 * few.bytes_received(), "more bytes received per release");
    assert_eq!((few.in_order, many.in_order), (FEW, MANY), "the queue is fair");
    let naive = measure::<OneNode>(&place, MANY).await;
    assert!(many.events() * 4.0 < naive.events(), "a release wakes more than two clients");
    assert!(many.bytes_sent() < naive.bytes_sent() && many.bytes_received() < naive.bytes_received());
});

/// Acquires the lock and loses the reply to the create. Returns the number of znodes that remain without a holder.
async fn znodes_after_lost_reply<L: Lock>(place: &Place, name: &str) -> usize {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy started");
    let lock = L::connect(&proxy.addr(), &format!("{}/{name}", place.chroot())).await.expect("connected");
    proxy.drop_next_reply(opcode::CREATE2);
    assert!(lock.lock().await.is_err(), "the lost reply is an error");
    assert_eq!(proxy.stats().dropped_replies, 1);
    tree::ephemerals(&place.addr(), place.chroot()).await.expect("server answered").len()
}

on_both_servers!(lost_reply_leaves_one_node_without_holder, |place| async move {
    assert_eq!(znodes_after_lost_reply::<OneNode>(&place, "lock").await, 1);
});

on_both_servers!(lost_reply_leaves_znode_in_watched_directory, |place| async move {
    assert_eq!(znodes_after_lost_reply::<WatchTheDirectory>(&place, "lock").await, 1);
});

/// Expires the session of the holder and acquires the lock again. Returns the number of clients that act as holders.
async fn holders_after_expiry<L: Lock>(server: &TestServer) -> usize {
    let connect = async || L::connect(&server.address(), "/lock").await.expect("connected");
    let (first, judge) = (connect().await, Judge::<_, ()>::new());
    let held = first.lock().await.expect("lock granted");
    judge.enter_with(1, Share::Exclusive, None);
    assert!(server.expire_sessions() >= 1);
    let second = connect().await;
    let also_held = second.lock().await.expect("lock granted");
    judge.enter_with(2, Share::Exclusive, None);
    let holders = judge.most_holders();
    assert!(first.release(held).await.is_err(), "the release of the expired holder succeeded");
    second.release(also_held).await.expect("lock released");
    holders
}

#[tokio::test]
async fn only_zoolock_tells_an_expired_holder() {
    let server = TestServer::start().await.expect("server started");
    assert_eq!(holders_after_expiry::<OneNode>(&server).await, 2);
    let server = TestServer::start().await.expect("server started");
    assert_eq!(holders_after_expiry::<WatchTheDirectory>(&server).await, 2);
    let server = TestServer::start().await.expect("server started");
    let ours = Ours::connect(&server.address(), "/lock").await.expect("connected");
    let guard = ours.lock().await.expect("lock granted");
    assert!(server.expire_sessions() >= 1);
    assert_eq!(guard.lost().await, LossReason::SessionExpired);
}
