//! Apache ZooKeeper under the harness's hand.

use std::path::PathBuf;
use std::time::Duration;

use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::apache::{Apache, availability};
use zoolock_tests::ports::Port;
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, ServerOptions, tree};

async fn started(name: &str) -> Option<Apache> {
    if !availability().or_skip(name) {
        return None;
    }
    Some(Apache::start(ServerOptions::default()).await.expect("ZooKeeper starts on this machine"))
}

fn process_dir(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_answers_and_ends_with_its_handle() {
    let Some(apache) = started("apache_answers_and_ends_with_its_handle").await else { return };
    assert_eq!(apache.four_letter("ruok").await.expect("it runs"), "imok");
    assert!(apache.four_letter("mntr").await.expect("all words are allowed").contains("zk_version\t3.8"));
    let pid = apache.pid().expect("it runs");
    assert!(process_dir(pid).exists());
    drop(apache);
    assert!(!process_dir(pid).exists(), "process {pid} outlived its handle");
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_keeps_its_data_through_kill_and_restart() {
    let Some(apache) = started("apache_keeps_its_data_through_kill_and_restart").await else { return };
    let addr = apache.addr();
    let client = tree::connect(&addr).await.expect("it runs");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/kept", b"data", &persistent).await.expect("an empty tree takes a node");
    let before = apache.pid();

    apache.kill().await;
    assert_eq!(apache.pid(), None);
    assert!(apache.four_letter("ruok").await.is_err(), "a killed server answers");

    apache.restart().await.expect("it starts again");
    assert_ne!(apache.pid(), before);
    assert_eq!(apache.addr(), addr);
    assert_eq!(tree::descendants(&addr, "/").await.expect("it runs"), ["/kept"]);

    apache.stop().await;
    assert!(apache.four_letter("ruok").await.is_err(), "a stopped server answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_apache_says_nothing_until_resumed() {
    let Some(apache) = started("a_paused_apache_says_nothing_until_resumed").await else { return };
    apache.pause();
    let asked = tokio::time::timeout(Duration::from_millis(300), apache.four_letter("ruok")).await;
    assert!(asked.is_err(), "a paused server answered {asked:?}");
    apache.resume();
    assert_eq!(apache.four_letter("ruok").await.expect("it runs again"), "imok");
    // One that is stopped while frozen still ends in good order, long before it would be killed.
    apache.pause();
    tokio::time::timeout(Duration::from_secs(10), apache.stop()).await.expect("it ends");
    assert_eq!(apache.pid(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_grants_the_timeouts_it_was_started_with() {
    let name = "apache_grants_the_timeouts_it_was_started_with";
    if !availability().or_skip(name) {
        return;
    }
    let options = ServerOptions {
        tick: Duration::from_secs(2),
        max_session_timeout: Duration::from_secs(7),
        ..ServerOptions::default()
    };
    let apache = Apache::start(options).await.expect("ZooKeeper starts on this machine");
    let client = tree::connect(&apache.addr()).await.expect("it runs");
    assert_eq!(client.session_timeout(), Duration::from_secs(7));
    let conf = apache.four_letter("conf").await.expect("it runs");
    assert!(conf.contains("tickTime=2000") && conf.contains("minSessionTimeout=4000"), "{conf}");
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_collects_empty_containers_as_often_as_told() {
    let name = "apache_collects_empty_containers_as_often_as_told";
    if !availability().or_skip(name) {
        return;
    }
    let options = ServerOptions { container_check: Duration::from_millis(200), ..ServerOptions::default() };
    let apache = Apache::start(options).await.expect("ZooKeeper starts on this machine");
    let client = tree::connect(&apache.addr()).await.expect("it runs");
    let anyone = Acls::anyone_all();
    client.create("/c", b"", &CreateMode::Container.with_acls(anyone)).await.expect("a new container");
    client.create("/c/n", b"", &CreateMode::Ephemeral.with_acls(anyone)).await.expect("a new node");
    client.delete("/c/n", None).await.expect("it is there");
    eventually("the container goes", Duration::from_secs(10), async || {
        let left = tree::descendants(&apache.addr(), "/").await?;
        if left.is_empty() { Ok(()) } else { Err(Failure::new(left.join(", "))) }
    })
    .await
    .expect("containers are looked for every 200 ms");
}

#[test]
fn a_reserved_port_is_given_to_one_at_a_time() {
    let ports: Vec<Port> = (0..200).map(|_| Port::reserve().expect("there are thousands")).collect();
    let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), ports.len());
}
