//! Look-ahead: a waiter reads the queue before its predecessor releases the lock. Then the deletion
//! of the predecessor's znode grants the waiter the lock without another request.
//!
//! These tests check when that deletion grants the lock, and when it must not grant the lock: for
//! example, if the waiter's own znode was deleted before.

use std::time::Duration;

use tokio::task::JoinHandle;
use zookeeper_client::Client;
use zoolock::{Error, Guard, LossReason, Previous, Zoolock};
use zoolock_tests::locks::{connect, connect_through, directory, lock_and_release, until_queued};
use zoolock_tests::proxy::FrameCounts;
use zoolock_tests::{Direction, Place, Proxy, on_both_servers, opcode, tree};

const PATIENCE: Duration = Duration::from_secs(20);

type Waiting = JoinHandle<Result<Guard, Error>>;

fn wait_for(zl: &Zoolock, name: &str) -> Waiting {
    let mutex = zl.mutex(name);
    tokio::spawn(async move { mutex.lock().await })
}

async fn ended(waiting: Waiting) -> Result<Guard, Error> {
    let ended = tokio::time::timeout(PATIENCE, waiting).await.expect("finishes in time");
    ended.expect("task does not panic")
}

/// Number of reads by the second of two contenders. It reads the directory, the holder's znode and
/// its own znode.
const READS_OF_THE_SECOND: u64 = 3;
/// Number of reads by the third of three contenders. At first it reads the directory and the first
/// contender's znode. After the deletion of that znode, it reads the second contender's znode, the
/// directory and its own znode.
const READS_OF_THE_THIRD: u64 = 5;

async fn until_read(proxy: &Proxy, before: &FrameCounts, reads: u64) {
    proxy
        .until("the reads of a waiter", |stats| stats.total.since(before).replies(opcode::GET_DATA) >= reads)
        .await;
}

/// Creates a holder and a waiter, and waits until the waiter has made all its reads. If the
/// holder's znode is deleted later, the waiter is granted the lock without another request.
async fn armed(place: &Place, proxy: &Proxy, name: &str) -> (Zoolock, Guard, Zoolock, Waiting) {
    let (theirs, ours) = (connect(place).await, connect_through(place, proxy).await);
    let held = theirs.mutex(name).lock().await.expect("lock acquired");
    let before = proxy.counts();
    let waiting = wait_for(&ours, name);
    until_read(proxy, &before, READS_OF_THE_SECOND).await;
    (theirs, held, ours, waiting)
}

/// Waits until `guard.previous()` is known, and checks that it equals `previous`.
async fn until_known(guard: &Guard, previous: Previous) {
    let known = tokio::time::timeout(PATIENCE, async {
        while guard.previous() == Previous::Unknown {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        guard.previous()
    });
    assert_eq!(known.await.expect("finishes in time"), previous);
}

/// Returns the znodes of the queue, in queue order.
async fn queue(client: &Client, directory: &str) -> Vec<String> {
    let mut names = client.list_children(directory).await.expect("znode exists");
    names.sort();
    names.into_iter().map(|name| format!("{directory}/{name}")).collect()
}

/// Deletes znodes in one transaction, in the given order.
async fn delete_at_once(client: &Client, paths: &[&String]) {
    let mut transaction = client.new_multi_writer();
    for path in paths {
        transaction.add_delete(path, None).expect("valid path");
    }
    transaction.commit().await.expect("znodes exist");
}

on_both_servers!(holder_deletion_grants_the_only_waiter, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (_theirs, held, ours, waiting) = armed(&place, &proxy, "two").await;
    // From here on, no request of the waiter reaches the server.
    proxy.blackhole_towards(Direction::ToServer, true);
    held.release().await.expect("release succeeds");
    let guard = ended(waiting).await.expect("lock granted");
    assert!(guard.is_valid());
    assert_eq!(guard.previous(), Previous::Unknown, "the release marker was not read");
    proxy.blackhole_towards(Direction::ToServer, false);
    until_known(&guard, Previous::Clean).await;
    guard.release().await.expect("release succeeds");
    // That release wrote a correct release marker, so the next holder learns of a clean release.
    let guard = ours.mutex("two").lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean);
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "two")).await;
});

on_both_servers!(predecessor_deletion_grants_in_a_long_queue, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (theirs, ours) = (connect(&place).await, connect_through(&place, &proxy).await);
    let first = theirs.mutex("many").lock().await.expect("lock acquired");
    let second = wait_for(&theirs, "many");
    until_queued(&theirs, "many", 2).await;
    let before = proxy.counts();
    let third = wait_for(&ours, "many");
    until_queued(&theirs, "many", 3).await;
    let fourth = wait_for(&theirs, "many");
    until_queued(&theirs, "many", 4).await;
    first.release().await.expect("release succeeds");
    let second = ended(second).await.expect("lock granted");
    until_read(&proxy, &before, READS_OF_THE_THIRD).await;
    proxy.blackhole_towards(Direction::ToServer, true);
    second.release().await.expect("release succeeds");
    let third = ended(third).await.expect("lock granted");
    proxy.blackhole_towards(Direction::ToServer, false);
    let sent = proxy.counts().since(&before);
    assert_eq!(sent.requests(opcode::GET_DATA), READS_OF_THE_THIRD, "{sent:?}");
    assert_eq!(sent.requests(opcode::GET_CHILDREN) + sent.requests(opcode::GET_CHILDREN2), 0, "{sent:?}");
    third.release().await.expect("release succeeds");
    ended(fourth).await.expect("lock granted").release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "many")).await;
    place.assert_no_watches().await;
});

