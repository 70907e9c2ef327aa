//! Waiters that are granted by the end of the one before them, and those that must not be.

use std::time::Duration;

use tokio::task::JoinHandle;
use zookeeper_client::Client;
use zoolock::{Error, Guard, LossReason, Previous, Zoolock};
use zoolock_tests::locks::{brisk_settings, connect, connect_through, directory, until_queued};
use zoolock_tests::proxy::Counts;
use zoolock_tests::{Direction, Place, Proxy, on_both_arms, opcode, tree};

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

/// The second in a queue of two reads the directory, the first's node and its own.
const READS_OF_THE_SECOND: u64 = 3;
/// The third of three reads the directory, the first's node, and when that is gone the second's, the directory, and
/// its own.
const READS_OF_THE_THIRD: u64 = 5;

async fn until_read(proxy: &Proxy, before: &Counts, reads: u64) {
    proxy
        .until("the readings of a waiter", |stats| {
            stats.total.since(before).replies(opcode::GET_DATA) >= reads
        })
        .await;
}

/// A holder, and behind it a waiter that its end will grant.
async fn armed(place: &Place, proxy: &Proxy, name: &str) -> (Zoolock, Guard, Zoolock, Waiting) {
    let (theirs, ours) = (connect(place).await, connect_through(place, proxy).await);
    let held = theirs.mutex(name).lock().await.expect("lock acquired");
    let before = proxy.counts();
    let waiting = wait_for(&ours, name);
    until_read(proxy, &before, READS_OF_THE_SECOND).await;
    (theirs, held, ours, waiting)
}

/// Waits until it has been read how the last holder left.
async fn until_known(guard: &Guard, previous: Previous) {
    let known = tokio::time::timeout(PATIENCE, async {
        while guard.previous() == Previous::Unknown {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        guard.previous()
    });
    assert_eq!(known.await.expect("finishes in time"), previous);
}

/// The nodes of the queue, in its order.
async fn queue(client: &Client, directory: &str) -> Vec<String> {
    let mut names = client.list_children(directory).await.expect("znode exists");
    names.sort();
    names.into_iter().map(|name| format!("{directory}/{name}")).collect()
}

/// Deletes nodes in one transaction, in this order.
async fn delete_at_once(client: &Client, paths: &[&String]) {
    let mut transaction = client.new_multi_writer();
    for path in paths {
        transaction.add_delete(path, None).expect("a path");
    }
    transaction.commit().await.expect("they are there");
}

on_both_arms!(of_two_the_second_is_granted_by_the_end_of_the_first, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (_theirs, held, ours, waiting) = armed(&place, &proxy, "two").await;
    // Whatever it asked now would not be answered.
    proxy.blackhole_towards(Direction::ToServer, true);
    held.release().await.expect("release succeeds");
    let guard = ended(waiting).await.expect("lock granted");
    assert!(guard.is_valid());
    assert_eq!(guard.previous(), Previous::Unknown, "it was not read");
    proxy.blackhole_towards(Direction::ToServer, false);
    until_known(&guard, Previous::Clean).await;
    guard.release().await.expect("release succeeds");
    // What it leaves in the record is right, too.
    let guard = ours.mutex("two").lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean);
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "two")).await;
});

