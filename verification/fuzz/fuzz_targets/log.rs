//! The log and its snapshots: truncated or damaged histories, and well-formed files with invalid contents.
//!
//! Opening such a log must return an earlier state, or an error.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use zoolock_fuzz::sim_disk::{Fault, SimDisk};
use zoolock_fuzz::{Input, frame, records};
use zoolock_server::acl::{self, AclList};
use zoolock_server::core::{Core, CoreConfig, Now, SessionSeed};
use zoolock_server::log::forge::{self, Batch};
use zoolock_server::log::{Log, LogError, Options, Recovered, SnapshotWriter, codec, replay};
use zoolock_server::tree::{CONTAINER, NodeMeta, NodeRecord, Tree, ttl_owner};
use zoolock_server::txn::{Change, Create, Password, Txn};
use zoolock_server::{Client, Requester, SessionId, State, StoredSession, Zxid, commit, prepare};
use zoolock_wire::{Acl, ConnectRequest, Identity, Reader, Request, Writer};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    match input.byte() % 8 {
        0..3 => damaged(&mut input),
        3 => crashed(&mut input),
        4 | 5 => forged_segments(&mut input),
        6 => forged_snapshot(&mut input),
        _ => decoders(&mut input),
    }
});

/// A log that is written step by step, and its expected state.
struct History {
    disk: SimDisk,
    options: Options,
    log: Option<Log>,
    state: State,
    txns: Vec<Txn>,
    synced: Zxid,
    /// Set if nothing was written since the log was sealed.
    sealed: bool,
}

impl History {
    fn new(input: &mut Input<'_>) -> Self {
        let choice = input.byte();
        let options = Options {
            segment_size: 300 + u64::from(choice) * 8,
            allocate: [0, 0, 1024, 4096][usize::from(choice % 4)],
            snapshot_after: 1 << 20,
        };
        let state = State::new(0);
        let disk = SimDisk::new(u64::from(choice));
        History { disk, options, log: None, synced: state.zxid, state, txns: Vec::new(), sealed: false }
    }

    /// Carries out this number of steps, or stops at the first error.
    fn run(&mut self, steps: u8, input: &mut Input<'_>) -> Result<(), LogError> {
        for _ in 0..steps {
            if self.log.is_none() {
                let (log, recovered) = Log::open(self.disk.dyn_disk(), self.options.clone())?;
                assert!(states_equal(&recovered.state, &self.state), "the reopened log has another state");
                self.log = Some(log);
            }
            self.step(input)?;
            let log = self.log.as_ref();
            self.synced = log.map_or(self.synced, |log| log.synced().zxid);
        }
        Ok(())
    }

    fn step(&mut self, input: &mut Input<'_>) -> Result<(), LogError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        match input.byte() % 16 {
            0 => log.write()?,
            1 | 2 => {
                log.write()?;
                log.sync()?;
            }
            3 => {
                log.seal_when_idle()?;
                self.sealed = true;
            }
            4 | 5 => {
                log.write()?;
                log.sync()?;
                log.record_snapshot_start();
                let writer = SnapshotWriter::begin(
                    log.disk(),
                    self.state.zxid,
                    &self.state.sessions,
                    &self.state.ending,
                );
                let mut writer = writer?;
                writer.add(self.state.tree.records())?;
                let snapshot = writer.finish(log.synced())?;
                log.record_snapshot_end(Some(snapshot));
                log.remove_old_files()?;
            }
            6 => {
                let Some(log) = self.log.take() else { return Ok(()) };
                log.close()?;
                (self.sealed, self.synced) = (true, self.state.zxid);
            }
            _ => {
                let txn = txn(input, &self.state);
                let before = self.state.zxid;
                commit(&txn, &mut self.state);
                if matches!(txn.change, Change::Refused(_)) {
                    self.state.zxid = before;
                    return Ok(());
                }
                self.sealed = false;
                self.txns.push(txn.clone());
                log.append(&txn)?;
            }
        }
        Ok(())
    }

    /// Returns the state after this transaction, if the history contains it.
    fn at(&self, zxid: Zxid) -> Option<State> {
        let mut state = State::new(0);
        for txn in &self.txns {
            if state.zxid == zxid {
                break;
            }
            replay(txn.clone(), &mut state).expect("a decided transaction can be replayed");
        }
        (state.zxid == zxid).then_some(state)
    }

    fn assert_earlier_state(&self, recovered: &State) {
        let Some(earlier) = self.at(recovered.zxid) else { panic!("unknown zxid {}", recovered.zxid) };
        assert!(states_equal(&earlier, recovered), "the recovered state never existed");
    }
}

