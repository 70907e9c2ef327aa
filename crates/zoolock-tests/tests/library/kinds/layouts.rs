//! Semaphores in the layouts of others, by our own clients. Beside the others themselves: `tests/foreign/interop`.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock::{Error, LockEvent, LockEvents, LossReason, Naming, PermitGuard, Semaphore, TestServer, Ticket};
use zoolock_tests::{Place, Proxy, on_both_arms, opcode, tree};

use crate::kinds::permits;
use zoolock_tests::locks::{brisk_settings, connect, connect_through, directory, until_quiet};

const SOON: Duration = Duration::from_secs(20);
const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";
const LAYOUTS: [Naming; 2] = [Naming::CuratorSemaphore, Naming::Kazoo];

fn leases(place: &Place, naming: Naming, name: &str) -> String {
    match naming {
        Naming::CuratorSemaphore => format!("{}/leases", directory(place, name)),
        _ => directory(place, name),
    }
}

fn guard(place: &Place, naming: Naming, name: &str) -> String {
    match naming {
        Naming::CuratorSemaphore => format!("{}/locks", directory(place, name)),
        _ => format!("{}-__lock__", directory(place, name)),
    }
}

/// Waits until so many permits are out, or waited for with a node, and so many stand at the guard.
async fn until(place: &Place, naming: Naming, name: &str, permits: usize, guards: usize) {
    tree::assert_contenders(&place.addr(), &leases(place, naming, name), permits).await;
    tree::assert_contenders(&place.addr(), &guard(place, naming, name), guards).await;
}

async fn nothing_is_left(place: &Place, naming: Naming, name: &str) {
    until(place, naming, name, 0, 0).await;
}

async fn children(place: &Place, path: &str) -> Vec<String> {
    let client = tree::connect(&place.addr()).await.expect("a session");
    client.list_children(path).await.expect("it is there")
}

fn waiting(semaphore: &Semaphore, take: u32) -> tokio::task::JoinHandle<Result<PermitGuard, Error>> {
    let semaphore = semaphore.clone();
    tokio::spawn(async move { semaphore.acquire_many(take).await })
}

async fn its_turn(task: tokio::task::JoinHandle<Result<PermitGuard, Error>>) -> PermitGuard {
    timeout(SOON, task).await.expect("its turn").expect("no panic").expect("granted")
}

on_both_arms!(permits_are_where_the_others_look_for_them, |place| async move {
    let zl = connect(&place).await;
    for naming in LAYOUTS {
        let name = naming.as_str();
        let semaphore = zl.semaphore(name, 5).naming(naming);
        let held = semaphore.acquire_many(2).await.expect("free");
        until(&place, naming, name, 2, 0).await;
        assert_eq!(held.permits(), 2);
        assert_eq!(held.path(), format!("/locks/{name}"));
        let nodes = children(&place, &leases(&place, naming, name)).await;
        for node in &nodes {
            let id = match naming {
                Naming::CuratorSemaphore => {
                    let id = node.strip_prefix("_c_").and_then(|rest| rest.split_once("-lease-"));
                    let (id, number) = id.unwrap_or_else(|| panic!("{node}"));
                    assert!(number.len() == 10 && number.parse::<u32>().is_ok(), "{node}");
                    id
                }
                _ => node,
            };
            let hex = id.replace('-', "");
            assert!(hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_hexdigit()), "{node}");
        }
        let own = held.node_path();
        let leases = leases(&place, naming, name);
        assert_eq!(
            format!("{}{own}", place.chroot()),
            format!("{leases}/{}", own.rsplit('/').next().expect("a name"))
        );
        assert_eq!(held.check().path, format!("{}{own}", place.chroot()));
        assert!(nodes.iter().any(|node| own.ends_with(node)), "{own} is none of {nodes:?}");
        let client = tree::connect(&place.addr()).await.expect("a session");
        let (data, _) = client.get_data(&directory(&place, name)).await.expect("it is there");
        assert_eq!(data, if naming == Naming::Kazoo { &b"5"[..] } else { b"" });
        held.release().await.expect("ours");
        nothing_is_left(&place, naming, name).await;
    }
});

