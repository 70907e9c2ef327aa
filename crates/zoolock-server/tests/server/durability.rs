//! Restarts of the server with a data directory, seen by clients.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zoolock_server::{Builder, Durability, Error, Limits, LogLoss, ServerHandle, log};
use zoolock_wire::{ConnectRequest, Reply, Request, op};

use crate::common::{
    RawClient, builder, connect_request, create, create_op, delete, exists, finish_in_time, get, set,
};

async fn start(dir: &Path) -> ServerHandle {
    builder().data_dir(dir).start().await.expect("a free port and a sound directory")
}

async fn move_to(server: &ServerHandle, of: &RawClient) -> RawClient {
    let (session, password) = (of.granted.session, of.granted.password.clone());
    let request = ConnectRequest { session, password, ..connect_request() };
    RawClient::connect_with(server.local_addr(), &request).await.expect("an answer")
}

#[tokio::test]
async fn znodes_sessions_and_ephemerals_outlive_the_server() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = start(dir.path()).await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(create("/a", 0)).await;
    raw.call_ok(set("/a", "much", -1)).await;
    raw.call_ok(create("/a/e", 1)).await;
    raw.call_ok(create_op(op::CREATE_CONTAINER, "/box", 4)).await;
    raw.call_ok(create("/a/s-", 2)).await;
    raw.call_ok(create("/gone", 0)).await;
    raw.call_ok(delete("/gone", -1)).await;
    let mut left = RawClient::connect(server.local_addr()).await;
    left.call_ok(create("/a/left", 1)).await;
    left.call_ok(Request::CloseSession).await;
    let before = raw.call_ok(get("/a", false)).await;
    server.shutdown().await;

    let server = start(dir.path()).await;
    assert_eq!(server.sessions(), 1);
    let mut stranger = raw.granted.password.clone();
    stranger.0[3] ^= 1;
    let request = ConnectRequest { session: raw.granted.session, password: stranger, ..connect_request() };
    let refused = RawClient::connect_with(server.local_addr(), &request).await.expect("an answer");
    assert_eq!(refused.granted.session, 0);
    assert!(move_to(&server, &left).await.granted.session == 0, "a closed session came back");
    let mut raw = move_to(&server, &raw).await;
    assert_ne!(raw.granted.session, 0);
    assert_eq!(raw.call_ok(get("/a", false)).await, before);
    let Reply::Stat(stat) = raw.call_ok(exists("/a/e", false)).await else { panic!("a stat") };
    assert_eq!(stat.ephemeral_owner, raw.granted.session);
    for path in ["/gone", "/a/left"] {
        assert_eq!(raw.call_error(exists(path, false)).await, -101);
    }
    let Reply::Path(next) = raw.call_ok(create("/a/s-", 2)).await else { panic!("a path") };
    assert_eq!(next, "/a/s-0000000003", "sequence numbers continue");
    raw.call_ok(Request::CloseSession).await;
    let mut other = RawClient::connect(server.local_addr()).await;
    assert_eq!(other.call_error(exists("/a/e", false)).await, -101);
    server.shutdown().await;
}

#[tokio::test]
async fn restored_session_expires_after_timeout() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = start(dir.path()).await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(create("/e", 1)).await;
    server.shutdown().await;
    let server = start(dir.path()).await;
    let mut other = RawClient::connect(server.local_addr()).await;
    other.call_ok(exists("/e", true)).await;
    server.advance(Duration::from_secs(9));
    other.call_ok(exists("/e", true)).await;
    server.advance(Duration::from_secs(4));
    assert_eq!(other.call_error(exists("/e", false)).await, -101);
    server.shutdown().await;
    // Neither the znode nor the session returns after another restart.
    let server = start(dir.path()).await;
    let mut other = RawClient::connect(server.local_addr()).await;
    assert_eq!(other.call_error(exists("/e", false)).await, -101);
    assert_eq!(move_to(&server, &raw).await.granted.session, 0);
    server.shutdown().await;
}

