//! The rules by which the log drops, keeps or refuses batches and snapshots.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use zoolock_server::log::forge::{self, Batch};
use zoolock_server::log::{
    Disk, DiskFile, Log, LogError, Nonce, Options, SnapshotFile, SnapshotWriter, codec, replay,
};
use zoolock_server::tree::{NodeMeta, NodeRecord, Tree};
use zoolock_server::txn::{Change, Create, Password, Txn};
use zoolock_server::{SessionId, State, StoredSession, Zxid, acl};

use crate::sim_disk::SimDisk;

pub(super) fn create(zxid: i64, path: &str) -> Txn {
    let change = Change::Create(Create {
        path: path.into(),
        data: Some(Bytes::from_static(b"data")),
        acl: acl::open_list(),
        owner: 0,
        parent_created: -1,
        with_stat: false,
    });
    Txn { zxid: Zxid(zxid), session: SessionId::NONE, time: 1, change }
}

fn options() -> Options {
    Options { segment_size: 1 << 20, allocate: 0, snapshot_after: 1000 }
}

fn log_with(disk: Arc<dyn Disk>, txns: &[Txn]) -> Log {
    let (mut log, _) = Log::open(disk, options()).expect("a good disk");
    for txn in txns {
        log.append(txn).expect("a good disk");
        log.write().expect("a good disk");
        log.sync().expect("a good disk");
    }
    log
}

/// Writes transactions that are not synced, each in a batch of its own.
fn write_unsynced(log: &mut Log, txns: &[Txn]) {
    for txn in txns {
        log.append(txn).expect("a good disk");
        log.write().expect("a good disk");
    }
}

const FIRST: &str = "log.0000000000000000";
const END_RECORD: &str = "end-of-log";

/// Size of the header of a segment in bytes.
const SEGMENT_HEADER: usize = 56;
/// Size of the header of a batch in bytes. The length of the payload is at byte 24.
const BATCH_HEADER: usize = 48;

/// Returns the offsets at which the batches of the first segment begin, and the end of the last batch.
fn bounds(disk: &SimDisk) -> Vec<usize> {
    let file = disk.contents(FIRST);
    let (mut at, mut bounds) = (SEGMENT_HEADER, vec![SEGMENT_HEADER]);
    while let Some(len) = file.get(at + 24..).and_then(|rest| rest.first_chunk()) {
        at += BATCH_HEADER + u32::from_be_bytes(*len) as usize;
        bounds.push(at);
    }
    bounds
}

#[test]
fn batch_of_another_log_is_dropped() {
    // Both disks generate the same nonce, and the batches have the same length. Only the `chain`
    // checksum shows that the last batch belongs to another log.
    let (one, other) = (SimDisk::new(1), SimDisk::new(1));
    write_unsynced(&mut log_with(one.dyn_disk(), &[create(1, "/a"), create(2, "/b")]), &[create(3, "/c")]);
    log_with(other.dyn_disk(), &[create(1, "/x"), create(2, "/y"), create(3, "/z")]);
    let bounds = bounds(&one);
    let mut mixed = one.contents(FIRST);
    mixed[bounds[2]..].copy_from_slice(&other.contents(FIRST)[bounds[2]..]);
    one.write_synced(FIRST, mixed);
    let (_, recovered) =
        Log::open(one.dyn_disk(), options()).expect("nothing proves that batch 3 was synced");
    assert_eq!(recovered.state.zxid.0, 2);
    let dropped = recovered.dropped_end.expect("the batch of the other log");
    assert_eq!((dropped.offset, dropped.bytes), (bounds[2] as u64, (bounds[3] - bounds[2]) as u64));
}

#[test]
fn moved_batch_is_ignored() {
    let disk = SimDisk::new(1);
    let mut log = log_with(disk.dyn_disk(), &[create(1, "/a")]);
    write_unsynced(&mut log, &[create(2, "/b"), create(3, "/c")]);
    let bounds = bounds(&disk);
    let mut moved = disk.contents(FIRST);
    moved[bounds[1]] ^= 1;
    moved.insert(bounds[2], 7);
    disk.write_synced(FIRST, moved);
    let (_, recovered) = Log::open(disk.dyn_disk(), options()).expect("no proof that the rest was synced");
    assert_eq!(recovered.state.zxid.0, 1);
}

