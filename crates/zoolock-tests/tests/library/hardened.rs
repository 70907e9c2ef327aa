//! Hardened locks: whoever may queue cannot take the lock from its holder, on both servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Error as Refusal, Permission};
use zoolock::{Builder, Error, LockEvent, LossReason, Naming, Zoolock};
use zoolock_tests::locks::{brisk_settings, connect, directory, settings, until_queued};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, Proxy, ServerOptions, on_both_arms, opcode, tree};

/// Much more than anything here may take.
const BOUND: Duration = Duration::from_secs(60);
/// How long those are given who are not to get it.
const MOMENT: Duration = Duration::from_millis(300);
/// How long something is waited for that comes.
const SOON: Duration = Duration::from_secs(1);
/// `super:test`, as both servers keep it.
const SUPER: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";

fn with_super() -> ServerOptions {
    ServerOptions { super_digest: Some(SUPER.to_owned()), ..Default::default() }
}

fn hardened() -> Builder {
    settings().auth("digest", "jobs:secret").hardened()
}

async fn open(place: &Place, builder: Builder) -> Zoolock {
    builder.connect(&place.connect_string()).await.expect("a session")
}

/// A plain session of somebody with the same credentials.
async fn fellow(place: &Place) -> Client {
    let client = tree::connect(&place.addr()).await.expect("a session");
    client.auth("digest", b"jobs:secret").await.expect("any credentials will do");
    client
}

/// Waits until no place is left, in whatever queue.
async fn nobody_is_left(place: &Place) {
    let (client, root) = (fellow(place).await, format!("{}/locks", place.chroot()));
    let looked = eventually("every place goes", BOUND, async || {
        for lock in client.list_children(&root).await.expect("it may be read") {
            match client.list_children(&format!("{root}/{lock}")).await {
                Err(Refusal::NoNode) => {}
                Ok(places) if places.is_empty() => {}
                left => return Err(Failure::new(format!("{lock}: {left:?}"))),
            }
        }
        Ok(())
    });
    looked.await.unwrap_or_else(|failure| panic!("{failure}"));
}

async fn administrator(place: &Place) -> Client {
    let client = tree::connect(&place.addr()).await.expect("a session");
    client.auth("digest", b"super:test").await.expect("it is the password");
    client
}

fn denied<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(error @ Error::Denied { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it is done"),
    }
}

fn invalid<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(error @ Error::Invalid { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it is done"),
    }
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(BOUND, what).await.expect("it is stuck")
}

on_both_arms!(who_may_queue_cannot_take_the_lock_from_its_holder, |place| async move {
    let (first, second) = (open(&place, hardened()).await, open(&place, hardened()).await);
    let guard = first.mutex("nightly").lock().await.expect("free");
    let other = second.mutex("nightly");
    let waiter = tokio::spawn(async move { other.lock().await });
    until_queued(&second, "nightly", 2).await;
    let client = fellow(&place).await;
    let (lock, node) = (directory(&place, "nightly"), format!("{}{}", place.chroot(), guard.node_path()));
    let wide = [Acl::new(Permission::ALL, AuthId::anyone())];
    assert_eq!(client.delete(&node, None).await, Err(Refusal::NoAuth));
    assert_eq!(client.set_data(&node, b"unlock", None).await.map(|_| ()), Err(Refusal::NoAuth));
    for path in [&node, &lock, &format!("{}/locks", place.chroot())] {
        assert_eq!(client.set_acl(path, &wide, None).await.map(|_| ()), Err(Refusal::NoAuth), "{path}");
    }
    assert_eq!(client.set_data(&lock, b"", None).await.map(|_| ()), Err(Refusal::NoAuth));
    // Nor the lock with all who stand there.
    assert_eq!(client.delete(&lock, None).await, Err(Refusal::NoAuth));
    let token = guard.token();
    assert!(denied(second.mutex("nightly").break_lock(token).await).contains("nobody can take it away"));
    assert!(denied(second.mutex("nightly").revoke(token).await).contains("ask it to let go"));
    // Who has no credentials can do less than that.
    let stranger = connect(&place).await;
    denied(stranger.mutex("nightly").try_lock().await);
    denied(stranger.mutex("nightly").break_lock(token).await);
    assert!(guard.is_valid() && !guard.is_revoked());
    guard.release().await.expect("ours");
    let next = in_time(waiter).await.expect("it does not panic").expect("its turn");
    assert!(next.token() > token);
    assert_eq!(next.previous(), zoolock::Previous::Unknown);
    next.release().await.expect("ours");
    let (acls, _) = client.get_acl(&lock).await.expect("it may be read");
    assert_eq!(acls.len(), 1, "{acls:?}");
    assert_eq!(acls[0].permission(), Permission::CREATE | Permission::READ);
    for zl in [first, second, stranger] {
        zl.close().await;
    }
    assert_eq!(client.list_children(&lock).await.expect("it may be read"), Vec::<String>::new());
});

