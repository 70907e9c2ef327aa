//! One queue with contenders of every family.

use serde_json::{Value, json};
use zookeeper_client::CreateMode;
use zoolock_tests::{on_both_arms, tree};

use crate::everybody::make::{Make, curator_or_skip, kazoo};
use crate::everybody::queue::{Queue, holders, shown, waiters, zoolock};
use crate::everybody::zkcli::{listed, number, zkcli_or_skip};
use zoolock_tests::locks::{connect, directory};

const UUID: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";
/// As long as those that people see.
const SESSION: &str = "72057594037927936";

/// Everybody who can stand in a queue: what the name begins with, and what we are to make of it.
fn everybody() -> Vec<(String, &'static str, &'static str, u64)> {
    let name = |text: &str| text.replace("UUID", UUID).replace("HEX", HEX).replace("SESSION", SESSION);
    [
        ("UUID-lock-", "curator", "exclusive", 1),
        ("lock-", "native", "exclusive", 1),
        ("HEX__lock__", "kazoo", "exclusive", 1),
        ("x-SESSION-", "write-lock", "exclusive", 1),
        ("sh", "zk-ruby", "shared", 1),
        ("_c_HEX-lock-", "curator", "exclusive", 1),
        ("HEX__rlock__", "kazoo", "shared", 1),
        ("x--SESSION-", "write-lock", "exclusive", 1),
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
    ]
    .map(|(prefix, family, role, weight)| (name(prefix), family, role, weight))
    .into()
}

/// How we call a node: of a name that has a session in it only the number is told.
fn told(node: &str) -> String {
    match node.strip_prefix("x-") {
        Some(rest) => format!("x-…-{}", &rest[rest.len() - 10..]),
        None => node.to_owned(),
    }
}

on_both_arms!(a_queue_of_every_family_is_read_as_zkcli_lists_it, |place| async move {
    if !zkcli_or_skip(&format!("a_queue_of_every_family_is_read_as_zkcli_lists_it::{}", place.arm())) {
        return;
    }
    let queue = Queue::new(&place, "everybody").await;
    let strangers = [
        "config",
        "lock-7",
        "lock-00000000070",
        "backup-2024010101",
        "_c_short-lock-0000000007",
        "x-0000000007",
    ];
    let mut joined = Vec::new();
    for (at, (prefix, family, role, weight)) in everybody().into_iter().enumerate() {
        if let Some(stranger) = strangers.get(at / 2).filter(|_| at % 2 == 0) {
            queue.make(stranger, CreateMode::Ephemeral, b"").await;
        }
        joined.push((queue.join(&prefix, b"").await, family, role, weight));
    }
    let lock = shown(&place, "everybody").await;
    // The first is alone, and so everybody else waits, in the order of the numbers.
    let all = |part: &str| [holders(&lock, part), waiters(&lock, part)].concat();
    assert_eq!(holders(&lock, "node"), [&joined[0].0]);
    let nodes: Vec<&str> = all("node").into_iter().map(|node| node.as_str().expect("text")).collect();
    assert_eq!(nodes, joined.iter().map(|known| told(&known.0)).collect::<Vec<_>>());
    assert_eq!(all("family"), joined.iter().map(|known| known.1).collect::<Vec<_>>());
    assert_eq!(all("role"), joined.iter().map(|known| known.2).collect::<Vec<_>>());
    assert_eq!(all("weight"), joined.iter().map(|known| known.3).collect::<Vec<_>>());
    let mut listed = listed(&place, queue.directory()).await;
    for stranger in strangers {
        let at = listed.iter().position(|name| name == stranger).expect("it is listed");
        listed.swap_remove(at);
    }
    listed.sort_by_key(|name| number(name));
    assert_eq!(nodes, listed.iter().map(|node| told(node)).collect::<Vec<_>>());
    // Whoever has the number of a session can take it over.
    let said = lock.to_string();
    assert!(!said.contains(SESSION) && !said.contains("0100007fb5e20001"), "{said}");
});