#[test]
fn damaged_last_batch_is_dropped_unless_synced() {
    let disk = SimDisk::new(1);
    let mut log = log_with(disk.dyn_disk(), &[create(1, "/a")]);
    write_unsynced(&mut log, &[create(2, "/b")]);
    let damage = |disk: &SimDisk, at: usize| {
        let disk = disk.copy();
        let mut contents = disk.contents(FIRST);
        contents[at] ^= 1;
        disk.write_synced(FIRST, contents);
        Log::open(disk.dyn_disk(), options()).map(|(_, recovered)| recovered)
    };
    let bounds = bounds(&disk);
    let recovered = damage(&disk, bounds[2] - 1).expect("recovered as after a crash");
    assert_eq!((recovered.state.zxid.0, recovered.dropped_end.is_some()), (1, true));
    let refused = |disk: &SimDisk| {
        let error = damage(disk, bounds[2] - 1).expect_err("it was acknowledged").to_string();
        assert!(error.contains(FIRST) && error.contains(&format!("byte {}:", bounds[1])), "{error}");
    };
    log.sync().expect("a good disk");
    refused(&disk);
    log.seal_when_idle().expect("a good disk");
    refused(&disk);
    // The seal itself contains no transaction.
    let recovered = damage(&disk, bounds[2] + 5).expect("nothing is missing");
    assert_eq!((recovered.state.zxid.0, recovered.dropped_end.is_some()), (2, true));
    let steps = disk.steps();
    log.seal_when_idle().expect("a good disk");
    assert_eq!(disk.steps(), steps, "a sealed log is not sealed again");
}

#[test]
fn invalid_transaction_error_names_its_offset() {
    for (bad, why) in [
        (create(2, "/a"), "exists"),
        (create(2, "/no/parent"), "has no parent"),
        (Txn { change: Change::Delete { path: "/b".into() }, ..create(2, "") }, "cannot be deleted"),
        (Txn { session: SessionId(5), ..create(2, "/b") }, "session 0x5 is unknown"),
    ] {
        let disk = SimDisk::new(1);
        log_with(disk.dyn_disk(), &[create(1, "/a"), bad]).seal_when_idle().expect("a good disk");
        let error = Log::open(disk.dyn_disk(), options()).expect_err("the change does not fit").to_string();
        assert!(error.contains(why) && error.contains(&format!("byte {}:", bounds(&disk)[1])), "{error}");
    }
}

#[test]
fn log_with_descending_zxids_is_refused() {
    let payloads = [(1, "/a"), (3, "/b"), (2, "/c")].map(|(zxid, path)| {
        let mut record = BytesMut::new();
        codec::encode_txn(&create(zxid, path), &mut record).expect("the transaction can be logged");
        let mut payload = BytesMut::new();
        payload.put_u32(record.len() as u32);
        payload.put_slice(&record);
        payload
    });
    let batches = payloads.iter().map(|payload| Batch { records: 1, synced_to: u64::MAX, payload });
    let seal = Batch { records: 0, synced_to: u64::MAX, payload: &[] };
    let (name, contents) = forge::segment(Zxid(0), &batches.chain([seal]).collect::<Vec<_>>());
    let disk = SimDisk::new(1);
    disk.write_synced(&name, contents);
    let error = Log::open(disk.dyn_disk(), options()).expect_err("2 after 3").to_string();
    assert!(
        error.contains(&format!("byte {}: transaction 0x2 comes after 0x3", bounds(&disk)[2])),
        "{error}"
    );
}

#[test]
fn append_of_old_zxid_fails_the_log() {
    let mut log = log_with(SimDisk::new(1).dyn_disk(), &[create(5, "/a")]);
    let error = log.append(&create(5, "/b")).expect_err("the same zxid again").to_string();
    assert!(error.contains("0x5"), "{error}");
    assert_eq!(log.append(&create(6, "/b")).expect_err("failed before").to_string(), error);
}