on_both_arms!(everybody_may_queue_for_a_hardened_lock_where_nobody_has_credentials, |place| async move {
    let zl = open(&place, settings().hardened()).await;
    let other = open(&place, settings().hardened()).await;
    let guard = zl.mutex("nightly").lock().await.expect("free");
    assert!(other.mutex("nightly").try_lock().await.expect("it answers").is_none());
    let node = format!("{}{}", place.chroot(), guard.node_path());
    let client = tree::connect(&place.addr()).await.expect("a session");
    assert_eq!(client.delete(&node, None).await, Err(Refusal::NoAuth));
    assert_eq!(client.set_data(&node, b"", None).await.map(|_| ()), Err(Refusal::NoAuth));
    guard.release().await.expect("ours");
    in_time(other.mutex("nightly").lock()).await.expect("free").release().await.expect("ours");
    zl.close().await;
    other.close().await;
    tree::assert_no_ephemerals(&place.addr(), place.chroot()).await;
});

on_both_arms!(members_of_a_hardened_lock_may_queue_and_nobody_else, |place| async move {
    // As the service writes down `ci:x`.
    let ci = hardened().member("digest", "ci:ZyJ1SAicELbmH9D+zhmuhyoKDLU=");
    let (ours, theirs) =
        (open(&place, ci).await, open(&place, settings().auth("digest", "ci:x").hardened()).await);
    let guard = ours.mutex("nightly").lock().await.expect("free");
    assert!(theirs.mutex("nightly").try_lock().await.expect("it may queue").is_none());
    denied(theirs.mutex("nightly").break_lock(guard.token()).await);
    guard.release().await.expect("ours");
    // One of whom the service cannot tell who that is.
    let unknown = open(&place, hardened().member("nobody-knows", "ci")).await;
    let said = denied(unknown.mutex("monthly").try_lock().await);
    assert!(said.contains("nobody-knows:ci"), "{said}");
    unknown.close().await;
    let guard = in_time(theirs.mutex("nightly").lock()).await.expect("free");
    denied(ours.mutex("nightly").break_lock(guard.token()).await);
    let other = open(&place, settings().auth("digest", "other:x").hardened()).await;
    let said = denied(other.mutex("nightly").try_lock().await);
    assert!(said.contains("may not have named us"), "{said}");
    guard.release().await.expect("theirs");
    // Whoever makes the directory says who may: one that names nobody keeps out who has named it.
    in_time(theirs.mutex("weekly").lock()).await.expect("free").release().await.expect("theirs");
    let said = denied(ours.mutex("weekly").try_lock().await);
    assert!(said.contains("name all the others"), "{said}");
    for zl in [ours, theirs, other] {
        zl.close().await;
    }
});

