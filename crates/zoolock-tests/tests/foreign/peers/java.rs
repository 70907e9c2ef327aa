//! Locks for Java: Curator's, and the one that comes with ZooKeeper.

use tokio::process::Command;
use zoolock_tests::{apache, on_both_arms, tree};

use crate::foreign::{beside, installed, run};

/// Their manifests name the jars they need.
const CURATOR: &str = "/usr/share/java/curator-recipes.jar";
const RECIPE: &str = "/usr/share/java/zookeeper-recipes-lock.jar";
const ZOOKEEPER: &str = "/usr/share/java/zookeeper.jar";
const LOGGER: &str = "/usr/share/java/slf4j-simple.jar";

/// Compiles and runs one file.
async fn java(source: &str, jars: &[&str], address: &str) {
    let mut java = Command::new("java");
    java.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        .args(["-cp", &jars.join(":")])
        .arg(beside(source))
        .arg(address);
    assert_eq!(run(&mut java).await.if_well(), "ok\n");
}

on_both_arms!(locks_of_curator_exclude_and_leave_nothing, |place| async move {
    let name = format!("locks_of_curator_exclude_and_leave_nothing::{}", place.arm());
    // Java itself is looked for there.
    let available = apache::availability().or_skip(&name)
        && installed([CURATOR, LOGGER], "libcurator-recipes-java").or_skip(&name);
    if !available {
        return;
    }
    java("java/CuratorLocks.java", &[CURATOR, LOGGER], &place.connect_string()).await;
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
    for directory in
        ["mutex", "read-write", "semaphore/leases", "semaphore/locks", "multi/one", "multi/other"]
    {
        tree::assert_no_contenders(&place.connect_string(), &format!("/{directory}")).await;
    }
    place.assert_no_watches().await;
});

on_both_arms!(write_lock_of_zookeeper_excludes_and_leaves_nothing, |place| async move {
    let name = format!("write_lock_of_zookeeper_excludes_and_leaves_nothing::{}", place.arm());
    let available = apache::availability().or_skip(&name)
        && installed([RECIPE, LOGGER], "libzookeeper-java").or_skip(&name);
    if !available {
        return;
    }
    java("java/WriteLocks.java", &[RECIPE, ZOOKEEPER, LOGGER], &place.connect_string()).await;
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
    tree::assert_no_contenders(&place.connect_string(), "/write-lock").await;
    place.assert_no_watches().await;
});