/// Decides a write on a tree with few paths and sessions.
fn txn(input: &mut Input<'_>, state: &State) -> Txn {
    let zxid = state.zxid.next().expect("zxids suffice");
    let session = SessionId(i64::from(input.byte() % 3) + 1);
    let known = state.sessions.contains_key(&session);
    let change = match input.byte() % 16 {
        _ if !known => Change::CreateSession { timeout_ms: 1000, password: Password([1; 16]) },
        0 => prepare(Request::CloseSession, state, asker(session)),
        1..4 => {
            let writes = (0..input.byte() % 5).map(|_| input.write()).collect();
            prepare(Request::Multi(writes), state, asker(session))
        }
        _ => prepare(input.write(), state, asker(session)),
    };
    Txn { zxid, session, time: 1, change }
}

fn asker(session: SessionId) -> Requester<'static> {
    thread_local! {
        static CLIENT: &'static Client = Box::leak(Box::new(Client::new(Vec::new())));
    }
    Requester { session, client: CLIENT.with(|client| *client), extended_types: true }
}

fn states_equal(a: &State, b: &State) -> bool {
    (a.zxid, &a.sessions) == (b.zxid, &b.sessions) && records(&a.tree) == records(&b.tree)
}

/// Opens a log after changes of bytes and removals of files.
fn damaged(input: &mut Input<'_>) {
    let mut history = History::new(input);
    let steps = input.byte() % 64;
    history.run(steps, input).expect("disk works");
    if let Some(log) = history.log.take() {
        // Transactions that were not written are lost.
        drop(log);
    }
    let names = history.disk.names();
    if names.is_empty() {
        return;
    }
    let last = names.iter().rfind(|name| name.starts_with("log.")).cloned().unwrap_or_default();
    let seal = history.disk.contents(&last).windows(8).rposition(|bytes| bytes == b"zlbatch\x01");
    // The seal proves that everything before it was synced. Damage there must not be taken for an interrupted write.
    let mut proven = history.sealed;
    for _ in 0..input.byte() % 4 {
        let name = names[usize::from(input.byte()) % names.len()].clone();
        let mut contents = history.disk.contents(&name);
        let len = contents.len();
        let at = usize::from(input.short()) % len.max(1);
        let end = (at + usize::from(input.byte())).min(len);
        match input.byte() % 10 {
            0..3 if len > 0 => contents[at] ^= input.byte(),
            3 => contents[at..end].fill(0),
            4 if len > 0 => contents.rotate_left(at),
            5 => {
                let other = usize::from(input.short()) % len.max(1);
                let count = (end - at).min(len - other);
                let block = contents[at..at + count].to_vec();
                contents.copy_within(other..other + count, at);
                contents[other..other + count].copy_from_slice(&block);
                proven &= name != last || seal.is_some_and(|seal| other + count <= seal);
            }
            6 => {
                contents.truncate(at);
                proven = false;
            }
            7 => {
                contents.splice(at..at, input.bytes().iter().copied());
                proven = false;
            }
            8 => {
                contents = history.disk.contents(&names[usize::from(input.byte()) % names.len()]);
                proven = false;
            }
            _ => {
                zoolock_server::log::Disk::remove(&history.disk, &name).unwrap_or_default();
                proven = false;
                continue;
            }
        }
        let before_seal =
            |seal: usize| end <= seal && contents.get(seal..) == history.disk.contents(&last).get(seal..);
        proven = proven && (name != last || seal.is_some_and(before_seal));
        history.disk.write_synced(&name, contents);
    }
    let disk = history.disk.copy();
    let opened = Log::open(disk.dyn_disk(), history.options.clone());
    let Ok((log, recovered)) = opened else { return };
    history.assert_earlier_state(&recovered.state);
    if proven {
        assert_eq!(
            recovered.state.zxid, history.state.zxid,
            "synced transactions are missing without an error"
        );
    }
    check_reopens(log, recovered, &disk, &history.options);
}

/// Opens a log after a disk fault and a crash.
fn crashed(input: &mut Input<'_>) {
    let mut history = History::new(input);
    let fault = input.choose(&[Fault::PowerCut, Fault::Error, Fault::Full]);
    history.disk.fail_at(u64::from(input.short() % 256), fault);
    let steps = input.byte() % 64;
    let _ = history.run(steps, input);
    drop(history.log.take());
    let disk = history.disk.after_crash(input.long() as u64);
    let (log, recovered) = Log::open(disk.dyn_disk(), history.options.clone()).expect("log survives crash");
    history.assert_earlier_state(&recovered.state);
    assert!(recovered.state.zxid >= history.synced, "synced transactions are missing");
    check_reopens(log, recovered, &disk, &history.options);
}