on_both_arms!(hardened_locks_of_every_kind_are_let_go_by_the_end_of_their_session, |place| async move {
    let zl = open(&place, hardened()).await;
    let tasks = zl.background_tasks();
    let rwlock = zl.rwlock("config");
    let (one, two) = (rwlock.read().await.expect("free"), rwlock.read().await.expect("beside"));
    assert!(rwlock.try_write().await.expect("it answers").is_none());
    let writer = tokio::spawn({
        let rwlock = rwlock.clone();
        async move { rwlock.write().await }
    });
    until_queued(&zl, "config", 3).await;
    one.release().await.expect("ours");
    drop(two);
    let writer = in_time(writer).await.expect("it does not panic").expect("its turn");
    assert!(rwlock.try_read().await.expect("it answers").is_none());
    writer.release().await.expect("ours");

    let semaphore = zl.semaphore("encoders", 3);
    let (most, one) = (semaphore.acquire_many(2).await.expect("free"), semaphore.acquire().await);
    assert!(semaphore.try_acquire(1).await.expect("it answers").is_none());
    assert_eq!(zl.mutex("encoders").snapshot().await.expect("readable").permits, Some(3));
    assert!(invalid(zl.semaphore("encoders", 4).try_acquire(1).await).contains("has 3 permits"));
    assert!(denied(zl.semaphore("encoders", 3).resize(4).await).contains("nobody can change its size"));
    // Both fit when the first goes, and nobody can say of itself that it was granted.
    let waiters = [1, 1].map(|take| {
        let semaphore = semaphore.clone();
        tokio::spawn(async move { semaphore.acquire_many(take).await })
    });
    until_queued(&zl, "encoders", 4).await;
    drop(most);
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(in_time(waiter).await.expect("it does not panic").expect("its turn"));
    }
    drop(guards);
    one.expect("free").release().await.expect("ours");

    let both = zl.multi(["a", "b"]).lock().await.expect("free");
    assert!(zl.mutex("b").try_lock().await.expect("it answers").is_none());
    both.release().await.expect("ours");
    in_time(zl.mutex("b").lock()).await.expect("free").release().await.expect("ours");
    zoolock_tests::locks::until_quiet(&zl, tasks).await;
    nobody_is_left(&place).await;
    zl.close().await;
});

