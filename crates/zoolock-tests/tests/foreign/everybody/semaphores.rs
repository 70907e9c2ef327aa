//! Semaphores of other makes, each of them one lock.

use std::time::Duration;

use serde_json::{Value, json};
use zookeeper_client::CreateMode;
use zoolock::Naming;
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, on_both_arms, tree};

use crate::everybody::make::{Make, curator_or_skip, kazoo};
use crate::everybody::queue::{Queue, holders, shown, waiters, zoolock};
use zoolock_tests::locks::{connect, directory};

const UUID: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

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
    let lock = shown(&place, "encoders").await;
    assert_eq!(listed(&place).await, ["/locks/encoders"]);
    let nodes = [holders(&lock, "node"), waiters(&lock, "node")].concat();
    let names: Vec<_> = nodes.iter().map(|node| node.as_str().expect("text")).collect();
    assert!(
        names[..3].iter().all(|name| name.starts_with("leases/_c_"))
            && names[..3].is_sorted_by_key(|name| &name[name.len() - 10..]),
        "{names:?}"
    );
    assert!(names[3].starts_with("locks/_c_"), "{names:?}");
    assert_eq!((holders(&lock, "node").len(), waiters(&lock, "node").len()), (2, 2));
    for part in [holders(&lock, "role"), waiters(&lock, "role")] {
        assert_eq!(part, ["permit", "permit"]);
    }
    assert_eq!((&lock["permits"], &lock["clash"]), (&Value::Null, &Value::Null));
    assert!(holders(&lock, "host").iter().all(|host| host.is_string()), "{lock}");

    // A permit that is taken away goes to who waits for it, and the last becomes the next.
    let token = holders(&lock, "token")[0].as_str().expect("text");
    let asked = zoolock(&place, &["revoke", "encoders", "--token", token]).await;
    assert_eq!(asked.code, Some(64), "{}", asked.notes);
    let broken = zoolock(&place, &["break", "encoders", "--token", token]).await;
    assert_eq!(broken.code, Some(0), "{}", broken.notes);
    curator.says("holds /locks/encoders").await;
    until_nodes(&place, &directory(&place, "encoders/leases"), 3).await;
    let lock = shown(&place, "encoders").await;
    assert_eq!((holders(&lock, "node").len(), waiters(&lock, "node").len()), (2, 1));
    let told = zoolock(&place, &["show", "encoders"]).await.output;
    assert!(told.contains("\n  permits   2 of a number that only its clients know\n"), "{told}");
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
    let lock = shown(&place, "encoders").await;
    assert_eq!(listed(&place).await, ["/locks/encoders"]);
    assert_eq!(holders(&lock, "identifier"), ["first", "second"]);
    assert_eq!(waiters(&lock, "identifier"), ["third", "fourth"]);
    assert_eq!([holders(&lock, "role"), waiters(&lock, "role")].concat(), ["permit"; 4]);
    assert_eq!([holders(&lock, "family"), waiters(&lock, "family")].concat(), ["kazoo"; 4]);
    assert_eq!((&lock["permits"], &lock["foreign_record"]), (&json!(2), &json!(false)));
    // They lie beside the semaphore, so that the whole path is needed.
    let nodes = waiters(&lock, "node");
    assert!(nodes[0].as_str().is_some_and(|node| node.starts_with("/locks/encoders-__lock__/")), "{nodes:?}");

    let token = holders(&lock, "token")[0].as_str().expect("text");
    let broken = zoolock(&place, &["break", "encoders", "--token", token]).await;
    assert_eq!(broken.code, Some(0), "{}", broken.notes);
    python.says("third holds /locks/encoders").await;
    until_nodes(&place, &directory(&place, "encoders-__lock__"), 1).await;
    let lock = shown(&place, "encoders").await;
    assert_eq!(holders(&lock, "identifier"), ["second", "third"]);
    assert_eq!(waiters(&lock, "identifier"), ["fourth"]);
});

on_both_arms!(ours_in_the_layouts_of_others_are_one_lock_too, |place| async move {
    let zl = connect(&place).await;
    for (naming, guard, size) in [
        (Naming::CuratorSemaphore, "curators/locks", Value::Null),
        (Naming::Kazoo, "kazoos-__lock__", json!(2)),
    ] {
        let name = guard.split(['/', '-']).next().expect("a name");
        let semaphore = zl.semaphore(name, 2).naming(naming);
        let held = semaphore.acquire_many(2).await.expect("free");
        let waiting = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire().await }
        });
        until_nodes(&place, &directory(&place, guard), 1).await;
        if naming == Naming::CuratorSemaphore {
            until_nodes(&place, &directory(&place, "curators/leases"), 3).await;
        }
        let lock = shown(&place, name).await;
        let pid = json!(std::process::id());
        assert_eq!(holders(&lock, "pid"), [&pid, &pid], "{lock}");
        assert_eq!((waiters(&lock, "pid"), &lock["permits"]), (vec![&pid], &size), "{lock}");
        let asked = zoolock(&place, &["revoke", name]).await;
        assert_eq!(asked.code, Some(0), "{}", asked.notes);
        tokio::time::timeout(Duration::from_secs(30), held.revoked()).await.expect("told");
        assert_eq!(shown(&place, name).await["holder"]["revoked"], json!(true));
        held.release().await.expect("ours");
        waiting.await.expect("no panic").expect("its turn").release().await.expect("ours");
    }
    assert_eq!(listed(&place).await, ["/locks/curators", "/locks/kazoos"]);
    assert_eq!(holders(&shown(&place, "curators").await, "node").len(), 0);
});

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
    assert_eq!(holders(&lock, "family"), ["native", "curator"]);
    let clash = lock["clash"].as_str().expect("text");
    assert!(
        clash.contains("a semaphore of Curator") && clash.contains("a semaphore's user of zoolock"),
        "{clash}"
    );
});
