//! What is done to a lock of which not everything may be read.

use serde_json::{Value, json};
use zookeeper_client::CreateMode;
use zoolock::{Error, Ticket};
use zoolock_tests::on_both_arms;

use crate::everybody::queue::{Queue, Said, holders, shown, waiters, zoolock};
use zoolock_tests::locks::connect;

const UUID: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

fn token(lock: &Value, at: usize) -> String {
    holders(lock, "token")[at].as_str().expect("text").to_owned()
}

fn assert_said(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{}", said.notes);
    for words in words {
        assert!(said.notes.contains(words), "no {words:?} in {}", said.notes);
    }
}

on_both_arms!(a_lock_beside_leases_that_may_not_be_read_is_used_as_any_other, |place| async move {
    Queue::new(&place, "x/leases").await.hide(None).await;
    let queue = Queue::new(&place, "x").await;
    let lock = shown(&place, "x").await;
    assert_eq!((&lock["holder"], &lock["unread"]), (&Value::Null, &json!(["leases"])));
    let told = zoolock(&place, &["show", "x"]).await.output;
    assert!(told.contains("free, as far as it may be read") && told.contains("unread    leases"), "{told}");
    let said = zoolock(&place, &["revoke", "x"]).await;
    assert_said(&said, 0, &["x: leases cannot be read, and so nobody there is asked"]);
    assert!(!said.notes.contains("free"), "{}", said.notes);

    let curator = queue.join(&format!("{UUID}-lock-"), b"").await;
    queue.join(&format!("{HEX}__lock__"), b"job 7").await;
    let lock = shown(&place, "x").await;
    assert_eq!([holders(&lock, "family"), waiters(&lock, "family")].concat(), ["curator", "kazoo"]);
    assert_eq!(lock["unread"], json!(["leases"]));
    let said = zoolock(&place, &["revoke", "x"]).await;
    assert_said(&said, 0, &["leases cannot be read", "asked Curator to let go"]);
    assert_eq!(queue.data(&curator).await, b"__REVOKE__");
    let first = token(&lock, 0);
    assert_said(&zoolock(&place, &["break", "x", "--token", &first]).await, 0, &["taken away"]);
    assert_eq!(holders(&shown(&place, "x").await, "family"), ["kazoo"]);

    // Whether it is there nobody can tell.
    let zl = connect(&place).await;
    let error = zl.mutex("x").revoke(first.parse::<Ticket>().expect("a ticket")).await;
    let error = error.expect_err("it was broken");
    assert!(matches!(error, Error::Denied { .. }), "{error}");
    let told = error.to_string();
    assert!(told.contains(&format!("has the token {first}, but leases cannot be read")), "{told}");
    for deed in ["revoke", "break"] {
        assert_said(&zoolock(&place, &[deed, "x", "--token", &first]).await, 77, &[&told]);
    }
});

on_both_arms!(a_lock_is_listed_with_a_mark_where_a_part_may_not_be_read, |place| async move {
    Queue::new(&place, "x/leases").await.hide(None).await;
    Queue::new(&place, "y/leases").await;
    let queue = Queue::new(&place, "y").await;
    queue.join("lock-", b"").await;
    let said = zoolock(&place, &["ls"]).await;
    let rows: Vec<_> =
        said.output.lines().skip(1).map(|row| (row.split(' ').next(), row.contains(" ? "))).collect();
    assert_eq!(rows, [(Some("x"), true), (Some("y"), false)], "{}", said.output);
    assert_said(&said, 0, &["? marks"]);
    assert_eq!(shown(&place, "y").await["unread"], json!([]));
});

on_both_arms!(foreign_semaphore_is_named_though_its_queue_may_not_be_read, |place| async move {
    let leases = Queue::new(&place, "curators/leases").await;
    leases.join(&format!("{UUID}-lease-"), b"10.0.0.7").await;
    let guard = Queue::new(&place, "curators/locks").await;
    guard.join(&format!("{UUID}-lock-"), b"10.0.0.8").await;
    guard.hide(None).await;
    let kazoos = Queue::new(&place, "kazoos").await;
    kazoos.write(b"2").await;
    kazoos.make(HEX, CreateMode::Ephemeral, b"job 7").await;
    let guard = Queue::new(&place, "kazoos-__lock__").await;
    guard.join(&format!("{HEX}__lock__"), b"b'job 8'").await;
    guard.hide(None).await;
    for (name, part, library, size) in [
        ("curators", "locks", "Curator", Value::Null),
        ("kazoos", "/locks/kazoos-__lock__", "kazoo", json!(2)),
    ] {
        let lock = shown(&place, name).await;
        let foreign = &lock["foreign_semaphore"];
        assert_eq!((&foreign["library"], &foreign["leases"]), (&json!(library), &json!(1)));
        assert_eq!((&lock["waiting"], &lock["unread"]), (&json!(0), &json!([part])));
        assert_eq!(lock["permits"], size);
    }
});

on_both_arms!(who_may_not_be_read_is_named_where_a_token_is_not_found, |place| async move {
    let queue = Queue::new(&place, "x").await;
    queue.join("lock-", b"").await;
    let first = token(&shown(&place, "x").await, 0);
    assert_said(&zoolock(&place, &["break", "x", "--token", &first]).await, 0, &[]);
    assert_said(&zoolock(&place, &["break", "x", "--token", &first]).await, 75, &["nobody there has"]);
    let nodes = [queue.join("lock-", b"").await, queue.join("lock-", b"").await];
    for node in &nodes {
        queue.hide(Some(node)).await;
    }
    let words = format!("{first}, but {} and 1 more cannot be read", nodes[0]);
    assert_said(&zoolock(&place, &["break", "x", "--token", &first]).await, 77, &[&words]);
});

on_both_arms!(what_may_not_be_read_at_all_hides_nothing_else, |place| async move {
    Queue::new(&place, "z/leases").await.hide(None).await;
    Queue::new(&place, "z/locks").await.hide(None).await;
    Queue::new(&place, "private/things").await;
    Queue::new(&place, "private").await.hide(None).await;
    let queue = Queue::new(&place, "y").await;
    queue.join("lock-", b"").await;
    let said = zoolock(&place, &["ls"]).await;
    let rows: Vec<_> =
        said.output.lines().skip(1).map(|row| (row.split(' ').next(), row.contains(" ? "))).collect();
    assert_eq!(rows, [(Some("private"), true), (Some("y"), false), (Some("z"), true)], "{}", said.output);
    assert_said(&said, 0, &["? marks"]);
    assert_eq!(shown(&place, "z").await["unread"], json!(["leases", "locks"]));
});