on_both_arms!(a_crowd_at_a_hardened_lock_is_let_in_one_by_one, |place| async move {
    let clients = [open(&place, hardened()).await, open(&place, hardened()).await];
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let (mutex, inside) = (clients[task % 2].mutex("crowd"), inside.clone());
        tasks.spawn(async move {
            for round in 0..4 {
                if (task + round) % 3 == 0 {
                    // Some give up, at whatever point: their sessions go, and nobody waits for a ghost.
                    match mutex.lock_timeout(Duration::from_millis(5 * round as u64)).await {
                        Ok(guard) => drop(guard),
                        Err(Error::Timeout { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    continue;
                }
                let guard = in_time(mutex.lock()).await.expect("its turn");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                if round % 2 == 0 { guard.release().await.expect("ours") } else { drop(guard) }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("it does not panic");
    }
    for zl in clients {
        zl.close().await;
    }
    nobody_is_left(&place).await;
});

on_both_arms!(a_hardened_lock_is_let_go_by_a_drop_and_by_a_waiter_that_gives_up, |place| async move {
    let zl = open(&place, hardened()).await;
    let guard = zl.mutex("nightly").lock().await.expect("free");
    // One is dropped, one times out, and behind them somebody waits.
    let (first, second, last) = (zl.mutex("nightly"), zl.mutex("nightly"), zl.mutex("nightly"));
    let dropped = tokio::spawn(async move { first.lock().await.map(drop) });
    until_queued(&zl, "nightly", 2).await;
    let late = tokio::spawn(async move { second.lock_timeout(5 * SOON).await.map(drop) });
    until_queued(&zl, "nightly", 3).await;
    let last = tokio::spawn(async move { last.lock().await });
    dropped.abort();
    let late = in_time(late).await.expect("it does not panic");
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    let gone = async || match zl.mutex("nightly").snapshot().await.expect("readable").waiters.len() {
        1 => Ok(()),
        waiters => Err(Failure::new(format!("{waiters} wait"))),
    };
    eventually("only one waits", BOUND, gone).await.expect("the others have given up");
    drop(guard);
    in_time(last).await.expect("it does not panic").expect("its turn").release().await.expect("ours");
    zl.close().await;
    nobody_is_left(&place).await;
});

on_both_arms!(a_crash_lets_the_next_one_have_a_hardened_lock, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let builder = || brisk_settings().auth("digest", "jobs:secret").hardened();
    let holder = builder().connect(&place.through(&proxy.addr())).await.expect("a session");
    let next = open(&place, builder()).await;
    let guard = holder.mutex("nightly").lock().await.expect("free");
    assert!(next.mutex("nightly").try_lock().await.expect("it answers").is_none());
    proxy.refuse(true).await;
    proxy.cut().await;
    let other = in_time(next.mutex("nightly").lock()).await.expect("its turn");
    assert!(!guard.is_valid(), "two hold");
    assert_eq!(in_time(guard.lost()).await, LossReason::Unreachable);
    let released = in_time(guard.release()).await;
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    proxy.refuse(false).await;
    other.release().await.expect("ours");
    // It is there again, and can have it again.
    in_time(holder.mutex("nightly").lock()).await.expect("its turn").release().await.expect("ours");
    holder.close().await;
    next.close().await;
});

on_both_arms!(who_has_its_renewals_spoiled_knows_before_anybody_else_holds, |place| async move {
    // Not hardened: the directory of the renewals, which it makes, belongs to all who have its credentials.
    let plain = open(&place, brisk_settings().auth("digest", "jobs:secret")).await;
    let before = plain.mutex("before").lock().await.expect("free");
    let (spoiler, beats) = (fellow(&place).await, directory(&place, ".sessions"));
    let written = async || match spoiler.list_children(&beats).await {
        Ok(nodes) if nodes.len() == 1 => Ok(nodes),
        other => Err(Failure::new(format!("{other:?}"))),
    };
    eventually("it renews", BOUND, written).await.expect("by writes");
    before.release().await.expect("ours");
    plain.close().await;

    let builder = || brisk_settings().auth("digest", "jobs:secret").hardened();
    let (holder, next) = (open(&place, builder()).await, open(&place, builder()).await);
    let guard = holder.mutex("nightly").lock().await.expect("free");
    let nodes = eventually("the holder renews", BOUND, written).await.expect("by writes");
    // There is a node of that name from now on, to which the holder may not write.
    let readable = [Acl::new(Permission::READ, AuthId::anyone())];
    let taken = CreateMode::Persistent.with_acls(Acls::new(&readable));
    let node = format!("{beats}/{}", nodes[0]);
    let spoil = async || match spoiler.delete(&node, None).await {
        Ok(()) | Err(Refusal::NoNode) => {
            spoiler.create(&node, b"", &taken).await.map_err(|error| Failure::new(error.to_string()))
        }
        Err(error) => Err(Failure::new(error.to_string())),
    };
    eventually("the node is taken", BOUND, spoil).await.expect("the directory is its own, too");
    assert!(guard.is_valid(), "it was renewed until now");
    let mutex = next.mutex("nightly");
    let mut waiter = tokio::spawn(async move { mutex.lock().await });
    let told = in_time(async {
        tokio::select! {
            biased;
            reason = guard.lost() => reason,
            _ = &mut waiter => panic!("two hold"),
        }
    });
    assert_eq!(told.await, LossReason::Unreachable);
    assert!(!guard.is_valid());
    let released = in_time(guard.release()).await;
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    in_time(waiter).await.expect("it does not panic").expect("its turn").release().await.expect("ours");
    holder.close().await;
    next.close().await;
});

on_both_arms!(a_release_that_the_service_did_not_confirm_is_not_said_to_be_done, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let builder = || brisk_settings().auth("digest", "jobs:secret").hardened();
    let holder = builder().connect(&place.through(&proxy.addr())).await.expect("a session");
    let next = open(&place, builder()).await;
    let mutex = holder.mutex("nightly");
    let mut events = mutex.events();
    let guard = mutex.lock().await.expect("free");
    // Nothing of what it says from now on arrives, and it is sure of its lock yet.
    proxy.blackhole(true);
    assert!(guard.is_valid());
    let release = tokio::spawn(guard.release());
    proxy.refuse(true).await;
    proxy.cut().await;
    // Longer than the client needs to give the session up.
    let released = in_time(release).await.expect("it does not panic");
    let reason = LossReason::SessionExpired;
    assert!(matches!(&released, Err(Error::Lost { reason: why, .. }) if *why == reason), "{released:?}");
    in_time(next.mutex("nightly").lock()).await.expect("its turn").release().await.expect("ours");
    holder.close().await;
    next.close().await;
    drop((mutex, holder));
    while let Some(event) = in_time(events.next()).await {
        assert!(!matches!(event, LockEvent::Released(_)), "it was told so");
    }
});

on_both_arms!(a_hardened_lock_whose_reply_was_lost_is_had_and_let_go_all_the_same, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let zl = hardened().connect(&place.through(&proxy.addr())).await.expect("a session");
    zl.mutex("nightly").lock().await.expect("free").release().await.expect("ours");
    proxy.drop_next_reply(opcode::CREATE2);
    let guard = in_time(zl.mutex("nightly").lock()).await.expect("free");
    // The other one of ours cannot be deleted; it goes with the session, and those behind wait for no longer.
    tree_of(&place, 2).await;
    let other = zl.mutex("nightly");
    let waiter = tokio::spawn(async move { other.lock().await });
    until_queued(&zl, "nightly", 3).await;
    guard.release().await.expect("ours");
    in_time(waiter).await.expect("it does not panic").expect("its turn").release().await.expect("ours");
    zl.close().await;
    nobody_is_left(&place).await;
});

on_both_arms!(permits_of_a_hardened_semaphore_whose_reply_was_lost_are_taken_once, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let zl = hardened().connect(&place.through(&proxy.addr())).await.expect("a session");
    let semaphore = zl.semaphore("encoders", 2);
    semaphore.acquire().await.expect("free").release().await.expect("ours");
    proxy.drop_next_reply(opcode::CREATE2);
    let one = in_time(semaphore.acquire()).await.expect("free");
    assert_eq!(proxy.stats().dropped_replies, 1);
    let other = in_time(semaphore.acquire()).await.expect("only one of two is taken");
    one.release().await.expect("ours");
    other.release().await.expect("ours");
    zl.close().await;
    nobody_is_left(&place).await;
});

on_both_arms!(those_who_are_refused_again_and_again_open_no_more_than_a_few_sessions, |place| async move {
    let plain = open(&place, settings().auth("digest", "jobs:secret")).await;
    plain.mutex("nightly").lock().await.expect("free").release().await.expect("ours");
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let zl = hardened().connect(&place.through(&proxy.addr())).await.expect("a session");
    for _ in 0..20 {
        denied(zl.mutex("nightly").try_lock().await);
        // Given up at whatever point.
        let _ = timeout(Duration::from_millis(2), zl.mutex("nightly").lock()).await;
    }
    let connections = proxy.stats().connections.len();
    assert!(connections <= 4, "{connections} were opened");
    for zl in [plain, zl] {
        zl.close().await;
    }
});

on_both_arms!(a_session_that_is_open_too_late_is_the_next_ones, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let zl = hardened().connect(&place.through(&proxy.addr())).await.expect("a session");
    proxy.blackhole(true);
    for _ in 0..10 {
        let late = zl.mutex("nightly").lock_timeout(MOMENT / 10).await.map(drop);
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    }
    proxy.blackhole(false);
    let guard = in_time(zl.mutex("nightly").lock()).await.expect("free");
    assert_eq!(proxy.stats().connections.len(), 2, "one for all, and one for the lock");
    guard.release().await.expect("ours");
    zl.close().await;
    nobody_is_left(&place).await;
});