/// Checks that an opened log can be written to, and opened again.
fn check_reopens(mut log: Log, recovered: Recovered, disk: &SimDisk, options: &Options) {
    let mut state = recovered.state;
    let (_, again) = Log::open(disk.copy().dyn_disk(), options.clone()).expect("a repaired log opens");
    assert!(states_equal(&again.state, &state), "the second opening gives another state");
    assert_eq!(again.dropped_end, None, "the second opening drops an end again");
    let Some(zxid) = state.zxid.next() else { return };
    let change = Change::CreateSession { timeout_ms: 1, password: Password([2; 16]) };
    let txn = Txn { zxid, session: SessionId(9999), time: 1, change };
    commit(&txn, &mut state);
    log.append(&txn).expect("disk works");
    log.close().expect("disk works");
    let (_, again) = Log::open(disk.dyn_disk(), options.clone()).expect("a closed log opens");
    assert!(states_equal(&again.state, &state), "the added transaction is missing");
}

/// Opens a segment of well-formed batches with arbitrary transactions.
fn forged_segments(input: &mut Input<'_>) {
    let disk = SimDisk::new(1);
    let after = Zxid(i64::from(input.byte() & 1) * i64::from(input.short()));
    let mut zxid = after.0;
    let mut state = State::new(0);
    let mut payloads = Vec::new();
    // Most changes need a session.
    if input.byte() < 240 {
        zxid += 1;
        let change = Change::CreateSession { timeout_ms: 1000, password: Password([3; 16]) };
        let record = encoded(zxid, SessionId(1), 1, change);
        let txn = codec::decode_txn(&record).expect("the encoding is decoded");
        replay(txn, &mut state).expect("the session can be created");
        payloads.push((1, 0, payload(&[record])));
    }
    while !input.is_empty() && payloads.len() < 16 {
        if input.byte() == 255 {
            payloads.push((u32::from(input.byte()), u64::from(input.byte()), input.bytes().to_vec()));
            continue;
        }
        let count = input.byte() % 16;
        let mut txns = Vec::new();
        for _ in 0..count {
            zxid += match input.byte() {
                255 => input.long() % (1 << 40),
                254 => -1,
                _ => 1,
            };
            let record = forged_txn(zxid, input);
            // A transaction that does not fit makes the whole log invalid, so few of them are added.
            let mut next = state.clone();
            let fits = codec::decode_txn(&record).is_ok_and(|txn| replay(txn, &mut next).is_ok());
            if fits {
                state = next;
            }
            if fits || input.byte() >= 240 {
                txns.push(record);
            }
        }
        payloads.push((txns.len() as u32, 0, payload(&txns)));
    }
    let batches = payloads.iter().map(|(records, synced_to, payload)| Batch {
        records: *records,
        synced_to: *synced_to,
        payload,
    });
    let (name, contents) = forge::segment(after, &batches.collect::<Vec<_>>());
    disk.write_synced(&name, contents);
    let (name, contents) = forge::end_record(after);
    disk.write_synced(&name, contents);
    open_forged(&disk, input);
}

/// Encodes records as the payload of a batch.
fn payload(records: &[BytesMut]) -> Vec<u8> {
    let record = |record: &BytesMut| [&(record.len() as u32).to_be_bytes(), &record[..]].concat();
    records.iter().flat_map(record).collect()
}

fn encoded(zxid: i64, session: SessionId, time: i64, change: Change) -> BytesMut {
    let mut out = BytesMut::new();
    let txn = Txn { zxid: Zxid(zxid), session, time, change };
    codec::encode_txn(&txn, &mut out).expect("the transaction can be encoded");
    out
}

fn forged_txn(zxid: i64, input: &mut Input<'_>) -> BytesMut {
    let session = forged_session(input);
    let time = if input.byte() < 250 { 1 } else { input.long() };
    let change = match input.byte() {
        0..16 => {
            let mut out = BytesMut::new();
            let mut writer = Writer::new(&mut out);
            writer.long(zxid);
            writer.long(session.0);
            writer.long(time);
            out.extend_from_slice(input.bytes());
            return out;
        }
        16..48 => Change::Multi((0..input.byte() % 8).map(|_| forged_change(input)).collect()),
        48..96 => Change::CreateSession { timeout_ms: u32::from(input.byte()), password: Password([3; 16]) },
        96..108 => Change::CloseSession { ephemerals: Vec::new() },
        108..112 => Change::ClosePart { ephemerals: vec![input.path().into()] },
        _ => forged_change(input),
    };
    encoded(zxid, session, time, change)
}

