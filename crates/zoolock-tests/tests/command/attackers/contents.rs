//! What somebody wrote where locks are.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock::Error;
use zoolock_tests::{Place, ZoolockBinary, on_both_arms, tree};

use crate::attackers::{BOUND, is_obeyed};
use zoolock_tests::locks::connect;

/// A little less than a frame may be.
const LARGE: usize = 1_000_000;

async fn plant(client: &Client, path: &str, data: &[u8]) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(path, data, &options).await.expect("it may");
}

async fn said(place: &Place, zoolock: &ZoolockBinary, args: &[&str]) -> (Option<i32>, String) {
    let mut command = zoolock.command(args);
    command.env("ZOOLOCK_CONNECT", place.connect_string());
    let done = timeout(BOUND, command.output()).await.expect("it ends").expect("it starts");
    let said = [done.stdout, done.stderr].concat();
    (done.status.code(), String::from_utf8_lossy(&said).into_owned())
}

on_both_arms!(a_megabyte_where_locks_are_is_left_alone_and_named, |place| async move {
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    let megabyte = vec![b'x'; LARGE];
    plant(&client, "/locks", b"").await;
    plant(&client, "/locks/record", &megabyte).await;
    // One who stands there, and says a megabyte about himself.
    plant(&client, "/locks/contender", b"").await;
    plant(&client, "/locks/contender/lock-0000000000", &megabyte).await;
    let zl = connect(&place).await;
    let guard = timeout(BOUND, zl.mutex("record").lock()).await.expect("it does not hang");
    guard.expect("it is free").release().await.expect("ours");
    let (data, _) = client.get_data("/locks/record").await.expect("it is there");
    assert_eq!(data.len(), LARGE, "it is somebody else's");
    // Who has to write there cannot.
    let tracked = zl.mutex("record").crash_detection();
    match timeout(BOUND, tracked.lock()).await.expect("it does not hang") {
        Err(Error::Invalid { input, .. }) => assert!(input.contains("/locks/record"), "{input}"),
        other => panic!("{other:?}"),
    }
    let waited = timeout(BOUND, zl.mutex("contender").lock_timeout(Duration::from_secs(1))).await;
    let waited = waited.expect("it does not hang");
    assert!(matches!(waited, Err(Error::Timeout { .. } | Error::Neighbour { .. })), "{waited:?}");
    let zoolock = ZoolockBinary::find().expect("built");
    for args in [&["ls"][..], &["ls", "--json"], &["show", "contender"], &["show", "record", "--json"]] {
        let (code, said) = said(&place, &zoolock, args).await;
        assert_eq!(code, Some(0), "{args:?}: {:.500}", said);
        assert!(said.len() < 10_000, "{args:?} repeats {} bytes", said.len());
    }
    // Others are no worse for it.
    zl.mutex("other").lock().await.expect("free").release().await.expect("ours");
    zl.close().await;
});

on_both_arms!(names_that_were_made_to_mislead_are_shown_as_they_are, |place| async move {
    const NAME: &str = "safe\u{202e}gnp.exe<script>alert(1)";
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    plant(&client, "/locks", b"").await;
    plant(&client, &format!("/locks/{NAME}"), b"").await;
    plant(&client, &format!("/locks/{NAME}/lock-0000000000"), "\u{1b}[2J\u{202e}".as_bytes()).await;
    let zoolock = ZoolockBinary::find().expect("built");
    let mut shown = 0;
    for args in [
        &["ls"][..],
        &["ls", "--json"],
        &["show", NAME],
        &["show", NAME, "--json"],
        &["why", NAME],
        &["deadlocks"],
        &["doctor"],
        &["doctor", "--json"],
        &["run", "--try", NAME, "--", "true"],
        &["revoke", NAME],
    ] {
        let (code, said) = said(&place, &zoolock, args).await;
        assert_ne!(code, Some(101), "{args:?}: {said}");
        assert!(!said.contains(is_obeyed), "{args:?}: {said:?}");
        shown += usize::from(said.contains("gnp.exe"));
    }
    assert!(shown >= 5, "{shown}");
});

on_both_arms!(a_shell_in_a_name_is_started_by_nobody, |place| async move {
    let zoolock = ZoolockBinary::find().expect("built");
    let made = zoolock.home().join("made");
    for name in ["x$(touch made)", "x`touch made`", "x;touch made", "x\"&&touch made&&\""] {
        let args =
            ["run", "--note", name, name, "--", "sh", "-c", "test \"$ZOOLOCK_NAME\" = \"$1\"", "-", name];
        let mut command = zoolock.command(args);
        command.env("ZOOLOCK_CONNECT", place.connect_string()).current_dir(zoolock.home());
        let done = timeout(BOUND, command.output()).await.expect("it ends").expect("it starts");
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        assert!(!made.exists(), "{name}");
    }
});