#[test]
fn inconsistent_snapshot_is_refused() {
    let record = |path: &str, owner: i64, zxid: i64| NodeRecord {
        path: path.to_owned(),
        data: None,
        acl: acl::open_list(),
        meta: NodeMeta { czxid: Zxid(zxid), ..NodeMeta::new(Zxid(1), 0, owner) },
    };
    let session = StoredSession { timeout_ms: 1, password: Password([7; 16]) };
    let sessions = [(SessionId(9), session)].into();
    for (extra, why) in [
        (vec![record("/b", 8, 1)], Some("belongs to a session that does not exist")),
        (vec![record("/b", -8, 1)], Some("belongs to a session that does not exist")),
        (vec![record("/b", 0, 2)], Some("newer than the snapshot")),
        (vec![record("/b/c", 0, 1)], Some("is missing")),
        (vec![record("/b", 0, 1), record("/b", 0, 1)], Some("occurs twice")),
        (vec![record("/b", 9, 1), record("/b/c", 0, 1)], Some("is an ephemeral and has children")),
        (vec![record("/b", 9, 1)], None),
    ] {
        let disk = SimDisk::new(1);
        let log = log_with(disk.dyn_disk(), &[create(1, "/a")]);
        let zxid = Zxid(1);
        let mut writer =
            SnapshotWriter::begin(disk.dyn_disk(), zxid, &sessions, &BTreeSet::new()).expect("a good disk");
        let mut state = State::new(0);
        replay(create(1, "/a"), &mut state).expect("it fits");
        writer.add(Tree::records(&state.tree).chain(extra)).expect("a good disk");
        assert!(!format!("{writer:?}{log:?}").contains("7, 7"));
        writer.finish(log.synced()).expect("a good disk");
        let (_, recovered) = Log::open(disk.dyn_disk(), options()).expect("the log alone is sufficient");
        match (&recovered.unused_snapshot_errors[..], why) {
            ([], None) => assert_eq!(recovered.state.sessions, sessions),
            ([error], Some(why)) => assert!(error.to_string().contains(why), "{error}"),
            (unused_snapshot_errors, why) => panic!("{why:?}: {unused_snapshot_errors:?}"),
        }
    }
}

#[test]
fn log_shorter_than_recorded_in_snapshot_is_refused() {
    let disk = SimDisk::new(1);
    let txns: Vec<Txn> = (1..5).map(|i| create(i, &format!("/{i}"))).collect();
    let mut log = log_with(disk.dyn_disk(), &txns[..3]);
    let record = disk.contents(END_RECORD);
    log.append(&txns[3]).expect("a good disk");
    log.write().expect("a good disk");
    log.sync().expect("a good disk");
    // After a crash of the machine, the record of the end may be older than the snapshot.
    disk.write_synced(END_RECORD, record);
    let mut state = State::new(0);
    txns.into_iter().try_for_each(|txn| replay(txn, &mut state)).expect("they fit");
    // The snapshot records that all four batches were synced.
    let zxid = Zxid(4);
    let mut writer = SnapshotWriter::begin(disk.dyn_disk(), zxid, [], &BTreeSet::new()).expect("a good disk");
    writer.add(state.tree.records()).expect("a good disk");
    writer.finish(log.synced()).expect("a good disk");
    let bounds = bounds(&disk);
    let whole = disk.contents(FIRST);
    for (cut, to) in [(bounds[4] - 1, 3), (bounds[3], 3), (bounds[0], 0)] {
        disk.write_synced(FIRST, whole[..cut].to_vec());
        let error = Log::open(disk.dyn_disk(), options()).expect_err("it was synced").to_string();
        assert!(
            error.contains(&format!("{FIRST} is damaged at byte {}: a snapshot records", bounds[to])),
            "{error}"
        );
    }
    // The name of an unreadable snapshot still shows the last synced transaction.
    disk.write_synced(FIRST, whole[..bounds[3]].to_vec());
    disk.write_synced("snapshot.0000000000000004", vec![0; 100]);
    let error = Log::open(disk.dyn_disk(), options()).expect_err("it was synced").to_string();
    assert!(error.contains("ends with 0x3, but 0x4 had been synced"), "{error}");
    disk.write_synced(FIRST, whole);
    let (_, recovered) = Log::open(disk.dyn_disk(), options()).expect("the whole log is there");
    assert_eq!((recovered.state.zxid, recovered.unused_snapshot_errors.len()), (zxid, 1));
}

#[test]
fn snapshot_ahead_of_synced_log_is_refused() {
    let disk = SimDisk::new(1);
    let mut log = log_with(disk.dyn_disk(), &[create(1, "/a")]);
    log.append(&create(2, "/b")).expect("a good disk");
    log.write().expect("a good disk");
    let begin =
        || SnapshotWriter::begin(disk.dyn_disk(), Zxid(2), [], &BTreeSet::new()).expect("a good disk");
    assert!(matches!(begin().finish(log.synced()), Err(LogError::NotDurable { .. })));
    log.sync().expect("a good disk");
    begin().finish(log.synced()).expect("the log is synced as far as the snapshot");
}

