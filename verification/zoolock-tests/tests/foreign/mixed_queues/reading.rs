//! Display of queues with contenders of every znode family.

use serde_json::{Value, json};
use zookeeper_client::CreateMode;
use zoolock_tests::locks::{connect, directory};
use zoolock_tests::{on_both_servers, tree};

use crate::clients::{Client, Library};
use crate::mixed_queues::queue::{Queue, contenders, holders, of_holder, shown, waiters, zoolock};
use crate::mixed_queues::zkcli::{listed, number};
use crate::programs::zkcli_or_skip;

/// The session id in znode names below. Its length is that of a real session id.
const SESSION: &str = "72057594037927936";

/// All families: the pattern of a name, the family, the role and the weight.
const FAMILIES: [(&str, &str, &str, u64); 23] = [
    ("UUID-lock-", "curator", "exclusive", 1),
    ("lock-", "native", "exclusive", 1),
    ("HEX__lock__", "kazoo", "exclusive", 1),
    ("x-72057594037927936-", "write-lock", "exclusive", 1),
    ("sh", "zk-ruby", "shared", 1),
    ("_c_HEX-lock-", "curator", "exclusive", 1),
    ("HEX__rlock__", "kazoo", "shared", 1),
    ("x--72057594037927936-", "write-lock", "exclusive", 1),
    ("write-", "dotnet", "exclusive", 1),
    ("__READ__", "native", "shared", 1),
    ("UUID-__WRIT__", "curator", "exclusive", 1),
    ("ex", "zk-ruby", "exclusive", 1),
    ("upgr-", "native", "upgradable", 1),
    ("read-", "dotnet", "shared", 1),
    ("UUID-__READ__", "curator", "shared", 1),
    ("x-0100007fb5e20001-", "write-lock", "exclusive", 1),
    ("permit-3-", "native", "permit", 3),
    ("__WRIT__", "native", "exclusive", 1),
    ("UUID-lease-", "curator", "permit", 1),
    ("lock-HEX-", "aiozk", "exclusive", 1),
    ("read-HEX-", "aiozk", "shared", 1),
    ("write-HEX-", "aiozk", "exclusive", 1),
    ("job-", "unknown", "exclusive", 1),
];

/// Returns a name as the command shows it. If the name contains a session id, `…` replaces the id.
fn displayed(node: &str) -> String {
    match node.strip_prefix("x-") {
        Some(rest) => format!("x-…-{}", &rest[rest.len() - 10..]),
        None => node.to_owned(),
    }
}

on_both_servers!(queue_of_every_family_matches_zkcli, |place| async move {
    if !zkcli_or_skip(place.test()) {
        return;
    }
    let queue = Queue::new(&place, "families").await;
    let strangers = [
        "config",
        "lock-7",
        // The lock directory has not assigned these sequence numbers yet.
        "lock-00000000070",
        "backup-2024010101",
        "_c_short-lock-0000000070",
        "x-0000000070",
    ];
    let mut joined = Vec::new();
    for (at, (prefix, ..)) in FAMILIES.into_iter().enumerate() {
        if let Some(stranger) = strangers.get(at / 2).filter(|_| at % 2 == 0) {
            queue.create(stranger, CreateMode::Ephemeral, b"").await;
        }
        joined.push(queue.join(prefix, b"").await);
    }
    let lock = shown(&place, "families").await;
    // The first contender holds exclusively, so all others wait, in the order of their numbers.
    assert_eq!(holders(&lock, "node"), [&joined[0]]);
    let nodes = contenders(&lock, "node").into_iter();
    let nodes: Vec<&str> = nodes.map(|node| node.as_str().expect("a name is text")).collect();
    assert_eq!(nodes, joined.iter().map(|node| displayed(node)).collect::<Vec<_>>());
    assert_eq!(contenders(&lock, "family"), FAMILIES.map(|known| known.1));
    assert_eq!(contenders(&lock, "role"), FAMILIES.map(|known| known.2));
    assert_eq!(contenders(&lock, "weight"), FAMILIES.map(|known| known.3));
    let mut listed = listed(&place, queue.directory()).await;
    for stranger in strangers {
        let at = listed.iter().position(|name| name == stranger).expect("the znode is listed");
        listed.swap_remove(at);
    }
    listed.sort_by_key(|name| number(name));
    assert_eq!(nodes, listed.iter().map(|node| displayed(node)).collect::<Vec<_>>());
    // No session id is shown: on Apache ZooKeeper, a client that knows the id can take the session
    // over.
    let output = lock.to_string();
    assert!(!output.contains(SESSION) && !output.contains("0100007fb5e20001"), "{output}");
});

