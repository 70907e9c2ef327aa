//! The naive locks of the examples, beside ours: what the examples say of them is so.

#[path = "../examples/compare/mod.rs"]
mod compare;
#[path = "../examples/one_node/lock.rs"]
mod one_node;
#[path = "../examples/watch_the_directory/lock.rs"]
mod watch_the_directory;

use std::time::Duration;

use compare::{Figures, Lock, Ours, Plan, Referee, run};
use one_node::OneNode;
use watch_the_directory::WatchTheDirectory;
use zoolock::{LossReason, TestServer};
use zoolock_tests::{Place, Proxy, on_both_arms, opcode, tree};

const FEW: usize = 5;
const MANY: usize = 20;

async fn play<L: Lock>(place: &Place, waiters: usize) -> Figures {
    // So much work that whoever was woken in vain watches again before the next hand-over.
    let work = Duration::from_millis(5);
    let plan = Plan { waiters, sessions: waiters, sections: 2 * waiters, work };
    let figures = run::<L>(&place.addr(), "lock", plan).await.expect("everybody has a turn");
    println!(
        "{}, {waiters} waiters: {:.1} events, {:.1} requests, {:.0} bytes sent, {:.0} received, {} in order",
        L::NAME,
        figures.events(),
        figures.requests(),
        figures.sent(),
        figures.received(),
        figures.in_order
    );
    assert_eq!(figures.most_inside, 1, "{} lets in more than one", L::NAME);
    figures
}

on_both_arms!(everybody_is_woken_when_one_node_goes, |place| async move {
    let (few, many) = (play::<OneNode>(&place, FEW).await, play::<OneNode>(&place, MANY).await);
    assert!(many.events() > 2.0 * few.events(), "a herd grows with the waiters");
    assert!(many.requests() > 2.0 * few.requests(), "and does something each time");
});

on_both_arms!(everybody_lists_everybody_when_all_watch_the_directory, |place| async move {
    let few = play::<WatchTheDirectory>(&place, FEW).await;
    let many = play::<WatchTheDirectory>(&place, MANY).await;
    assert!(many.events() > 2.0 * few.events(), "a herd grows with the waiters");
    // Four times the waiters, who read four times as much each.
    assert!(many.received() > 6.0 * few.received(), "what it reads grows with their square");
    assert_eq!((few.in_order, many.in_order), (FEW, MANY), "it is fair");
});

on_both_arms!(ours_wakes_and_reads_as_little_however_many_wait, |place| async move {
    let (few, many) = (play::<Ours>(&place, FEW).await, play::<Ours>(&place, MANY).await);
    assert!(many.events() < 1.2 * few.events(), "no herd");
    assert!(many.requests() < 1.2 * few.requests(), "nobody does anything in vain");
    assert!(many.received() < 1.2 * few.received(), "nobody lists");
    assert_eq!((few.in_order, many.in_order), (FEW, MANY), "first come, first served");
    let naive = play::<OneNode>(&place, MANY).await;
    assert!(many.events() * 4.0 < naive.events(), "one is woken, and the one who let go");
    assert!(many.sent() < naive.sent() && many.received() < naive.received());
});

/// Tries to lock, loses the reply to the create, and says how many znodes the lock has while nobody holds it.
async fn left_by_a_lost_reply<L: Lock>(place: &Place, name: &str) -> usize {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let lock = L::connect(&proxy.addr(), &format!("{}/{name}", place.chroot())).await.expect("a session");
    proxy.drop_next_reply(opcode::CREATE2);
    assert!(lock.lock().await.is_err(), "the recipe gives up");
    assert_eq!(proxy.stats().dropped_replies, 1);
    tree::ephemerals(&place.addr(), place.chroot()).await.expect("a look").len()
}

on_both_arms!(a_lost_reply_leaves_one_node_locked_by_nobody, |place| async move {
    assert_eq!(left_by_a_lost_reply::<OneNode>(&place, "lock").await, 1);
});

on_both_arms!(a_lost_reply_leaves_a_phantom_in_the_directory, |place| async move {
    assert_eq!(left_by_a_lost_reply::<WatchTheDirectory>(&place, "lock").await, 1);
});

/// Expires the holder's session, lets the next one in, and says how many are inside then.
async fn inside_after_an_expiry<L: Lock>(server: &TestServer) -> usize {
    let connect = async || L::connect(&server.address(), "/lock").await.expect("a session");
    let (first, referee) = (connect().await, Referee::default());
    let held = first.lock().await.expect("free");
    referee.enter(1);
    assert!(server.expire_sessions() >= 1);
    let second = connect().await;
    let also_held = second.lock().await.expect("free again");
    referee.enter(2);
    let inside = referee.most_inside();
    assert!(first.release(held).await.is_err(), "now it hears of it");
    second.release(also_held).await.expect("its own");
    inside
}

#[tokio::test]
async fn an_expired_holder_is_told_by_ours_only() {
    let server = TestServer::start().await.expect("a server");
    assert_eq!(inside_after_an_expiry::<OneNode>(&server).await, 2);
    let server = TestServer::start().await.expect("a server");
    assert_eq!(inside_after_an_expiry::<WatchTheDirectory>(&server).await, 2);
    let server = TestServer::start().await.expect("a server");
    let ours = Ours::connect(&server.address(), "/lock").await.expect("a session");
    let guard = ours.lock().await.expect("free");
    assert!(server.expire_sessions() >= 1);
    assert_eq!(guard.lost().await, LossReason::SessionExpired);
}