on_both_arms!(so_many_hold_and_no_more, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    for naming in LAYOUTS {
        let name = naming.as_str();
        let (ours, theirs) = (zl.semaphore(name, 5).naming(naming), other.semaphore(name, 5).naming(naming));
        let three = ours.acquire_many(3).await.expect("free");
        let one = theirs.acquire().await.expect("free");
        assert!(ours.try_acquire(2).await.expect("an answer").is_none());
        until(&place, naming, name, 4, 0).await;
        let last = ours.try_acquire(1).await.expect("an answer").expect("one is left");
        assert!(theirs.try_acquire(1).await.expect("an answer").is_none());
        let error = ours.acquire_timeout(1, Duration::from_millis(100)).await.expect_err("none is left");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        until(&place, naming, name, 5, 0).await;
        let two = waiting(&theirs, 2);
        // One waits with a node; the other is not made before that is granted.
        until(&place, naming, name, 6, 1).await;
        // Those who come later stand behind it, also where they would fit.
        let behind = waiting(&ours, 1);
        until(&place, naming, name, 6, 2).await;
        assert!(ours.try_acquire(1).await.expect("an answer").is_none(), "others wait");
        drop(last);
        until(&place, naming, name, 6, 2).await;
        drop(one);
        let two = its_turn(two).await;
        assert!(!behind.is_finished());
        drop(three);
        let behind = its_turn(behind).await;
        assert!(two.is_valid() && behind.is_valid());
        two.release().await.expect("ours");
        behind.release().await.expect("ours");
        nothing_is_left(&place, naming, name).await;
    }
});

fn rounds() -> u32 {
    if std::env::var_os("ZOOLOCK_LONG").is_some() { 200 } else { 12 }
}

on_both_arms!(eight_tasks_share_three_permits_and_nobody_is_forgotten, |place| async move {
    for naming in LAYOUTS {
        let name = naming.as_str();
        let clients = [connect(&place).await, connect(&place).await];
        let semaphores = clients.map(|zl| zl.semaphore(name, 3).naming(naming));
        permits::a_crowd_is_served(&semaphores, 8, rounds()).await;
        nothing_is_left(&place, naming, name).await;
    }
});

on_both_arms!(private given_up_at_any_point_nothing_is_left, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    for naming in LAYOUTS {
        let name = naming.as_str();
        let semaphore = zl.semaphore(name, 2).naming(naming);
        let theirs = other.semaphore(name, 2).naming(naming);
        // The directories, so that the first does not differ from the others.
        semaphore.acquire().await.expect("free").release().await.expect("ours");
        let one = theirs.acquire().await.expect("free");
        // Between all of its steps, one after the other.
        for step in 0..60u64 {
            let task = waiting(&semaphore, 2);
            tokio::time::sleep(Duration::from_micros(step * 150)).await;
            task.abort();
            let _ = task.await;
        }
        until(&place, naming, name, 1, 0).await;
        // While it waits for the second permit, and while another one waits for the guard.
        let has_one = waiting(&semaphore, 2);
        until(&place, naming, name, 3, 1).await;
        let has_none = waiting(&theirs, 1);
        until(&place, naming, name, 3, 2).await;
        has_one.abort();
        let two = its_turn(has_none).await;
        until(&place, naming, name, 2, 0).await;
        drop((one, two));
        nothing_is_left(&place, naming, name).await;
        // A grant that nobody saw.
        let mut unseen = 0;
        while unseen < 5 {
            let mut acquiring = Box::pin(semaphore.acquire_many(2));
            // It is there at once if this thread was held up for longer than the grant took.
            if futures_lite::future::poll_once(acquiring.as_mut()).await.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
                unseen += 1;
            }
            drop(acquiring);
        }
        nothing_is_left(&place, naming, name).await;
    }
    place.assert_no_watches().await;
    until_quiet(&zl, other.background_tasks()).await;
});

