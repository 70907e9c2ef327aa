//! Semaphores of other client libraries: the command shows each as one lock, and refuses to take part in it.

use std::time::Duration;

use serde_json::{Value, json};
use zookeeper_client::CreateMode;
use zoolock_tests::locks::{connect, directory};
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{Place, TestFailure, on_both_servers, tree};

use crate::clients::{Client, Library};
use crate::mixed_queues::queue::{HEX, Queue, holders, of_holder, shown, zoolock};

/// A token that no contender has.
const TOKEN: &str = "00000000-0000000000000001-00000000";

/// Returns the paths that `ls` lists.
async fn listed(place: &Place) -> Vec<String> {
    let output = zoolock(place, &["ls", "--json"]).await.json();
    let locks = output["locks"].as_array().expect("locks are a list");
    locks.iter().map(|lock| lock["path"].as_str().expect("a path is text").to_owned()).collect()
}

/// Waits until a directory has this number of znodes.
async fn until_znodes(place: &Place, name: &str, count: usize) {
    let what = format!("{count} znodes in {name}");
    let reached = retry_until_ok(&what, Duration::from_secs(60), async || {
        let client = tree::connect(&place.addr()).await?;
        match client.list_children(&directory(place, name)).await.map_or(0, |znodes| znodes.len()) {
            found if found == count => Ok(()),
            found => Err(TestFailure::new(format!("{found} znodes"))),
        }
    });
    reached.await.expect("the contenders queue");
}

/// Returns the expected `foreign_semaphore` in the JSON of a semaphore of Curator or kazoo.
fn foreign(library: &str, leases: usize, lease_directory: &str, queue_directory: &str) -> Value {
    json!({
        "library": library,
        "leases": leases,
        "lease_directory": lease_directory,
        "queue_directory": queue_directory,
    })
}

on_both_servers!(curator_semaphore_is_shown_as_one_lock, |place| async move {
    if !Library::Java.or_skip(&place) {
        return;
    }
    let curator = Client::start(Library::Java, &place).await;
    let kind = "curator-semaphore:2:1";
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(curator.hold(kind, "/locks/encoders").await);
    }
    let mut first_waiter = curator.queue(kind, "/locks/encoders").await;
    until_znodes(&place, "encoders/locks", 1).await;
    let _second_waiter = curator.queue(kind, "/locks/encoders").await;
    until_znodes(&place, "encoders/locks", 2).await;
    // The first waiter has created its lease, and waits until an older lease is deleted.
    until_znodes(&place, "encoders/leases", 3).await;
    let semaphore = foreign("Curator", 3, "/locks/encoders/leases", "/locks/encoders/locks");
    assert_named(&place, "encoders", &semaphore, 2, &Value::Null).await;
    assert_eq!(listed(&place).await, ["/locks/encoders"]);

    // The leases form a queue of their own. When a lease is broken there, the first waiter gets its permit.
    let leases = zoolock(&place, &["show", "encoders/leases", "--json"]).await.json();
    assert_eq!(holders(&leases, "role"), ["permit"; 3]);
    let token = of_holder(&leases, "token");
    assert_refused(&place, "encoders", "Curator", token).await;
    until_znodes(&place, "encoders", 2).await;
    until_znodes(&place, "encoders/leases", 3).await;
    zoolock(&place, &["break", "encoders/leases", "--token", token]).await.assert(0, &[]);
    first_waiter.receive("acquired").await.expect("a permit is free");
});

on_both_servers!(kazoo_semaphore_is_shown_as_one_lock, |place| async move {
    if !Library::Kazoo.or_skip(&place) {
        return;
    }
    let kazoo = Client::start(Library::Kazoo, &place).await;
    let (kind, path) = ("semaphore:2", "/locks/encoders");
    let _held = [kazoo.hold(kind, path).await, kazoo.hold(kind, path).await];
    let _waiting = [kazoo.queue(kind, path).await, kazoo.queue(kind, path).await];
    until_znodes(&place, "encoders-__lock__", 2).await;
    let semaphore = foreign("kazoo", 2, "/locks/encoders", "/locks/encoders-__lock__");
    assert_named(&place, "encoders", &semaphore, 2, &json!(2)).await;
    assert_eq!(listed(&place).await, ["/locks/encoders"]);
    assert_refused(&place, "encoders", "kazoo", TOKEN).await;
    until_znodes(&place, "encoders", 2).await;
});

on_both_servers!(foreign_semaphores_are_named_by_their_znodes_alone, |place| async move {
    let leases = Queue::new(&place, "curators/leases").await;
    Queue::new(&place, "curators/locks").await;
    let curators = |leases| foreign("Curator", leases, "/locks/curators/leases", "/locks/curators/locks");
    assert_named(&place, "curators", &curators(0), 0, &Value::Null).await;
    leases.join("UUID-lease-", b"10.0.0.7").await;
    assert_named(&place, "curators", &curators(1), 0, &Value::Null).await;
    assert_refused(&place, "curators", "Curator", TOKEN).await;

    let kazoos = Queue::new(&place, "kazoos").await;
    kazoos.write(b"2").await;
    kazoos.create(HEX, CreateMode::Ephemeral, b"job 7").await;
    let queue = Queue::new(&place, "kazoos-__lock__").await;
    queue.join("HEX__lock__", b"b'job 8'").await;
    let semaphore = foreign("kazoo", 1, "/locks/kazoos", "/locks/kazoos-__lock__");
    assert_named(&place, "kazoos", &semaphore, 1, &json!(2)).await;
    assert_refused(&place, "kazoos", "kazoo", TOKEN).await;
    assert_eq!(listed(&place).await, ["/locks/curators", "/locks/kazoos"]);
    until_znodes(&place, "curators", 2).await;
    until_znodes(&place, "kazoos", 1).await;
});

