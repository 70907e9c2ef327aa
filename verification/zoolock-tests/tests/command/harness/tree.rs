//! Tests of the checks for leftovers.

use std::time::Duration;

use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::four_letter::watches_below;
use zoolock_tests::{AnyServer, ServerKind, ServerOptions, on_both_servers, tree};

on_both_servers!(tree_checks_wait_until_ephemerals_are_deleted, |place| async move {
    let addr = place.connect_string();
    let client = tree::connect(&addr).await.expect("connected");
    let anyone = Acls::anyone_all();
    client.create("/lock", b"", &CreateMode::Container.with_acls(anyone)).await.expect("znode created");
    let ephemeral = CreateMode::Ephemeral.with_acls(anyone);
    client.create("/lock/mine", b"", &ephemeral).await.expect("znode created");

    assert_eq!(tree::descendants(&addr, "/").await.expect("server answered"), ["/lock", "/lock/mine"]);
    assert_eq!(tree::ephemerals(&addr, "/").await.expect("server answered"), ["/lock/mine"]);

    let checked = addr.clone();
    let check = tokio::spawn(async move { tree::assert_no_contenders(&checked, "/lock").await });
    // The check must not end while the contender exists.
    tokio::time::timeout(Duration::from_millis(200), async {
        while !check.is_finished() {
            tokio::task::yield_now().await
        }
    })
    .await
    .expect_err("the check waits for the contender");
    client.delete("/lock/mine", None).await.expect("znode deleted");
    check.await.expect("check passed");
    tree::assert_no_ephemerals(&addr, "/").await;
    tree::assert_no_contenders(&addr, "/missing").await;
});

on_both_servers!(private watches_are_counted, |place| async move {
    let server = place.server();
    assert_eq!(server.watch_count().await.expect("server answered"), 0);
    place.assert_no_watches().await;
    let client = tree::connect(&place.addr()).await.expect("connected");
    let (_, watcher) = client.list_and_watch_children("/").await.expect("children listed");
    assert_eq!(server.watch_count().await.expect("server answered"), 1);
    let (_, _, other) = client.get_and_watch_data(place.chroot()).await.expect("data read");
    assert_eq!(server.watch_count().await.expect("server answered"), 2);
    drop((watcher, other, client));
    place.assert_no_watches().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn watches_below_a_path_are_counted() {
    if !ServerKind::Apache.availability().or_skip("watches_below_a_path_are_counted") {
        return;
    }
    let server =
        AnyServer::start(ServerKind::Apache, ServerOptions::default()).await.expect("server started");
    let client = tree::connect(&server.addr()).await.expect("connected");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in ["/a", "/ab"] {
        client.create(path, b"", &persistent).await.expect("znode created");
    }
    let (_, _, data) = client.get_and_watch_data("/a").await.expect("data read");
    let (_, missing) = client.check_and_watch_stat("/a/missing").await.expect("server answered");
    let (_, _, beside) = client.get_and_watch_data("/ab").await.expect("data read");
    assert_eq!(watches_below(server.socket_addr(), "/a").await.expect("server answered"), 2);
    assert_eq!(watches_below(server.socket_addr(), "/ab").await.expect("server answered"), 1);
    drop((data, missing, beside));
}