on_both_arms!(two_who_want_two_of_two_are_never_stuck, |place| async move {
    for naming in LAYOUTS {
        let name = naming.as_str();
        let clients = [connect(&place).await, connect(&place).await];
        permits::two_want_two(clients.map(|zl| zl.semaphore(name, 2).naming(naming)), rounds()).await;
        nothing_is_left(&place, naming, name).await;
    }
});

on_both_arms!(replies_that_are_lost_leave_no_second_permit, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let (zl, other) = (connect_through(&place, &proxy).await, connect(&place).await);
    for naming in LAYOUTS {
        let name = naming.as_str();
        let semaphore = zl.semaphore(name, 2).naming(naming);
        let theirs = other.semaphore(name, 2).naming(naming);
        semaphore.acquire().await.expect("free").release().await.expect("ours");
        for (op, happened) in [
            (opcode::CREATE2, true),
            (opcode::CREATE2, false),
            (opcode::GET_CHILDREN2, true),
            (opcode::DELETE, true),
        ] {
            let held = semaphore.acquire().await.expect("free");
            match happened {
                true => proxy.drop_next_reply(op),
                false => proxy.drop_next_request(op),
            }
            let second = semaphore.acquire_timeout(1, SOON).await.expect("one is left");
            until(&place, naming, name, 2, 0).await;
            assert!(semaphore.try_acquire(1).await.expect("an answer").is_none());
            second.release().await.expect("ours");
            held.release().await.expect("ours");
            nothing_is_left(&place, naming, name).await;
        }
        // The permit's own create: while somebody else has the guard, ours for it is there already.
        let held = theirs.acquire_many(2).await.expect("free");
        let before = waiting(&theirs, 1);
        until(&place, naming, name, 3, 1).await;
        let behind = waiting(&semaphore, 1);
        until(&place, naming, name, 3, 2).await;
        let lost = proxy.stats().dropped_replies;
        proxy.drop_next_reply(opcode::CREATE2);
        held.release().await.expect("ours");
        let (before, behind) = (its_turn(before).await, its_turn(behind).await);
        assert_eq!(proxy.stats().dropped_replies, lost + 1);
        until(&place, naming, name, 2, 0).await;
        before.release().await.expect("ours");
        behind.release().await.expect("ours");
        nothing_is_left(&place, naming, name).await;
    }
});

on_both_arms!(one_permit_that_is_taken_away_takes_the_others_with_it, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    for naming in LAYOUTS {
        let name = naming.as_str();
        let (ours, theirs) = (zl.semaphore(name, 3).naming(naming), other.semaphore(name, 3).naming(naming));
        let held = ours.acquire_many(2).await.expect("free");
        theirs.revoke(held.ticket()).await.expect("it is there");
        timeout(SOON, held.revoked()).await.expect("told");
        assert!(held.is_valid(), "it is only asked");
        theirs.break_lock(held.ticket()).await.expect("it is there");
        assert_eq!(timeout(SOON, held.lost()).await.expect("told"), LossReason::Broken);
        assert!(!held.is_valid());
        let error = held.release().await.expect_err("it was lost");
        assert!(matches!(error, Error::Lost { reason: LossReason::Broken, .. }), "{error}");
        nothing_is_left(&place, naming, name).await;
        // Not the first of them, by hand.
        let held = ours.acquire_many(2).await.expect("free");
        let operator = tree::connect(&place.addr()).await.expect("a session");
        let leases = leases(&place, naming, name);
        for node in children(&place, &leases).await {
            if !held.node_path().ends_with(&node) {
                operator.delete(&format!("{leases}/{node}"), None).await.expect("there");
            }
        }
        assert_eq!(timeout(SOON, held.lost()).await.expect("told"), LossReason::Broken);
        assert!(!held.is_valid());
        assert_eq!(held.valid_until().remaining(), Duration::ZERO);
        let error = held.release().await.expect_err("it was lost");
        assert!(matches!(error, Error::Lost { reason: LossReason::Broken, .. }), "{error}");
        nothing_is_left(&place, naming, name).await;
    }
});

