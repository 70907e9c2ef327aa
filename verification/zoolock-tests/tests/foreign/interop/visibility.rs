//! Visibility between libraries: the znodes for which the clients of other libraries wait. A family
//! is the form of the znode names of one library for one kind of lock.
//!
//! Each lock directory contains one znode of one family. A client that requests the lock either acquires it at once, or
//! watches that znode.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::{Place, on_both_servers, tree};

use crate::clients::{Client, Library};
use crate::interop::contenders::create_parent;

/// Names of znode families, and the prefixes of their znodes.
const FAMILIES: [(&str, &str); 18] = [
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
    ("curator-latch", "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301-latch-"),
    ("ruby", "ex"),
    ("ruby-reader", "sh"),
    ("dot-net-reader", "read-"),
    ("dot-net-writer", "write-"),
];

const BOUND: Duration = Duration::from_secs(60);

/// Returns, for each kind of lock, a line with the families that its clients do not wait for.
async fn ignored_families(place: &Place, library: Library, kinds: &[&str]) -> Vec<String> {
    create_parent(place).await;
    let session = tree::connect(&place.connect_string()).await.expect("connected");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let sequential = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let client = Client::start(library, place).await;
    let mut acquiring = JoinSet::new();
    for kind in kinds {
        session.create(&format!("/locks/{kind}"), b"", &persistent).await.expect("created");
        for (family, prefix) in FAMILIES {
            let path = format!("/locks/{kind}/{family}");
            session.create(&path, b"", &persistent).await.expect("created");
            session.create(&format!("{path}/{prefix}"), b"", &sequential).await.expect("created");
            let mut lock = client.lock(kind, &path);
            acquiring.spawn(async move {
                lock.acquire().await.expect("no other contender is left in the end");
                (path, lock)
            });
        }
    }
    let all = acquiring.len();
    let mut granted = HashMap::new();
    // A waiter watches one znode. A holder watches none.
    let settled = timeout(BOUND, async {
        while watches(place).await + granted.len() != all {
            while let Some(acquired) = acquiring.try_join_next() {
                let (path, lock) = acquired.expect("task does not panic");
                granted.insert(path, lock);
            }
        }
    });
    if settled.await.is_err() {
        let watches = watches(place).await;
        let queues = tree::descendants(&place.connect_string(), "/locks").await;
        let granted: Vec<_> = granted.keys().collect();
        panic!("{watches} watches and the granted locks {granted:?} are not {all}; the tree has {queues:?}");
    }
    // The end of this session deletes the znodes for which the remaining clients wait.
    drop(session);
    while let Some(acquired) = timeout(BOUND, acquiring.join_next()).await.expect("all locks are granted") {
        acquired.expect("task does not panic");
    }
    let line = |kind: &&str| {
        let families = FAMILIES.iter().map(|(family, _)| *family);
        let ignored = families.filter(|family| granted.contains_key(&format!("/locks/{kind}/{family}")));
        format!("{kind}: {}", ignored.collect::<Vec<_>>().join(" "))
    };
    kinds.iter().map(line).collect()
}

/// Returns the number of watches on the server, after a pause.
async fn watches(place: &Place) -> usize {
    tokio::time::sleep(Duration::from_millis(50)).await;
    place.server().watch_count().await.expect("the server answers") as usize
}

on_both_servers!(private java_clients_ignore_these_families, |place| async move {
    let kinds = ["curator-mutex", "curator-read", "curator-write", "curator-latch", "write-lock"];
    if !Library::Java.or_skip(&place) {
        return;
    }
    let expected = [
        "curator-mutex: our-reader our-writer our-upgradable-reader our-permit curator-reader curator-writer kazoo \
         kazoo-reader write-lock c curator-latch ruby ruby-reader dot-net-reader dot-net-writer",
        "curator-read: ours our-reader our-upgradable-reader our-permit curator curator-reader kazoo kazoo-reader \
         write-lock c go curator-latch ruby ruby-reader dot-net-reader dot-net-writer",
        "curator-write: ours our-upgradable-reader our-permit curator kazoo kazoo-reader write-lock c go curator-latch \
         ruby ruby-reader dot-net-reader dot-net-writer",
        "curator-latch: ours our-reader our-writer our-upgradable-reader our-permit curator curator-reader \
         curator-writer kazoo kazoo-reader write-lock c go ruby ruby-reader dot-net-reader dot-net-writer",
        "write-lock: our-reader our-writer curator-reader curator-writer kazoo kazoo-reader ruby ruby-reader",
    ];
    assert_eq!(ignored_families(&place, Library::Java, &kinds).await, expected);
});

on_both_servers!(private kazoo_ignores_these_families, |place| async move {
    let kinds = ["lock", "lock-pattern", "write"];
    if !Library::Kazoo.or_skip(&place) {
        return;
    }
    let expected = [
        "lock: ours our-reader our-writer our-upgradable-reader our-permit curator curator-reader curator-writer \
         kazoo-reader write-lock c go curator-latch ruby ruby-reader dot-net-reader dot-net-writer",
        "lock-pattern: our-reader our-writer our-upgradable-reader our-permit curator-reader curator-writer \
         kazoo-reader write-lock c curator-latch ruby ruby-reader dot-net-reader dot-net-writer",
        "write: ours our-reader our-writer our-upgradable-reader our-permit curator curator-reader curator-writer \
         write-lock c go curator-latch ruby ruby-reader dot-net-reader dot-net-writer",
    ];
    assert_eq!(ignored_families(&place, Library::Kazoo, &kinds).await, expected);
});

on_both_servers!(private aiozk_ignores_these_families, |place| async move {
    let kinds = ["lock", "read", "write"];
    if !Library::Aiozk.or_skip(&place) {
        return;
    }
    let expected = [
        "lock: ",
        "read: ours our-reader our-writer our-upgradable-reader our-permit curator curator-reader curator-writer kazoo \
         kazoo-reader write-lock c go curator-latch ruby ruby-reader dot-net-reader",
        "write: ",
    ];
    assert_eq!(ignored_families(&place, Library::Aiozk, &kinds).await, expected);
});
