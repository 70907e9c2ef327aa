//! The end of the log: no acknowledged transaction is missing without an error, and the log grows
//! while no file can be opened.

use zoolock_server::log::{Disk as _, Log, LogError, Recovered};

use super::server::{Model, Server, small_options};
use crate::sim_disk::{Random, SimDisk};

const END_RECORD: &str = "end-of-log";

/// The end of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The server sealed its log.
    Stop,
    /// The server was killed. Its last transaction is written and not synced.
    Kill,
}

/// Returns the disk of a server that ended: a snapshot and a few segments.
pub(super) fn ended_server(end: End) -> (SimDisk, Model) {
    let (disk, mut model, mut random) = (SimDisk::new(1), Model::default(), Random(1));
    let mut server = Server::start(&disk, &small_options(1024), &mut model).expect("an empty disk");
    for round in 0..50 {
        server.decide(&mut model, &mut random).expect("a good disk");
        server.sync(&mut model).expect("a good disk");
        if round == 20 {
            server.snapshot(&mut model).expect("a good disk");
        }
    }
    match end {
        End::Stop => server.seal(&mut model).expect("a good disk"),
        End::Kill => {
            server.decide(&mut model, &mut random).expect("a good disk");
            server.log.write().expect("a good disk");
        }
    }
    assert!(disk.names().iter().filter(|name| name.starts_with("log.")).count() > 1, "{:?}", disk.names());
    (disk, model)
}

fn open(disk: &SimDisk) -> Result<Recovered, LogError> {
    Log::open(disk.dyn_disk(), small_options(1024)).map(|(_, recovered)| recovered)
}

/// Opens the log. It must have all acknowledged transactions, or be refused with an error that names
/// a file and the next step. Returns whether it is refused.
fn is_refused(disk: &SimDisk, model: &Model) -> bool {
    match open(&disk.copy()) {
        Ok(recovered) => {
            model.clone().accept(&recovered.state);
            false
        }
        Err(LogError::Damaged { file, what, .. } | LogError::Missing { file, what }) => {
            assert!(!file.is_empty() && !what.is_empty());
            true
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn log_cut_anywhere_is_complete_or_refused() {
    for end in [End::Stop, End::Kill] {
        let (disk, model) = ended_server(end);
        let last = disk.names().into_iter().rfind(|name| name.starts_with("log.")).expect("a segment");
        for name in disk.names() {
            let contents = disk.contents(&name);
            let mut refused = 0;
            for len in 0..contents.len() {
                let disk = disk.copy();
                disk.write_synced(&name, contents[..len].to_vec());
                refused += usize::from(is_refused(&disk, &model));
            }
            assert!(name != last || refused > contents.len() / 4, "{end:?}: {refused} of {}", contents.len());
        }
    }
}

#[test]
fn removed_files_are_not_needed_or_refused() {
    for end in [End::Stop, End::Kill] {
        let (disk, model) = ended_server(end);
        for name in disk.names() {
            let disk = disk.copy();
            disk.remove(&name).expect("it exists");
            let refused = is_refused(&disk, &model);
            assert!(
                refused || name.starts_with("snapshot.") || name.ends_with(".tmp") || name.ends_with("0000"),
                "{name}"
            );
        }
        let disk = disk.copy();
        disk.names().iter().filter(|name| *name != END_RECORD).for_each(|name| {
            disk.remove(name).expect("it exists");
        });
        let error = open(&disk).expect_err("only the record of the end is left");
        let acked = model.history[model.acked - 1].zxid;
        assert!(error.to_string().contains(&format!("records transaction {acked}")), "{error}");
        assert!(
            error.to_string().contains("there is no log") && error.to_string().contains("--recover"),
            "{error}"
        );
    }
}

#[test]
fn missing_record_of_the_end_is_refused() {
    let (disk, model) = ended_server(End::Stop);
    disk.remove(END_RECORD).expect("it exists");
    let error = open(&disk).expect_err("the log may have had more transactions").to_string();
    let last = model.history[model.history.len() - 1].zxid;
    assert!(error.contains(&format!("{END_RECORD} is missing: the log ends with {last}")), "{error}");
    let empty = SimDisk::new(1);
    let opened = Log::open_again(empty.dyn_disk(), small_options(0), true);
    let error = opened.expect_err("a log was here before").to_string();
    assert!(error.contains(&format!("{END_RECORD} is missing: the epoch file shows")), "{error}");
    assert!(empty.names().is_empty(), "a refused start creates no file");
}

#[test]
fn other_log_than_the_recorded_is_refused() {
    let (disk, mut model, mut random) = (SimDisk::new(3), Model::default(), Random(3));
    let mut server = Server::start(&disk, &small_options(0), &mut model).expect("an empty disk");
    while model.history.len() < 4 {
        server.decide(&mut model, &mut random).expect("a good disk");
        server.seal(&mut model).expect("a good disk");
    }
    let older = disk.copy();
    // The newer log continues the older one with other batches.
    let mut other_model = model.clone();
    let mut other = Server::start(&older, &small_options(0), &mut other_model).expect("a good log");
    while other_model.history.len() < 6 {
        other.decide(&mut other_model, &mut random).expect("a good disk");
        other.seal(&mut other_model).expect("a good disk");
    }
    while model.history.len() < 5 {
        server.decide(&mut model, &mut random).expect("a good disk");
        server.seal(&mut model).expect("a good disk");
    }
    let first = "log.0000000000000000";
    older.write_synced(END_RECORD, disk.contents(END_RECORD));
    let error = open(&older).expect_err("another log").to_string();
    assert!(error.contains(first) && error.contains(END_RECORD), "{error}");
}

#[test]
fn log_grows_while_no_file_can_be_opened() {
    let (disk, mut model, mut random) = (SimDisk::new(5), Model::default(), Random(5));
    let mut server = Server::start(&disk, &small_options(0), &mut model).expect("an empty disk");
    let segments = || disk.names().iter().filter(|name| name.starts_with("log.")).count();
    let mut write = |count: usize| {
        for _ in 0..count {
            server.decide(&mut model, &mut random).expect("append does not use the disk");
            server.sync(&mut model).expect("the open files still work");
        }
    };
    disk.set_lack_of_descriptors(true);
    // The file of the second segment is open already.
    write(200);
    assert_eq!(segments(), 2);
    disk.set_lack_of_descriptors(false);
    write(60);
    assert!(segments() > 2, "{:?}", disk.names());
    drop(server);
    Server::start(&disk, &small_options(0), &mut model).expect("a good log");
}
