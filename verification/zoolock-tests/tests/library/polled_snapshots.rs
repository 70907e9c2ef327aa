//! The number of requests that a waiter sends to read its own queue position.

use std::time::Duration;

use tokio::task::JoinHandle;
use zoolock_tests::locks::{connect, connect_through, queue_waiters};
use zoolock_tests::{Proxy, on_both_servers, opcode};

const BOUND: Duration = Duration::from_secs(60);

on_both_servers!(queue_position_costs_one_listing, |place| async move {
    let zl = connect(&place).await;
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let shown = connect_through(&place, &proxy).await;
    let _guard = zl.mutex("x").lock().await.expect("lock acquired");
    let waiting = queue_waiters(&zl, "x", 40).await;
    let ours = tokio::spawn({
        let mutex = shown.mutex("x");
        async move { mutex.lock().await.map(drop) }
    });
    let mut poller = shown.admin().poller("x", 0).with_position();
    let before_us = waiting.len();
    let reached = async {
        while poller.snapshot().await.expect("read succeeds").place != Some(before_us) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(BOUND, reached).await.expect("waiter reaches its queue position");
    let count = |opcode: i32| proxy.stats().total.requests(opcode);
    let reads = [opcode::GET_DATA, opcode::GET_CHILDREN2, opcode::GET_EPHEMERALS, opcode::EXISTS];
    let mut added = Vec::new();
    // At first, the waiter's own reads of its predecessor's znode can still be among the counted
    // reads. So only the last of five measurements counts.
    for _ in 0..5 {
        let before = reads.map(count);
        for _ in 0..10 {
            let seen = poller.snapshot().await.expect("read succeeds");
            assert_eq!((seen.place, seen.lock.waiting), (Some(before_us), before_us + 1));
            assert!(seen.lock.holder.is_some() && seen.lock.waiters.is_empty());
        }
        added = reads.map(count).iter().zip(before).map(|(now, before)| now - before).collect();
    }
    // Each look reads the directory data and the children. The holder's data and the waiter's znode
    // name are known from earlier looks.
    assert_eq!(added, [10, 10, 0, 0]);
    ours.abort();
    waiting.iter().for_each(JoinHandle::abort);
    shown.close().await;
    zl.close().await;
});