on_both_arms!(those_who_ask_in_vain_while_the_service_is_away_leave_nobody_asking, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let zl = hardened().connect(&place.through(&proxy.addr())).await.expect("a session");
    proxy.refuse(true).await;
    for _ in 0..30 {
        let late = zl.mutex("nightly").lock_timeout(MOMENT / 15).await.map(drop);
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    }
    proxy.refuse(false).await;
    in_time(zl.mutex("nightly").lock()).await.expect("free").release().await.expect("ours");
    let many = proxy.until("many connections", |stats| stats.connections.len() > 3);
    assert!(timeout(MOMENT, many).await.is_err(), "{} were opened", proxy.stats().connections.len());
    zl.close().await;
    nobody_is_left(&place).await;
});

async fn tree_of(place: &Place, count: usize) {
    let client = fellow(place).await;
    let names = client.list_children(&directory(place, "nightly")).await.expect("it may be read");
    assert_eq!(names.len(), count, "{names:?}");
}

on_both_arms!(private(with_super()) a_hardened_lock_is_not_taken_in_a_directory_where_somebody_may_more, |place| async move {
    let plain = open(&place, settings().auth("digest", "jobs:secret")).await;
    plain.mutex("nightly").lock().await.expect("free").release().await.expect("ours");
    let zl = open(&place, hardened()).await;
    let said = denied(zl.mutex("nightly").try_lock().await);
    assert!(said.contains("digest:jobs delete and write and change who may what"), "{said}");
    assert!(said.contains("/locks/nightly …:cr"), "{said}");
    // One word too much is enough.
    let administrator = administrator(&place).await;
    let path = directory(&place, "nightly");
    let may = |permission| [Acl::new(Permission::CREATE | Permission::READ | permission, AuthId::anyone())];
    for (permission, word) in
        [(Permission::DELETE, "delete"), (Permission::WRITE, "write"), (Permission::ADMIN, "change")]
    {
        administrator.set_acl(&path, &may(permission), None).await.expect("it may do anything");
        assert!(denied(zl.mutex("nightly").lock().await).contains(word));
    }
    administrator.set_acl(&path, &may(Permission::NONE), None).await.expect("it may do anything");
    let guard = zl.mutex("nightly").lock().await.expect("nobody may more");
    // It is widened while somebody waits.
    let other = zl.mutex("nightly");
    let mut events = other.events();
    let waiter = tokio::spawn(async move { other.lock().await });
    until_queued(&zl, "nightly", 2).await;
    administrator.set_acl(&path, &may(Permission::DELETE), None).await.expect("it may do anything");
    guard.release().await.expect("ours");
    assert!(denied(in_time(waiter).await.expect("it does not panic")).contains("delete"));
    // Its handle went with the task, so they end.
    let mut told = Vec::new();
    while let Some(event) = in_time(events.next()).await {
        told.push(event);
    }
    assert_eq!(told, [LockEvent::Queued { ahead: 1 }, LockEvent::GaveUp], "it never held");
    // Who asks next when it was removed makes it anew.
    let removed = async || match administrator.delete(&path, None).await {
        Ok(()) | Err(Refusal::NoNode) => Ok(()),
        Err(error) => Err(Failure::new(error.to_string())),
    };
    eventually("it is removed", BOUND, removed).await.expect("an administrator can");
    zl.mutex("nightly").lock().await.expect("it is made anew").release().await.expect("ours");
    for zl in [plain, zl] {
        zl.close().await;
    }
});

