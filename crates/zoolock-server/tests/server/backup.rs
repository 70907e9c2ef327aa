//! Backups of the data directory of a running server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use zoolock_server::{Builder, Durability, Error, Limits, Zxid, log};
use zoolock_wire::{ConnectRequest, Reply, Request};

use crate::common::{RawClient, builder, create, get, set};

/// A builder whose log begins new files and takes snapshots all the time.
fn busy(dir: &Path) -> Builder {
    let log = log::Options { segment_size: 64 << 10, allocate: 16 << 10, snapshot_after: 64 << 10 };
    builder().limits(Limits { log, ..Limits::default() }).data_dir(dir)
}

/// Removes the note by which a restored server waits for the sessions of the backup.
fn forget_sessions(dir: &Path) {
    std::fs::remove_file(dir.join("owed")).expect("a backup says how long to wait");
}

async fn back_up(builder: &Builder, to: &Path) -> Result<Zxid, Error> {
    let (builder, to) = (builder.clone(), to.to_owned());
    tokio::task::spawn_blocking(move || builder.back_up(&to)).await.expect("no panic")
}

async fn version(client: &mut RawClient, path: &str) -> i32 {
    let Reply::Data { stat, .. } = client.call_ok(get(path, false)).await else { panic!("data") };
    stat.version
}

/// Writes to a znode until `stop` is set. Counts the writes that were acknowledged.
async fn write(mut client: RawClient, path: String, acknowledged: Arc<AtomicI32>, stop: Arc<AtomicBool>) {
    client.call_ok(create(&path, 0)).await;
    while !stop.load(Ordering::Relaxed) {
        client.call_ok(set(&path, &"x".repeat(3000), -1)).await;
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backups_under_load_have_all_acknowledged_writes() {
    const WRITERS: usize = 4;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = busy(&dir.path().join("data"));
    let server = data.clone().start().await.expect("a free port");
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged: [Arc<AtomicI32>; WRITERS] = Default::default();
    let mut writers = Vec::new();
    for (number, acknowledged) in acknowledged.iter().enumerate() {
        let client = RawClient::connect(server.local_addr()).await;
        writers.push(tokio::spawn(write(
            client,
            format!("/{number}"),
            Arc::clone(acknowledged),
            Arc::clone(&stop),
        )));
    }
    for round in 0..15 {
        let begun: Vec<i32> = acknowledged.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        // The writers begin some files of the log in the meantime.
        while acknowledged.iter().zip(&begun).any(|(now, begun)| now.load(Ordering::Relaxed) < begun + 40) {
            tokio::task::yield_now().await;
        }
        let before: Vec<i32> = acknowledged.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let to = dir.path().join(format!("backup{round}"));
        back_up(&data, &to).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        forget_sessions(&to);
        let restored = busy(&to).start().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        let mut client = RawClient::connect(restored.local_addr()).await;
        for (number, before) in before.iter().enumerate() {
            let version = version(&mut client, &format!("/{number}")).await;
            assert!(version >= *before, "round {round}: {version} of {before} acknowledged writes");
        }
        client.call_ok(create("/later", 0)).await;
        restored.shutdown().await;
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("every write is acknowledged");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn restored_server_waits_for_old_sessions() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let millis = Duration::from_millis;
    let data = busy(&dir.path().join("data")).tick(millis(10)).max_session_timeout(millis(100));
    let to = dir.path().join("backup");
    let server = data.clone().start().await.expect("a free port");
    back_up(&data.clone().max_session_timeout(millis(700)), &to).await.expect("a backup");
    server.shutdown().await;
    let begun = Instant::now();
    let restored = busy(&to).start().await.expect("a sound backup");
    assert!(begun.elapsed() >= millis(700), "holders may rely on locks that are not in the backup");
    restored.shutdown().await;
}

#[tokio::test]
async fn bad_backup_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    let data = busy(&path("data"));
    let missing = back_up(&data, &path("a")).await.expect_err("no directory").to_string();
    assert!(missing.contains("cannot open the data directory"), "{missing}");
    let server = data.clone().start().await.expect("a free port");
    let mut client = RawClient::connect(server.local_addr()).await;
    client.call_ok(create("/a", 0)).await;
    server.shutdown().await;
    back_up(&data, &path("b")).await.expect("a backup of a server that has stopped");
    // A log without its end is no backup.
    let log = std::fs::read_dir(path("data")).expect("readable").flatten();
    let log = log.map(|file| file.path()).find(|file| file.display().to_string().contains("log."));
    let log = log.expect("a log");
    let len = std::fs::metadata(&log).expect("a log").len();
    std::fs::File::options()
        .write(true)
        .open(&log)
        .and_then(|file| file.set_len(len.min(100)))
        .expect("writable");
    let damaged = back_up(&data, &path("c")).await.expect_err("damaged").to_string();
    assert!(damaged.contains("end-of-log"), "{damaged}");
    assert!(!path("c").exists());
    // A backup that was interrupted does not start as an empty server.
    std::fs::create_dir(path("d")).expect("writable");
    std::fs::copy(path("b").join("epoch"), path("d").join("epoch")).expect("writable");
    assert!(busy(&path("d")).start().await.is_err());
    let empty = back_up(&busy(&path("d")), &path("e")).await.expect_err("no log").to_string();
    assert!(empty.contains("there is no log"), "{empty}");
}

#[tokio::test]
async fn restored_server_continues_the_zxids() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (data, to) = (busy(&dir.path().join("data")), dir.path().join("backup"));
    let server = data.clone().start().await.expect("a free port");
    let mut owner = RawClient::connect(server.local_addr()).await;
    owner.call_ok(create("/e", 1)).await;
    owner.call_ok(Request::CloseSession).await;
    let last = back_up(&data, &to).await.expect("a backup");
    server.shutdown().await;
    forget_sessions(&to);
    let restored = busy(&to).start().await.expect("a sound backup");
    let mut client = RawClient::connect(restored.local_addr()).await;
    assert_eq!(client.call_error(get("/e", false)).await, -101);
    let Reply::Path(_) = client.call_ok(create("/new", 0)).await else { panic!("a path") };
    let Reply::Data { stat, .. } = client.call_ok(get("/new", false)).await else { panic!("data") };
    assert!(stat.czxid > last.0, "zxids of the restored server are above those of the backup");
    restored.shutdown().await;
}

fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(dir).expect("readable").flatten().map(|file| file.path());
    let mut files: Vec<_> = files.map(|path| (path.clone(), std::fs::read(path).expect("a file"))).collect();
    files.sort();
    files
}