on_both_servers!(readers_of_every_family_hold_together, |place| async move {
    if !zkcli_or_skip(place.test()) {
        return;
    }
    let queue = Queue::new(&place, "readers").await;
    let readers = FAMILIES.into_iter().filter(|(_, _, role, _)| matches!(*role, "shared" | "upgradable"));
    let (mut reading, mut waiting) = (Vec::new(), Vec::new());
    for (prefix, ..) in readers.clone() {
        reading.push(queue.join(prefix, b"").await);
    }
    // A second upgradable reader waits. Other readers overtake it.
    waiting.push(queue.join("upgr-", b"").await);
    reading.push(queue.join("__READ__", b"").await);
    waiting.push(queue.join("HEX__lock__", b"").await);
    for (prefix, ..) in readers {
        waiting.push(queue.join(prefix, b"").await);
    }
    let lock = shown(&place, "readers").await;
    assert_eq!(holders(&lock, "node"), reading.iter().collect::<Vec<_>>());
    assert_eq!(waiters(&lock, "node"), waiting.iter().collect::<Vec<_>>());
    let mut all = [reading, waiting].concat();
    let mut listed = listed(&place, queue.directory()).await;
    all.sort();
    listed.sort();
    assert_eq!(all, listed);
});

on_both_servers!(data_of_contenders_is_shown, |place| async move {
    let queue = Queue::new(&place, "data").await;
    let long = "long ".repeat(100);
    let expected = [
        (
            "lock-",
            r#"{"id":"1","kind":"mutex","host":"web-1","pid":7}"#.as_bytes(),
            json!("web-1"),
            Value::Null,
        ),
        ("lock-", b"", Value::Null, Value::Null),
        ("UUID-lock-", b"10.0.0.7", json!("10.0.0.7"), Value::Null),
        ("UUID-lock-", b"payments", Value::Null, json!("payments")),
        ("UUID-lock-", b"__REVOKE__", Value::Null, Value::Null),
        ("HEX__lock__", b"job 7", Value::Null, json!("job 7")),
        ("HEX__lock__", b"", Value::Null, Value::Null),
        ("x-5-", b"\x12\x34", Value::Null, Value::Null),
        ("ex", b"\x1b[2J\xff", Value::Null, json!("0x1b5b324aff")),
        ("ex", long.as_bytes(), Value::Null, json!("long ".repeat(26)[..128].to_owned() + "…")),
    ];
    for (prefix, data, ..) in &expected {
        queue.join(prefix, data).await;
    }
    let lock = shown(&place, "data").await;
    assert_eq!(contenders(&lock, "host"), expected.iter().map(|known| &known.2).collect::<Vec<_>>());
    assert_eq!(contenders(&lock, "identifier"), expected.iter().map(|known| &known.3).collect::<Vec<_>>());
    let asked = contenders(&lock, "revoked").into_iter().filter(|revoked| **revoked == json!(true)).count();
    assert_eq!(asked, 1);
    assert!(contenders(&lock, "since_ms").iter().all(|since| since.is_u64()), "{lock}");
    let text = zoolock(&place, &["show", "data"]).await.stdout;
    for words in ["web-1 pid 7", "Curator at 10.0.0.7", "Curator: payments", "kazoo: job 7", "zk-ruby: 0x1b"]
    {
        assert!(text.contains(words), "no {words} in\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
});

on_both_servers!(reader_with_number_of_its_writer_holds, |place| async move {
    let queue = Queue::new(&place, "both").await;
    let writer = queue.join("UUID-__WRIT__", b"").await;
    let behind = queue.join("UUID-__READ__", b"").await;
    // Since version 5.5 of Curator, a writer that also acquires the read lock gets a reader's znode
    // with the writer's number. The reader's name sorts before the writer's name.
    let own = behind[..behind.len() - 10].to_owned() + &writer[writer.len() - 10..];
    queue.create(&own, CreateMode::Ephemeral, b"").await;
    let lock = shown(&place, "both").await;
    assert_eq!(holders(&lock, "node"), [&writer, &own]);
    assert_eq!(holders(&lock, "role"), ["exclusive", "shared"]);
    assert_eq!(waiters(&lock, "node"), [&behind]);
});

on_both_servers!(curator_clients_are_shown_with_address, |place| async move {
    if !Library::Java.or_skip(&place) {
        return;
    }
    let curator = Client::start(Library::Java, &place).await;
    let _writer = curator.hold("curator-write-and-read", "/locks/writer").await;
    let zl = connect(&place).await;
    let waiting = tokio::spawn(async move { zl.rwlock("writer").read().await.map(drop) });
    tree::assert_contenders(&place.addr(), &directory(&place, "writer"), 3).await;
    let lock = shown(&place, "writer").await;
    assert_eq!(holders(&lock, "role"), ["exclusive"]);
    let host = of_holder(&lock, "host");
    assert!(host.parse::<std::net::IpAddr>().is_ok(), "{host}");
    // In Curator 5.4, the reader's znode of that writer has a sequence number of its own. So it
    // looks like the znode of any other reader.
    assert_eq!(waiters(&lock, "family"), ["curator", "native"]);
    assert_eq!(lock["clash"], Value::Null);
    waiting.abort();

    let _holder = curator.hold("curator-revocable-mutex", "/locks/mutex").await;
    let zl = connect(&place).await;
    let waiting = tokio::spawn(async move { zl.mutex("mutex").lock().await.map(drop) });
    tree::assert_contenders(&place.addr(), &directory(&place, "mutex"), 2).await;
    assert_eq!(contenders(&shown(&place, "mutex").await, "owner_kind"), ["session", "task"]);
    assert_eq!(zoolock(&place, &["why", "mutex", "--json"]).await.json()["end"], "working");
    waiting.abort();
});

on_both_servers!(kazoo_clients_are_shown_with_identifier, |place| async move {
    if !Library::Kazoo.or_skip(&place) {
        return;
    }
    let kazoo = Client::start(Library::Kazoo, &place).await;
    let _holder = kazoo.hold("lock:job-7", "/locks/named").await;
    let _waiter = kazoo.queue("lock:job-8", "/locks/named").await;
    tree::assert_contenders(&place.addr(), &directory(&place, "named"), 2).await;
    let lock = shown(&place, "named").await;
    assert_eq!(holders(&lock, "identifier"), ["job-7"]);
    assert_eq!(waiters(&lock, "identifier"), ["job-8"]);
    assert_eq!(contenders(&lock, "family"), ["kazoo", "kazoo"]);
    assert_eq!(contenders(&lock, "host"), [&Value::Null, &Value::Null]);
    assert_eq!(contenders(&lock, "owner_kind"), ["session", "session"]);
});

on_both_servers!(queue_with_unseen_contenders_is_marked, |place| async move {
    let lone = Queue::new(&place, "lone").await;
    lone.join("HEX__lock__", b"job 7").await;
    assert_eq!(shown(&place, "lone").await["clash"], Value::Null);
    assert!(!zoolock(&place, &["ls"]).await.stdout.contains('!'));
    lone.join("lock-", b"").await;
    let clash = shown(&place, "lone").await["clash"].to_string();
    assert!(clash.contains("unless its clients pass extra_lock_patterns"), "{clash}");
    assert!(clash.contains("use the naming kazoo"), "{clash}");
    let mixed = Queue::new(&place, "mixed").await;
    mixed.join("HEX__lock__", b"job 7").await;
    mixed.join("UUID-lock-", b"10.0.0.7").await;
    let clash = shown(&place, "mixed").await["clash"].to_string();
    assert!(!clash.contains("unless") && clash.contains("give one of them another lock"), "{clash}");
    let fine = Queue::new(&place, "fine").await;
    fine.join("UUID-lock-", b"10.0.0.7").await;
    fine.join("lock-", b"").await;
    assert_eq!(shown(&place, "fine").await["clash"], Value::Null);

    let listed = zoolock(&place, &["ls"]).await;
    assert_eq!(listed.rows('!'), [("fine", false), ("lone", true), ("mixed", true)], "{}", listed.stdout);
    listed.assert(0, &["! marks"]);
    let text = zoolock(&place, &["show", "mixed"]).await.stdout;
    assert!(text.contains("\n  danger    a mutex of Curator"), "{text}");
    let text = zoolock(&place, &["show", "fine"]).await.stdout;
    assert!(!text.contains("danger"), "{text}");
});

on_both_servers!(unknown_contender_is_waited_for_and_named, |place| async move {
    let queue = Queue::new(&place, "unknown").await;
    let node = queue.join("job-", b"10.0.0.7").await;
    let who = format!("an unknown client library ({node}) at 10.0.0.7");
    let output = zoolock(&place, &["run", "--timeout", "1s", "unknown", "--", "true"]).await;
    output.assert(75, &[&format!("held by {who}")]);
    let output = zoolock(&place, &["run", "--shared", "--timeout", "1s", "unknown", "--", "true"]).await;
    output.assert(75, &[]);
    let output = zoolock(&place, &["run", "--permits", "2", "unknown", "--", "true"]).await;
    output.assert(64, &["is not a semaphore"]);
    let text = zoolock(&place, &["show", "unknown"]).await.stdout;
    assert!(text.contains(&who) && !text.contains("persistent"), "{text}");
});

on_both_servers!(persistent_contender_is_marked, |place| async move {
    let queue = Queue::new(&place, "left").await;
    queue.create("config", CreateMode::Persistent, b"").await;
    queue.create("job-0000000000", CreateMode::Persistent, b"").await;
    queue.join("lock-", b"").await;
    let lock = shown(&place, "left").await;
    assert_eq!(contenders(&lock, "family"), ["unknown", "native"]);
    assert_eq!(contenders(&lock, "persistent"), [true, false]);
    let text = zoolock(&place, &["show", "left"]).await.stdout;
    assert!(text.contains("(job-0000000000); persistent znode, remains until it is deleted"), "{text}");
    // The persistent znode can also contain lock directories.
    let below = Queue::new(&place, "left/job-0000000000/below").await;
    below.join("lock-", b"").await;
    assert_eq!(shown(&place, "left").await["holder"]["family"], "unknown");
    let listed = zoolock(&place, &["ls"]).await.stdout;
    assert!(listed.contains("left/job-0000000000/below"), "{listed}");
    // The lock directory has not assigned this number yet, so the znode is no contender.
    let other = Queue::new(&place, "other").await;
    other.create("job-0000000001", CreateMode::Persistent, b"").await;
    assert!(zoolock(&place, &["show", "other"]).await.stdout.contains("free"));
    zoolock(&place, &["run", "--timeout", "30s", "other", "--", "true"]).await.assert(0, &[]);
});

on_both_servers!(timeout_names_holder_of_other_library, |place| async move {
    let queue = Queue::new(&place, "held").await;
    queue.join("UUID-lock-", b"10.0.0.7").await;
    let output = zoolock(&place, &["run", "--timeout", "1s", "held", "--", "true"]).await;
    output.assert(75, &["held by Curator at 10.0.0.7"]);
});
