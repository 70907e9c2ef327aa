//! ZooKeeper's client for C.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use zoolock_tests::skip::Availability;
use zoolock_tests::{Proxy, on_both_arms, tree};

use crate::foreign::{beside, installed, run};

const HEADER: &str = "/usr/include/zookeeper/zookeeper.h";

fn compiler() -> Availability {
    match std::process::Command::new("cc").arg("--version").output() {
        Ok(said) if said.status.success() => Availability::Available,
        Ok(_) | Err(_) => Availability::Missing("no cc, install gcc and libc6-dev".to_owned()),
    }
}

on_both_arms!(private client_for_c_keeps_its_session_and_its_watches, |place| async move {
    let name = format!("client_for_c_keeps_its_session_and_its_watches::{}", place.arm());
    if !compiler().or_skip(&name) || !installed([HEADER], "libzookeeper-mt-dev").or_skip(&name) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("client");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-DTHREADED", "-o"]).arg(&program).arg(beside("c/client.c"));
    run(cc.args(["-lzookeeper_mt", "-lpthread"])).await.if_well();

    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let mut client = Command::new(&program);
    client.arg(place.connect_string()).arg(place.through(&proxy.addr())).kill_on_drop(true);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was compiled");
    let mut orders = BufReader::new(client.stdout.take().expect("piped")).lines();
    let mut done = client.stdin.take().expect("piped");
    let mut said = Vec::new();
    while let Some(order) = orders.next_line().await.expect("text") {
        match order.as_str() {
            "cut" => {
                proxy.refuse(true).await;
                proxy.cut().await;
            }
            "heal" => proxy.refuse(false).await,
            _ => {}
        }
        said.push(order);
        // Whoever has ended reads no more.
        let _ = done.write_all(b"done\n").await;
    }
    let status = client.wait().await.expect("it ends");
    assert!(status.success(), "{status}; why is above, on standard error");
    assert_eq!(said, ["cut", "heal", "ok"]);
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
    place.assert_no_watches().await;
});