on_both_arms!(one_that_loses_any_permit_while_it_waits_for_more_is_told, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let cases = |naming| [(naming, 0, false), (naming, 1, false), (naming, 0, true), (naming, 1, true)];
    for (naming, at, full) in LAYOUTS.into_iter().flat_map(cases) {
        let name = naming.as_str();
        let one = other.semaphore(name, 3).naming(naming).acquire().await.expect("free");
        let task = waiting(&zl.semaphore(name, 3).naming(naming), 3);
        until(&place, naming, name, 4, 1).await;
        // In the order in which they were taken: its first, its second, and the one that it waits with.
        let operator = tree::connect(&place.addr()).await.expect("a session");
        let leases = leases(&place, naming, name);
        let mut its = Vec::new();
        for node in children(&place, &leases).await {
            let path = format!("{leases}/{node}");
            let stat = operator.check_stat(&path).await.expect("an answer").expect("it stays");
            its.push((stat.czxid, path));
        }
        its.sort();
        its.retain(|(_, path)| !path.ends_with(&one.node_path()));
        assert_eq!(its.len(), 3);
        // Where one more counts, the loss makes no room for the one that it waits for.
        let stray = format!("{leases}/{HEX}");
        if full {
            let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
            operator.create(&stray, b"", &ephemeral).await.expect("it is new");
        }
        operator.delete(&its[at].1, None).await.expect("there");
        let error = timeout(SOON, task).await.expect("told").expect("no panic").expect_err("one is gone");
        assert!(matches!(error, Error::Lost { reason: LossReason::Broken, .. }), "{error}");
        if full {
            operator.delete(&stray, None).await.expect("there");
        }
        until(&place, naming, name, 1, 0).await;
        one.release().await.expect("ours");
        nothing_is_left(&place, naming, name).await;
    }
});

on_both_arms!(one_that_loses_the_guard_while_it_waits_is_told, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    for naming in LAYOUTS {
        let name = naming.as_str();
        let semaphore = zl.semaphore(name, 2).naming(naming);
        let one = other.semaphore(name, 2).naming(naming).acquire().await.expect("free");
        let task = waiting(&semaphore, 2);
        until(&place, naming, name, 3, 1).await;
        let operator = tree::connect(&place.addr()).await.expect("a session");
        let guard = guard(&place, naming, name);
        for node in children(&place, &guard).await {
            operator.delete(&format!("{guard}/{node}"), None).await.expect("there");
        }
        let error =
            timeout(SOON, task).await.expect("told").expect("no panic").expect_err("its place is gone");
        assert!(matches!(error, Error::Lost { reason: LossReason::Broken, .. }), "{error}");
        // What it had taken it has given back.
        until(&place, naming, name, 1, 0).await;
        one.release().await.expect("ours");
        nothing_is_left(&place, naming, name).await;
    }
});

on_both_arms!(permits_of_a_session_that_expired_are_free_and_its_waiters_queue_again, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let rival = brisk_settings().session_timeout(Duration::from_secs(4));
    let rival = rival.connect(&place.connect_string()).await.expect("a session");
    for naming in LAYOUTS {
        let zl = brisk_settings().connect(&place.through(&proxy.addr())).await.expect("a session");
        let name = naming.as_str();
        let (ours, theirs) = (zl.semaphore(name, 3).naming(naming), rival.semaphore(name, 3).naming(naming));
        let held = ours.acquire_many(2).await.expect("free");
        let told = waiting(&ours, 2);
        until(&place, naming, name, 4, 1).await;
        let requeued = waiting(&ours.clone().requeue_on_expiry(), 2);
        until(&place, naming, name, 4, 2).await;
        proxy.blackhole(true);
        let reason = timeout(SOON, held.lost()).await.expect("told");
        assert_eq!(reason, LossReason::Unreachable);
        assert!(!held.is_valid());
        let three = timeout(SOON, theirs.acquire_many(3)).await.expect("they are free").expect("granted");
        proxy.blackhole(false);
        let error =
            timeout(SOON, told).await.expect("told").expect("no panic").expect_err("its session is gone");
        assert!(matches!(error, Error::Lost { reason: LossReason::SessionExpired, .. }), "{error}");
        until(&place, naming, name, 4, 1).await;
        drop(three);
        its_turn(requeued).await.release().await.expect("ours");
        drop(held);
        nothing_is_left(&place, naming, name).await;
        zl.close().await;
    }
});

