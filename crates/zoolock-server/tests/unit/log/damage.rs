//! Truncated, changed or missing files: the recovered state is right, or the log is refused.

use zoolock_server::log::{Log, LogError, Recovered};
use zoolock_server::txn::Change;
use zoolock_server::{Client, Requester, prepare};
use zoolock_wire::{Acl, CreateRequest, Request, op, perms};

use super::iterations;
use super::server::{Model, Server, small_options, visible_state};
use crate::sim_disk::{Random, SimDisk};

const SEED: u64 = 4711;

/// Returns a disk with two snapshots and a few segments. All transactions are acknowledged, and the
/// log is sealed.
fn full_disk() -> (SimDisk, Model) {
    let (disk, options, mut model) = (SimDisk::new(SEED), small_options(1024), Model::default());
    let mut random = Random(SEED);
    let mut server = Server::start(&disk, &options, &mut model).expect("an empty disk");
    for round in 0..3 {
        for _ in 0..if round < 2 { 70 } else { 120 } {
            server.decide(&mut model, &mut random).expect("a good disk");
            if random.one_in(3) {
                server.sync(&mut model).expect("a good disk");
            }
        }
        if round < 2 {
            server.snapshot(&mut model).expect("a good disk");
        }
    }
    server.seal(&mut model).expect("a good disk");
    let names = disk.names();
    let count = |of: &str| names.iter().filter(|name| name.starts_with(of)).count();
    assert!(count("snapshot.") == 2 && count("log.") >= 3, "{names:?}");
    // The two snapshots need different segments.
    let number = |name: &str| name.rsplit('.').next().map(str::to_owned);
    let mut snapshots = names.iter().filter(|name| name.starts_with("snapshot.")).map(|name| number(name));
    let (older, newer) = (snapshots.next().expect("a snapshot"), snapshots.next().expect("a snapshot"));
    let between = |name: &&String| name.starts_with("log.") && number(name) > older && number(name) <= newer;
    assert!(names.iter().find(between).is_some_and(|name| number(name) < newer), "{names:?}");
    // At least two segments follow the newer snapshot.
    let after = |name: &&String| name.starts_with("log.") && number(name) > newer;
    assert!(names.iter().filter(after).count() > 1, "{names:?}");
    (disk, model)
}

/// Opens a copy of the disk with other contents of one file.
fn open_with(disk: &SimDisk, name: &str, contents: Vec<u8>) -> Result<Recovered, LogError> {
    let disk = disk.copy();
    disk.write_synced(name, contents);
    open(&disk)
}

fn open(disk: &SimDisk) -> Result<Recovered, LogError> {
    Log::open(disk.dyn_disk(), small_options(1024)).map(|(_, recovered)| recovered)
}

