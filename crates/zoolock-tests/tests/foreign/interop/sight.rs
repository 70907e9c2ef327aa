//! Who waits for whom: clients of other makes beside nodes of every family.
//!
//! Each client finds one node in each directory, and wants the lock. It is in at once, or it watches that node.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::{Place, on_both_arms, tree};

use crate::interop::make::Make;
use crate::interop::peer::Peer;
use crate::interop::queue::{REFEREE, available, prepare, role};

/// What the node of a family begins with, by a name for the family.
const FAMILIES: [(&str, &str); 17] = [
    ("ours", "lock-"),
    ("our-reader", "__READ__"),
    ("our-writer", "__WRIT__"),
    ("our-upgradable-reader", "upgr-"),
    ("our-permit", "permit-1-"),
    ("curator", "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301-lock-"),
    ("curator-reader", "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301-__READ__"),
    ("curator-writer", "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301-__WRIT__"),
    ("kazoo", "3f2504e04f8911d39a0c0305e82c3301__lock__"),
    ("kazoo-reader", "3f2504e04f8911d39a0c0305e82c3301__rlock__"),
    ("write-lock", "x-72057594037927936-"),
    ("c", "x-0100007fb5e20001-"),
    ("go", "_c_3f2504e04f8911d39a0c0305e82c3301-lock-"),
    ("ruby", "ex"),
    ("ruby-reader", "sh"),
    ("dot-net-reader", "read-"),
    ("dot-net-writer", "write-"),
];

const DIRECTORY: &str = "/locks";
const BOUND: Duration = Duration::from_secs(60);

/// Which families the clients of these kinds do not wait for, in one line for each kind.
async fn unseen(place: &Place, make: Make, kinds: &[&str]) -> Vec<String> {
    prepare(place).await;
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let sequential = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    for kind in kinds {
        client.create(&format!("{DIRECTORY}/{kind}"), b"", &persistent).await.expect("new");
        for (family, prefix) in FAMILIES {
            let lock = format!("{DIRECTORY}/{kind}/{family}");
            client.create(&lock, b"", &persistent).await.expect("new");
            client.create(&format!("{lock}/{prefix}"), b"", &sequential).await.expect("new");
        }
    }
    let mut command = make.command().await;
    command.arg(place.connect_string()).arg(kinds.join(",")).args(["/locks/*", REFEREE, "hold", "0"]);
    let mut peer = Peer::spawn(&format!("{make:?}"), command).expect("it is installed");
    let all = kinds.len() * FAMILIES.len();
    let mut inside = BTreeSet::new();
    // Whoever is not in watches one node, and whoever is in watches none.
    let settled = timeout(BOUND, async {
        loop {
            tokio::select! {
                line = peer.line() => {
                    let line = line.expect("it goes on");
                    inside.insert(line.strip_prefix("in /locks/").expect("all that it says").to_owned());
                }
                waiting = waiting(place) => if waiting + inside.len() == all { return },
            }
        }
    });
    if settled.await.is_err() {
        let (waiting, queues) =
            (waiting(place).await, tree::descendants(&place.connect_string(), DIRECTORY).await);
        panic!("{waiting} wait, {inside:?} are in, of {all}; there are {queues:?}");
    }
    let unseen = inside.clone();
    // They did wait for those nodes.
    drop(client);
    while inside.len() < all {
        let line = timeout(BOUND, peer.line()).await.expect("nobody is in its way").expect("it goes on");
        inside.insert(line.strip_prefix("in /locks/").expect("all that it says").to_owned());
    }
    let line = |kind: &&str| {
        let families = FAMILIES.iter().map(|(family, _)| *family);
        let families: Vec<_> =
            families.filter(|family| unseen.contains(&format!("{kind}/{family}"))).collect();
        format!("{kind}: {}", families.join(" "))
    };
    kinds.iter().map(line).collect()
}

async fn waiting(place: &Place) -> usize {
    tokio::time::sleep(Duration::from_millis(50)).await;
    place.server().watch_count().await.expect("it answers") as usize
}

on_both_arms!(private clients_in_java_do_not_wait_for, |place| async move {
    let kinds = ["curator-mutex", "curator-read", "curator-write", "write-lock"];
    if !available(&[role(Make::Java, "", 1)], "clients_in_java_do_not_wait_for", &place) {
        return;
    }
    let expected = [
        "curator-mutex: our-reader our-writer our-upgradable-reader our-permit curator-reader curator-writer kazoo \
         kazoo-reader write-lock c ruby ruby-reader dot-net-reader dot-net-writer",
        "curator-read: ours our-reader our-upgradable-reader our-permit curator curator-reader kazoo kazoo-reader \
         write-lock c go ruby ruby-reader dot-net-reader dot-net-writer",
        "curator-write: ours our-upgradable-reader our-permit curator kazoo kazoo-reader write-lock c go ruby \
         ruby-reader dot-net-reader dot-net-writer",
        "write-lock: our-reader our-writer curator-reader curator-writer kazoo kazoo-reader ruby ruby-reader",
    ];
    assert_eq!(unseen(&place, Make::Java, &kinds).await, expected);
});

on_both_arms!(private kazoo_does_not_wait_for, |place| async move {
    let kinds = ["lock", "lock-pattern", "write"];
    if !available(&[role(Make::Kazoo, "", 1)], "kazoo_does_not_wait_for", &place) {
        return;
    }
    let expected = [
        "lock: ours our-reader our-writer our-upgradable-reader our-permit curator curator-reader curator-writer \
         kazoo-reader write-lock c go ruby ruby-reader dot-net-reader dot-net-writer",
        "lock-pattern: our-reader our-writer our-upgradable-reader our-permit curator-reader curator-writer \
         kazoo-reader write-lock c ruby ruby-reader dot-net-reader dot-net-writer",
        "write: ours our-reader our-writer our-upgradable-reader our-permit curator curator-reader curator-writer \
         write-lock c go ruby ruby-reader dot-net-reader dot-net-writer",
    ];
    assert_eq!(unseen(&place, Make::Kazoo, &kinds).await, expected);
});