on_both_arms!(sizes_are_agreed_as_the_others_do_it, |place| async move {
    let zl = connect(&place).await;
    let mut kazoo = zl.semaphore("kazoo", 2).naming(Naming::Kazoo);
    let error = kazoo.clone().resize(3).await.expect_err("nobody has used it");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let held = kazoo.acquire_many(2).await.expect("free");
    let error = zl.semaphore("kazoo", 3).naming(Naming::Kazoo).acquire().await.expect_err("another size");
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("2 permits"), "{error}");
    // Growing wakes the one that waits, though it holds the guard.
    let third = waiting(&kazoo, 1);
    until(&place, Naming::Kazoo, "kazoo", 3, 1).await;
    kazoo.resize(3).await.expect("ours to say");
    assert_eq!(kazoo.permits(), 3);
    let third = its_turn(third).await;
    // Shrinking takes nothing away, and nobody gets in until it fits.
    kazoo.resize(1).await.expect("ours to say");
    assert!(held.is_valid() && third.is_valid());
    let next = waiting(&kazoo, 1);
    until(&place, Naming::Kazoo, "kazoo", 4, 1).await;
    held.release().await.expect("ours");
    assert!(!next.is_finished());
    third.release().await.expect("ours");
    its_turn(next).await.release().await.expect("ours");
    // What is no number is none of our business, as it is none of kazoo's.
    let operator = tree::connect(&place.addr()).await.expect("a session");
    operator.set_data(&directory(&place, "kazoo"), b"encoders", None).await.expect("there");
    zl.semaphore("kazoo", 7)
        .naming(Naming::Kazoo)
        .acquire()
        .await
        .expect("free")
        .release()
        .await
        .expect("ours");
    let error = kazoo.resize(2).await.expect_err("not a size");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");

    // Curator writes it nowhere.
    let mut curator = zl.semaphore("curator", 2).naming(Naming::CuratorSemaphore);
    let held = curator.acquire_many(2).await.expect("free");
    let larger = zl.semaphore("curator", 3).naming(Naming::CuratorSemaphore);
    larger.acquire().await.expect("it says that there are three").release().await.expect("ours");
    let error = curator.resize(3).await.expect_err("nothing to write");
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("nowhere"), "{error}");
    held.release().await.expect("ours");
    nothing_is_left(&place, Naming::Kazoo, "kazoo").await;
    nothing_is_left(&place, Naming::CuratorSemaphore, "curator").await;
});

async fn refused(attempt: impl Future<Output = Result<(), Error>>, hint: &str) {
    let error = timeout(SOON, attempt).await.expect("an answer").expect_err("something else lives there");
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(hint), "{error}");
}