#[tokio::test]
async fn snapshots_replace_old_segments() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let log = log::Options { segment_size: 20_000, allocate: 4096, snapshot_after: 50_000 };
    let limits = Limits { log, ..Limits::default() };
    let start = || builder().data_dir(dir.path()).limits(limits.clone()).start();
    let names = || {
        let names = std::fs::read_dir(dir.path()).expect("it exists").flatten();
        names.map(|entry| entry.file_name().into_string().expect("an ASCII name")).collect::<Vec<_>>()
    };
    let mut server = start().await.expect("starts");
    let mut raw = RawClient::connect(server.local_addr()).await;
    let mut count = 0;
    for round in 0..4 {
        finish_in_time(async {
            loop {
                raw.call_ok(create(&format!("/n{count}"), 0)).await;
                if count % 3 == 0 {
                    raw.call_ok(set(&format!("/n{}", count / 2), &count.to_string().repeat(1000), -1)).await;
                }
                if count % 5 == 0 {
                    raw.call_ok(delete(&format!("/n{count}"), -1)).await;
                    raw.call_ok(create(&format!("/n{count}"), 0)).await;
                }
                count += 1;
                let snapshots = names().iter().filter(|name| name.starts_with("snapshot.0")).count();
                if count % 10 == 0 && snapshots >= 2 && count > 100 * (round + 1) {
                    break;
                }
            }
        })
        .await;
        let before: Vec<_> = {
            let mut all = Vec::new();
            for i in 0..count {
                all.push(raw.call_ok(get(&format!("/n{i}"), false)).await);
            }
            all
        };
        server.shutdown().await;
        for name in names().iter().filter(|name| name.starts_with("log.") || name.starts_with("snapshot.")) {
            let mode = std::fs::metadata(dir.path().join(name)).expect("it exists").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let segments = names().iter().filter(|name| name.starts_with("log.0")).count();
        assert!(segments < 20, "{:?}", names());
        server = start().await.expect("starts");
        raw = RawClient::connect(server.local_addr()).await;
        for (i, before) in before.into_iter().enumerate() {
            assert_eq!(raw.call_ok(get(&format!("/n{i}"), false)).await, before);
        }
    }
    server.shutdown().await;
}

#[tokio::test]
async fn contradictory_settings_are_refused() {
    let error = builder().durability(Durability::Sync).start().await.expect_err("no data directory is set");
    assert!(
        matches!(error, Error::Invalid { .. }) && error.to_string().contains("data directory"),
        "{error}"
    );
    let error = builder()
        .limits(Limits { max_frame: 600 << 20, ..Limits::default() })
        .start()
        .await
        .expect_err("frames are too large for the log");
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("frames"), "{error}");
    let dir = tempfile::tempdir().expect("a temporary directory");
    start(dir.path()).await.shutdown().await;
    let memory = || builder().data_dir(dir.path()).durability(Durability::Memory).start();
    let error = memory().await.expect_err("there is a log");
    assert!(
        matches!(error, Error::Invalid { .. }) && error.to_string().contains("contains a log"),
        "{error}"
    );
}

#[tokio::test]
async fn damage_error_names_file_and_byte() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = start(dir.path()).await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    for i in 0..20 {
        raw.call_ok(create(&format!("/n{i}"), 0)).await;
    }
    server.shutdown().await;
    let file = dir.path().join("log.0000000000000000");
    let mut bytes = std::fs::read(&file).expect("it exists");
    bytes[300] ^= 0x40;
    std::fs::write(&file, bytes).expect("writable");
    let error = builder().data_dir(dir.path()).start().await.expect_err("damaged").to_string();
    assert!(error.contains("log.0000000000000000 is damaged at byte"), "{error}");
    // The epoch file is missing, but the log shows that epochs were used.
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = start(dir.path()).await;
    RawClient::connect(server.local_addr()).await.call_ok(create("/a", 0)).await;
    server.shutdown().await;
    for name in ["epoch", "epoch.copy"] {
        std::fs::remove_file(dir.path().join(name)).expect("it exists");
    }
    let error = builder().data_dir(dir.path()).start().await.expect_err("the epoch file is missing");
    assert!(matches!(error, Error::CorruptEpoch { .. }), "{error}");
}

/// Starts a server, creates this number of znodes, and stops the server.
async fn leave_znodes(builder: Builder, count: usize) {
    let server = builder.start().await.expect("a free port and a sound directory");
    let mut raw = RawClient::connect(server.local_addr()).await;
    for i in 0..count {
        raw.call_ok(create(&format!("/n{i}"), 0)).await;
    }
    server.shutdown().await;
}

