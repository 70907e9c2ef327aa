//! `zoolock doctor` reports faults of locks, access rights and servers.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode};
use zoolock::Zoolock;
use zoolock_tests::ports::Port;
use zoolock_tests::proxy::Proxy;
use zoolock_tests::{Authority, Place, ServerKind, ServerOptions, on_both_servers, opcode, tree};

use super::diagnosis::{Diagnosis, examine, examine_with};
use crate::common::{Sandbox, start_server};

const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

async fn create_directory(client: &Client, path: &str) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(path, b"", &options).await.expect("znode created");
}

/// Creates the znode of a contender. The path of the znode starts with `prefix`.
async fn create_contender(client: &Client, prefix: &str) {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    client.create(prefix, b"", &options).await.expect("znode created");
}

on_both_servers!(mixed_naming_schemes_are_an_error, |zookeeper| async move {
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    create_directory(&client, "/locks").await;
    create_directory(&client, "/locks/shared").await;
    create_contender(&client, &format!("/locks/shared/{HEX}__lock__")).await;
    create_contender(&client, "/locks/shared/lock-").await;
    let diagnosis = examine_with(&zookeeper.connect_string(), &[]);
    assert_eq!((diagnosis.code, diagnosis.level("neighbours")), (2, Some("error")), "{diagnosis:?}");
    let messages = diagnosis.messages("neighbours");
    assert!(messages.contains("/locks/shared") && messages.contains("kazoo"), "{messages}");
    // A directory with a single naming scheme adds no finding.
    create_directory(&client, "/locks/friends").await;
    create_contender(&client, &format!("/locks/friends/{HEX}__lock__")).await;
    let before = diagnosis.messages("neighbours").lines().count();
    assert_eq!(examine(&zookeeper.connect_string()).messages("neighbours").lines().count(), before);
});

on_both_servers!(unknown_contenders_are_reported, |zookeeper| async move {
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    create_directory(&client, "/locks").await;
    create_directory(&client, "/locks/x").await;
    create_directory(&client, "/locks/x/backup-2024010101").await;
    create_contender(&client, "/locks/x/lock-").await;
    // The number in the name `backup-2024010101` is higher than all sequence numbers of the
    // directory so far. So that child is no contender.
    let diagnosis = examine(&zookeeper.connect_string());
    assert_eq!(
        (diagnosis.level("neighbours"), diagnosis.level("orphans")),
        (Some("ok"), None),
        "{diagnosis:?}"
    );
    assert_eq!(diagnosis.level("numbers"), Some("ok"), "{diagnosis:?}");
    create_contender(&client, "/locks/x/job-").await;
    let diagnosis = examine(&zookeeper.connect_string());
    assert_eq!(
        (diagnosis.level("neighbours"), diagnosis.level("orphans")),
        (Some("note"), None),
        "{diagnosis:?}"
    );
    let messages = diagnosis.messages("neighbours");
    assert!(messages.contains("unknown client libraries") && messages.contains("/locks/x"), "{messages}");
});

on_both_servers!(contender_without_session_is_reported, |zookeeper| async move {
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    create_directory(&client, "/locks").await;
    create_directory(&client, "/locks/x").await;
    let options = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
    client.create("/locks/x/job-", b"", &options).await.expect("znode created");
    let diagnosis = examine(&zookeeper.connect_string());
    assert_eq!(diagnosis.level("orphans"), Some("warning"), "{diagnosis:?}");
    assert!(
        diagnosis.messages("orphans").contains("stay until a client deletes them: /locks/x"),
        "{diagnosis:?}"
    );
});

