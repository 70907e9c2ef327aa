//! Attacks by data and names that a foreign client wrote below the root of the locks.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock::Error;
use zoolock_tests::locks::connect;
use zoolock_tests::{ZoolockBinary, on_both_servers, tree};

use crate::attackers::{BOUND, output, safe_outputs};

/// A little less than the maximum length of a frame.
const LARGE: usize = 1_000_000;

/// Creates a persistent znode that anyone may modify.
async fn create(client: &Client, path: &str, data: &[u8]) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(path, data, &options).await.expect("znode created");
}

on_both_servers!(foreign_megabyte_in_lock_directory_is_kept_and_named, |place| async move {
    let client = tree::connect(&place.connect_string()).await.expect("connected");
    let megabyte = vec![b'x'; LARGE];
    create(&client, "/locks", b"").await;
    create(&client, "/locks/record", &megabyte).await;
    // A contender with a megabyte of data.
    create(&client, "/locks/contender", b"").await;
    create(&client, "/locks/contender/lock-0000000000", &megabyte).await;
    let zl = connect(&place).await;
    let guard = timeout(BOUND, zl.mutex("record").lock()).await.expect("ended in time");
    guard.expect("lock granted").release().await.expect("lock released");
    let (data, _) = client.get_data("/locks/record").await.expect("data read");
    assert_eq!(data.len(), LARGE, "foreign data was changed");
    // A lock with crash detection fails, because the client would have to overwrite the foreign
    // data in the directory.
    let tracked = zl.mutex("record").crash_detection();
    match timeout(BOUND, tracked.lock()).await.expect("ended in time") {
        Err(Error::Invalid { input, .. }) => assert!(input.contains("/locks/record"), "{input}"),
        other => panic!("{other:?}"),
    }
    let waited = timeout(BOUND, zl.mutex("contender").lock_timeout(Duration::from_secs(1))).await;
    let waited = waited.expect("ended in time");
    assert!(matches!(waited, Err(Error::Timeout { .. } | Error::ForeignContender { .. })), "{waited:?}");
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    for args in [&["ls"][..], &["ls", "--json"], &["show", "contender"], &["show", "record", "--json"]] {
        let (code, output) = output(&place.connect_string(), &zoolock, args).await;
        assert_eq!(code, Some(0), "{args:?}: {:.500}", output);
        assert!(output.len() < 10_000, "{args:?} prints {} bytes", output.len());
    }
    // Other locks still work.
    zl.mutex("other").lock().await.expect("lock granted").release().await.expect("lock released");
    zl.close().await;
});

on_both_servers!(misleading_names_are_shown_escaped, |place| async move {
    const NAME: &str = "safe\u{202e}gnp.exe<script>alert(1)";
    let client = tree::connect(&place.connect_string()).await.expect("connected");
    create(&client, "/locks", b"").await;
    create(&client, &format!("/locks/{NAME}"), b"").await;
    create(&client, &format!("/locks/{NAME}/lock-0000000000"), "\u{1b}[2J\u{202e}".as_bytes()).await;
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    let commands = [
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
    ];
    let outputs = safe_outputs(&place.connect_string(), &zoolock, &commands).await;
    let shown = outputs.iter().filter(|output| output.contains("gnp.exe")).count();
    assert!(shown >= 5, "only {shown} commands show the name");
});

on_both_servers!(shell_syntax_in_names_is_not_executed, |place| async move {
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    let made = zoolock.home().join("made");
    for name in ["x$(touch made)", "x`touch made`", "x;touch made", "x\"&&touch made&&\""] {
        let args =
            ["run", "--note", name, name, "--", "sh", "-c", "test \"$ZOOLOCK_NAME\" = \"$1\"", "-", name];
        let mut command = zoolock.command(args);
        command.env("ZOOLOCK_CONNECT", place.connect_string()).current_dir(zoolock.home());
        let done = timeout(BOUND, command.output()).await.expect("command ended").expect("command started");
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        assert!(!made.exists(), "{name}");
    }
});
