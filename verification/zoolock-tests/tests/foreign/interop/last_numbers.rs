//! The last sequence numbers of a lock directory. After them, ZooKeeper gives each contender the number 2147483647.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock::Error;
use zoolock_tests::{AnyServer, Place, ServerKind, ZoolockBinary, locks, on_both_servers, tree};

use crate::clients::Library::{Java, Kazoo, Zoolock};
use crate::clients::{Client, java};
use crate::interop::contenders::{
    LOCK, Role, assert_nothing_left, available, contend, create_lock_directory, role, run_until_violation,
};
use crate::mixed_queues::queue::zoolock as run_zoolock;
use crate::programs::run;

/// Number of sequence numbers that are left before the last one.
const LEFT: i32 = 20;
/// The first sequence number at which zoolock replaces the directory.
const REPLACED_AT: i32 = i32::MAX - (1 << 20);
const BOUND: Duration = Duration::from_secs(60);

/// Creates the lock directory. Its next znode gets the sequence number `next`.
async fn create_directory_at(place: &Place, next: i32) {
    create_lock_directory(place).await;
    let path = format!("{}{LOCK}", place.chroot());
    match place.server() {
        AnyServer::Embedded(server) => {
            assert!(server.inspect(|handle| handle.set_child_counter(&path, next)), "{path} does not exist");
        }
        AnyServer::Apache(server) => {
            server.kill().await;
            let mut numbers = java("Numbers").await;
            run(numbers.args([&server.data_dir(), &path, &next.to_string()])).await.output();
            server.restart().await.expect("the server restarts");
            let client = tree::connect(&place.connect_string()).await.expect("connected");
            client.delete(&format!("{LOCK}/counted"), None).await.expect("the log contains this child");
        }
        AnyServer::SharedApache(..) => {
            panic!("the counter is set while the server is down: the test must be `private`")
        }
    }
}

/// Asserts that contenders hold the lock together after the last sequence number. The violation's message must contain
/// `znode`.
///
/// Among contenders with equal numbers, the contender whose znode the server lists first acquires
/// the lock. Apache ZooKeeper lists znodes in no order. The embedded server lists them in the order
/// of their creation. So with `excluded_on_embedded`, the contenders must exclude each other on the
/// embedded server.
async fn assert_held_together(place: &Place, roles: &[Role], znode: &str, excluded_on_embedded: bool) {
    if !Java.or_skip(place) || !available(roles, place) {
        return;
    }
    create_directory_at(place, i32::MAX - LEFT).await;
    if excluded_on_embedded && place.server_kind() == ServerKind::Embedded {
        contend(place, roles).await;
        return;
    }
    let found = run_until_violation(place, roles).await;
    assert!(found.contains("violation: ") && found.contains(znode), "{found}");
}

on_both_servers!(private curators_hold_together_after_last_number, |place| async move {
    assert_held_together(&place, &[role(Java, "curator-mutex", 4)], "-lock-2147483647", true).await;
});

on_both_servers!(private kazoos_hold_together_after_last_number, |place| async move {
    assert_held_together(&place, &[role(Kazoo, "lock", 4)], "__lock__2147483647", true).await;
});

on_both_servers!(private write_locks_hold_together_after_last_number, |place| async move {
    // The recipe orders contenders with equal numbers by session id, so the order of the listing does not matter.
    assert_held_together(&place, &[role(Java, "write-lock", 4)], "-2147483647", false).await;
});

on_both_servers!(private directory_near_its_end_is_replaced, |place| async move {
    let roles = [
        role(Java, "curator-mutex", 2),
        role(Zoolock, "mutex@native", 1),
        role(Zoolock, "mutex@curator", 1),
    ];
    if !available(&roles, &place) {
        return;
    }
    create_directory_at(&place, REPLACED_AT - LEFT).await;
    contend(&place, &roles).await;
    assert!(next_number(&place).await < REPLACED_AT / 2, "the directory was not replaced");
    assert_nothing_left(&place).await;
});

on_both_servers!(private mutex_waits_while_curator_keeps_old_directory, |place| async move {
    if !Java.or_skip(&place) {
        return;
    }
    create_directory_at(&place, REPLACED_AT).await;
    let curator = Client::start(Java, &place).await.hold("curator-mutex", LOCK).await;
    let zl = locks::connect(&place).await;
    let outcome = zl.mutex(LOCK).lock_timeout(Duration::from_secs(2)).await;
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
    let waiting = tokio::spawn({
        let mutex = zl.mutex(LOCK);
        async move { mutex.lock().await }
    });
    curator.close().await.expect("the session is closed");
    let granted = timeout(BOUND, waiting).await.expect("the directory is replaced");
    let guard = granted.expect("task does not panic").expect("lock granted");
    assert!(guard.node_path().ends_with("/lock-0000000000"), "{}", guard.node_path());
    guard.release().await.expect("release succeeds");
    zl.close().await;
    assert_nothing_left(&place).await;
});

