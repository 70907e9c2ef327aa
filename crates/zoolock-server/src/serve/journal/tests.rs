use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::ids::SessionId;
use crate::serve::outbox::OutputBuffer;

/// A sink whose syncs wait for a result from the test.
struct SlowSink {
    batch: Vec<i64>,
    batches: Sender<Vec<i64>>,
    word: Receiver<io::Result<()>>,
}

impl JournalSink for SlowSink {
    fn append(&mut self, txn: &Txn) -> Result<(), SinkError> {
        self.batch.push(txn.zxid.0);
        Ok(())
    }
    fn write(&mut self) -> Result<(), SinkError> {
        self.batches.send(std::mem::take(&mut self.batch)).map_err(Into::into)
    }
    fn sync(&mut self) -> Result<(), SinkError> {
        Ok(self.word.recv().unwrap_or(Ok(()))?)
    }
    fn seal(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

fn slow() -> (Journal, Receiver<Vec<i64>>, Sender<io::Result<()>>) {
    let ((batches, written), (say, word)) = (channel(), channel());
    let sink = SlowSink { batch: Vec::new(), batches, word };
    (Journal::start(sink, zxid(0)).expect("a thread"), written, say)
}

fn zxid(number: i64) -> Zxid {
    Zxid(number)
}

fn txns(numbers: std::ops::RangeInclusive<i64>) -> Vec<Txn> {
    let txn = |number| Txn {
        zxid: zxid(number),
        session: SessionId::NONE,
        time: 0,
        change: Change::Delete { path: "/a".into() },
    };
    numbers.map(txn).collect()
}

#[tokio::test]
async fn waiters_wake_only_after_sync() {
    let (journal, written, say) = slow();
    let (first, second) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let _ = journal.append(&mut txns(1..=2), false);
    assert_eq!(written.recv().expect("a batch"), [1, 2]);
    // These transactions are queued during the sync.
    let _ = journal.append(&mut txns(3..=3), false);
    let _ = journal.append(&mut txns(4..=5), false);
    assert!(journal.register_waker(zxid(2), &first) && journal.register_waker(zxid(5), &second));
    assert!(!journal.is_synced(zxid(1)));
    say.send(Ok(())).expect("the sink waits for a result");
    first.notified().await;
    assert!(journal.is_synced(zxid(2)) && !journal.is_synced(zxid(3)));
    assert!(!journal.register_waker(zxid(2), &first));
    assert_eq!(written.recv().expect("one batch of all queued transactions"), [3, 4, 5]);
    say.send(Ok(())).expect("the sink waits for a result");
    second.notified().await;
    assert_eq!(journal.shared.synced(), zxid(5));
}

#[tokio::test]
async fn failed_sync_ends_the_journal() {
    let (journal, written, say) = slow();
    let _ = journal.append(&mut txns(1..=1), false);
    written.recv().expect("a batch");
    say.send(Err(io::Error::other("the disk is gone"))).expect("the sink waits for a result");
    journal.subscribe_failure().wait_for(|failed| *failed).await.expect("the journal exists");
    assert_eq!(journal.failure(), Some("the disk is gone"));
    let _ = journal.append(&mut txns(2..=2), false);
    journal.stop();
    assert!(written.try_recv().is_err(), "a batch was written after the failure");
    assert!(!journal.is_synced(zxid(1)));
    // Output that shows no transaction is not sent either.
    let mut output = OutputBuffer::default();
    output.fill(zxid(0), |bytes| bytes.extend_from_slice(b"reply"));
    output.release_synced(Some(&journal), &Arc::new(Notify::new()));
    assert!(!output.is_writable());
}

#[tokio::test]
async fn nothing_counts_as_synced_after_an_outside_failure() {
    let (journal, written, say) = slow();
    let _ = journal.append(&mut txns(1..=1), false);
    written.recv().expect("a batch");
    journal.fail("the directory is gone".to_owned());
    say.send(Ok(())).expect("the sink waits for a result");
    journal.stop();
    assert!(!journal.is_synced(zxid(1)));
    assert_eq!(journal.failure(), Some("the directory is gone"));
    assert!(*journal.subscribe_failure().borrow());
}

#[test]
fn stop_writes_queued_transactions() {
    let (journal, written, say) = slow();
    let _ = journal.append(&mut txns(1..=1), false);
    assert_eq!(written.recv().expect("a batch"), [1]);
    assert_eq!(journal.shared.synced(), zxid(0));
    drop(say);
    journal.stop();
    assert_eq!(journal.shared.synced(), zxid(1));
}

/// Appends transactions until a connection may write them itself. Lets the thread write the others, and returns the
/// last number.
fn append_until_caller_must_write(
    journal: &Journal,
    written: &Receiver<Vec<i64>>,
    say: &Sender<io::Result<()>>,
    first: i64,
) -> i64 {
    for number in first.. {
        if journal.append(&mut txns(number..=number), true) {
            return number;
        }
        say.send(Ok(())).expect("the sink waits for a result");
        assert_eq!(written.recv().expect("a batch of the thread"), [number]);
        while !journal.is_synced(zxid(number)) {
            std::thread::yield_now();
        }
    }
    unreachable!("the numbers do not end")
}

#[test]
fn caller_writes_after_fast_batch() {
    let (journal, written, say) = slow();
    assert!(!journal.append(&mut txns(1..=1), true), "no batch was fast yet");
    assert_eq!(written.recv().expect("a batch"), [1]);
    assert!(!journal.append(&mut txns(2..=2), true), "a batch is being written");
    // This batch of the thread takes longer than a fast one, and so does the next one.
    std::thread::sleep(2 * SLOW);
    say.send(Ok(())).expect("the sink waits for a result");
    assert_eq!(written.recv().expect("a batch"), [2]);
    std::thread::sleep(2 * SLOW);
    say.send(Ok(())).expect("the sink waits for a result");
    while !journal.is_synced(zxid(2)) {
        std::thread::yield_now();
    }
    assert!(!journal.append(&mut txns(3..=3), true), "the last batch was slow");
    assert_eq!(written.recv().expect("a batch"), [3]);
    say.send(Ok(())).expect("the sink waits for a result");
    while !journal.is_synced(zxid(3)) {
        std::thread::yield_now();
    }
    let next = append_until_caller_must_write(&journal, &written, &say, 4);
    say.send(Ok(())).expect("the sink waits for a result");
    journal.write_here();
    assert!(journal.is_synced(zxid(next)));
    assert_eq!(written.try_recv().expect("a batch of this thread"), [next]);
    drop(say);
}

#[test]
fn thread_writes_what_is_queued_while_a_caller_writes() {
    let (journal, written, say) = slow();
    let last = append_until_caller_must_write(&journal, &written, &say, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| journal.write_here());
        assert_eq!(written.recv().expect("the batch of the caller"), [last]);
        let _ = journal.append(&mut txns(last + 1..=last + 1), false);
        // Another caller leaves its transactions to the thread.
        journal.write_here();
        assert!(!journal.is_synced(zxid(last)));
        say.send(Ok(())).expect("the sink waits for a result");
        assert_eq!(written.recv().expect("a batch of the thread"), [last + 1]);
        assert!(journal.is_synced(zxid(last)) && !journal.is_synced(zxid(last + 1)));
        drop(say);
    });
    journal.stop();
    assert!(journal.is_synced(zxid(last + 1)));
}