on_both_arms!(of_many_the_next_is_granted_by_the_end_of_the_one_before_it, |place| async move {
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

on_both_arms!(whoever_wants_to_know_reads_how_the_last_one_left, |place| async move {
    let (theirs, ours) = (connect(&place).await, connect(&place).await);
    let held = theirs.mutex("told").lock().await.expect("lock acquired");
    let mutex = ours.mutex("told").tell_previous();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until_queued(&theirs, "told", 2).await;
    held.release().await.expect("release succeeds");
    let guard = ended(waiting).await.expect("lock granted");
    assert_eq!(guard.previous(), Previous::Clean);
    // And whoever does not is told of a panic all the same.
    let waiting = wait_for(&theirs, "told");
    until_queued(&theirs, "told", 2).await;
    let panicking = tokio::spawn(async move {
        let _guard = guard;
        panic!("on purpose");
    });
    assert!(panicking.await.is_err());
    assert_eq!(ended(waiting).await.expect("lock granted").previous(), Previous::Crashed);
});

on_both_arms!(a_holder_that_is_broken_is_followed_by_the_next_and_the_one_after, |place| async move {
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

on_both_arms!(a_holder_that_expires_is_followed_by_the_next, |place| async move {
    let gate = Proxy::start(&place.addr()).await.expect("proxy starts");
    let theirs = brisk_settings().connect(&place.through(&gate.addr())).await.expect("session starts");
    let ours = brisk_settings().connect(&place.connect_string()).await.expect("session starts");
    let held = theirs.mutex("expired").lock().await.expect("lock acquired");
    let waiting = wait_for(&ours, "expired");
    until_queued(&ours, "expired", 2).await;
    gate.refuse(true).await;
    gate.cut().await;
    let guard = ended(waiting).await.expect("lock granted");
    assert!(!held.is_valid(), "both would believe");
    guard.release().await.expect("release succeeds");
});

on_both_arms!(a_writer_that_goes_on_as_a_reader_is_not_gone, |place| async move {
    let (theirs, ours) = (connect(&place).await, connect(&place).await);
    let writer = theirs.rwlock("reads").write().await.expect("lock acquired");
    let next = wait_for(&ours, "reads");
    until_queued(&ours, "reads", 2).await;
    let after = wait_for(&ours, "reads");
    until_queued(&ours, "reads", 3).await;
    let reader = writer.downgrade().await.expect("release succeeds");
    // Whoever comes now sees it, too.
    let last = wait_for(&theirs, "reads");
    until_queued(&ours, "reads", 4).await;
    assert!(!next.is_finished() && !after.is_finished() && !last.is_finished());
    reader.release().await.expect("release succeeds");
    for waiting in [next, after, last] {
        ended(waiting).await.expect("lock granted").release().await.expect("release succeeds");
    }
});

on_both_arms!(who_is_deleted_before_the_one_before_it_is_not_granted, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    for turn in 0..20 {
        let name = format!("deleted-{turn}");
        let (_theirs, _held, _ours, waiting) = armed(&place, &proxy, &name).await;
        let nodes = queue(&stranger, &directory(&place, &name)).await;
        delete_at_once(&stranger, &[&nodes[1], &nodes[0]]).await;
        let error = ended(waiting).await.expect_err("not the holder");
        assert!(matches!(error, Error::Lost { reason: LossReason::Broken, .. }), "{error}");
    }
});

on_both_arms!(who_is_deleted_while_it_is_cut_off_is_not_granted, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    for turn in 0..5 {
        let name = format!("cut-{turn}");
        let (_theirs, _held, _ours, waiting) = armed(&place, &proxy, &name).await;
        let nodes = queue(&stranger, &directory(&place, &name)).await;
        proxy.refuse(true).await;
        proxy.cut().await;
        delete_at_once(&stranger, &[&nodes[1], &nodes[0]]).await;
        proxy.refuse(false).await;
        let error = ended(waiting).await.expect_err("not the holder");
        assert!(matches!(error, Error::Lost { reason: LossReason::Broken, .. }), "{error}");
    }
});

on_both_arms!(who_is_cut_off_while_the_one_before_it_leaves_is_next, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (_theirs, held, _ours, waiting) = armed(&place, &proxy, "back").await;
    proxy.refuse(true).await;
    proxy.cut().await;
    held.release().await.expect("release succeeds");
    proxy.refuse(false).await;
    let guard = ended(waiting).await.expect("lock granted");
    assert_eq!(guard.previous(), Previous::Clean, "it had to read it");
    guard.release().await.expect("release succeeds");
});

on_both_arms!(who_waits_in_a_directory_that_is_removed_is_told, |place| async move {
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

on_both_arms!(whoever_comes_after_a_crash_leaves_its_marker_all_the_same, |place| async move {
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
    // As if it were killed.
    stranger.delete(&nodes[0], None).await.expect("znode exists");
    let guard = ended(waiting).await.expect("lock granted");
    let _ = held.lost().await;
    until_read(&proxy, &before, 1).await;
    // Two more round trips: by then the answer to that reading has been dealt with.
    for _ in 0..2 {
        ours.mutex("crashed").snapshot().await.expect("snapshot succeeds");
    }
    assert_eq!(guard.previous(), Previous::Unknown, "nobody has said how it left");
    guard.release().await.expect("release succeeds");
    let asked = ended(asking).await.expect("lock granted");
    assert_eq!(asked.previous(), Previous::Clean);
    asked.release().await.expect("release succeeds");
    let delayed = ended(delayed).await.expect("lock granted at once");
    assert_eq!(delayed.previous(), Previous::Clean);
});

on_both_arms!(who_gives_up_at_the_head_is_followed_by_the_next, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (theirs, held, _ours, waiting) = armed(&place, &proxy, "gave-up").await;
    let after = wait_for(&theirs, "gave-up");
    until_queued(&theirs, "gave-up", 3).await;
    // The release reaches the service, and the one that it grants is gone before it hears of that.
    proxy.blackhole_towards(Direction::ToClient, true);
    held.release().await.expect("release succeeds");
    waiting.abort();
    assert!(waiting.await.expect_err("aborted").is_cancelled());
    proxy.blackhole_towards(Direction::ToClient, false);
    let guard = ended(after).await.expect("lock granted");
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "gave-up")).await;
    place.assert_no_watches().await;
});