on_both_servers!(private child_that_keeps_full_directory_is_named, |place| async move {
    if !Java.or_skip(&place) {
        return;
    }
    create_directory_at(&place, REPLACED_AT).await;
    let zl = locks::connect(&place).await;
    // A lock below the lock, and data of another program.
    let nested = zl.mutex(format!("{LOCK}/nested")).lock_timeout(BOUND).await.expect("lock granted");
    let client = tree::connect(&place.connect_string()).await.expect("connected");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(&format!("{LOCK}/config"), b"", &options).await.expect("created");
    for child in ["config", "nested"] {
        let path = format!("{LOCK}/{child}");
        let wait = zl.mutex(LOCK).lock_timeout(BOUND).await.map(drop);
        let attempt = zl.mutex(LOCK).try_lock().await.map(drop);
        for outcome in [wait, attempt] {
            let error = outcome.expect_err("the directory cannot be replaced");
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
            assert!(error.to_string().contains(&format!("while {path} exists; delete")), "{error}");
        }
        let shown = run_zoolock(&place, &["show", LOCK]).await;
        shown.assert(0, &[]);
        assert!(shown.stdout.contains("unusable") && !shown.stdout.contains("free"), "{}", shown.stdout);
        assert!(shown.stdout.split_whitespace().any(|word| word == path), "{}", shown.stdout);
        let listed = run_zoolock(&place, &["ls"]).await;
        assert!(listed.stdout.contains("unusable"), "{}", listed.stdout);
        assert_eq!(level_of_numbers(&place).await, "error");
        if child == "config" {
            client.delete(&path, None).await.expect("the child exists");
        }
    }
    nested.release().await.expect("release succeeds");
    client.delete(&format!("{LOCK}/nested"), None).await.expect("the nested directory is empty");
    let guard = zl.mutex(LOCK).lock_timeout(BOUND).await.expect("the directory is replaced");
    assert!(guard.node_path().ends_with("/lock-0000000000"), "{}", guard.node_path());
    guard.release().await.expect("release succeeds");
    zl.close().await;
    assert_nothing_left(&place).await;
});

on_both_servers!(private doctor_reports_directory_near_its_end, |place| async move {
    if !Java.or_skip(&place) {
        return;
    }
    create_directory_at(&place, REPLACED_AT + 1).await;
    assert_eq!(level_of_numbers(&place).await, "warning");
    // Clients of other libraries never replace the directory. So while such a client uses the
    // directory, the finding is an error.
    let _curator = Client::start(Java, &place).await.hold("curator-mutex", LOCK).await;
    assert_eq!(level_of_numbers(&place).await, "error");
});

/// Returns the level of the doctor's finding on sequence numbers.
async fn level_of_numbers(place: &Place) -> String {
    let binary = ZoolockBinary::find().expect("the command has been built");
    let mut doctor = binary.command(["doctor", "--json", "--connect", &place.connect_string()]);
    let output = doctor.stdin(std::process::Stdio::null()).output().await.expect("the command starts");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("the output is JSON");
    let findings = report["findings"].as_array().expect("findings are a list");
    let mut numbers = findings.iter().filter(|finding| finding["check"] == "numbers");
    let found = numbers.next().unwrap_or_else(|| panic!("no finding on numbers in {report}"));
    assert!(numbers.next().is_none(), "{report}");
    assert!(found["what"].as_str().is_some_and(|what| what.contains(LOCK)), "{found}");
    found["level"].as_str().expect("a level is text").to_owned()
}

/// Returns the sequence number of the next contender.
async fn next_number(place: &Place) -> i32 {
    let client = tree::connect(&place.connect_string()).await.expect("connected");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    match client.create(&format!("{LOCK}/n-"), b"", &options).await {
        Ok((_, sequence)) => i32::try_from(sequence.into_i64()).expect("a sequence number has 31 bits"),
        // The server has deleted the empty container, so the numbers start again.
        Err(zookeeper_client::Error::NoNode) => 0,
        Err(error) => panic!("{error}"),
    }
}
