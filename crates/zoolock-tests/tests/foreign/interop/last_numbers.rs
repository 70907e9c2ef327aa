//! The end of a directory's numbers, past which ZooKeeper gives every contender the number 2147483647.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock::{Error, Zoolock};
use zoolock_tests::{Arm, Place, Server, ServerOptions, ZoolockBinary, on_both_arms, tree};

use crate::foreign::run;
use crate::interop::make::Make::{Java, Kazoo, Ours};
use crate::interop::make::java;
use crate::interop::queue::{LOCK, available, contend, hold, nothing_is_left, prepare, role};
use crate::interop::referee::violation;

/// So many are left.
const LEFT: i32 = 20;
/// The first number at which we leave the directory.
const OUR_END: i32 = i32::MAX - (1 << 20);
const BOUND: Duration = Duration::from_secs(60);

/// Makes the directory of the lock, with so many children in its past: its next one has this number.
async fn with_past(place: &Place, count: i32) {
    prepare(place).await;
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    client.create(LOCK, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.expect("new");
    let path = format!("{}{LOCK}", place.chroot());
    match place.server() {
        Server::Embedded(server) => {
            assert!(server.inspect(|handle| handle.set_child_counter(&path, count)), "there is no {path}");
        }
        Server::Apache(server) => {
            drop(client);
            server.kill().await;
            let mut numbers = java("Numbers").await;
            run(numbers.args([&server.data_dir(), &path, &count.to_string()])).await.if_well();
            server.restart().await.expect("it comes up again");
            let client = tree::connect(&place.connect_string()).await.expect("a session");
            client.delete(&format!("{LOCK}/counted"), None).await.expect("its log says that it is there");
        }
        Server::SharedApache(..) => {
            panic!("the counter is set while the server is down: the test must be `private`")
        }
    }
}

on_both_arms!(private past_the_end_curators_are_inside_together, |place| async move {
    let roles = [role(Java, "curator-mutex", 4)];
    if !available(&roles, "past_the_end_curators_are_inside_together", &place) {
        return;
    }
    with_past(&place, i32::MAX - LEFT).await;
    match place.arm() {
        Arm::Apache => {
            let said = violation(&place, &roles).await;
            assert!(said.contains("violation: ") && said.contains("-lock-2147483647"), "{said}");
        }
        // Where numbers are the same the place in the listing decides, and ours lists in the order of creation.
        Arm::Embedded => {
            contend(&place, &roles).await;
        }
    }
});

on_both_arms!(private past_the_end_kazoos_are_inside_together, |place| async move {
    let roles = [role(Kazoo, "lock", 4)];
    let all = [roles[0].clone(), role(Java, "", 1)];
    if !available(&all, "past_the_end_kazoos_are_inside_together", &place) {
        return;
    }
    with_past(&place, i32::MAX - LEFT).await;
    match place.arm() {
        Arm::Apache => {
            let said = violation(&place, &roles).await;
            assert!(said.contains("violation: ") && said.contains("__lock__2147483647"), "{said}");
        }
        Arm::Embedded => {
            contend(&place, &roles).await;
        }
    }
});

on_both_arms!(private past_the_end_write_locks_are_inside_together, |place| async move {
    let roles = [role(Java, "write-lock", 4)];
    if !available(&roles, "past_the_end_write_locks_are_inside_together", &place) {
        return;
    }
    with_past(&place, i32::MAX - LEFT).await;
    // They compare their session ids next.
    let said = violation(&place, &roles).await;
    assert!(said.contains("violation: ") && said.contains("-2147483647"), "{said}");
});

on_both_arms!(private ours_leave_long_before_and_come_back_when_curators_have_left, |place| async move {
    let roles = [role(Java, "curator-mutex", 2), role(Ours, "mutex@native", 1), role(Ours, "mutex@curator", 1)];
    if !available(&roles, "ours_leave_long_before_and_come_back_when_curators_have_left", &place) {
        return;
    }
    with_past(&place, OUR_END - LEFT).await;
    contend(&place, &roles).await;
    assert!(next_number(&place).await < OUR_END / 2, "the directory was not made anew");
    nothing_is_left(&place).await;
});

on_both_arms!(private ours_stay_outside_for_as_long_as_curators_keep_an_old_directory, |place| async move {
    let roles = [role(Java, "curator-mutex", 1)];
    if !available(&roles, "ours_stay_outside_for_as_long_as_curators_keep_an_old_directory", &place) {
        return;
    }
    with_past(&place, OUR_END).await;
    let curator = hold(&place, Java, "curator-mutex").await;
    let settings =
        Zoolock::builder().tick_time(ServerOptions::default().tick).session_timeout(Duration::from_secs(10));
    let zl = settings.connect(&place.connect_string()).await.expect("a session");
    let outcome = zl.mutex(LOCK).lock_timeout(Duration::from_secs(2)).await;
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
    let waiting = tokio::spawn({
        let mutex = zl.mutex(LOCK);
        async move { mutex.lock().await }
    });
    drop(curator);
    let guard = timeout(BOUND, waiting).await.expect("its session is over").expect("no panic").expect("free");
    assert!(guard.node_path().ends_with("/lock-0000000000"), "{}", guard.node_path());
    guard.release().await.expect("ours");
    zl.close().await;
    nothing_is_left(&place).await;
});

on_both_arms!(private the_doctor_tells_of_a_directory_near_its_end_and_worse_beside_other_makes, |place| async move {
    let name = "the_doctor_tells_of_a_directory_near_its_end_and_worse_beside_other_makes";
    if !available(&[role(Java, "curator-mutex", 1)], name, &place) {
        return;
    }
    with_past(&place, OUR_END + 1).await;
    assert_eq!(numbers(&place).await, "warning");
    let curator = hold(&place, Java, "curator-mutex").await;
    assert_eq!(numbers(&place).await, "error");
    drop(curator);
});

/// What the doctor thinks of the numbers there.
async fn numbers(place: &Place) -> String {
    let binary = ZoolockBinary::find().expect("the command has been built");
    let mut doctor = binary.command(["doctor", "--json", "--connect", &place.connect_string()]);
    let said = doctor.stdin(std::process::Stdio::null()).output().await.expect("it starts");
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    let mut numbers = findings.iter().filter(|finding| finding["check"] == "numbers");
    let found = numbers.next().unwrap_or_else(|| panic!("nothing about numbers in {report}"));
    assert!(numbers.next().is_none(), "{report}");
    assert!(found["what"].as_str().is_some_and(|what| what.contains(LOCK)), "{found}");
    found["level"].as_str().expect("a word").to_owned()
}

/// The number of the next contender.
async fn next_number(place: &Place) -> i32 {
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    match client.create(&format!("{LOCK}/n-"), b"", &options).await {
        Ok((_, sequence)) => i32::try_from(sequence.into_i64()).expect("a number of a node"),
        // An empty container goes.
        Err(zookeeper_client::Error::NoNode) => 0,
        Err(error) => panic!("{error}"),
    }
}
