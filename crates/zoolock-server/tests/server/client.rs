//! Tests with a foreign client library, `zookeeper-client`.

use zookeeper_client::{Acls, Client, CreateMode, Error, EventType};

use crate::common::{builder, finish_in_time};

async fn client(addr: std::net::SocketAddr) -> Client {
    Client::connect(&addr.to_string()).await.expect("a session")
}

#[tokio::test]
async fn znodes_and_watches_work_with_foreign_client() {
    let server = builder().start().await.expect("a free port");
    let client = client(server.local_addr()).await;
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let (_, stat) = client.stat_and_watch_missing(&client.clone(), "/app", &persistent).await;
    assert_eq!(stat.version, 0);
    let (_, _, watcher) = client.get_and_watch_data("/app").await.expect("it exists");
    let stat = client.set_data("/app", b"two", Some(0)).await.expect("version 0");
    assert_eq!(finish_in_time(watcher.changed()).await.event_type, EventType::NodeDataChanged);
    assert_eq!(client.get_data("/app").await.expect("it exists"), (b"two".to_vec(), stat));
    assert_eq!(client.set_data("/app", b"x", Some(0)).await, Err(Error::BadVersion));
    let sequential = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    for expected in 0..3 {
        let (_, sequence) = client.create("/app/s-", b"", &sequential).await.expect("a sequential znode");
        assert_eq!(sequence.into_i64(), expected);
    }
    let (children, _) = client.get_children("/app").await.expect("it exists");
    assert_eq!(children.len(), 3);
    assert_eq!(client.delete("/app", None).await, Err(Error::NotEmpty));
    let container = CreateMode::Container.with_acls(Acls::anyone_all());
    client.create("/box", b"", &container).await.expect("a container");
    let mut multi = client.new_multi_writer();
    multi.add_delete("/box", None).expect("a path");
    multi.add_set_data("/app", b"three", None).expect("a path");
    assert_eq!(multi.commit().await.expect("the multi succeeds").len(), 2);
    drop(client);
    server.shutdown().await;
}

#[tokio::test]
async fn expiry_deletes_ephemerals() {
    let server = builder().start().await.expect("a free port");
    let (first, second) = (client(server.local_addr()).await, client(server.local_addr()).await);
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    first.create("/mine", b"", &ephemeral).await.expect("an ephemeral");
    let (stat, watcher) = second.check_and_watch_stat("/mine").await.expect("an answer");
    assert_eq!(stat.expect("it exists").ephemeral_owner, first.session_id().0);
    assert!(server.expire_session(first.session_id().0));
    assert_eq!(finish_in_time(watcher.changed()).await.event_type, EventType::NodeDeleted);
    // The server has closed the connection. The client learns of the expiry when it reconnects.
    let mut state = first.state_watcher();
    while !first.state().is_terminated() {
        finish_in_time(state.changed()).await;
    }
    assert_eq!(first.get_data("/").await.expect_err("the session has expired"), Error::SessionExpired);
    server.shutdown().await;
}

/// Adds a method to [`Client`] that sets a watch on a missing znode, creates the znode with the
/// client `creator`, and waits for the watch event.
trait Missing {
    async fn stat_and_watch_missing(
        &self,
        creator: &Client,
        path: &str,
        options: &zookeeper_client::CreateOptions<'_>,
    ) -> (String, zookeeper_client::Stat);
}

impl Missing for Client {
    async fn stat_and_watch_missing(
        &self,
        creator: &Client,
        path: &str,
        options: &zookeeper_client::CreateOptions<'_>,
    ) -> (String, zookeeper_client::Stat) {
        let (stat, watcher) = self.check_and_watch_stat(path).await.expect("an answer");
        assert!(stat.is_none());
        let (stat, _) = creator.create(path, b"one", options).await.expect("the znode is created");
        let event = finish_in_time(watcher.changed()).await;
        assert_eq!(event.event_type, EventType::NodeCreated);
        (event.path, stat)
    }
}