/// Asserts that the error names a file of the log, and the damaged byte of a damaged file.
fn assert_names_damage(error: &LogError, disk: &SimDisk) {
    let (LogError::Damaged { file, .. } | LogError::Missing { file, .. }) = error else {
        panic!("{error}");
    };
    let text = error.to_string();
    assert!(text.contains(file.as_str()) && text.contains("restore the data directory"), "{text}");
    if let LogError::Damaged { file, offset, .. } = error {
        assert!(*offset <= disk.contents(file).len() as u64, "{text}");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_harmless_or_refused() {
    let (disk, model) = full_disk();
    let right = visible_state(&model.state(model.history.len()));
    let mut random = Random(SEED);
    let (mut harmless, mut refused) = (0, 0);
    for name in disk.names() {
        let contents = disk.contents(&name);
        for at in 0..contents.len() {
            let bits = if iterations(1, 8) == 8 {
                0..8
            } else {
                let bit = random.below(8);
                bit..bit + 1
            };
            for bit in bits {
                let mut damaged = contents.clone();
                damaged[at] ^= 1 << bit;
                match open_with(&disk, &name, damaged) {
                    Ok(recovered) => {
                        assert!(visible_state(&recovered.state) == right, "bit {bit} of byte {at} of {name}");
                        harmless += 1;
                    }
                    Err(error) => {
                        assert_names_damage(&error, &disk);
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(harmless > 1000 && refused > 1000, "{harmless} harmless, {refused} refused");
}

#[test]
fn truncated_file_is_harmless_or_refused() {
    let (disk, model) = full_disk();
    let right = visible_state(&model.state(model.history.len()));
    for name in disk.names() {
        let contents = disk.contents(&name);
        for len in 0..contents.len() {
            match open_with(&disk, &name, contents[..len].to_vec()) {
                Ok(recovered) => assert!(visible_state(&recovered.state) == right, "{name} cut at {len}"),
                Err(error) => assert_names_damage(&error, &disk),
            }
        }
    }
}

#[test]
fn empty_last_segment_is_removed_unless_noted() {
    let (disk, model) = full_disk();
    let disk = disk.copy();
    let mut random = Random(SEED);
    let mut model = Model { epoch: 5, ..model };
    let mut server = Server::start(&disk, &small_options(1024), &mut model).expect("a good disk");
    let logs =
        || -> Vec<String> { disk.names().into_iter().filter(|name| name.starts_with("log.")).collect() };
    let count = logs().len();
    let mut record = Vec::new();
    while logs().len() == count {
        record = disk.contents("end-of-log");
        server.decide(&mut model, &mut random).expect("a good disk");
        server.sync(&mut model).expect("a good disk");
    }
    drop(server);
    let logs = logs();
    let [.., before, last] = &logs[..] else { panic!("two segments") };
    disk.write_synced(last, Vec::new());
    assert_names_damage(&open(&disk).expect_err("the previous segment notes it"), &disk);
    // Removes the note, which is the last batch and has no payload. The file is then as after a
    // crash before the note was written. The record of the end is from before that crash, too.
    let noted = disk.contents(before);
    disk.write_synced(before, noted[..noted.len() - 48].to_vec());
    assert_names_damage(&open(&disk).expect_err("the record of the end names it"), &disk);
    disk.write_synced("end-of-log", record);
    let recovered = open(&disk).expect("no acknowledged write is missing");
    assert!(recovered.removed_segment.is_some_and(|name| name.contains(last.as_str())));
    let end = recovered.state.zxid;
    assert!(last.ends_with(&format!("{:016x}", end.0)), "{last} {end}");
    let kept = model.history.partition_point(|txn| txn.zxid <= end);
    assert!(visible_state(&recovered.state) == visible_state(&model.state(kept)));
    assert!(open(&disk).expect("a good log").removed_segment.is_none());
    // This empty segment does not continue the previous segment.
    disk.write_synced("log.00ffffffffffffff", Vec::new());
    assert_names_damage(&open(&disk).expect_err("transactions are missing"), &disk);
}

#[test]
fn missing_file_is_harmless_or_refused() {
    let (disk, model) = full_disk();
    let right = visible_state(&model.state(model.history.len()));
    let mut names = disk.names();
    names.retain(|name| name != "segment.tmp");
    let logs: Vec<&String> = names.iter().filter(|name| name.starts_with("log.")).collect();
    let mut accepted = 0;
    for chosen in 1..1_u32 << names.len() {
        let without = SimDisk::new(0);
        let kept = |i: usize| chosen & 1 << i == 0;
        for (_, name) in names.iter().enumerate().filter(|(i, _)| kept(*i)) {
            without.write_synced(name, disk.contents(name));
        }
        match open(&without) {
            Ok(recovered) if recovered.fresh => assert_eq!(chosen + 1, 1 << names.len(), "all files removed"),
            Ok(recovered) => {
                assert!(visible_state(&recovered.state) == right, "{:?}", without.names());
                for needed in [logs[logs.len() - 1], "end-of-log"] {
                    assert!(without.names().iter().any(|name| name == needed), "{needed} is needed");
                }
                accepted += 1;
            }
            Err(error) => assert_names_damage(&error, &disk),
        }
    }
    assert!(accepted > 0, "some files are not needed");
}

#[test]
fn damaged_snapshot_is_skipped_and_renamed() {
    let (disk, model) = full_disk();
    let right = visible_state(&model.state(model.history.len()));
    let names = disk.names();
    let newest = names.iter().rfind(|name| name.starts_with("snapshot.")).expect("a snapshot");
    let oldest = names.iter().find(|name| name.starts_with("snapshot.")).expect("a snapshot");
    let damage = |name: &str| {
        let mut contents = disk.contents(name);
        contents[60] ^= 1;
        contents
    };
    let disk = disk.copy();
    disk.write_synced(newest, damage(newest));
    let recovered = open(&disk).expect("the older snapshot is sound");
    assert!(visible_state(&recovered.state) == right);
    assert_eq!(recovered.unused_snapshot_errors.len(), 1);
    assert!(recovered.unused_snapshot_errors[0].to_string().contains(newest.as_str()));
    assert!(disk.names().contains(&format!("{newest}.damaged")) && !disk.names().contains(newest));
    // The second start does not see the renamed snapshot.
    let recovered = open(&disk).expect("the older snapshot is sound");
    assert!(visible_state(&recovered.state) == right && recovered.unused_snapshot_errors.is_empty());
    disk.write_synced(oldest, damage(oldest));
    assert_names_damage(&open(&disk).expect_err("no sound snapshot is left"), &disk);
    assert!(disk.names().contains(oldest), "a failed start renames no file");
}

/// Checks that recovery does not replay znode data that looks like batches of the log.
#[test]
fn data_like_batches_is_not_replayed() {
    let options = small_options(0);
    let mut tried = 0;
    for seed in 0..40 {
        let (disk, mut model, mut random) = (SimDisk::new(seed), Model::default(), Random(seed));
        let mut server = Server::start(&disk, &options, &mut model).expect("an empty disk");
        while model.history.len() < 8 {
            server.decide(&mut model, &mut random).expect("a good disk");
            server.seal(&mut model).expect("a good disk");
        }
        let name = disk.names().into_iter().rfind(|name| name.starts_with("log.")).expect("a log");
        // The header and the batches of this log. No real client can know these bytes.
        let real = disk.contents(&name);
        let Some(&session) = server.state.sessions.keys().next() else { continue };
        tried += 1;
        let path = format!("/imitation-{seed}");
        let create = CreateRequest {
            op: op::CREATE,
            path,
            data: Some([&real[..], &real[56..]].concat().into()),
            acl: vec![Acl::anyone(perms::ALL)],
            flags: 0,
            ttl: -1,
        };
        let client = Client::new(Vec::new());
        let asker = Requester { session, client: &client, extended_types: true };
        let change = prepare(Request::Create(create), &server.state, asker);
        assert!(matches!(change, Change::Create(_)), "{change:?}");
        server.execute(&mut model, session, change).expect("a good disk");
        // This write is never synced. After a crash its batch is complete, missing, or partial and dropped.
        server.log.write().expect("a good disk");
        for way in 0..20 {
            let disk = disk.after_crash(way);
            let mut model = model.clone();
            Server::start(&disk, &options, &mut model).expect("recovers after a crash");
        }
        server.seal(&mut model).expect("a good disk");
        Server::start(&disk, &options, &mut model).expect("a good disk");
    }
    assert!(tried > 20);
}