#[tokio::test]
async fn start_without_acknowledged_writes_is_refused() {
    const FIRST: &str = "log.0000000000000000";
    let dir = tempfile::tempdir().expect("a temporary directory");
    leave_znodes(builder().data_dir(dir.path()), 5).await;
    let refused = async |missing: &str| {
        let error = builder().data_dir(dir.path()).start().await.expect_err("znodes are missing").to_string();
        for part in [missing, "zoolock serve --recover"] {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    };
    let log = std::fs::read(dir.path().join(FIRST)).expect("it exists");
    let record = std::fs::read(dir.path().join("end-of-log")).expect("it exists");
    std::fs::write(dir.path().join(FIRST), &log[..400]).expect("writable");
    refused("end-of-log records").await;
    std::fs::remove_file(dir.path().join(FIRST)).expect("it exists");
    refused("there is no log").await;
    std::fs::remove_file(dir.path().join("end-of-log")).expect("it exists");
    refused("the epoch file shows").await;
    std::fs::write(dir.path().join(FIRST), &log).expect("writable");
    refused("end-of-log is missing").await;
    std::fs::write(dir.path().join("end-of-log"), record).expect("writable");
    start(dir.path()).await.shutdown().await;
}

#[tokio::test]
async fn directory_of_a_memory_server_can_get_a_log() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let memory = || builder().data_dir(dir.path()).durability(Durability::Memory).start();
    for _ in 0..2 {
        memory().await.expect("starts").shutdown().await;
    }
    for _ in 0..2 {
        start(dir.path()).await.shutdown().await;
    }
}

#[tokio::test]
async fn server_fails_when_its_directory_is_replaced() {
    for durability in [Durability::Sync, Durability::Memory] {
        let outer = tempfile::tempdir().expect("a temporary directory");
        let (path, moved) = (outer.path().join("data"), outer.path().join("moved"));
        let server = builder().tick(Duration::from_millis(20)).data_dir(&path).durability(durability);
        let server = server.start().await.expect("starts");
        std::fs::rename(&path, &moved).expect("writable");
        let why = finish_in_time(server.wait_for_failure()).await;
        assert!(why.contains("was replaced or removed while the server used it"), "{why}");
        assert!(why.contains(&path.display().to_string()), "{why}");
        server.shutdown().await;
    }
}

#[tokio::test]
async fn damaged_log_is_restored_if_confirmed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let timeout = Duration::from_millis(600);
    let builder = builder().tick(Duration::from_millis(50)).max_session_timeout(timeout).data_dir(dir.path());
    leave_znodes(builder.clone(), 5).await;
    let file = dir.path().join("log.0000000000000000");
    let log = std::fs::read(&file).expect("it exists");
    let cut = log[..log.iter().rposition(|&byte| byte != 0).expect("no empty file") - 300].to_vec();
    std::fs::write(&file, &cut).expect("writable");
    let losses = Arc::new(Mutex::new(Vec::new()));
    let restore = |answer: bool| {
        let losses = Arc::clone(&losses);
        builder.clone().restore_if_damaged(move |loss: &LogLoss| {
            losses.lock().expect("no panic").push(loss.clone());
            answer
        })
    };
    let error = restore(false).start().await.expect_err("not confirmed");
    assert!(matches!(error, Error::Log { .. }), "{error}");
    assert_eq!(std::fs::read(&file).expect("it exists"), cut, "a refused start changes no file");
    let before = Instant::now();
    let server = restore(true).start().await.expect("starts");
    assert!(before.elapsed() >= timeout, "{:?}", before.elapsed());
    let losses = losses.lock().expect("no panic").clone();
    let [first, second] = &losses[..] else { panic!("{losses:?}") };
    assert_eq!((first.restored, first.znodes), (second.restored, second.znodes));
    assert!(first.znodes < 5 && first.restored < first.recorded, "{first:?}");
    assert_eq!(first.wait, timeout);
    assert!(first.cause.contains("end-of-log records") && !first.cause.contains("--recover"), "{first:?}");
    let mut raw = RawClient::connect(server.local_addr()).await;
    for i in 0..first.znodes {
        raw.call_ok(exists(&format!("/n{i}"), false)).await;
    }
    assert_eq!(raw.call_error(exists(&format!("/n{}", first.znodes), false)).await, -101);
    raw.call_ok(create("/new", 0)).await;
    server.shutdown().await;
    assert_eq!(std::fs::read(dir.path().join("log.0000000000000000.damaged")).expect("kept"), cut);
    let server = start(dir.path()).await;
    RawClient::connect(server.local_addr()).await.call_ok(exists("/new", false)).await;
    server.shutdown().await;
}