/// Asserts that `show`, `ls` and `doctor` name a foreign semaphore, and count its leases and waiters.
async fn assert_named(place: &Place, name: &str, foreign: &Value, waiting: usize, permits: &Value) {
    let lock = shown(place, name).await;
    assert_eq!((&lock["foreign_semaphore"], &lock["waiting"]), (foreign, &json!(waiting)));
    assert_eq!((&lock["holder"], &lock["waiters"]), (&Value::Null, &json!([])));
    assert_eq!((&lock["permits"], &lock["clash"]), (permits, &Value::Null));
    assert_eq!((&lock["foreign_record"], &lock["unread"]), (&json!(false), &json!([])));
    let library = foreign["library"].as_str().expect("a library is text");
    let leases = foreign["leases"].as_u64().expect("leases are a number");
    let what = format!("semaphore of {library}, {leases} lease{}", if leases == 1 { "" } else { "s" });

    let text = zoolock(place, &["show", name]).await.stdout;
    let size = permits.as_u64().map_or(String::new(), |permits| format!(" of {permits}"));
    let directory = |field: &str| foreign[field].as_str().expect("a directory is text");
    for expected in [
        format!("  kind      semaphore of {library}"),
        format!("  leases    {leases}{size}, in {}", directory("lease_directory")),
        format!("  waiting   {waiting}, in {}", directory("queue_directory")),
    ] {
        assert!(text.lines().any(|line| line == expected), "no {expected:?} in {text}");
    }
    assert!(!text.contains("free"), "{text}");
    let text = zoolock(place, &["ls"]).await.stdout;
    let rows: Vec<_> = text.lines().filter(|row| row.starts_with(name)).collect();
    assert!(matches!(rows.as_slice(), [row] if row.ends_with(&what)), "{text}");
    let text = zoolock(place, &["doctor"]).await.stdout;
    let found = format!("/locks/{name} ({what}, {waiting} waiting)");
    assert!(text.contains(&found), "no {found:?} in {text}");
}

/// Asserts that commands which would take part in a foreign semaphore are refused, with the reason and a remedy.
async fn assert_refused(place: &Place, name: &str, library: &str, token: &str) {
    let what = format!("is a semaphore of {library}");
    let remedy = format!("use another name, or acquire them with {library}");
    for (arguments, remedy) in [
        (&["run", "--permits", "2", name, "--", "true"][..], remedy.as_str()),
        (&["run", "--try", "--permits", "2", name, "--", "true"], &remedy),
        (&["hold", "--permits", "2", name], &remedy),
        (&["resize", name, "--permits", "4"], &remedy),
        (&["break", name, "--token", token], &remedy),
        (&["revoke", name, "--token", token], &remedy),
        (&["revoke", name], &format!("ask its holders with {library}")),
    ] {
        let output = zoolock(place, arguments).await;
        // Without a token, `revoke` finds no holder that it can ask.
        let code = if arguments == ["revoke", name] { 78 } else { 64 };
        assert_eq!(output.code, Some(code), "{arguments:?}: {}", output.stderr);
        assert!(
            output.stderr.contains(&what) && output.stderr.contains(remedy),
            "{arguments:?}: {}",
            output.stderr
        );
    }
}

on_both_servers!(names_like_parts_of_semaphores_are_listed_as_locks, |place| async move {
    let zl = connect(&place).await;
    let leases = zl.mutex("app/leases").lock().await.expect("lock granted");
    let locks = zl.mutex("app/locks").lock().await.expect("lock granted");
    // A directory with a number as data and a child of 32 digits need not be a semaphore of kazoo.
    let numbers = Queue::new(&place, "numbers").await;
    numbers.write(b"17").await;
    numbers.create(HEX, CreateMode::Persistent, b"").await;
    let guard = Queue::new(&place, "alone-__lock__").await;
    guard.join("HEX__lock__", b"").await;
    let mut found = listed(&place).await;
    found.sort();
    assert_eq!(found, ["/locks/alone-__lock__", "/locks/app/leases", "/locks/app/locks"]);
    leases.release().await.expect("release succeeds");
    locks.release().await.expect("release succeeds");
    let mut idle = listed(&place).await;
    idle.sort();
    assert_eq!(idle, found);
});

on_both_servers!(lock_and_foreign_semaphore_with_one_name_are_marked, |place| async move {
    let leases = Queue::new(&place, "two/leases").await;
    leases.join("UUID-lease-", b"10.0.0.7").await;
    assert_eq!(shown(&place, "two").await["clash"], Value::Null);
    let queue = Queue::new(&place, "two").await;
    queue.join("permit-1-", b"").await;
    let lock = shown(&place, "two").await;
    assert_eq!(holders(&lock, "family"), ["native"]);
    assert_eq!(lock["foreign_semaphore"]["library"], "Curator");
    let clash = lock["clash"].as_str().expect("the clash is text");
    assert!(
        clash.contains("a semaphore of Curator") && clash.contains("a semaphore's user of zoolock"),
        "{clash}"
    );
});