fn forged_session(input: &mut Input<'_>) -> SessionId {
    SessionId(match input.byte() {
        255 => input.long(),
        byte @ 200.. => i64::from(byte % 4),
        _ => 1,
    })
}

fn forged_owner(input: &mut Input<'_>) -> i64 {
    match input.byte() {
        0..96 => 0,
        96..128 => CONTAINER,
        128..160 => ttl_owner(i64::from(input.byte()) + 1).unwrap_or_default(),
        160..240 => forged_session(input).0,
        _ => input.long(),
    }
}

fn forged_acl(input: &mut Input<'_>) -> AclList {
    match input.byte() {
        0..192 => acl::open_list(),
        192..200 => AclList::from([]),
        _ => AclList::from([Acl {
            perms: i32::from(input.byte()),
            identity: Identity::new("digest", "me:hash"),
        }]),
    }
}

fn forged_data(input: &mut Input<'_>) -> Option<Bytes> {
    let len = input.byte();
    (len != 255).then(|| Bytes::copy_from_slice(input.take(usize::from(len % 64))))
}

fn forged_change(input: &mut Input<'_>) -> Change {
    let path = input.path().into();
    match input.byte() % 8 {
        0..4 => Change::Create(Create {
            path,
            data: forged_data(input),
            acl: forged_acl(input),
            owner: forged_owner(input),
            parent_created: i32::from(input.byte() as i8),
            with_stat: false,
        }),
        4 => Change::Delete { path },
        5 => Change::SetData { path, data: forged_data(input), version: i32::from(input.byte() as i8) },
        6 => Change::SetAcl { path, acl: forged_acl(input), version: i32::from(input.byte() as i8) },
        _ => Change::Check,
    }
}

/// Opens a well-formed snapshot of arbitrary znodes and sessions, which are possibly no valid
/// state.
fn forged_snapshot(input: &mut Input<'_>) {
    let zxid = Zxid(i64::from(input.byte()));
    let (mut sessions, mut nodes, mut lists) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
    let session_count = input.byte() % 8;
    for _ in 0..session_count {
        let session = StoredSession { timeout_ms: u32::from(input.byte()), password: Password([4; 16]) };
        codec::encode_session(forged_session(input), &session, &mut sessions);
    }
    let list_count = 1 + input.byte() % 3;
    for _ in 0..list_count {
        codec::encode_acl(&forged_acl(input), &mut Writer::new(&mut lists));
    }
    let mut node_count = 0_u32;
    if input.byte() < 240 {
        for record in Tree::new().records() {
            codec::encode_node(&record, 0, &mut nodes);
            node_count += 1;
        }
    }
    for _ in 0..input.byte() % 16 {
        let number = |input: &mut Input<'_>| match input.byte() {
            255 => Zxid(input.long()),
            byte => Zxid(zxid.0.min(i64::from(byte))),
        };
        let record = NodeRecord {
            path: input.path(),
            data: forged_data(input),
            acl: acl::open_list(),
            meta: NodeMeta {
                czxid: number(input),
                mzxid: number(input),
                pzxid: number(input),
                ctime: 0,
                mtime: if input.byte() < 250 { 0 } else { input.long() },
                version: i32::from(input.byte() as i8),
                created: i32::from(input.byte() as i8),
                aversion: 0,
                owner: forged_owner(input),
            },
        };
        let list = if input.byte() < 250 { 0 } else { input.byte() };
        codec::encode_node(&record, u32::from(list), &mut nodes);
        node_count += 1;
    }
    let counts = [u32::from(list_count).to_be_bytes(), node_count.to_be_bytes()].concat();
    let block = [&counts, &lists[..], &nodes[..]].concat();
    let mut last = BytesMut::new();
    let mut writer = Writer::new(&mut last);
    let synced_zxid = if input.byte() < 250 { zxid.0 } else { input.long() };
    for number in [i64::from(session_count), i64::from(node_count), synced_zxid, 0, i64::from(input.byte())] {
        writer.long(number);
    }
    let extra = (u32::from(input.byte() % 5), input.bytes());
    let mut blocks: Vec<(u32, &[u8])> = vec![(1, &sessions), (2, &block), (3, &last)];
    if input.byte() > 250 {
        blocks.insert(usize::from(input.byte()) % 4, extra);
    }
    let disk = SimDisk::new(1);
    let (name, contents) = forge::snapshot(zxid, &blocks);
    disk.write_synced(&name, contents);
    // The log contains one transaction, which is also the last one of the snapshot.
    let payload = payload(&[encoded(zxid.0, SessionId::NONE, 1, Change::Check)]);
    let (name, contents) = forge::segment(Zxid(0), &[Batch { records: 1, synced_to: 0, payload: &payload }]);
    disk.write_synced(&name, contents);
    let (name, contents) = forge::end_record(Zxid(0));
    disk.write_synced(&name, contents);
    open_forged(&disk, input);
}

