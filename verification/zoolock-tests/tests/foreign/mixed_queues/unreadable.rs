//! Locks with parts that the client has no permission to read.

use serde_json::{Value, json};
use zookeeper_client::CreateMode;
use zoolock::{Error, Ticket};
use zoolock_tests::locks::connect;
use zoolock_tests::on_both_servers;

use crate::mixed_queues::queue::{HEX, Queue, contenders, holders, of_holder, shown, zoolock};

on_both_servers!(lock_beside_unreadable_leases_works, |place| async move {
    Queue::new(&place, "x/leases").await.hide(None).await;
    let queue = Queue::new(&place, "x").await;
    let lock = shown(&place, "x").await;
    assert_eq!((&lock["holder"], &lock["unread"]), (&Value::Null, &json!(["leases"])));
    let text = zoolock(&place, &["show", "x"]).await.stdout;
    assert!(
        text.contains("no holder in the part that can be read") && text.contains("unread    leases"),
        "{text}"
    );
    let output = zoolock(&place, &["revoke", "x"]).await;
    output.assert(
        77,
        &["x: cannot read leases; its holders are not asked", "some holders may not have been asked"],
    );
    assert!(!output.stderr.contains("free"), "{}", output.stderr);

    let unknown_leader = ["x: the leader is not known: no permission to read leases"];
    zoolock(&place, &["leader", "x"]).await.assert(77, &unknown_leader);

    let curator = queue.join("UUID-lock-", b"").await;
    queue.join("HEX__lock__", b"job 7").await;
    zoolock(&place, &["leader", "x"]).await.assert(77, &unknown_leader);
    let lock = shown(&place, "x").await;
    assert_eq!(contenders(&lock, "family"), ["curator", "kazoo"]);
    assert_eq!(lock["unread"], json!(["leases"]));
    let output = zoolock(&place, &["revoke", "x"]).await;
    output.assert(77, &["cannot read leases", "asked Curator to release it"]);
    assert_eq!(queue.data(&curator).await, b"__REVOKE__");
    let first = of_holder(&lock, "token");
    zoolock(&place, &["break", "x", "--token", first]).await.assert(0, &["from the queue"]);
    assert_eq!(holders(&shown(&place, "x").await, "family"), ["kazoo"]);

    // The contender with this token may be in the unreadable part. The error must mention that.
    let zl = connect(&place).await;
    let error = zl.admin().revoke("x", first.parse::<Ticket>().expect("a ticket")).await;
    let error = error.expect_err("the holder was broken");
    assert!(matches!(error, Error::Denied { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains(&format!("has the token {first}, but leases cannot be read")), "{message}");
    for action in ["revoke", "break"] {
        zoolock(&place, &[action, "x", "--token", first]).await.assert(77, &[&message]);
    }
});

on_both_servers!(list_marks_locks_with_unreadable_parts, |place| async move {
    Queue::new(&place, "x/leases").await.hide(None).await;
    Queue::new(&place, "y/leases").await;
    let queue = Queue::new(&place, "y").await;
    queue.join("lock-", b"").await;
    // The znode of an unreadable contender is not listed as a lock.
    let unknown = queue.join("job-", b"").await;
    queue.hide(Some(&unknown)).await;
    let listed = zoolock(&place, &["ls"]).await;
    assert_eq!(listed.rows('?'), [("x", true), ("y", false)], "{}", listed.stdout);
    listed.assert(0, &["? marks"]);
    assert_eq!(shown(&place, "y").await["unread"], json!([]));
});

on_both_servers!(foreign_semaphore_with_unreadable_queue_is_named, |place| async move {
    let leases = Queue::new(&place, "curators/leases").await;
    leases.join("UUID-lease-", b"10.0.0.7").await;
    let guard = Queue::new(&place, "curators/locks").await;
    guard.join("UUID-lock-", b"10.0.0.8").await;
    guard.hide(None).await;
    let kazoos = Queue::new(&place, "kazoos").await;
    kazoos.write(b"2").await;
    kazoos.create(HEX, CreateMode::Ephemeral, b"job 7").await;
    let guard = Queue::new(&place, "kazoos-__lock__").await;
    guard.join("HEX__lock__", b"b'job 8'").await;
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

on_both_servers!(break_names_unreadable_contenders, |place| async move {
    let queue = Queue::new(&place, "x").await;
    queue.join("lock-", b"").await;
    let lock = shown(&place, "x").await;
    let first = of_holder(&lock, "token");
    let break_first = async || zoolock(&place, &["break", "x", "--token", first]).await;
    break_first().await.assert(0, &[]);
    break_first().await.assert(75, &["no holder or waiter has"]);
    let nodes = [queue.join("lock-", b"").await, queue.join("lock-", b"").await];
    for node in &nodes {
        queue.hide(Some(node)).await;
    }
    break_first().await.assert(77, &[&format!("{first}, but {} and 1 more cannot be read", nodes[0])]);
});

on_both_servers!(unreadable_directories_hide_no_other_lock, |place| async move {
    Queue::new(&place, "z/leases").await.hide(None).await;
    Queue::new(&place, "z/locks").await.hide(None).await;
    Queue::new(&place, "private/things").await;
    Queue::new(&place, "private").await.hide(None).await;
    let queue = Queue::new(&place, "y").await;
    queue.join("lock-", b"").await;
    let listed = zoolock(&place, &["ls"]).await;
    assert_eq!(listed.rows('?'), [("private", true), ("y", false), ("z", true)], "{}", listed.stdout);
    listed.assert(0, &["? marks"]);
    assert_eq!(shown(&place, "z").await["unread"], json!(["leases", "locks"]));
});
