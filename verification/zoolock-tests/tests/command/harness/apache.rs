//! Tests of the Apache ZooKeeper support.

use std::path::PathBuf;
use std::time::Duration;

use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::apache::{Apache, availability};
use zoolock_tests::ports::Port;
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{ServerOptions, TestFailure, tree};

/// Starts a server. Returns `None` and reports test `name` as skipped if this machine has no Apache ZooKeeper.
async fn start_or_skip(name: &str, options: ServerOptions) -> Option<Apache> {
    if !availability().or_skip(name) {
        return None;
    }
    Some(Apache::start(options).await.expect("server started"))
}

fn process_dir(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_process_ends_when_handle_is_dropped() {
    let name = "apache_process_ends_when_handle_is_dropped";
    let Some(apache) = start_or_skip(name, ServerOptions::default()).await else { return };
    assert_eq!(apache.four_letter("ruok").await.expect("server answered"), "imok");
    assert!(apache.four_letter("mntr").await.expect("server answered").contains("zk_version\t3.8"));
    let pid = apache.pid().expect("the server runs");
    assert!(process_dir(pid).exists());
    drop(apache);
    assert!(!process_dir(pid).exists(), "process {pid} still exists");
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_keeps_data_across_kill_and_restart() {
    let name = "apache_keeps_data_across_kill_and_restart";
    let Some(apache) = start_or_skip(name, ServerOptions::default()).await else { return };
    let addr = apache.addr();
    let client = tree::connect(&addr).await.expect("connected");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/kept", b"data", &persistent).await.expect("znode created");
    let before = apache.pid();

    apache.kill().await;
    assert_eq!(apache.pid(), None);
    assert!(apache.four_letter("ruok").await.is_err(), "a killed server answers");

    apache.restart().await.expect("server restarted");
    assert_ne!(apache.pid(), before);
    assert_eq!(apache.addr(), addr);
    assert_eq!(tree::descendants(&addr, "/").await.expect("server answered"), ["/kept"]);

    apache.stop().await;
    assert!(apache.four_letter("ruok").await.is_err(), "a stopped server answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_uses_configured_session_timeouts() {
    let name = "apache_uses_configured_session_timeouts";
    let options = ServerOptions {
        tick: Duration::from_secs(2),
        max_session_timeout: Duration::from_secs(7),
        ..ServerOptions::default()
    };
    let Some(apache) = start_or_skip(name, options).await else { return };
    let client = tree::connect(&apache.addr()).await.expect("connected");
    assert_eq!(client.session_timeout(), Duration::from_secs(7));
    let conf = apache.four_letter("conf").await.expect("server answered");
    assert!(conf.contains("tickTime=2000") && conf.contains("minSessionTimeout=4000"), "{conf}");
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_deletes_empty_containers_at_configured_interval() {
    let name = "apache_deletes_empty_containers_at_configured_interval";
    let options = ServerOptions { container_check: Duration::from_millis(200), ..ServerOptions::default() };
    let Some(apache) = start_or_skip(name, options).await else { return };
    let client = tree::connect(&apache.addr()).await.expect("connected");
    let anyone = Acls::anyone_all();
    client.create("/c", b"", &CreateMode::Container.with_acls(anyone)).await.expect("container created");
    client.create("/c/n", b"", &CreateMode::Ephemeral.with_acls(anyone)).await.expect("znode created");
    client.delete("/c/n", None).await.expect("znode deleted");
    retry_until_ok("the container is deleted", Duration::from_secs(10), async || {
        let left = tree::descendants(&apache.addr(), "/").await?;
        if left.is_empty() { Ok(()) } else { Err(TestFailure::new(left.join(", "))) }
    })
    .await
    .expect("container deleted");
}

#[test]
fn port_is_reserved_only_once() {
    let ports: Vec<Port> = (0..200).map(|_| Port::reserve().expect("port reserved")).collect();
    let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), ports.len());
}
