//! Semaphores of other client libraries: each is named as one lock, and refused.

use std::time::Duration;

use serde_json::{Value, json};
use zookeeper_client::CreateMode;
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, on_both_arms, tree};

use crate::everybody::make::{Make, curator_or_skip, kazoo};
use crate::everybody::queue::{Queue, holders, shown, zoolock};
use zoolock_tests::locks::{connect, directory};

const UUID: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";
/// A token that no contender has.
const TOKEN: &str = "00000000-0000000000000001-00000000";

/// The paths that `ls` lists.
async fn listed(place: &Place) -> Vec<String> {
    let said = zoolock(place, &["ls", "--json"]).await;
    let said: Value = serde_json::from_str(&said.output).expect("JSON");
    let locks = said["locks"].as_array().expect("a list");
    locks.iter().map(|lock| lock["path"].as_str().expect("text").to_owned()).collect()
}

async fn until_nodes(place: &Place, directory: &str, count: usize) {
    let what = format!("{count} nodes in {directory}");
    let looked = eventually(&what, Duration::from_secs(60), async || {
        let client = tree::connect(&place.addr()).await?;
        match client.list_children(directory).await.map_or(0, |nodes| nodes.len()) {
            found if found == count => Ok(()),
            found => Err(Failure::new(format!("{found} nodes"))),
        }
    });
    looked.await.expect("they queue");
}

on_both_arms!(a_semaphore_of_curators_is_one_lock, |place| async move {
    if !curator_or_skip(&format!("a_semaphore_of_curators_is_one_lock::{}", place.arm())) {
        return;
    }
    let mut curator = Make::curator(&place);
    for _ in 0..2 {
        curator.told("permit /locks/encoders 2").await;
        curator.says("holds /locks/encoders").await;
    }
    for waiting in 1..=2 {
        curator.told("permit /locks/encoders 2").await;
        until_nodes(&place, &directory(&place, "encoders/locks"), waiting).await;
    }
    // The first of them has its lease already, and waits for one of those before it to go.
    until_nodes(&place, &directory(&place, "encoders/leases"), 3).await;
    is_named(
        &place,
        "encoders",
        &json!({
            "library": "Curator",
            "leases": 3,
            "lease_directory": "/locks/encoders/leases",
            "queue_directory": "/locks/encoders/locks",
        }),
        2,
        &Value::Null,
    )
    .await;
    assert_eq!(listed(&place).await, ["/locks/encoders"]);

    // Its leases are a queue of their own: a permit that is taken away there goes to the first waiter.
    let leases = zoolock(&place, &["show", "encoders/leases", "--json"]).await;
    let leases: Value = serde_json::from_str(&leases.output).expect("JSON");
    assert_eq!(holders(&leases, "role"), ["permit"; 3]);
    let token = holders(&leases, "token")[0].as_str().expect("text");
    is_refused(&place, "encoders", "Curator", token).await;
    until_nodes(&place, &directory(&place, "encoders"), 2).await;
    until_nodes(&place, &directory(&place, "encoders/leases"), 3).await;
    let broken = zoolock(&place, &["break", "encoders/leases", "--token", token]).await;
    assert_eq!(broken.code, Some(0), "{}", broken.notes);
    curator.says("holds /locks/encoders").await;
});

on_both_arms!(a_semaphore_of_kazoos_is_one_lock, |place| async move {
    if !kazoo().or_skip(&format!("a_semaphore_of_kazoos_is_one_lock::{}", place.arm())) {
        return;
    }
    let mut python = Make::kazoo(&place);
    for name in ["first", "second"] {
        python.told(&format!("permit /locks/encoders {name} 2")).await;
        python.says(&format!("{name} holds /locks/encoders")).await;
    }
    for (name, waiting) in [("third", 1), ("fourth", 2)] {
        python.told(&format!("permit /locks/encoders {name} 2")).await;
        until_nodes(&place, &directory(&place, "encoders-__lock__"), waiting).await;
    }
    is_named(
        &place,
        "encoders",
        &json!({
            "library": "kazoo",
            "leases": 2,
            "lease_directory": "/locks/encoders",
            "queue_directory": "/locks/encoders-__lock__",
        }),
        2,
        &json!(2),
    )
    .await;
    assert_eq!(listed(&place).await, ["/locks/encoders"]);
    is_refused(&place, "encoders", "kazoo", TOKEN).await;
    until_nodes(&place, &directory(&place, "encoders"), 2).await;
});

on_both_arms!(foreign_semaphores_are_named_by_their_znodes_alone, |place| async move {
    let leases = Queue::new(&place, "curators/leases").await;
    Queue::new(&place, "curators/locks").await;
    let curators = |leases: usize| {
        json!({
            "library": "Curator",
            "leases": leases,
            "lease_directory": "/locks/curators/leases",
            "queue_directory": "/locks/curators/locks",
        })
    };
    is_named(&place, "curators", &curators(0), 0, &Value::Null).await;
    leases.join(&format!("{UUID}-lease-"), b"10.0.0.7").await;
    is_named(&place, "curators", &curators(1), 0, &Value::Null).await;
    is_refused(&place, "curators", "Curator", TOKEN).await;

    let kazoos = Queue::new(&place, "kazoos").await;
    kazoos.write(b"2").await;
    kazoos.make(HEX, CreateMode::Ephemeral, b"job 7").await;
    let queue = Queue::new(&place, "kazoos-__lock__").await;
    queue.join(&format!("{HEX}__lock__"), b"b'job 8'").await;
    let foreign = json!({
        "library": "kazoo",
        "leases": 1,
        "lease_directory": "/locks/kazoos",
        "queue_directory": "/locks/kazoos-__lock__",
    });
    is_named(&place, "kazoos", &foreign, 1, &json!(2)).await;
    is_refused(&place, "kazoos", "kazoo", TOKEN).await;
    assert_eq!(listed(&place).await, ["/locks/curators", "/locks/kazoos"]);
    until_nodes(&place, &directory(&place, "curators"), 2).await;
    until_nodes(&place, &directory(&place, "kazoos"), 1).await;
});

