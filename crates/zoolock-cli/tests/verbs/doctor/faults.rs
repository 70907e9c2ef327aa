//! `zoolock doctor` reports faults of locks, access rights and servers.

use zookeeper_client::{Acls, Client, CreateMode};
use zoolock::Zoolock;
use zoolock_tests::ports::Port;
use zoolock_tests::{on_both_arms, tree};

use super::diagnosis::{examine, examine_with};
use super::dump_proxy::DumpProxy;

const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

async fn create_directory(client: &Client, path: &str) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(path, b"", &options).await.expect("znode created");
}

/// Creates the znode of a contender. Its name starts with `prefix`.
async fn create_contender(client: &Client, prefix: &str) {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    client.create(prefix, b"", &options).await.expect("znode created");
}

on_both_arms!(mixed_naming_schemes_are_an_error, |zookeeper| async move {
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    create_directory(&client, "/locks").await;
    create_directory(&client, "/locks/shared").await;
    create_contender(&client, &format!("/locks/shared/{HEX}__lock__")).await;
    create_contender(&client, "/locks/shared/lock-").await;
    let diagnosis = examine_with(&zookeeper.connect_string(), &["--strict"]);
    assert_eq!((diagnosis.code, diagnosis.level("neighbours")), (2, Some("error")), "{diagnosis:?}");
    let messages = diagnosis.messages("neighbours");
    assert!(messages.contains("/locks/shared") && messages.contains("kazoo"), "{messages}");
    // A directory with a single naming scheme adds no finding.
    create_directory(&client, "/locks/friends").await;
    create_contender(&client, &format!("/locks/friends/{HEX}__lock__")).await;
    let before = diagnosis.messages("neighbours").lines().count();
    assert_eq!(examine(&zookeeper.connect_string()).messages("neighbours").lines().count(), before);
});

on_both_arms!(foreign_directory_data_is_reported, |zookeeper| async move {
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    create_directory(&client, "/locks").await;
    create_directory(&client, "/locks/x").await;
    create_contender(&client, "/locks/x/lock-").await;
    assert_eq!(examine(&zookeeper.connect_string()).level("record"), None);
    client.set_data("/locks/x", b"10.1.2.3", None).await.expect("data written");
    let diagnosis = examine(&zookeeper.connect_string());
    assert_eq!(diagnosis.level("record"), Some("note"), "{diagnosis:?}");
    assert!(diagnosis.messages("record").contains("/locks/x"), "{diagnosis:?}");
});

on_both_arms!(orphaned_znode_is_reported_without_session_id, |zookeeper| async move {
    let zl = Zoolock::connect(&zookeeper.connect_string()).await.expect("session created");
    let guard = zl.mutex("left/behind").lock().await.expect("lock granted");
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    let owner = client
        .check_stat(&guard.node_path())
        .await
        .expect("stat read")
        .expect("the znode exists")
        .ephemeral_owner;
    let proxy = DumpProxy::hiding(zookeeper.server().socket_addr(), owner).await;
    let diagnosis = examine(&zookeeper.through(&proxy.address.to_string()));
    assert_eq!(diagnosis.level("orphans"), Some("error"), "{diagnosis:?}");
    assert!(diagnosis.messages("orphans").contains("/locks/left/behind"), "{diagnosis:?}");
    assert!(!diagnosis.stdout.contains(&format!("{owner:x}")), "{diagnosis:?}");
    // The proxy adds no fault if it hides a session that does not exist.
    let transparent = DumpProxy::hiding(zookeeper.server().socket_addr(), 1).await;
    let diagnosis = examine(&zookeeper.through(&transparent.address.to_string()));
    assert_eq!(diagnosis.level("orphans"), Some("ok"), "{diagnosis:?}");
    guard.release().await.expect("release succeeds");
    zl.close().await;
});

on_both_arms!(missing_chroot_is_reported, |zookeeper| async move {
    let address = format!("{}/nowhere", zookeeper.connect_string());
    let diagnosis = examine(&address);
    assert_eq!(diagnosis.level("chroot"), Some("warning"), "{diagnosis:?}");
    let left = tree::descendants(&zookeeper.connect_string(), "/").await.expect("znodes listed");
    assert_eq!(left, Vec::<String>::new());
});

on_both_arms!(one_unreachable_server_of_two_is_reported, |zookeeper| async move {
    let port = Port::reserve().expect("a free port");
    let address = format!("{},{}", port.addr(), zookeeper.connect_string());
    let diagnosis = examine(&address);
    assert_eq!((diagnosis.code, diagnosis.level("server")), (0, Some("warning")), "{diagnosis:?}");
    assert!(diagnosis.messages("server").contains(&port.addr().to_string()), "{diagnosis:?}");
});

on_both_arms!(private two_standalone_servers_are_an_error, |zookeeper| async move {
    // The proxy looks like a second standalone server.
    let proxy = DumpProxy::hiding(zookeeper.server().socket_addr(), 1).await;
    let address = format!("{},{}", proxy.address, zookeeper.connect_string());
    let diagnosis = examine(&address);
    assert_eq!(diagnosis.level("server"), Some("error"), "{diagnosis:?}");
    assert!(diagnosis.messages("server").contains("standalone"), "{diagnosis:?}");
});

on_both_arms!(world_writable_directories_are_reported, |zookeeper| async move {
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    client.auth("digest", b"me:secret").await.expect("any account is accepted");
    let owned = CreateMode::Persistent.with_acls(Acls::creator_all());
    client.create("/locks", b"", &owned).await.expect("znode created");
    client.create("/locks/x", b"", &owned).await.expect("znode created");
    // A client without the account has no rights there.
    let diagnosis = examine_with(&zookeeper.connect_string(), &["--strict"]);
    assert_eq!((diagnosis.code, diagnosis.level("write")), (2, Some("error")), "{diagnosis:?}");
    // For a client with the account, the directories are fine.
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), "me:secret\n").expect("file written");
    let auth = format!("digest:@{}", file.path().display());
    let diagnosis = examine_with(&zookeeper.connect_string(), &["--auth", &auth]);
    assert_eq!((diagnosis.level("write"), diagnosis.level("acl")), (None, Some("ok")), "{diagnosis:?}");
    assert!(!diagnosis.stdout.contains("secret") && !diagnosis.stderr.contains("secret"), "{diagnosis:?}");
    // The warning names a directory that all clients may change.
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/locks/open", b"", &open).await.expect("znode created");
    let diagnosis = examine_with(&zookeeper.connect_string(), &["--auth", &auth]);
    assert_eq!(diagnosis.level("acl"), Some("warning"), "{diagnosis:?}");
    assert!(
        diagnosis.messages("acl").contains("/locks/open") && !diagnosis.messages("acl").contains("/locks/x"),
        "{diagnosis:?}"
    );
});