on_both_arms!(readers_of_every_family_hold_beside_each_other, |place| async move {
    if !zkcli_or_skip(&format!("readers_of_every_family_hold_beside_each_other::{}", place.arm())) {
        return;
    }
    let queue = Queue::new(&place, "readers").await;
    let readers = everybody().into_iter().filter(|(_, _, role, _)| matches!(*role, "shared" | "upgradable"));
    let (mut reading, mut waiting) = (Vec::new(), Vec::new());
    for (prefix, ..) in readers.clone() {
        reading.push(queue.join(&prefix, b"").await);
    }
    // One upgradable reader at a time; other readers pass it.
    waiting.push(queue.join("upgr-", b"").await);
    reading.push(queue.join("__READ__", b"").await);
    waiting.push(queue.join(&format!("{HEX}__lock__"), b"").await);
    for (prefix, ..) in readers {
        waiting.push(queue.join(&prefix, b"").await);
    }
    let lock = shown(&place, "readers").await;
    assert_eq!(holders(&lock, "node"), reading.iter().collect::<Vec<_>>());
    assert_eq!(waiters(&lock, "node"), waiting.iter().collect::<Vec<_>>());
    let mut both = [reading, waiting].concat();
    let mut listed = listed(&place, queue.directory()).await;
    both.sort();
    listed.sort();
    assert_eq!(both, listed);
});

on_both_arms!(contenders_are_shown_with_what_they_say_about_themselves, |place| async move {
    let queue = Queue::new(&place, "talk").await;
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
        queue.join(&prefix.replace("UUID", UUID).replace("HEX", HEX), data).await;
    }
    let lock = shown(&place, "talk").await;
    let all = |part: &str| [holders(&lock, part), waiters(&lock, part)].concat();
    assert_eq!(all("host"), expected.iter().map(|known| &known.2).collect::<Vec<_>>());
    assert_eq!(all("identifier"), expected.iter().map(|known| &known.3).collect::<Vec<_>>());
    let asked = all("revoked").into_iter().filter(|revoked| **revoked == json!(true)).count();
    assert_eq!(asked, 1);
    assert!(all("since_ms").iter().all(|since| since.is_u64()), "{lock}");
    let told = zoolock(&place, &["show", "talk"]).await;
    for words in ["web-1 pid 7", "Curator at 10.0.0.7", "Curator: payments", "kazoo: job 7", "zk-ruby: 0x1b"]
    {
        assert!(told.output.contains(words), "no {words} in\n{}", told.output);
    }
    assert!(!told.output.contains('\x1b'), "{}", told.output);
});

on_both_arms!(a_reader_with_the_number_of_its_writer_holds_beside_it, |place| async move {
    let queue = Queue::new(&place, "both").await;
    let writer = queue.join(&format!("{UUID}-__WRIT__"), b"").await;
    let number = &writer[writer.len() - 10..];
    let behind = queue.join(&format!("{UUID}-__READ__"), b"").await;
    // Curator since 5.5 repeats the number; the name sorts before that of the writer.
    let own = format!("{UUID}-__READ__{number}");
    queue.make(&own, CreateMode::Ephemeral, b"").await;
    let lock = shown(&place, "both").await;
    assert_eq!(holders(&lock, "node"), [&writer, &own]);
    assert_eq!(holders(&lock, "role"), ["exclusive", "shared"]);
    assert_eq!(waiters(&lock, "node"), [&behind]);
});