on_both_arms!(private(with_super()) an_administrator_breaks_and_removes_a_hardened_lock, |place| async move {
    let zl = open(&place, hardened()).await;
    let guard = zl.mutex("nightly").lock().await.expect("free");
    let root = open(&place, settings().auth("digest", "super:test")).await;
    root.mutex("nightly").break_lock(guard.token()).await.expect("it may do anything");
    assert_eq!(in_time(guard.lost()).await, LossReason::Broken);
    // What that wrote down is not believed by those who know that nobody can write there.
    let next = in_time(zl.mutex("nightly").lock()).await.expect("free");
    assert_eq!(next.previous(), zoolock::Previous::Unknown);
    drop(guard);
    next.release().await.expect("ours");
    let administrator = administrator(&place).await;
    administrator.delete(&directory(&place, "nightly"), None).await.expect("it may do anything");
    zl.close().await;
    root.close().await;
});

on_both_arms!(a_forged_place_in_the_queue_keeps_others_waiting_and_lets_nobody_in, |place| async move {
    let zl = open(&place, hardened()).await;
    let guard = zl.mutex("nightly").lock().await.expect("free");
    let forger = fellow(&place).await;
    let lock = directory(&place, "nightly");
    let readable = [Acl::new(Permission::ALL, AuthId::anyone())];
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::new(&readable));
    // Right before the next one that comes, so that it is waited for, and goes while the lock is held: that must not grant.
    // A number in between is used up by something else.
    forger.create(&format!("{lock}/x"), b"", &ephemeral).await.expect("it may create");
    let forged = format!("{lock}/lock-0000000001");
    forger.create(&forged, b"", &ephemeral).await.expect("it may create");
    let other = zl.mutex("nightly");
    let mut waiter = tokio::spawn(async move { other.lock().await });
    until_queued(&zl, "nightly", 3).await;
    // Nor can it take back what it has forged, but by its session.
    assert_eq!(forger.delete(&forged, None).await, Err(Refusal::NoAuth));
    drop(forger);
    let looker = fellow(&place).await;
    let gone = async || match looker.check_stat(&forged).await.expect("it answers") {
        None => Ok(()),
        Some(_) => Err(Failure::new("it is there")),
    };
    eventually("what was forged goes", BOUND, gone).await.expect("it goes with its session");
    assert!(timeout(MOMENT, &mut waiter).await.is_err(), "two hold");
    // While nobody holds, it is waited for: who may queue may keep others waiting.
    let forger = fellow(&place).await;
    forger.create(&forged, b"", &ephemeral).await.expect("it may create");
    guard.release().await.expect("ours");
    assert!(timeout(MOMENT, &mut waiter).await.is_err(), "it is passed over");
    drop(forger);
    in_time(waiter).await.expect("it does not panic").expect("its turn").release().await.expect("ours");
    zl.close().await;
});