on_both_arms!(a_panic_under_several_locks_is_told_to_whoever_waits_for_one_of_them, |place| async move {
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

on_both_arms!(what_somebody_wrote_into_the_record_meanwhile_stays_there, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let (theirs, held, _ours, waiting) = armed(&place, &proxy, "written").await;
    let directory = directory(&place, "written");
    stranger.set_data(&directory, b"of an operator", None).await.expect("znode exists");
    held.release().await.expect("release succeeds");
    // It lets go before it could read the record.
    ended(waiting).await.expect("lock granted").release().await.expect("release succeeds");
    let (data, _) = stranger.get_data(&directory).await.expect("znode exists");
    assert_eq!(data, b"of an operator");
    theirs.mutex("written").lock().await.expect("lock acquired").release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory).await;
});

on_both_arms!(who_is_deleted_together_with_the_one_before_it_hears_of_it, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    for turn in 0..20 {
        let name = format!("together-{turn}");
        let (_theirs, _held, _ours, waiting) = armed(&place, &proxy, &name).await;
        let nodes = queue(&stranger, &directory(&place, &name)).await;
        // That of the one before it first: it may be granted what it loses at once.
        delete_at_once(&stranger, &[&nodes[0], &nodes[1]]).await;
        let lost = match ended(waiting).await {
            Err(Error::Lost { reason, .. }) => reason,
            Err(error) => panic!("{error}"),
            Ok(guard) => tokio::time::timeout(PATIENCE, guard.lost()).await.expect("loss reported in time"),
        };
        assert_eq!(lost, LossReason::Broken);
    }
});

on_both_arms!(who_is_deleted_while_it_waits_is_told_at_once, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let stranger = tree::connect(&place.addr()).await.expect("session starts");
    let (_theirs, held, _ours, waiting) = armed(&place, &proxy, "waits").await;
    let nodes = queue(&stranger, &directory(&place, "waits")).await;
    stranger.delete(&nodes[1], None).await.expect("znode exists");
    let error = ended(waiting).await.expect_err("not ours, while another one holds");
    assert!(matches!(error, Error::Lost { reason: LossReason::Broken, .. }), "{error}");
    assert!(held.is_valid());
    held.release().await.expect("release succeeds");
});
