//! `zoolock doctor` on `zoolock serve` and on Apache ZooKeeper. It reports no fault of a healthy
//! server, and reads no more directories than `--limit` allows.

use std::time::Duration;

use zoolock::Zoolock;
use zoolock_tests::{ServerKind, ServerOptions, on_both_servers, tree};

use super::diagnosis::{examine, examine_with};
use crate::common::Sandbox;

on_both_servers!(private fresh_server_is_healthy_and_unchanged, |zookeeper| async move {
    let before = tree::descendants(&zookeeper.addr(), "/").await.expect("znodes listed");
    let diagnosis = examine(&zookeeper.connect_string());
    assert_eq!(diagnosis.code, 0, "{diagnosis:?}");
    assert_eq!(diagnosis.report["schema"], "zoolock/1");
    assert_eq!(diagnosis.report["complete"], true, "{diagnosis:?}");
    // No lock has been acquired in this chroot yet.
    assert_eq!(diagnosis.report["worst"], "note", "{diagnosis:?}");
    for check in ["server", "session", "ticks", "latency", "clock", "numbers"] {
        assert_eq!(diagnosis.level(check), Some("ok"), "{check}: {diagnosis:?}");
    }
    assert_eq!(diagnosis.level("root"), Some("note"), "{diagnosis:?}");
    if zookeeper.server_kind() == ServerKind::Apache {
        assert!(!diagnosis.stdout.contains("zoolock serve"), "{diagnosis:?}");
    }
    for kind in ["read", "sync", "write"] {
        assert!(diagnosis.report["latency"][kind]["median_us"].as_u64() > Some(0), "{diagnosis:?}");
    }
    assert_eq!(tree::descendants(&zookeeper.addr(), "/").await.expect("znodes listed"), before);
});

on_both_servers!(private healthy_queue_passes_and_session_ids_stay_secret, |zookeeper| async move {
    let zl = Zoolock::builder().connect(&zookeeper.connect_string()).await.expect("session created");
    let guard = zl.mutex("held").lock().await.expect("lock granted");
    let waiter_zl = zl.clone();
    let waiting = tokio::spawn(async move { waiter_zl.mutex("held").lock().await });
    while zl.admin().snapshot("held").await.expect("snapshot read").waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let diagnosis = examine(&zookeeper.connect_string());
    assert_eq!((diagnosis.level("neighbours"), diagnosis.level("orphans")), (Some("ok"), None), "{diagnosis:?}");
    assert_eq!((&diagnosis.report["directories"], &diagnosis.report["queues"]), (&2.into(), &1.into()), "{diagnosis:?}");
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    let stat = client.check_stat(&guard.node_path()).await.expect("stat read").expect("the znode exists");
    let session = format!("{:x}", stat.ephemeral_owner);
    for text in [&diagnosis.stdout, &diagnosis.stderr] {
        assert!(!text.contains(&session), "{text}");
    }
    guard.release().await.expect("release succeeds");
    drop(waiting.await.expect("task does not panic"));
    zl.close().await;
});

on_both_servers!(directory_limit_is_kept_and_reported, |zookeeper| async move {
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    let options = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    client.create("/locks", b"", &options).await.expect("znode created");
    for number in 0..100 {
        client.create(&format!("/locks/{number}"), b"", &options).await.expect("znode created");
    }
    let limited = examine_with(&zookeeper.connect_string(), &["--limit", "40"]);
    assert_eq!(
        (&limited.report["directories"], &limited.report["complete"]),
        (&40.into(), &false.into()),
        "{limited:?}"
    );
    assert_eq!(limited.level("directories"), Some("note"), "{limited:?}");
    let complete = examine(&zookeeper.connect_string());
    assert_eq!(
        (&complete.report["directories"], &complete.report["complete"]),
        (&101.into(), &true.into()),
        "{complete:?}"
    );
});

fn shorter_sessions() -> ServerOptions {
    ServerOptions { max_session_timeout: Duration::from_secs(16), ..ServerOptions::default() }
}

on_both_servers!(private(shorter_sessions()) reported_longest_grace_matches_run, |zookeeper| async move {
    let diagnosis = examine(&zookeeper.connect_string());
    assert_eq!(diagnosis.level("session"), Some("warning"), "{diagnosis:?}");
    let sandbox = Sandbox::new();
    let address = zookeeper.connect_string();
    let run = |grace: &[&str]| {
        sandbox.output(&[&["run", "--connect", &address], grace, &["x", "--", "true"]].concat()).code
    };
    assert_eq!(run(&[]), 0, "the default grace follows the granted session timeout");
    let longest = diagnosis.report["session"]["longest_grace_ms"].as_u64().expect("a number");
    assert_eq!(run(&["--grace", &format!("{}ms", longest + 1)]), 64, "{longest}");
    assert_eq!(run(&["--grace", &format!("{longest}ms")]), 0, "{longest}");
});

#[test]
fn unreachable_server_is_reported_with_exit_69() {
    let port = zoolock_tests::ports::Port::reserve().expect("a free port");
    let diagnosis = examine(&port.addr().to_string());
    assert_eq!((diagnosis.code, diagnosis.level("server")), (69, Some("warning")), "{diagnosis:?}");
    assert!(diagnosis.stderr.contains(&port.addr().to_string()), "{diagnosis:?}");
    let report = &diagnosis.report;
    assert_eq!((&report["worst"], &report["complete"]), (&"error".into(), &false.into()), "{diagnosis:?}");
}