#[test]
fn snapshot_is_due_after_enough_logged_bytes() {
    let disk = SimDisk::new(1);
    let mut log = log_with(disk.dyn_disk(), &[]);
    let mut zxid = 0;
    let mut until_due = |log: &mut Log| {
        let before = zxid;
        while !log.is_snapshot_due() {
            zxid += 1;
            log.append(&create(zxid, &format!("/{zxid}"))).expect("a good disk");
        }
        zxid - before
    };
    let first = until_due(&mut log);
    log.record_snapshot_start();
    assert!(!log.is_snapshot_due(), "only one snapshot at a time");
    log.record_snapshot_end(None);
    assert!(!log.is_snapshot_due(), "a failed snapshot is not repeated at once");
    let again = until_due(&mut log);
    assert!(again > 0 && again < first, "{again} after {first}");
    log.record_snapshot_start();
    log.record_snapshot_end(Some(SnapshotFile { zxid: Zxid(1), bytes: 2000 }));
    assert!(until_due(&mut log) > first + first / 2, "a large snapshot is taken less often");
}

#[test]
fn a_large_write_is_several_batches_and_one_sync() {
    let disk = SimDisk::new(1);
    let (mut log, _) = Log::open(disk.dyn_disk(), options()).expect("a good disk");
    let data = Bytes::from(vec![7; 700_000]);
    for i in 1..=5 {
        let mut txn = create(i, &format!("/{i}"));
        if let Change::Create(create) = &mut txn.change {
            create.data = Some(data.clone());
        }
        log.append(&txn).expect("a good disk");
    }
    let before = disk.steps();
    log.write().expect("a good disk");
    log.sync().expect("a good disk");
    assert_eq!(disk.steps() - before, 3, "a write, a sync and the record of the end");
    assert_eq!(bounds(&disk).len(), 4);
    let (_, recovered) = Log::open(disk.dyn_disk(), options()).expect("a good log");
    assert_eq!((recovered.replayed, recovered.dropped_end), (5, None));
}

/// The files of a running server: the server begins a segment after they were listed.
#[derive(Debug)]
struct Growing {
    before: SimDisk,
    after: SimDisk,
}

impl Disk for Growing {
    fn list(&self) -> io::Result<Vec<String>> {
        self.before.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        if name == END_RECORD { self.before.open(name) } else { self.after.open(name) }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        panic!("{name} is created by a reader")
    }

    fn rename(&self, from: &str, _: &str) -> io::Result<()> {
        panic!("{from} is renamed by a reader")
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        panic!("{name} is removed by a reader")
    }

    fn sync_dir(&self) -> io::Result<()> {
        panic!("a reader syncs")
    }

    fn nonce(&self) -> io::Result<Nonce> {
        panic!("a reader writes")
    }

    fn describe(&self, name: &str) -> String {
        name.to_owned()
    }
}

#[test]
fn reader_ends_with_the_segments_that_it_listed() {
    let (before, after) = (SimDisk::new(1), SimDisk::new(1));
    let options = Options { segment_size: 1, allocate: 0, snapshot_after: 1000 };
    let (mut log, _) = Log::open(Arc::new(after.clone()), options).expect("a good disk");
    let mut append = |zxid, path| {
        write_unsynced(&mut log, &[create(zxid, path)]);
        log.sync().expect("a good disk");
    };
    append(1, "/a");
    after
        .list()
        .expect("a good disk")
        .iter()
        .for_each(|name| before.write_synced(name, after.contents(name)));
    append(2, "/b");
    append(3, "/c");
    let listed = |disk: &SimDisk| disk.names().iter().filter(|name| name.starts_with("log.")).count();
    assert_eq!((listed(&before), listed(&after)), (1, 3));
    let growing = Growing { before, after: after.clone() };
    let read = Log::read(&growing, true).expect("nothing is missing").expect("there is a log");
    assert_eq!(read.zxid, Zxid(1));
    after.remove("log.0000000000000001").expect("a good disk");
    assert!(matches!(Log::read(&growing, true), Err(LogError::Missing { .. })));
}