/// Asserts that `show`, `ls` and `doctor` name a foreign semaphore, and count its leases and waiters.
async fn is_named(place: &Place, name: &str, foreign: &Value, waiting: usize, permits: &Value) {
    let lock = shown(place, name).await;
    assert_eq!((&lock["foreign_semaphore"], &lock["waiting"]), (foreign, &json!(waiting)));
    assert_eq!((&lock["holder"], &lock["waiters"]), (&Value::Null, &json!([])));
    assert_eq!((&lock["permits"], &lock["clash"]), (permits, &Value::Null));
    assert_eq!((&lock["foreign_record"], &lock["unread"]), (&json!(false), &json!([])));
    let library = foreign["library"].as_str().expect("text");
    let leases = foreign["leases"].as_u64().expect("a number");
    let what = format!("semaphore of {library}, {leases} lease{}", if leases == 1 { "" } else { "s" });

    let told = zoolock(place, &["show", name]).await.output;
    let size = permits.as_u64().map_or(String::new(), |permits| format!(" of {permits}"));
    for line in [
        format!("  kind      semaphore of {library}"),
        format!("  leases    {leases}{size}, in {}", foreign["lease_directory"].as_str().expect("text")),
        format!("  waiting   {waiting}, in {}", foreign["queue_directory"].as_str().expect("text")),
    ] {
        assert!(told.lines().any(|told| told == line), "no {line:?} in {told}");
    }
    assert!(!told.contains("free"), "{told}");
    let told = zoolock(place, &["ls"]).await.output;
    let rows: Vec<_> = told.lines().filter(|row| row.starts_with(name)).collect();
    assert!(matches!(rows.as_slice(), [row] if row.ends_with(&what)), "{told}");
    let told = zoolock(place, &["doctor"]).await.output;
    let found = format!("/locks/{name} ({what}, {waiting} waiting)");
    assert!(told.contains(&found), "no {found:?} in {told}");
}

/// Asserts that commands which would take part in a foreign semaphore are refused, with the reason and the way out.
async fn is_refused(place: &Place, name: &str, library: &str, token: &str) {
    let what = format!("is a semaphore of {library}");
    let remedy = format!("use another name, or take its permits with {library}");
    for (arguments, remedy) in [
        (&["run", "--permits", "2", name, "--", "true"][..], remedy.as_str()),
        (&["run", "--try", "--permits", "2", name, "--", "true"], &remedy),
        (&["hold", "--permits", "2", name], &remedy),
        (&["resize", name, "--permits", "4"], &remedy),
        (&["break", name, "--token", token], &remedy),
        (&["revoke", name, "--token", token], &remedy),
        (&["revoke", name], &format!("ask its holders with {library}")),
    ] {
        let said = zoolock(place, arguments).await;
        assert_eq!(said.code, Some(64), "{arguments:?}: {}", said.notes);
        assert!(said.notes.contains(&what) && said.notes.contains(remedy), "{arguments:?}: {}", said.notes);
    }
}

on_both_arms!(what_is_called_like_a_part_of_a_semaphore_is_listed_as_what_it_is, |place| async move {
    let zl = connect(&place).await;
    let leases = zl.mutex("app/leases").lock().await.expect("free");
    let locks = zl.mutex("app/locks").lock().await.expect("free");
    // A number and names of 32 digits below it are not kazoo's alone.
    let numbers = Queue::new(&place, "numbers").await;
    numbers.write(b"17").await;
    numbers.make(HEX, CreateMode::Persistent, b"").await;
    let guard = Queue::new(&place, "alone-__lock__").await;
    guard.join(&format!("{HEX}__lock__"), b"").await;
    let mut found = listed(&place).await;
    found.sort();
    assert_eq!(found, ["/locks/alone-__lock__", "/locks/app/leases", "/locks/app/locks"]);
    leases.release().await.expect("ours");
    locks.release().await.expect("ours");
    let mut idle = listed(&place).await;
    idle.sort();
    assert_eq!(idle, found);
});

on_both_arms!(a_lock_and_a_semaphore_of_another_make_under_one_name_are_marked, |place| async move {
    let leases = Queue::new(&place, "two/leases").await;
    leases.join(&format!("{UUID}-lease-"), b"10.0.0.7").await;
    assert_eq!(shown(&place, "two").await["clash"], Value::Null);
    let queue = Queue::new(&place, "two").await;
    queue.join("permit-1-", b"").await;
    let lock = shown(&place, "two").await;
    assert_eq!(holders(&lock, "family"), ["native"]);
    assert_eq!(lock["foreign_semaphore"]["library"], "Curator");
    let clash = lock["clash"].as_str().expect("text");
    assert!(
        clash.contains("a semaphore of Curator") && clash.contains("a semaphore's user of zoolock"),
        "{clash}"
    );
});