on_both_servers!(foreign_directory_data_is_reported, |zookeeper| async move {
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

on_both_servers!(missing_chroot_is_reported, |zookeeper| async move {
    let address = format!("{}/nowhere", zookeeper.connect_string());
    let diagnosis = examine(&address);
    assert_eq!(diagnosis.level("chroot"), Some("warning"), "{diagnosis:?}");
    let left = tree::descendants(&zookeeper.connect_string(), "/").await.expect("znodes listed");
    assert_eq!(left, Vec::<String>::new());
});

/// Examines a chroot. Returns the level and the messages of the check `chroot`.
fn examine_chroot(address: &str, chroot: &str) -> (Option<String>, String) {
    let diagnosis = examine(&format!("{address}{chroot}"));
    assert_eq!(diagnosis.code, i32::from(diagnosis.report["worst"] == "warning"), "{diagnosis:?}");
    (diagnosis.level("chroot").map(str::to_owned), diagnosis.messages("chroot"))
}

/// Asserts that the check `chroot` reports a warning with these fragments.
fn assert_chroot_warning(address: &str, chroot: &str, fragments: &[&str]) {
    let (level, messages) = examine_chroot(address, chroot);
    assert_eq!(level.as_deref(), Some("warning"), "{chroot}: {messages}");
    assert!(fragments.iter().all(|fragment| messages.contains(fragment)), "{chroot}: {messages}");
}

on_both_servers!(private locks_beside_an_empty_or_new_chroot_are_reported, |zookeeper| async move {
    let address = zookeeper.addr();
    assert_eq!(examine_chroot(&address, "").0, None, "there are no locks");
    let zl = Zoolock::connect(&format!("{address}/apps")).await.expect("session created");
    let guard = zl.mutex("x").lock().await.expect("lock granted");
    assert_chroot_warning(&address, "/app", &["does not exist", "/apps (1 lock)"]);
    assert_chroot_warning(&address, "/apps/deep/er", &["does not exist", "/apps (1 lock)"]);
    assert_chroot_warning(&address, "", &["without a chroot", "/apps (1 lock)"]);
    let client = tree::connect(&address).await.expect("session created");
    create_directory(&client, "/app").await;
    assert_chroot_warning(&address, "/app", &["no holder or waiter", "/apps (1 lock)"]);
    // A client with a misspelled chroot acquires a lock.
    let misspelled = Zoolock::connect(&format!("{address}/aps")).await.expect("session created");
    let theirs = misspelled.mutex("x").lock().await.expect("lock granted");
    for (chroot, other) in [("/aps", "/apps (1 lock)"), ("/apps", "/aps (1 lock)")] {
        let (level, messages) = examine_chroot(&address, chroot);
        assert_eq!(level.as_deref(), Some("note"), "{messages}");
        assert!(messages.contains("was created") && messages.contains(other), "{messages}");
    }
    theirs.release().await.expect("release succeeds");
    misspelled.close().await;
    let (level, messages) = examine_chroot(&address, "/apps");
    assert_eq!(level.as_deref(), Some("note"), "{messages}");
    // A client without a chroot holds a lock.
    let plain = Zoolock::connect(&address).await.expect("session created");
    let held = plain.mutex("x").lock().await.expect("lock granted");
    assert_eq!(examine_chroot(&address, "").0, None);
    assert_chroot_warning(&address, "/app", &["without a chroot (1 lock)", "/apps (1 lock)"]);
    for (zl, guard) in [(zl, guard), (plain, held)] {
        guard.release().await.expect("release succeeds");
        zl.close().await;
    }
});

on_both_servers!(one_unreachable_server_of_two_is_reported, |zookeeper| async move {
    let port = Port::reserve().expect("a free port");
    let address = format!("{},{}", port.addr(), zookeeper.connect_string());
    let diagnosis = examine(&address);
    assert_eq!((diagnosis.code, diagnosis.level("server")), (1, Some("warning")), "{diagnosis:?}");
    assert!(diagnosis.messages("server").contains(&port.addr().to_string()), "{diagnosis:?}");
});

on_both_servers!(private two_standalone_servers_are_an_error, |zookeeper| async move {
    // The proxy looks like a second standalone server.
    let proxy = Proxy::start(&zookeeper.addr()).await.expect("proxy started");
    let address = format!("{},{}", proxy.addr(), zookeeper.connect_string());
    let diagnosis = examine(&address);
    assert_eq!(diagnosis.level("server"), Some("error"), "{diagnosis:?}");
    assert!(diagnosis.messages("server").contains("standalone"), "{diagnosis:?}");
    // No ensemble has lost a server.
    let port = Port::reserve().expect("a free port");
    let diagnosis = examine(&format!("{},{address}", port.addr()));
    assert!(!diagnosis.messages("server").contains("one more"), "{diagnosis:?}");
});

on_both_servers!(world_writable_directories_are_reported, |zookeeper| async move {
    let client = tree::connect(&zookeeper.connect_string()).await.expect("session created");
    client.auth("digest", b"me:secret").await.expect("any account is accepted");
    let owned = CreateMode::Persistent.with_acls(Acls::creator_all());
    client.create("/locks", b"", &owned).await.expect("znode created");
    client.create("/locks/x", b"", &owned).await.expect("znode created");
    // A client without the account has no permission to change these directories.
    let diagnosis = examine_with(&zookeeper.connect_string(), &[]);
    assert_eq!((diagnosis.code, diagnosis.level("write")), (2, Some("error")), "{diagnosis:?}");
    assert!(diagnosis.messages("queues").contains("no permission to list"), "{diagnosis:?}");
    assert!(diagnosis.remedies("queues").contains("--auth"), "{diagnosis:?}");
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

/// Returns options of a server with this limit on connections.
fn limited(max_client_connections: usize) -> ServerOptions {
    ServerOptions { max_client_connections, ..ServerOptions::default() }
}

/// Opens this number of sessions.
async fn open_sessions(address: &str, count: usize) -> Vec<Zoolock> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        sessions.push(Zoolock::connect(address).await.expect("session created"));
    }
    sessions
}

on_both_servers!(private(limited(2)) server_at_its_limit_of_connections_is_reported, |zookeeper| async move {
    let _sessions = open_sessions(&zookeeper.connect_string(), 2).await;
    let diagnosis = examine_with(&zookeeper.connect_string(), &["ZOOLOCK_CONNECT_TIMEOUT=2s"]);
    assert_eq!((diagnosis.code, diagnosis.level("connections")), (69, Some("error")), "{diagnosis:?}");
    for text in [&diagnosis.messages("connections"), &diagnosis.stderr] {
        assert!(text.contains("maxClientCnxns"), "{diagnosis:?}");
    }
});

on_both_servers!(private(limited(20)) server_near_its_limit_of_connections_is_reported, |zookeeper| async move {
    let address = zookeeper.connect_string();
    assert_eq!(examine(&address).level("connections"), Some("ok"));
    let _sessions = open_sessions(&address, 16).await;
    let diagnosis = examine(&address);
    assert_eq!(diagnosis.level("connections"), Some("note"), "{diagnosis:?}");
    let setting = match zookeeper.server_kind() {
        ServerKind::Embedded => "`zoolock serve --max-connections-per-address`",
        ServerKind::Apache => "maxClientCnxns in zoo.cfg",
    };
    assert!(diagnosis.remedies("connections").contains(&format!("raise {setting} above")), "{diagnosis:?}");
});

/// Returns options of a server with the certificate of this authority.
fn secure(authority: Authority) -> ServerOptions {
    ServerOptions { tls: Some(Arc::new(authority)), ..ServerOptions::default() }
}

/// Examines the server over TLS, with a client certificate that it accepts.
fn examine_over_tls(zookeeper: &Place) -> Diagnosis {
    let authority = zookeeper.authority();
    let (ca, client) = (authority.ca(), authority.client("doctor"));
    let files = [ca, client.certificate, client.key].map(|path| path.display().to_string());
    let args = ["--cacert", &files[0], "--cert", &files[1], "--key", &files[2]];
    examine_with(&zookeeper.server().secure_addr(), &args)
}

/// Asserts that the report and the error name the problem with the server's certificate, and no
/// limit on connections.
fn assert_certificate_trouble(diagnosis: &Diagnosis, trouble: &str) {
    assert_eq!((diagnosis.code, diagnosis.level("server")), (69, Some("error")), "{diagnosis:?}");
    for text in [&diagnosis.messages("server"), &diagnosis.stderr] {
        assert!(text.contains(trouble), "{diagnosis:?}");
    }
    assert_eq!(diagnosis.level("connections"), None, "{diagnosis:?}");
    // The doctor tries each server once, and does not wait for the connect timeout.
    assert!(!diagnosis.stderr.contains("no session within"), "{diagnosis:?}");
}

on_both_servers!(private(secure(Authority::of_an_expired_server())) expired_certificate_is_an_error, |zookeeper| async move {
    assert_certificate_trouble(&examine_over_tls(&zookeeper), "its certificate has expired");
});

on_both_servers!(private(secure(Authority::of_a_not_yet_valid_server())) not_yet_valid_certificate_is_an_error, |zookeeper| async move {
    assert_certificate_trouble(&examine_over_tls(&zookeeper), "its certificate is not valid yet");
});

#[tokio::test]
async fn slow_server_gets_few_requests_to_measure() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let proxy = Proxy::start(&address).await.expect("proxy started");
    proxy.delay(Duration::from_millis(400));
    let diagnosis = examine(&proxy.addr());
    assert!(diagnosis.code < 2, "{diagnosis:?}");
    let (syncs, writes) = (proxy.counts().requests(opcode::SYNC), proxy.counts().requests(opcode::SET_DATA));
    // At 800 ms for each answer, two seconds have passed after three requests. On a slow machine, fewer are sent, and a
    // request may be sent again after a lost connection. A fast server gets ten.
    assert!((1..=6).contains(&syncs) && (1..=6).contains(&writes), "{syncs} {writes}");
}
