//! Backups of the data directory of a running server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use zoolock_server::{Builder, Error, Limits, Zxid, log};
use zoolock_wire::{Reply, Request};

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
    let again = back_up(&data, &path("b")).await.expect_err("a backup is there").to_string();
    assert!(again.contains("contains a log already"), "{again}");
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
