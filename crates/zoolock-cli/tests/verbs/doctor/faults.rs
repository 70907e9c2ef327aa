//! What is wrong with the locks, and with who may do what to them.

use zookeeper_client::{Acls, Client, CreateMode};
use zoolock::Zoolock;
use zoolock_tests::ports::Port;
use zoolock_tests::{on_both_arms, tree};

use super::front::Front;
use super::patient::{examine, examine_with};

const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

async fn make(client: &Client, path: &str) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(path, b"", &options).await.expect("new");
}

async fn stand(client: &Client, prefix: &str) {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    client.create(prefix, b"", &options).await.expect("its directory is there");
}

on_both_arms!(mixed_naming_schemes_are_an_error, |place| async move {
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    make(&client, "/locks").await;
    make(&client, "/locks/shared").await;
    stand(&client, &format!("/locks/shared/{HEX}__lock__")).await;
    stand(&client, "/locks/shared/lock-").await;
    let patient = examine_with(&place.connect_string(), &["--strict"]);
    assert_eq!((patient.code, patient.level("neighbours")), (2, Some("error")), "{patient:?}");
    let what = patient.what("neighbours");
    assert!(what.contains("/locks/shared") && what.contains("kazoo"), "{what}");
    // One make by itself is nothing to tell.
    make(&client, "/locks/friends").await;
    stand(&client, &format!("/locks/friends/{HEX}__lock__")).await;
    let before = patient.what("neighbours").lines().count();
    assert_eq!(examine(&place.connect_string()).what("neighbours").lines().count(), before);
});

on_both_arms!(foreign_directory_data_is_reported, |place| async move {
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    make(&client, "/locks").await;
    make(&client, "/locks/x").await;
    stand(&client, "/locks/x/lock-").await;
    assert_eq!(examine(&place.connect_string()).level("record"), None);
    client.set_data("/locks/x", b"10.1.2.3", None).await.expect("it is there");
    let patient = examine(&place.connect_string());
    assert_eq!(patient.level("record"), Some("note"), "{patient:?}");
    assert!(patient.what("record").contains("/locks/x"), "{patient:?}");
});

on_both_arms!(orphaned_znode_is_reported_without_session_id, |place| async move {
    let zl = Zoolock::connect(&place.connect_string()).await.expect("a session");
    let guard = zl.mutex("left/behind").lock().await.expect("free");
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    let owner = client.check_stat(&guard.node_path()).await.expect("a look").expect("held").ephemeral_owner;
    let front = Front::hiding(place.server().socket_addr(), owner).await;
    let patient = examine(&place.through(&front.address.to_string()));
    assert_eq!(patient.level("orphans"), Some("error"), "{patient:?}");
    assert!(patient.what("orphans").contains("/locks/left/behind"), "{patient:?}");
    assert!(!patient.stdout.contains(&format!("{owner:x}")), "{patient:?}");
    // Through the same front, one that nobody hides.
    let another = Front::hiding(place.server().socket_addr(), 1).await;
    let patient = examine(&place.through(&another.address.to_string()));
    assert_eq!(patient.level("orphans"), Some("ok"), "{patient:?}");
    guard.release().await.expect("ours");
    zl.close().await;
});

on_both_arms!(missing_chroot_is_reported, |place| async move {
    let address = format!("{}/nowhere", place.connect_string());
    let patient = examine(&address);
    assert_eq!(patient.level("chroot"), Some("warning"), "{patient:?}");
    let left = tree::descendants(&place.connect_string(), "/").await.expect("a look");
    assert_eq!(left, Vec::<String>::new());
});

on_both_arms!(one_unreachable_server_of_two_is_reported, |place| async move {
    let port = Port::reserve().expect("a port");
    let address = format!("{},{}", port.addr(), place.connect_string());
    let patient = examine(&address);
    assert_eq!((patient.code, patient.level("server")), (0, Some("warning")), "{patient:?}");
    assert!(patient.what("server").contains(&port.addr().to_string()), "{patient:?}");
});

on_both_arms!(private two_standalone_servers_are_an_error, |place| async move {
    // As another one would say it of itself.
    let front = Front::hiding(place.server().socket_addr(), 1).await;
    let address = format!("{},{}", front.address, place.connect_string());
    let patient = examine(&address);
    assert_eq!(patient.level("server"), Some("error"), "{patient:?}");
    assert!(patient.what("server").contains("standalone"), "{patient:?}");
});

on_both_arms!(world_writable_directories_are_reported, |place| async move {
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    client.auth("digest", b"me:secret").await.expect("any will do");
    let own = CreateMode::Persistent.with_acls(Acls::creator_all());
    client.create("/locks", b"", &own).await.expect("new");
    client.create("/locks/x", b"", &own).await.expect("new");
    // Those who are not named can do nothing there.
    let patient = examine_with(&place.connect_string(), &["--strict"]);
    assert_eq!((patient.code, patient.level("write")), (2, Some("error")), "{patient:?}");
    // Those who are find nothing wrong with it.
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "me:secret\n").expect("a file");
    let auth = format!("digest:@{}", file.path().display());
    let patient = examine_with(&place.connect_string(), &["--auth", &auth]);
    assert_eq!((patient.level("write"), patient.level("acl")), (None, Some("ok")), "{patient:?}");
    assert!(!patient.stdout.contains("secret") && !patient.stderr.contains("secret"), "{patient:?}");
    // One that is open is told by name.
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/locks/open", b"", &open).await.expect("new");
    let patient = examine_with(&place.connect_string(), &["--auth", &auth]);
    assert_eq!(patient.level("acl"), Some("warning"), "{patient:?}");
    assert!(
        patient.what("acl").contains("/locks/open") && !patient.what("acl").contains("/locks/x"),
        "{patient:?}"
    );
});
