//! ZooKeeper's client for C.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use zoolock_tests::other_libraries::installed;
use zoolock_tests::skip::Availability;
use zoolock_tests::{Proxy, on_both_servers, tree};

use crate::programs::{run, test_file};

const HEADER: &str = "/usr/include/zookeeper/zookeeper.h";

fn compiler() -> Availability {
    match std::process::Command::new("cc").arg("--version").output() {
        Ok(output) if output.status.success() => Availability::Available,
        Ok(_) | Err(_) => Availability::Missing("no cc, install gcc and libc6-dev".to_owned()),
    }
}

on_both_servers!(private client_for_c_keeps_its_session_and_its_watches, |place| async move {
    let available = compiler().or_skip(place.test())
        && installed([HEADER], "libzookeeper-mt-dev").or_skip(place.test());
    if !available {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory can be created");
    let program = dir.path().join("client");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-DTHREADED", "-o"]);
    cc.arg(&program).arg(test_file("peers/c/client.c"));
    run(cc.args(["-lzookeeper_mt", "-lpthread"])).await.output();

    // The C program decides when the proxy closes its connections, and when it accepts new ones.
    let proxy = Proxy::start(&place.addr()).await.expect("the proxy starts");
    let mut client = Command::new(&program);
    client.arg(place.connect_string()).arg(place.connect_string_through(&proxy.addr())).kill_on_drop(true);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the client starts");
    let mut orders = BufReader::new(client.stdout.take().expect("stdout is piped")).lines();
    let mut done = client.stdin.take().expect("stdin is piped");
    let mut received = Vec::new();
    while let Some(order) = orders.next_line().await.expect("orders are text") {
        match order.as_str() {
            "cut" => {
                proxy.refuse(true).await;
                proxy.close_connections().await;
            }
            "heal" => proxy.refuse(false).await,
            _ => {}
        }
        received.push(order);
        // The write fails only if the program has ended.
        let _ = done.write_all(b"done\n").await;
    }
    let status = client.wait().await.expect("the client ends");
    assert!(status.success(), "{status}; standard error above has the reason");
    assert_eq!(received, ["cut", "heal", "ok"]);
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
    place.assert_no_watches().await;
});