/// Opens forged files. If the log accepts them, uses the state as a server does.
fn open_forged(disk: &SimDisk, input: &mut Input<'_>) {
    let options = Options { segment_size: 1 << 20, allocate: 0, snapshot_after: 1 << 20 };
    let Ok((log, recovered)) = Log::open(disk.dyn_disk(), options.clone()) else { return };
    let state = recovered.state.clone();
    let whole = Tree::from_records(state.tree.records()).expect("the tree is consistent");
    assert_eq!(whole.approximate_data_size(), state.tree.approximate_data_size());
    if state.zxid >= Zxid(0) {
        let mut writer = SnapshotWriter::begin(log.disk(), state.zxid, &state.sessions, &state.ending)
            .expect("disk works");
        writer.add(state.tree.records()).expect("disk works");
        writer.finish(log.synced()).expect("disk works");
        let (_, again) = Log::open(disk.copy().dyn_disk(), options.clone()).expect("log opens with snapshot");
        assert_eq!(again.snapshot.map(|snapshot| snapshot.zxid), Some(state.zxid), "the snapshot is refused");
        assert!(states_equal(&again.state, &state), "the snapshot has another state");
    }
    serve(state, input);
    check_reopens(log, recovered, disk, &options);
}

fn serve(state: State, input: &mut Input<'_>) {
    let config = CoreConfig {
        tick_ms: 100,
        min_timeout_ms: 200,
        max_timeout_ms: 4000,
        max_output: 1 << 20,
        ..CoreConfig::default()
    };
    let mut now = Now { mono_ms: 0, wall_ms: 1 };
    let epoch = state.zxid.epoch().saturating_add(1);
    let mut core = Core::restore(config, state, epoch, now);
    let conn = core.add_connection(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let mut greeting = BytesMut::new();
    let request = ConnectRequest { read_only: None, ..ConnectRequest::new_session(1000) };
    request.encode(&mut Writer::new(&mut greeting));
    core.receive(conn, &greeting, now, || SessionSeed { id: 77, password: Password([5; 16]) });
    for _ in 0..8 {
        let request = frame(1, &input.request());
        core.receive(conn, &request, now, || unreachable!("the connection has a session"));
    }
    (now.mono_ms, now.wall_ms) = (1 << 40, i64::MAX);
    core.expire_due_sessions(now);
    assert_eq!(core.session_count(), 0, "a session never expires");
    for _ in 0..20 {
        core.remove_empty_containers(now);
    }
    assert_eq!(core.stats().ephemerals, 0, "an ephemeral has outlived its session");
}

/// Checks that a decoded record is the same after another encoding and decoding.
fn decoders(input: &mut Input<'_>) {
    let choice = input.byte();
    let bytes = input.rest();
    let mut out = BytesMut::new();
    match choice % 4 {
        0 => {
            let Ok(txn) = codec::decode_txn(bytes) else { return };
            codec::encode_txn(&txn, &mut out).expect("a decoded transaction can be encoded");
            assert_eq!(codec::decode_txn(&out).as_ref(), Ok(&txn));
        }
        1 => {
            let Ok((id, session)) = codec::decode_session(&mut Reader::new(bytes)) else { return };
            codec::encode_session(id, &session, &mut out);
            assert_eq!(codec::decode_session(&mut Reader::new(&out)), Ok((id, session)));
        }
        2 => {
            let lists = [acl::open_list(), AclList::from([Acl::anyone(1)])];
            let Ok(node) = codec::decode_node(&lists, &mut Reader::new(bytes)) else { return };
            let list = u32::from(node.acl != lists[0]);
            codec::encode_node(&node, list, &mut out);
            assert_eq!(codec::decode_node(&lists, &mut Reader::new(&out)), Ok(node));
        }
        _ => {
            let Ok(list) = codec::decode_acl(&mut Reader::new(bytes)) else { return };
            codec::encode_acl(&list, &mut Writer::new(&mut out));
            assert_eq!(codec::decode_acl(&mut Reader::new(&out)), Ok(list));
        }
    }
}