/// The service's own request to remove an empty container, of a client that knows no such thing: the code of the answer.
async fn remove_as_the_service(place: &Place, path: &str) -> i32 {
    const DELETE_CONTAINER: i32 = 20;
    let mut stream = TcpStream::connect(place.server().socket_addr()).await.expect("it listens");
    let mut hello = [0i32.to_be_bytes().as_slice(), &[0; 8], &10_000i32.to_be_bytes(), &[0; 8]].concat();
    hello.extend(16i32.to_be_bytes());
    hello.extend([0; 17]);
    let length = i32::try_from(path.len()).expect("a short path");
    let words = [1, DELETE_CONTAINER, length].map(i32::to_be_bytes).concat();
    for frame in [hello, [words.as_slice(), path.as_bytes()].concat()] {
        let length = i32::try_from(frame.len()).expect("a short frame");
        stream.write_all(&[&length.to_be_bytes(), frame.as_slice()].concat()).await.expect("it reads");
    }
    let mut answer = Vec::new();
    for _ in 0..2 {
        let length = in_time(stream.read_i32()).await.expect("it answers");
        answer = vec![0; usize::try_from(length).expect("a length")];
        in_time(stream.read_exact(&mut answer)).await.expect("it answers");
    }
    i32::from_be_bytes(answer[12..16].try_into().expect("four"))
}

on_both_arms!(what_the_service_asks_itself_takes_no_hardened_lock_away, |place| async move {
    let zl = open(&place, settings().hardened()).await;
    let guard = zl.mutex("nightly").lock().await.expect("free");
    let node = format!("{}{}", place.chroot(), guard.node_path());
    for path in [node.clone(), directory(&place, "nightly")] {
        assert_ne!(remove_as_the_service(&place, &path).await, 0, "{path}");
    }
    let client = tree::connect(&place.addr()).await.expect("a session");
    assert!(client.check_stat(&node).await.expect("it answers").is_some());
    assert!(guard.is_valid());
    guard.release().await.expect("ours");
    zl.close().await;
});

on_both_arms!(a_forged_record_hands_no_hardened_lock_over, |place| async move {
    // Whoever made the directory had it for a while, and says that the one before the last has released the lock.
    let forger = fellow(&place).await;
    let list = |permission| [Acl::new(permission, AuthId::authed())];
    let (wide, narrow) = (list(Permission::ALL), list(Permission::CREATE | Permission::READ));
    let persistent = CreateMode::Persistent.with_acls(Acls::new(&wide));
    let lock = directory(&place, "nightly");
    forger.create(&format!("{}/locks", place.chroot()), b"", &persistent).await.expect("it may create");
    let (stat, _) = forger.create(&lock, b"", &persistent).await.expect("it may create");
    let forged = format!("zoolock/1 lock {:#x} released 0000000001", stat.czxid);
    forger.set_data(&lock, forged.as_bytes(), None).await.expect("it is its own");
    forger.set_acl(&lock, &narrow, None).await.expect("it is its own");
    let zl = open(&place, hardened()).await;
    let guard = zl.mutex("nightly").lock().await.expect("free");
    let (nearer, last) = (zl.mutex("nightly"), zl.mutex("nightly"));
    let nearer = tokio::spawn(async move { nearer.lock().await.map(drop) });
    until_queued(&zl, "nightly", 2).await;
    let mut last = tokio::spawn(async move { last.lock().await });
    until_queued(&zl, "nightly", 3).await;
    nearer.abort();
    assert!(timeout(MOMENT, &mut last).await.is_err(), "two hold");
    assert!(guard.is_valid());
    guard.release().await.expect("ours");
    in_time(last).await.expect("it does not panic").expect("its turn").release().await.expect("ours");
    zl.close().await;
});