on_both_servers!(previous_release_is_read_on_request, |place| async move {
    let (theirs, ours) = (connect(&place).await, connect(&place).await);
    let held = theirs.mutex("told").lock().await.expect("lock acquired");
    let mutex = ours.mutex("told").tell_previous();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until_queued(&theirs, "told", 2).await;
    held.release().await.expect("release succeeds");
    let guard = ended(waiting).await.expect("lock granted");
    assert_eq!(guard.previous(), Previous::Clean);
    // A waiter without `tell_previous` still learns of a panic.
    let waiting = wait_for(&theirs, "told");
    until_queued(&theirs, "told", 2).await;
    let panicking = tokio::spawn(async move {
        let _guard = guard;
        panic!("on purpose");
    });
    assert!(panicking.await.is_err());
    assert_eq!(ended(waiting).await.expect("lock granted").previous(), Previous::Crashed);
});

on_both_servers!(broken_holder_is_followed_in_queue_order, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let (theirs, held, _ours, waiting) = armed(&place, &proxy, "broken").await;
    let after = wait_for(&theirs, "broken");
    until_queued(&theirs, "broken", 3).await;
    let nodes = queue(&stranger, &directory(&place, "broken")).await;
    stranger.delete(&nodes[0], None).await.expect("znode exists");
    let next = ended(waiting).await.expect("lock granted");
    assert_eq!(next.previous(), Previous::Unknown);
    let lost = tokio::time::timeout(PATIENCE, held.lost()).await.expect("loss reported in time");
    assert_eq!(lost, LossReason::Broken);
    assert!(!after.is_finished());
    next.release().await.expect("release succeeds");
    ended(after).await.expect("lock granted").release().await.expect("release succeeds");
});

on_both_servers!(downgraded_writer_still_blocks_waiters, |place| async move {
    let (theirs, ours) = (connect(&place).await, connect(&place).await);
    let writer = theirs.rwlock("reads").write().await.expect("lock acquired");
    let next = wait_for(&ours, "reads");
    until_queued(&ours, "reads", 2).await;
    let after = wait_for(&ours, "reads");
    until_queued(&ours, "reads", 3).await;
    let reader = writer.downgrade().await.expect("downgrade succeeds");
    // A contender that joins the queue after the downgrade also waits for the reader.
    let last = wait_for(&theirs, "reads");
    until_queued(&ours, "reads", 4).await;
    assert!(!next.is_finished() && !after.is_finished() && !last.is_finished());
    reader.release().await.expect("release succeeds");
    for waiting in [next, after, last] {
        ended(waiting).await.expect("lock granted").release().await.expect("release succeeds");
    }
});

on_both_servers!(waiter_deleted_before_predecessor_is_not_granted, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    for round in 0..20 {
        let name = format!("deleted-{round}");
        let (_theirs, _held, _ours, waiting) = armed(&place, &proxy, &name).await;
        let nodes = queue(&stranger, &directory(&place, &name)).await;
        delete_at_once(&stranger, &[&nodes[1], &nodes[0]]).await;
        let error = ended(waiting).await.expect_err("znode was deleted");
        assert!(matches!(error, Error::Removed { .. }), "{error}");
    }
});

on_both_servers!(waiter_deleted_while_disconnected_is_not_granted, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    for round in 0..5 {
        let name = format!("cut-{round}");
        let (_theirs, _held, _ours, waiting) = armed(&place, &proxy, &name).await;
        let nodes = queue(&stranger, &directory(&place, &name)).await;
        proxy.refuse(true).await;
        proxy.close_connections().await;
        delete_at_once(&stranger, &[&nodes[1], &nodes[0]]).await;
        proxy.refuse(false).await;
        let error = ended(waiting).await.expect_err("znode was deleted");
        assert!(matches!(error, Error::Removed { .. }), "{error}");
    }
});

on_both_servers!(disconnected_waiter_is_granted_after_release, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (_theirs, held, _ours, waiting) = armed(&place, &proxy, "back").await;
    proxy.refuse(true).await;
    proxy.close_connections().await;
    held.release().await.expect("release succeeds");
    proxy.refuse(false).await;
    let guard = ended(waiting).await.expect("lock granted");
    assert_eq!(guard.previous(), Previous::Clean, "the waiter read the marker after it reconnected");
    guard.release().await.expect("release succeeds");
});

on_both_servers!(waiter_fails_when_its_directory_is_deleted, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let (_theirs, _held, ours, waiting) = armed(&place, &proxy, "removed").await;
    let directory = directory(&place, "removed");
    let nodes = queue(&stranger, &directory).await;
    delete_at_once(&stranger, &[&nodes[1], &nodes[0], &directory]).await;
    assert!(ended(waiting).await.is_err());
    let guard = ours.mutex("removed").lock().await.expect("lock acquired again");
    guard.release().await.expect("release succeeds");
});