#[tokio::test]
async fn used_directory_is_refused_unchanged() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    let data = busy(&path("data"));
    data.clone().start().await.expect("a free port").shutdown().await;
    let memory = busy(&path("memory")).durability(Durability::Memory);
    memory.start().await.expect("a free port").shutdown().await;
    back_up(&data, &path("backup")).await.expect("a sound log");
    for (name, file, text) in
        [("foreign", "notes.txt", "mine"), ("copy", "epoch.copy", "7\n"), ("begun", "epoch", "1\n")]
    {
        std::fs::create_dir(path(name)).expect("writable");
        std::fs::write(path(name).join(file), text).expect("writable");
    }
    for name in ["memory", "backup", "data", "foreign", "copy", "begun"] {
        let before = contents(&path(name));
        let error = back_up(&data, &path(name)).await.expect_err(name).to_string();
        let wanted = format!("{} is not empty; choose a new directory", path(name).display());
        assert!(error.contains(&wanted), "{name}: {error}");
        assert_eq!(contents(&path(name)), before, "{name}");
    }
    std::fs::create_dir(path("empty")).expect("writable");
    back_up(&data, &path("empty")).await.expect("an empty directory");
    forget_sessions(&path("empty"));
    busy(&path("empty")).start().await.expect("a sound backup").shutdown().await;
}

/// Writes a log of several segments, without a snapshot. The record of the end names an earlier end, as after a crash of
/// the machine. Returns the last segment.
async fn log_with_early_record(dir: &Path) -> (Builder, PathBuf) {
    let log = log::Options { segment_size: 64 << 10, allocate: 16 << 10, snapshot_after: 1 << 40 };
    let data = builder().limits(Limits { log, ..Limits::default() }).data_dir(dir);
    let server = data.clone().start().await.expect("a free port");
    let mut client = RawClient::connect(server.local_addr()).await;
    client.call_ok(create("/a", 0)).await;
    let record = std::fs::read(dir.join("end-of-log")).expect("a record");
    for _ in 0..40 {
        client.call_ok(set("/a", &"x".repeat(3000), -1)).await;
    }
    server.shutdown().await;
    std::fs::write(dir.join("end-of-log"), record).expect("writable");
    let mut segments = contents(dir).into_iter().map(|(path, _)| path);
    let is_segment =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"log."));
    (data, segments.rfind(is_segment).expect("a segment"))
}

