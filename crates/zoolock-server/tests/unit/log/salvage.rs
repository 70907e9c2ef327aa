//! A new log from what is left of a damaged log.

use zoolock_server::log::{Disk as _, Log, LogError, Salvage};

use super::end::{End, ended_server};
use super::rules::create;
use super::server::{Model, Server, small_options, visible_state};
use crate::sim_disk::{Fault, Random, SimDisk};

/// Reads what can be restored, which must be an earlier state. Returns the number of its
/// transactions.
fn read(disk: &SimDisk, model: &Model) -> (Salvage, usize) {
    let salvage = Salvage::read(disk).expect("a good disk");
    let count = model.history.partition_point(|txn| txn.zxid <= salvage.state.zxid);
    assert!(visible_state(&salvage.state) == visible_state(&model.state(count)), "{count} transactions");
    (salvage, count)
}

/// Restores the log, and checks that a server continues with it.
fn restore_and_continue(disk: &SimDisk, model: &Model) -> usize {
    let (salvage, count) = read(disk, model);
    salvage.write(&disk.dyn_disk()).expect("a good disk");
    let mut model = Model { acked: count, epoch: 7, ..model.clone() };
    model.history.truncate(count);
    let mut random = Random(count as u64);
    let mut server = Server::start(disk, &small_options(1024), &mut model).expect("a sound log");
    for _ in 0..3 {
        server.decide(&mut model, &mut random).expect("a good disk");
    }
    server.seal(&mut model).expect("a good disk");
    Server::start(&disk.after_crash(random.number()), &small_options(1024), &mut model).expect("a good log");
    count
}

#[test]
fn longest_sound_part_is_restored_after_a_cut() {
    let (disk, model) = ended_server(End::Stop);
    for name in disk.names().iter().filter(|name| name.starts_with("log.")) {
        let contents = disk.contents(name);
        let mut known = 0;
        for len in (0..contents.len()).step_by(7) {
            let disk = disk.copy();
            disk.write_synced(name, contents[..len].to_vec());
            let Err(error) = Log::open(disk.copy().dyn_disk(), small_options(1024)) else { continue };
            assert!(matches!(error, LogError::Damaged { .. } | LogError::Missing { .. }), "{error}");
            let count = restore_and_continue(&disk, &model);
            assert!(count >= known && count < model.history.len(), "a longer log restores at least as much");
            known = count;
            let damaged = format!("{name}.damaged");
            assert_eq!(disk.contents(&damaged), contents[..len], "the old file is kept");
        }
        assert!(known > 0);
    }
}

#[test]
fn newest_readable_snapshot_is_restored_without_a_log() {
    let (disk, model) = ended_server(End::Stop);
    for name in disk.names().iter().filter(|name| !name.starts_with("snapshot.")) {
        disk.remove(name).expect("it exists");
    }
    let count = restore_and_continue(&disk.copy(), &model);
    assert!(count > 0 && count < model.history.len());
    let snapshot = disk.names().pop().expect("a snapshot");
    disk.write_synced(&snapshot, vec![0; 100]);
    assert_eq!(restore_and_continue(&disk, &model), 0, "nothing is left");
    assert_eq!(disk.contents(&format!("{snapshot}.damaged")), [0; 100]);
}

#[test]
fn batch_that_does_not_fit_is_not_restored() {
    let disk = SimDisk::new(1);
    let (mut log, _) = Log::open(disk.dyn_disk(), small_options(0)).expect("an empty disk");
    // The first transaction of the second batch fits, and the second one does not.
    for batch in [&[create(1, "/a")][..], &[create(2, "/b"), create(3, "/a")]] {
        batch.iter().for_each(|txn| log.append(txn).expect("append does not use the disk"));
        log.seal_when_idle().expect("a good disk");
    }
    Log::open(disk.copy().dyn_disk(), small_options(0)).expect_err("a transaction does not fit");
    let salvage = Salvage::read(&disk).expect("a good disk");
    assert_eq!((salvage.state.zxid.0, salvage.recorded.0), (1, 3));
    assert!(salvage.state.tree.get("/a").is_some() && salvage.state.tree.get("/b").is_none());
}

#[test]
fn interrupted_restore_loses_nothing_more() {
    let (disk, model) = ended_server(End::Stop);
    let name = disk.names().into_iter().rfind(|name| name.starts_with("log.")).expect("a segment");
    let contents = disk.contents(&name);
    disk.write_synced(&name, contents[..contents.len() / 2].to_vec());
    let (_, count) = read(&disk, &model);
    let steps = |disk: &SimDisk| disk.steps();
    let whole = disk.copy();
    read(&whole, &model).0.write(&whole.dyn_disk()).expect("a good disk");
    for step in 0..steps(&whole) {
        let interrupted = disk.copy();
        interrupted.fail_at(step, Fault::PowerCut);
        read(&interrupted, &model).0.write(&interrupted.dyn_disk()).expect_err("the power is cut");
        for seed in 0..8 {
            let disk = interrupted.after_crash(seed);
            match Log::open(disk.copy().dyn_disk(), small_options(1024)) {
                Ok((_, recovered)) => {
                    let kept = visible_state(&model.state(count));
                    assert!(visible_state(&recovered.state) == kept, "step {step}");
                }
                Err(_) => assert_eq!(restore_and_continue(&disk, &model), count, "step {step}, seed {seed}"),
            }
        }
    }
}