#[tokio::test]
async fn failed_write_of_a_caller_ends_the_journal() {
    let (journal, written, say) = slow();
    let last = append_until_caller_must_write(&journal, &written, &say, 1);
    say.send(Err(io::Error::other("the disk is gone"))).expect("the sink waits for a result");
    journal.write_here();
    journal.subscribe_failure().wait_for(|failed| *failed).await.expect("the journal exists");
    assert!(!journal.is_synced(zxid(last)));
    assert_eq!(written.try_recv().expect("a batch"), [last]);
    let _ = journal.append(&mut txns(last + 1..=last + 1), true);
    journal.write_here();
    journal.stop();
    assert!(written.try_recv().is_err(), "a batch was written after the failure");
}

#[tokio::test]
async fn queue_is_full_until_batch_is_taken() {
    let (journal, written, say) = slow();
    let waker = Arc::new(Notify::new());
    let _ = journal.append(&mut txns(1..=1), false);
    written.recv().expect("the thread has written the batch");
    assert!(!journal.register_if_full(&waker));
    let data = Some(bytes::Bytes::from(vec![0; MAX_WAITING]));
    let mut large = txns(2..=2);
    large[0].change = Change::SetData { path: "/a".into(), data, version: 1 };
    let _ = journal.append(&mut large, false);
    assert!(journal.register_if_full(&waker));
    say.send(Ok(())).expect("the sink waits for a result");
    waker.notified().await;
    written.recv().expect("the large transaction");
    assert!(!journal.register_if_full(&waker));
    drop(say);
}

#[test]
fn access_lists_count_as_queued_bytes() {
    let list: crate::acl::AclList = [zoolock_wire::Acl {
        perms: 31,
        identity: zoolock_wire::Identity::new("digest", "u".repeat(100_000)),
    }]
    .into();
    let create = Change::Create(crate::txn::Create {
        path: "/a".into(),
        data: None,
        acl: list.clone(),
        owner: 0,
        parent_created: 1,
        with_stat: false,
    });
    let set = Change::SetAcl { path: "/a".into(), acl: list, version: 1 };
    let close = Change::CloseSession { ephemerals: vec!["/a".repeat(50_000).into()] };
    for change in [create, set, close] {
        assert!(approximate_bytes(&change) > 100_000, "{}", approximate_bytes(&change));
    }
}