#[tokio::test]
async fn backup_refuses_what_a_start_refuses() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    // The part of the last segment that is kept; the byte that is changed; a part of the error.
    for (kept, changed, why) in [
        (1.0, Some(0.5), Some("records that everything before")),
        (1.0, Some(0.01), Some("records that everything before")),
        (0.0, None, Some("log.0000000000000000 records that this segment follows")),
        // A write that a crash has interrupted.
        (0.5, None, None),
    ] {
        let to = |name: &str| dir.path().join(format!("{name} {kept} {changed:?}"));
        let (data, segment) = log_with_early_record(&to("data")).await;
        let mut log = std::fs::read(&segment).expect("a segment");
        let len = log.iter().rposition(|&byte| byte != 0).expect("batches") as f64;
        if let Some(at) = changed {
            log[(len * at) as usize] ^= 1;
        }
        log.truncate((len * kept) as usize);
        match kept {
            0.0 => std::fs::remove_file(&segment).expect("writable"),
            _ => std::fs::write(&segment, log).expect("writable"),
        }
        let before = contents(&to("data"));
        let backup = back_up(&data, &to("backup")).await.map_err(|error| error.to_string());
        assert_eq!(contents(&to("data")), before, "a backup changes nothing");
        let server = data.start().await.map_err(|error| error.to_string());
        match (why, backup, server) {
            (Some(why), Err(backup), Err(server)) => {
                assert!(backup.contains(why), "{backup}");
                assert_eq!(backup, server);
            }
            (None, Ok(_), Ok(server)) => {
                forget_sessions(&to("backup"));
                let restored = busy(&to("backup")).start().await.expect("a sound backup");
                let mut versions = Vec::new();
                for server in [&server, &restored] {
                    let mut client = RawClient::connect(server.local_addr()).await;
                    versions.push(version(&mut client, "/a").await);
                }
                assert!(versions[0] > 0 && versions[0] == versions[1], "{versions:?}");
                server.shutdown().await;
                restored.shutdown().await;
            }
            (_, backup, server) => panic!("{kept} {changed:?}: {backup:?}, {server:?}"),
        }
    }
}

#[tokio::test]
async fn restored_epoch_is_above_those_of_source() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    let data = busy(&path("data"));
    // Only the first start writes a transaction.
    let server = data.clone().start().await.expect("a free port");
    RawClient::connect(server.local_addr()).await.call_ok(create("/a", 0)).await;
    server.shutdown().await;
    data.clone().start().await.expect("a free port").shutdown().await;
    let source = data.clone().start().await.expect("a free port");
    back_up(&data, &path("running")).await.expect("a sound log");
    let epoch = source.epoch();
    source.shutdown().await;
    back_up(&data, &path("stopped")).await.expect("a sound log");
    for name in ["running", "stopped"] {
        forget_sessions(&path(name));
        let restored = busy(&path(name)).start().await.expect("a sound backup");
        assert_eq!(restored.epoch(), epoch + 1, "{name}");
        restored.shutdown().await;
    }
    // A start refuses these, too.
    for (file, text) in [("epoch", "1\n"), ("epoch", "much\n"), ("epoch.copy", "9\n")] {
        let kept = std::fs::read(path("data").join(file)).expect("an epoch");
        std::fs::write(path("data").join(file), text).expect("writable");
        let error = back_up(&data, &path("damaged")).await.expect_err(text).to_string();
        assert!(error.contains("the epoch file"), "{error}");
        std::fs::write(path("data").join(file), kept).expect("writable");
    }
}

#[tokio::test]
async fn backup_keeps_longest_timeout_of_source() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    let limit = |dir: &Path, seconds| busy(dir).max_session_timeout(Duration::from_secs(seconds));
    let wait_of = |name: &str| std::fs::read_to_string(path(name).join("owed")).expect("a wait");
    let data = path("data");
    // No session uses the longest timeout when the backup is made.
    let server = limit(&data, 300).start().await.expect("a free port");
    back_up(&limit(&data, 5), &path("running")).await.expect("a sound log");
    let mut client = RawClient::connect_with(server.local_addr(), &ConnectRequest::new_session(200_000))
        .await
        .expect("an answer");
    client.call_ok(create("/e", 1)).await;
    server.shutdown().await;
    back_up(&limit(&data, 400), &path("longer")).await.expect("a sound log");
    // The backup of a backup that never started.
    back_up(&limit(&path("running"), 5), &path("again")).await.expect("a sound log");
    // The session keeps its timeout beside a lower limit.
    limit(&data, 100).start().await.expect("a free port").shutdown().await;
    back_up(&limit(&data, 5), &path("session")).await.expect("a sound log");
    let wanted =
        [("running", "300000\n"), ("longer", "400000\n"), ("again", "300000\n"), ("session", "200000\n")];
    for (name, wait) in wanted {
        assert_eq!(wait_of(name), wait, "{name}");
    }
}
