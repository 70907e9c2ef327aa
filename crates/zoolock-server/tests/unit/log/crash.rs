//! Power cuts and disk errors at every step that changes the disk.

use zoolock_server::log::{LogError, Options};

use super::iterations;
use super::server::{Model, Server, small_options};
use crate::sim_disk::{Fault, Random, SimDisk};

/// Number of actions of a server.
const ACTIONS: usize = 300;

/// Runs a server for this number of actions, or until the first error.
fn run(
    disk: &SimDisk,
    options: &Options,
    model: &mut Model,
    seed: u64,
    actions: usize,
) -> Result<(), LogError> {
    let mut random = Random(seed);
    let mut server = Server::start(disk, options, model)?;
    for _ in 0..actions {
        if random.one_in(40) {
            // The process is killed. Its writes are still in the cache.
            drop(server);
            server = Server::start(disk, options, model)?;
        }
        server.random_action(model, &mut random)?;
    }
    // The last step must be one whose failure fails the log. A failure of the steps of a snapshot does not.
    server.begin_session(model, &mut random)?;
    server.seal(model)
}

fn steps(options: &Options, seed: u64) -> u64 {
    let disk = SimDisk::new(seed);
    run(&disk, options, &mut Model::default(), seed, ACTIONS).expect("nothing fails");
    disk.steps()
}

/// Crashes and runs the server this number of times, and starts it once more. Some crashes happen during the start.
fn crash_and_run(mut disk: SimDisk, options: &Options, mut model: Model, seed: u64, count: usize) {
    let mut random = Random(seed);
    for _ in 0..count {
        disk = disk.after_crash(random.number());
        if !random.one_in(4) {
            disk.fail_at(random.below(60) as u64, Fault::PowerCut);
        }
        assert_ok_or_disk_error(run(&disk, options, &mut model, random.number(), 20));
    }
    let disk = disk.after_crash(random.number());
    Server::start(&disk, options, &mut model).unwrap_or_else(|error| panic!("not recovered: {error}"));
}

/// Asserts that a run succeeded or failed with a disk error. After a crash or a fault, recovery must not refuse the
/// log.
fn assert_ok_or_disk_error(result: Result<(), LogError>) {
    assert!(matches!(result, Ok(()) | Err(LogError::Io { .. })), "{result:?}");
}

#[test]
fn acknowledged_writes_survive_power_cuts() {
    for seed in 0..iterations(4, 60) as u64 {
        let options = small_options([0, 1024, 3000][seed as usize % 3]);
        let all = steps(&options, seed);
        for cut in 0..all {
            let disk = SimDisk::new(seed);
            disk.fail_at(cut, Fault::PowerCut);
            let mut model = Model::default();
            let result = run(&disk, &options, &mut model, seed, ACTIONS);
            // The server ignores some errors, for example of a snapshot. If the last steps are of this kind, it ends
            // without an error.
            assert_eq!(disk.steps(), cut + 1, "the power is cut at step {cut} of seed {seed}");
            assert_ok_or_disk_error(result);
            for way in 0..iterations(8, 40) as u64 {
                let context = FailureContext(format!("seed {seed}, cut at step {cut} of {all}, way {way}"));
                crash_and_run(disk.clone(), &options, model.clone(), seed ^ (cut << 16) ^ (way << 48), 2);
                context.passed();
            }
        }
    }
}

#[test]
fn acknowledged_writes_survive_failed_disk_operation() {
    for seed in 100..100 + iterations(4, 60) as u64 {
        let options = small_options([0, 1024, 3000][seed as usize % 3]);
        let all = steps(&options, seed);
        for step in 0..all {
            for fault in [Fault::Error, Fault::Full] {
                let context = FailureContext(format!("seed {seed}, {fault:?} at step {step} of {all}"));
                let mut random = Random(seed ^ (step << 8));
                let disk = SimDisk::new(seed);
                disk.fail_at(step, fault);
                let mut model = Model::default();
                assert_ok_or_disk_error(run(&disk, &options, &mut model, seed, ACTIONS));
                // Starts again both after a crash of the machine and without one.
                crash_and_run(disk.clone(), &options, model.clone(), random.number(), 1);
                let result = run(&disk, &options, &mut model, random.number(), 15);
                assert!(result.is_ok(), "the disk works again: {result:?}");
                crash_and_run(disk, &options, model, random.number(), 1);
                context.passed();
            }
        }
    }
}

#[test]
fn failed_log_stays_failed() {
    for seed in 200..240 {
        let options = small_options(1024);
        let disk = SimDisk::new(seed);
        let (mut model, mut random) = (Model::default(), Random(seed));
        let mut server = Server::start(&disk, &options, &mut model).expect("an empty disk");
        while model.history.len() < 3 {
            server.decide(&mut model, &mut random).expect("append does not use the disk");
        }
        // With an even seed, the first disk operation of `sync` fails. With an odd seed, the second one fails.
        disk.fail_at(disk.steps() + seed % 2, Fault::Error);
        let first = server.sync(&mut model).expect_err("the disk fails").to_string();
        assert!(first.contains("log.0000000000000000"), "{first}");
        let steps = disk.steps();
        for again in [
            server.log.write(),
            server.log.sync(),
            server.log.seal_when_idle(),
            server.log.append(&model.history[0]),
            server.sync(&mut model),
            server.seal(&mut model),
        ] {
            assert_eq!(again.expect_err("the log has failed").to_string(), first);
        }
        assert_eq!(disk.steps(), steps, "a failed log does not use the disk");
        assert_eq!((model.acked, server.log.synced().zxid.0), (0, 0));
    }
}

/// A guard that prints the position if a check fails.
struct FailureContext(String);

impl FailureContext {
    fn passed(self) {
        std::mem::forget(self);
    }
}

impl Drop for FailureContext {
    fn drop(&mut self) {
        eprintln!("failed at {}", self.0);
    }
}
