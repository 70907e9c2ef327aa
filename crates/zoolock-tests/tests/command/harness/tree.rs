//! The observer sees what is left.

use std::time::Duration;

use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::four_letter::watches_below;
use zoolock_tests::{Arm, Server, ServerOptions, on_both_arms, tree};

on_both_arms!(the_observer_sees_ephemeral_nodes_and_waits_for_their_end, |place| async move {
    let addr = place.connect_string();
    let client = tree::connect(&addr).await.expect("it runs");
    let anyone = Acls::anyone_all();
    client.create("/lock", b"", &CreateMode::Container.with_acls(anyone)).await.expect("a new node");
    let ephemeral = CreateMode::Ephemeral.with_acls(anyone);
    client.create("/lock/mine", b"", &ephemeral).await.expect("a new node");

    assert_eq!(tree::descendants(&addr, "/").await.expect("it runs"), ["/lock", "/lock/mine"]);
    assert_eq!(tree::ephemerals(&addr, "/").await.expect("it runs"), ["/lock/mine"]);

    let watching = addr.clone();
    let waits = tokio::spawn(async move { tree::assert_no_contenders(&watching, "/lock").await });
    // Still there after a while: the observer may not say it is empty.
    tokio::time::timeout(Duration::from_millis(200), async {
        while !waits.is_finished() {
            tokio::task::yield_now().await
        }
    })
    .await
    .expect_err("a contender is there, and the observer does not see it");
    client.delete("/lock/mine", None).await.expect("it is there");
    waits.await.expect("the observer sees it go");
    tree::assert_no_ephemerals(&addr, "/").await;
    tree::assert_no_contenders(&addr, "/missing").await;
});

on_both_arms!(private watches_are_counted, |place| async move {
    let server = place.server();
    assert_eq!(server.watch_count().await.expect("it counts"), 0);
    place.assert_no_watches().await;
    let client = tree::connect(&place.addr()).await.expect("it runs");
    let (_, watcher) = client.list_and_watch_children("/").await.expect("the root is there");
    assert_eq!(server.watch_count().await.expect("it counts"), 1);
    let (_, _, other) = client.get_and_watch_data(place.chroot()).await.expect("it was made");
    assert_eq!(server.watch_count().await.expect("it counts"), 2);
    drop((watcher, other, client));
    place.assert_no_watches().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn watches_below_a_path_are_counted() {
    if !Arm::Apache.availability().or_skip("watches_below_a_path_are_counted") {
        return;
    }
    let server = Server::start(Arm::Apache, ServerOptions::default()).await.expect("it starts");
    let client = tree::connect(&server.addr()).await.expect("it runs");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in ["/a", "/ab"] {
        client.create(path, b"", &persistent).await.expect("a new node");
    }
    let (_, _, data) = client.get_and_watch_data("/a").await.expect("it was made");
    let (_, missing) = client.check_and_watch_stat("/a/missing").await.expect("it answers");
    let (_, _, beside) = client.get_and_watch_data("/ab").await.expect("it was made");
    assert_eq!(watches_below(server.socket_addr(), "/a").await.expect("it counts"), 2);
    assert_eq!(watches_below(server.socket_addr(), "/ab").await.expect("it counts"), 1);
    drop((data, missing, beside));
}