#[tokio::test]
async fn recover_waits_as_long_as_earlier_server_granted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let limited = |seconds| builder().data_dir(dir.path()).max_session_timeout(Duration::from_secs(seconds));
    leave_znodes(limited(500), 1).await;
    leave_znodes(limited(300), 0).await;
    std::fs::remove_file(dir.path().join("log.0000000000000000")).expect("it exists");
    for (now, wanted) in [(100, 300), (400, 400)] {
        let losses = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&losses);
        let refused = limited(now).restore_if_damaged(move |loss| {
            told.lock().expect("no panic").push(loss.wait);
            false
        });
        refused.start().await.expect_err("not confirmed");
        assert_eq!(*losses.lock().expect("no panic"), [Duration::from_secs(wanted)]);
    }
}

#[tokio::test]
async fn start_waits_for_sessions_lost_in_crash() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let timeout = Duration::from_millis(600);
    let builder = builder()
        .tick(Duration::from_millis(50))
        .limits(Limits { min_session_timeout: Some(timeout), ..Limits::default() })
        .max_session_timeout(timeout);
    let memory = builder.clone().data_dir(dir.path()).durability(Durability::Memory);
    let server = memory.start().await.expect("starts");
    let mut holder = RawClient::connect(server.local_addr()).await;
    assert_eq!(u128::try_from(holder.granted.timeout_ms), Ok(timeout.as_millis()));
    holder.call_ok(create("/held", 1)).await;
    // Copies the files as a crash would leave them while the session is alive.
    let crashed = tempfile::tempdir().expect("a temporary directory");
    for entry in std::fs::read_dir(dir.path()).expect("it exists").flatten() {
        std::fs::copy(entry.path(), crashed.path().join(entry.file_name())).expect("writable");
    }
    server.shutdown().await;
    // A server with a log also waits for the recorded time, but records none itself.
    let before = Instant::now();
    let server = builder.data_dir(crashed.path()).start().await.expect("starts");
    assert!(before.elapsed() >= timeout, "{:?}", before.elapsed());
    RawClient::connect(server.local_addr()).await;
    server.shutdown().await;
    assert!(!crashed.path().join("owed").exists());
}

#[tokio::test]
async fn session_is_refused_if_timeout_cannot_be_recorded() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = builder().data_dir(dir.path()).durability(Durability::Memory).start().await.expect("starts");
    let mut known = RawClient::connect(server.local_addr()).await;
    // A directory with the name of the temporary file makes the recording of a longer timeout fail.
    std::fs::create_dir(dir.path().join("owed.tmp")).expect("writable");
    let longer = ConnectRequest { timeout_ms: 20_000, ..connect_request() };
    assert!(RawClient::connect_with(server.local_addr(), &longer).await.is_none());
    known.call_ok(create("/a", 0)).await;
    std::fs::remove_dir(dir.path().join("owed.tmp")).expect("it exists");
    assert!(RawClient::connect_with(server.local_addr(), &longer).await.is_some());
    server.expire_sessions();
    server.shutdown().await;
}

#[tokio::test]
async fn data_directory_is_free_when_the_server_has_stopped() {
    // The test tries to run on one processor. On one processor, it is more likely that the next
    // server starts before the last thread of this server has ended.
    if let Ok(all) = sched_getaffinity(None)
        && let Some(first) = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu))
    {
        let mut one = CpuSet::new();
        one.set(first);
        // An error is ignored, because the test also works on several processors.
        let _ = sched_setaffinity(None, &one);
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    for round in 0..20 {
        let server = builder().data_dir(dir.path()).start().await;
        let server = server.unwrap_or_else(|error| panic!("round {round}: {error}"));
        let mut raw = RawClient::connect(server.local_addr()).await;
        raw.call_ok(create(&format!("/n{round}"), 0)).await;
        server.shutdown().await;
    }
}

#[tokio::test]
async fn dropped_server_keeps_writes_and_unlocks_directory() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let again = || async {
        finish_in_time(async {
            loop {
                match builder().data_dir(dir.path()).start().await {
                    Ok(server) => return server,
                    Err(Error::Locked { .. }) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .await
    };
    for round in 0..5 {
        let server = again().await;
        let mut raw = RawClient::connect(server.local_addr()).await;
        for before in 0..round {
            raw.call_ok(exists(&format!("/n{before}"), false)).await;
        }
        raw.call_ok(create(&format!("/n{round}"), 0)).await;
        // The server is dropped while the connection is open and has an unanswered request.
        raw.send(&create("/n", 2)).await;
        drop(server);
    }
}