on_both_arms!(
    who_takes_the_next_number_of_a_hardened_lock_keeps_others_out_and_that_is_said,
    |place| async move {
        let zl = open(&place, hardened()).await;
        zl.mutex("nightly").lock().await.expect("free").release().await.expect("ours");
        let forger = fellow(&place).await;
        let readable = [Acl::new(Permission::ALL, AuthId::anyone())];
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::new(&readable));
        let next = format!("{}/lock-0000000002", directory(&place, "nightly"));
        forger.create(&next, b"", &ephemeral).await.expect("it may create");
        let said = denied(in_time(zl.mutex("nightly").lock()).await);
        assert!(said.contains("next number"), "{said}");
        drop(forger);
        zl.close().await;
    }
);

on_both_arms!(who_comes_without_hardening_is_told_why_it_cannot_let_go, |place| async move {
    let zl = open(&place, hardened()).await;
    zl.mutex("nightly").lock().await.expect("free").release().await.expect("ours");
    let plain = open(&place, settings().auth("digest", "jobs:secret")).await;
    let guard = plain.mutex("nightly").lock().await.expect("free");
    assert!(denied(guard.release().await).contains("--hardened"));
    assert!(zl.mutex("nightly").try_lock().await.expect("it answers").is_none());
    plain.close().await;
    in_time(zl.mutex("nightly").lock()).await.expect("free").release().await.expect("ours");
    zl.close().await;
});

on_both_arms!(what_needs_more_than_to_create_and_read_is_refused, |place| async move {
    let zl = open(&place, hardened()).await;
    let mutex = || zl.mutex("nightly");
    for (handle, word) in [
        (mutex().crash_detection(), "crash detection"),
        (mutex().batching(10, MOMENT), "batching"),
        (mutex().linger(MOMENT), "linger"),
        (mutex().naming(Naming::Curator), "naming"),
        (mutex().kazoo_pattern(), "naming"),
    ] {
        assert!(invalid(handle.try_lock().await).contains(word), "{word}");
    }
    let rwlock = zl.rwlock("config");
    assert!(invalid(rwlock.upgradable_read().await).contains("take the write lock"));
    let read = rwlock.read().await.expect("free");
    let refused = read.upgrade().await.expect_err("it would have to delete");
    assert!(matches!(refused.error, Error::Invalid { .. }), "{}", refused.error);
    assert!(refused.guard.is_valid(), "it reads on");
    refused.guard.release().await.expect("ours");
    let write = in_time(rwlock.write()).await.expect("free");
    assert!(invalid(write.downgrade().await).contains("let go, and ask again"));
    in_time(rwlock.write()).await.expect("it was let go").release().await.expect("ours");
    // A mutex was here first, so its directory has no size.
    mutex().lock().await.expect("free").release().await.expect("ours");
    assert!(denied(zl.semaphore("nightly", 2).acquire().await).contains("not made for a hardened semaphore"));
    zl.close().await;
});

#[tokio::test]
async fn settings_of_hardened_locks_that_make_no_sense_are_refused_before_anything_is_sent() {
    let builders = [
        (hardened().world_writable(), "world-writable"),
        (settings().auth("digest", "a:b").member("x509", "CN=ci"), "hardened"),
        (settings().hardened().member("x509", "CN=ci"), "credentials"),
        (hardened().member("x509", ""), "nobody"),
        (settings().hardened().reader("x509", "CN=ops"), "credentials"),
    ];
    for (builder, word) in builders {
        assert!(invalid(builder.connect("h:1").await.map(drop)).contains(word), "{word}");
    }
}