on_both_arms!(what_lives_at_a_name_is_not_mixed_with_anything_else, |place| async move {
    let zl = connect(&place).await;
    for naming in LAYOUTS {
        let name = naming.as_str();
        let hint = format!("naming {naming}");
        let held = zl.semaphore(name, 3).naming(naming).acquire().await.expect("free");
        if naming == Naming::CuratorSemaphore {
            // The guard's directory is one of the two by which it is recognised.
            assert!(children(&place, &directory(&place, name)).await.contains(&"locks".to_owned()));
        }
        refused(async { zl.mutex(name).lock().await.map(drop) }, &hint).await;
        refused(async { zl.mutex(name).try_lock().await.map(drop) }, &hint).await;
        refused(async { zl.rwlock(name).read().await.map(drop) }, &hint).await;
        refused(async { zl.rwlock(name).write().await.map(drop) }, &hint).await;
        refused(async { zl.semaphore(name, 3).acquire().await.map(drop) }, &hint).await;
        refused(async { zl.multi([name, "other"]).lock().await.map(drop) }, &hint).await;
        let other = if naming == Naming::Kazoo { Naming::CuratorSemaphore } else { Naming::Kazoo };
        refused(async { zl.semaphore(name, 3).naming(other).acquire().await.map(drop) }, &hint).await;
        held.release().await.expect("ours");
        nothing_is_left(&place, naming, name).await;
    }
    let mutex = zl.mutex("mutex").lock().await.expect("free");
    let permits = zl.semaphore("permits", 3).acquire().await.expect("free");
    for naming in LAYOUTS {
        for name in ["mutex", "permits"] {
            let semaphore = zl.semaphore(name, 3).naming(naming);
            refused(async { semaphore.acquire().await.map(drop) }, "is no semaphore").await;
        }
    }
    mutex.release().await.expect("ours");
    permits.release().await.expect("ours");
    for naming in LAYOUTS {
        // Their records stay, and say what they were.
        for name in ["mutex", "permits"] {
            let semaphore = zl.semaphore(name, 3).naming(naming);
            refused(async { semaphore.try_acquire(1).await.map(drop) }, "is no semaphore").await;
        }
    }
    for naming in [Naming::Curator, Naming::WriteLock] {
        let semaphore = zl.semaphore("none", 3).naming(naming);
        refused(async { semaphore.acquire().await.map(drop) }, "curator-semaphore").await;
    }
    refused(
        async { zl.mutex("none").naming(Naming::CuratorSemaphore).lock().await.map(drop) },
        "has no mutex",
    )
    .await;
    tree::assert_no_ephemerals(&place.addr(), &format!("{}/locks", place.chroot())).await;
});

on_both_arms!(listeners_hear_of_one_acquisition, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    for naming in LAYOUTS {
        let name = naming.as_str();
        let semaphore = zl.semaphore(name, 2).naming(naming);
        let mut events = semaphore.events();
        let held = semaphore.acquire_many(2).await.expect("free");
        let ticket = held.ticket();
        held.release().await.expect("ours");
        let theirs = other.semaphore(name, 2).naming(naming).acquire_many(2).await.expect("free");
        assert!(semaphore.try_acquire(1).await.expect("an answer").is_none());
        let dropped = waiting(&semaphore, 1);
        until(&place, naming, name, 3, 1).await;
        let mut heard = Vec::new();
        while heard.len() < 5 {
            heard.push(timeout(SOON, events.next()).await.expect("said").expect("there is a handle"));
            // Its node may be there before it knows of the others.
            if let Some(LockEvent::Queued { .. }) = heard.last() {
                dropped.abort();
            }
        }
        let expected = [
            LockEvent::Acquired(ticket),
            LockEvent::Released(ticket),
            LockEvent::GaveUp,
            LockEvent::Queued { ahead: 2 },
            LockEvent::GaveUp,
        ];
        assert_eq!(heard, expected);
        theirs.release().await.expect("ours");
        nothing_is_left(&place, naming, name).await;
    }
});

/// What is heard until the lock is had with this ticket, but for what the connection does.
async fn heard_until(events: &mut LockEvents, ticket: Ticket) -> Vec<LockEvent> {
    let mut heard = Vec::new();
    while heard.last() != Some(&LockEvent::Acquired(ticket)) {
        match timeout(SOON, events.next()).await.expect("said").expect("there is a handle") {
            LockEvent::Suspect(_) | LockEvent::Confirmed(_) => {}
            event => heard.push(event),
        }
    }
    heard
}