on_both_servers!(holder_after_a_crash_writes_its_marker, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let (theirs, held, ours, waiting) = armed(&place, &proxy, "crashed").await;
    let asks = theirs.mutex("crashed").tell_previous();
    let asking = tokio::spawn(async move { asks.lock().await });
    until_queued(&theirs, "crashed", 3).await;
    let waits = theirs.mutex("crashed").lock_delay(Duration::from_secs(3600));
    let delayed = tokio::spawn(async move { waits.lock().await });
    until_queued(&theirs, "crashed", 4).await;
    let before = proxy.counts();
    let nodes = queue(&stranger, &directory(&place, "crashed")).await;
    // The znode is deleted without a release marker, as after a crash of the holder.
    stranger.delete(&nodes[0], None).await.expect("znode exists");
    let guard = ended(waiting).await.expect("lock granted");
    let _ = held.lost().await;
    until_read(&proxy, &before, 1).await;
    // After two more round trips, the client has handled the reply to its read of the directory.
    for _ in 0..2 {
        ours.admin().snapshot("crashed").await.expect("snapshot succeeds");
    }
    assert_eq!(guard.previous(), Previous::Unknown, "the crashed holder left no marker");
    guard.release().await.expect("release succeeds");
    let asked = ended(asking).await.expect("lock granted");
    assert_eq!(asked.previous(), Previous::Clean);
    asked.release().await.expect("release succeeds");
    let delayed = ended(delayed).await.expect("lock granted at once");
    assert_eq!(delayed.previous(), Previous::Clean);
});

on_both_servers!(cancelled_head_is_followed_by_its_successor, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (theirs, held, _ours, waiting) = armed(&place, &proxy, "gave-up").await;
    let after = wait_for(&theirs, "gave-up");
    until_queued(&theirs, "gave-up", 3).await;
    // The release reaches the server, so the waiter is first in the queue. The waiter is dropped
    // before it receives the watch event.
    proxy.blackhole_towards(Direction::ToClient, true);
    held.release().await.expect("release succeeds");
    waiting.abort();
    assert!(waiting.await.expect_err("task was aborted").is_cancelled());
    proxy.blackhole_towards(Direction::ToClient, false);
    let guard = ended(after).await.expect("lock granted");
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "gave-up")).await;
    place.assert_no_watches().await;
});

on_both_servers!(waiter_learns_of_panic_under_multi_lock, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (theirs, ours) = (connect(&place).await, connect_through(&place, &proxy).await);
    let both = theirs.multi(["one", "other"]).lock().await.expect("lock acquired");
    let before = proxy.counts();
    let waiting = wait_for(&ours, "other");
    until_read(&proxy, &before, READS_OF_THE_SECOND).await;
    let panicking = tokio::spawn(async move {
        let _both = both;
        panic!("on purpose");
    });
    assert!(panicking.await.is_err());
    assert_eq!(ended(waiting).await.expect("lock granted").previous(), Previous::Crashed);
});

on_both_servers!(foreign_directory_data_survives_release, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let (theirs, held, _ours, waiting) = armed(&place, &proxy, "written").await;
    let directory = directory(&place, "written");
    stranger.set_data(&directory, b"of an operator", None).await.expect("znode exists");
    held.release().await.expect("release succeeds");
    // The second holder releases before it has read the directory data.
    ended(waiting).await.expect("lock granted").release().await.expect("release succeeds");
    let (data, _) = stranger.get_data(&directory).await.expect("znode exists");
    assert_eq!(data, b"of an operator");
    lock_and_release(&theirs.mutex("written")).await;
    tree::assert_no_contenders(&place.addr(), &directory).await;
});

on_both_servers!(waiter_deleted_with_predecessor_is_lost, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    for round in 0..20 {
        let name = format!("together-{round}");
        let (_theirs, _held, _ours, waiting) = armed(&place, &proxy, &name).await;
        let nodes = queue(&stranger, &directory(&place, &name)).await;
        // The predecessor's znode is deleted first. So the waiter may be granted the lock, and lose
        // it at once.
        delete_at_once(&stranger, &[&nodes[0], &nodes[1]]).await;
        let lost = match ended(waiting).await {
            Err(Error::Removed { .. }) => LossReason::Broken,
            Err(error) => panic!("{error}"),
            Ok(guard) => tokio::time::timeout(PATIENCE, guard.lost()).await.expect("loss reported in time"),
        };
        assert_eq!(lost, LossReason::Broken);
    }
});

on_both_servers!(deleted_waiter_fails_at_once, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let (_theirs, held, _ours, waiting) = armed(&place, &proxy, "waits").await;
    let nodes = queue(&stranger, &directory(&place, "waits")).await;
    stranger.delete(&nodes[1], None).await.expect("znode exists");
    let error = ended(waiting).await.expect_err("znode was deleted");
    assert!(matches!(error, Error::Removed { .. }), "{error}");
    assert!(held.is_valid());
    held.release().await.expect("release succeeds");
});