on_both_arms!(what_curator_writes_is_its_address, |place| async move {
    if !curator_or_skip(&format!("what_curator_writes_is_its_address::{}", place.arm())) {
        return;
    }
    let mut curator = Make::curator(&place);
    curator.told("write-and-read /locks/writer").await;
    curator.says("holds /locks/writer").await;
    let zl = connect(&place).await;
    let waiting = tokio::spawn(async move { zl.rwlock("writer").read().await });
    tree::assert_contenders(&place.addr(), &directory(&place, "writer"), 3).await;
    let lock = shown(&place, "writer").await;
    assert_eq!(holders(&lock, "role"), ["exclusive"]);
    let host = holders(&lock, "host")[0].as_str().expect("text");
    assert!(host.parse::<std::net::IpAddr>().is_ok(), "{host}");
    // Curator 5.4 gives the reader of its own writer a number of its own, by which it cannot be told from others.
    assert_eq!(waiters(&lock, "family"), ["curator", "native"]);
    assert_eq!(lock["clash"], Value::Null);
    waiting.abort();
});

on_both_arms!(what_kazoo_writes_is_its_identifier, |place| async move {
    if !kazoo().or_skip(&format!("what_kazoo_writes_is_its_identifier::{}", place.arm())) {
        return;
    }
    let mut python = Make::kazoo(&place);
    python.told("lock /locks/named job-7").await;
    python.says("job-7 holds /locks/named").await;
    python.told("lock /locks/named job-8").await;
    tree::assert_contenders(&place.addr(), &directory(&place, "named"), 2).await;
    let lock = shown(&place, "named").await;
    assert_eq!(
        (holders(&lock, "identifier"), waiters(&lock, "identifier")),
        (vec![&json!("job-7")], vec![&json!("job-8")])
    );
    assert_eq!(
        (holders(&lock, "family"), holders(&lock, "host")),
        (vec![&json!("kazoo")], vec![&Value::Null])
    );
});

on_both_arms!(a_queue_whose_contenders_do_not_see_each_other_is_marked, |place| async move {
    let lone = Queue::new(&place, "lone").await;
    lone.join(&format!("{HEX}__lock__"), b"job 7").await;
    assert_eq!(shown(&place, "lone").await["clash"], Value::Null);
    assert!(!zoolock(&place, &["ls"]).await.output.contains('!'));
    lone.join("lock-", b"").await;
    let clash = shown(&place, "lone").await["clash"].to_string();
    assert!(clash.contains("unless its clients pass extra_lock_patterns"), "{clash}");
    assert!(clash.contains("use the naming kazoo"), "{clash}");
    let mixed = Queue::new(&place, "mixed").await;
    mixed.join(&format!("{HEX}__lock__"), b"job 7").await;
    mixed.join(&format!("{UUID}-lock-"), b"10.0.0.7").await;
    let clash = shown(&place, "mixed").await["clash"].to_string();
    assert!(!clash.contains("unless") && clash.contains("give one of them another lock"), "{clash}");
    let fine = Queue::new(&place, "fine").await;
    fine.join(&format!("{UUID}-lock-"), b"10.0.0.7").await;
    fine.join("lock-", b"").await;
    assert_eq!(shown(&place, "fine").await["clash"], Value::Null);

    let listed = zoolock(&place, &["ls"]).await;
    let rows: Vec<_> =
        listed.output.lines().skip(1).map(|row| (row.split(' ').next(), row.contains(" ! "))).collect();
    assert_eq!(
        rows,
        [(Some("fine"), false), (Some("lone"), true), (Some("mixed"), true)],
        "{}",
        listed.output
    );
    assert!(listed.notes.contains("! marks"), "{}", listed.notes);
    let told = zoolock(&place, &["show", "mixed"]).await.output;
    assert!(told.contains("\n  danger    a mutex of Curator"), "{told}");
    let told = zoolock(&place, &["show", "fine"]).await.output;
    assert!(!told.contains("danger"), "{told}");
});

on_both_arms!(who_waits_is_told_who_of_another_make_holds, |place| async move {
    let queue = Queue::new(&place, "held").await;
    queue.join(&format!("{UUID}-lock-"), b"10.0.0.7").await;
    let said = zoolock(&place, &["run", "--timeout", "1s", "held", "--", "true"]).await;
    assert_eq!(said.code, Some(75), "{}", said.notes);
    assert!(said.notes.contains("held by Curator at 10.0.0.7"), "{}", said.notes);
});
