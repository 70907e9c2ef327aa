//! `zoolock doctor` on both servers: nothing where nothing is wrong, and each fault that is planted.

use std::time::Duration;

use zoolock::Zoolock;
use zoolock_tests::{ServerOptions, on_both_arms, tree};

use super::patient::{examine, examine_with};
use crate::common::Sandbox;

on_both_arms!(private fresh_server_is_healthy_and_unchanged, |place| async move {
    let before = tree::descendants(&place.addr(), "/").await.expect("a look");
    let patient = examine(&place.connect_string());
    assert_eq!(patient.code, 0, "{patient:?}");
    assert_eq!(patient.report["schema"], "zoolock/1");
    assert_eq!(patient.report["complete"], true, "{patient:?}");
    // That the port is open to this machine, and that nobody has taken a lock yet.
    assert_eq!(patient.report["worst"], "note", "{patient:?}");
    for check in ["server", "session", "ticks", "latency", "clock", "numbers", "orphans"] {
        assert_eq!(patient.level(check), Some("ok"), "{check}: {patient:?}");
    }
    assert_eq!((patient.level("access"), patient.level("root")), (Some("note"), Some("note")), "{patient:?}");
    for kind in ["read", "sync", "write"] {
        assert!(patient.report["latency"][kind]["median_us"].as_u64() > Some(0), "{patient:?}");
    }
    assert_eq!(tree::descendants(&place.addr(), "/").await.expect("a look"), before);
});

on_both_arms!(private healthy_queue_passes_and_session_ids_stay_secret, |place| async move {
    let zl = Zoolock::builder().connect(&place.connect_string()).await.expect("a session");
    let guard = zl.mutex("held").lock().await.expect("free");
    let other = zl.clone();
    let waiting = tokio::spawn(async move { other.mutex("held").lock().await });
    while zl.mutex("held").snapshot().await.expect("a look").waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let patient = examine(&place.connect_string());
    assert_eq!((patient.level("neighbours"), patient.level("orphans")), (Some("ok"), Some("ok")), "{patient:?}");
    assert_eq!((&patient.report["directories"], &patient.report["queues"]), (&2.into(), &1.into()), "{patient:?}");
    // Locks of anybody's: the port is open, and nothing was said about who may write.
    assert_eq!(patient.level("acl"), Some("warning"), "{patient:?}");
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    let stat = client.check_stat(&guard.node_path()).await.expect("a look").expect("it is held");
    let session = format!("{:x}", stat.ephemeral_owner);
    for text in [&patient.stdout, &patient.stderr] {
        assert!(!text.contains(&session), "{text}");
    }
    guard.release().await.expect("ours");
    drop(waiting.await.expect("no panic"));
    zl.close().await;
});

on_both_arms!(directory_limit_is_kept_and_reported, |place| async move {
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    let options = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    client.create("/locks", b"", &options).await.expect("new");
    for number in 0..100 {
        client.create(&format!("/locks/{number}"), b"", &options).await.expect("new");
    }
    let some = examine_with(&place.connect_string(), &["--limit", "40"]);
    assert_eq!(
        (&some.report["directories"], &some.report["complete"]),
        (&40.into(), &false.into()),
        "{some:?}"
    );
    assert_eq!(some.level("directories"), Some("note"), "{some:?}");
    let all = examine(&place.connect_string());
    assert_eq!((&all.report["directories"], &all.report["complete"]), (&101.into(), &true.into()), "{all:?}");
});

fn shorter() -> ServerOptions {
    ServerOptions { max_session_timeout: Duration::from_secs(16), ..ServerOptions::default() }
}

on_both_arms!(private(shorter()) reported_longest_grace_matches_run, |place| async move {
    let patient = examine(&place.connect_string());
    assert_eq!(patient.level("session"), Some("warning"), "{patient:?}");
    let sandbox = Sandbox::new();
    let address = place.connect_string();
    let run = |grace: &[&str]| {
        sandbox.output(&[&["run", "--connect", &address], grace, &["x", "--", "true"]].concat()).code
    };
    assert_eq!(run(&[]), 0, "the default follows what is granted");
    let most = patient.report["session"]["longest_grace_ms"].as_u64().expect("a number");
    assert_eq!(run(&["--grace", &format!("{}ms", most + 1)]), 64, "{most}");
    assert_eq!(run(&["--grace", &format!("{most}ms")]), 0, "{most}");
});

#[test]
fn unreachable_server_is_reported_with_exit_69() {
    let port = zoolock_tests::ports::Port::reserve().expect("a port");
    let patient = examine(&port.addr().to_string());
    assert_eq!((patient.code, patient.level("server")), (69, Some("warning")), "{patient:?}");
    assert!(patient.stderr.contains(&port.addr().to_string()), "{patient:?}");
}