on_both_arms!(several_permits_are_one_to_those_who_listen, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let rival = brisk_settings().session_timeout(Duration::from_secs(4));
    let rival = rival.connect(&place.connect_string()).await.expect("a session");
    let operator = tree::connect(&place.addr()).await.expect("a session");
    for naming in LAYOUTS {
        let zl = brisk_settings().connect(&place.through(&proxy.addr())).await.expect("a session");
        let name = naming.as_str();
        let (ours, theirs) = (zl.semaphore(name, 3).naming(naming), rival.semaphore(name, 3).naming(naming));
        let mut events = ours.events();
        // One that gives up with one of two permits in its hands.
        let two = theirs.acquire_many(2).await.expect("free");
        // Or it would be the guard that we queue for.
        until(&place, naming, name, 2, 0).await;
        let dropped = waiting(&ours, 2);
        until(&place, naming, name, 4, 1).await;
        dropped.abort();
        until(&place, naming, name, 2, 0).await;
        two.release().await.expect("ours");
        let held = ours.acquire_many(3).await.expect("free");
        let first = held.ticket();
        let heard = heard_until(&mut events, first).await;
        assert_eq!(heard, [LockEvent::Queued { ahead: 3 }, LockEvent::GaveUp, LockEvent::Acquired(first)]);
        // The two that are not the first are taken away.
        let leases = leases(&place, naming, name);
        for node in children(&place, &leases).await {
            if !held.node_path().ends_with(&node) {
                operator.delete(&format!("{leases}/{node}"), None).await.expect("there");
            }
        }
        timeout(SOON, held.lost()).await.expect("told");
        held.release().await.expect_err("it was lost");
        // All of them at once.
        let held = ours.acquire_many(3).await.expect("free");
        let second = held.ticket();
        let lost = LockEvent::Lost(first, LossReason::Broken);
        assert_eq!(heard_until(&mut events, second).await, [lost, LockEvent::Acquired(second)]);
        proxy.blackhole(true);
        timeout(SOON, held.lost()).await.expect("told");
        proxy.blackhole(false);
        drop(held);
        let held = timeout(SOON, ours.acquire()).await.expect("its turn").expect("granted");
        let lost = LockEvent::Lost(second, LossReason::Unreachable);
        let heard = heard_until(&mut events, held.ticket()).await;
        let heard: Vec<_> =
            heard.into_iter().filter(|event| !matches!(event, LockEvent::Queued { .. })).collect();
        assert_eq!(heard, [lost, LockEvent::Acquired(held.ticket())]);
        held.release().await.expect("ours");
        nothing_is_left(&place, naming, name).await;
        zl.close().await;
    }
});

/// kazoo makes sure of a directory once for each of its objects, and fails where it is gone later.
#[tokio::test(flavor = "multi_thread")]
async fn the_directories_of_kazoo_stay_where_others_are_removed() {
    let server = TestServer::start().await.expect("it works");
    let zl = server.connect().await.expect("it works");
    let shared = [zl.mutex("named").naming(Naming::Kazoo), zl.mutex("sought").kazoo_pattern()];
    for mutex in [&shared[0], &shared[1], &zl.mutex("plain")] {
        mutex.lock().await.expect("free").release().await.expect("ours");
    }
    let mut kazoo = zl.semaphore("kazoo", 2).naming(Naming::Kazoo);
    let mut native = zl.semaphore("native", 2);
    for semaphore in [&kazoo, &native] {
        semaphore.acquire().await.expect("free").release().await.expect("ours");
    }
    let removed = async {
        loop {
            match native.resize(3).await {
                Ok(()) => server.advance(Duration::from_secs(1)),
                Err(error) => return error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let error = timeout(SOON, removed).await.expect("nobody needs it");
    assert!(error.contains("is no semaphore"), "{error}");
    kazoo.resize(3).await.expect("it is there, and says its size");
    let operator = tree::connect(&server.address()).await.expect("a session");
    for (name, stays) in [("named", true), ("sought", true), ("plain", false)] {
        let stat = operator.check_stat(&format!("/locks/{name}")).await.expect("an answer");
        assert_eq!(stat.is_some(), stays, "{name}");
    }
}

on_both_arms!(what_cannot_be_watched_together_is_refused, |place| async move {
    let zl = connect(&place).await;
    for naming in LAYOUTS {
        let semaphore = zl.semaphore("many", 1_000_000).naming(naming);
        let error = semaphore.try_acquire(100_000).await.expect_err("too many");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
});
