//! Attacks by a client with write permission for the lock directory, and attacks with a request for
//! which the server checks no access control list.

use std::time::Duration;

use bytes::BytesMut;
use tokio::time::timeout;
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};
use zoolock_tests::locks::{
    await_guard, connect, directory, lock_in_background, settings, short_session_settings, until_queued,
};
use zoolock_tests::raw_client::RawClient;
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{Place, TestFailure, on_both_servers, opcode, tree};
use zoolock_wire::{RequestHeader, Writer};

use super::BOUND;

/// Time during which a waiter must not be granted the lock.
const MOMENT: Duration = Duration::from_millis(300);

async fn in_time<T>(step: impl Future<Output = T>) -> T {
    timeout(BOUND, step).await.expect("done in time")
}

on_both_servers!(forged_contender_delays_waiters_and_grants_nobody, |place| async move {
    let zl = connect(&place).await;
    let observer = tree::connect(&place.addr()).await.expect("connected");
    let anyone = [Acl::new(Permission::ALL, AuthId::anyone())];
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::new(&anyone));
    // The holder has number 0, and the waiter gets number 3. The forged znode has a number in
    // between, so it is the waiter's predecessor.
    for number in [1, 2] {
        let name = format!("nightly-{number}");
        let lock = directory(&place, &name);
        let forged = format!("{lock}/lock-{number:010}");
        let guard = zl.mutex(&name).lock().await.expect("lock granted");
        let forger = tree::connect(&place.addr()).await.expect("connected");
        forger.create(&format!("{lock}/x"), b"", &ephemeral).await.expect("znode created");
        forger.create(&forged, b"", &ephemeral).await.expect("znode created");
        let mutex = zl.mutex(&name);
        let mut waiter = tokio::spawn(async move { mutex.lock().await });
        until_queued(&zl, &name, 3).await;
        // The forged znode is deleted with its session while the lock is held.
        drop(forger);
        let deleted = async || match observer.check_stat(&forged).await.expect("server answered") {
            None => Ok(()),
            Some(_) => Err(TestFailure::new("it still exists")),
        };
        retry_until_ok("the forged znode is deleted", BOUND, deleted).await.expect("znode deleted");
        assert!(timeout(MOMENT, &mut waiter).await.is_err(), "two holders");
        // Waiters also wait for a forged znode when no contender holds the lock.
        let forger = tree::connect(&place.addr()).await.expect("connected");
        forger.create(&forged, b"", &ephemeral).await.expect("znode created");
        guard.release().await.expect("lock released");
        assert!(timeout(MOMENT, &mut waiter).await.is_err(), "the forged znode was ignored");
        drop(forger);
        let guard = in_time(waiter).await.expect("the task does not panic").expect("lock granted");
        guard.release().await.expect("lock released");
    }
    zl.close().await;
});

on_both_servers!(unreadable_directory_does_not_end_the_hold, |place| async move {
    let holder = short_session_settings().connect(&place.connect_string()).await.expect("connected");
    let next = short_session_settings().connect(&place.connect_string()).await.expect("connected");
    let guard = holder.mutex("nightly").lock().await.expect("lock granted");
    let waiting = lock_in_background(&next.mutex("nightly"));
    until_queued(&holder, "nightly", 2).await;
    // A lease renewal checks the lock directory, for which it needs the read permission. If the server refuses the check,
    // the renewal checks the root instead.
    let spoiler = tree::connect(&place.addr()).await.expect("connected");
    let directory = directory(&place, "nightly");
    let hidden = [Acl::new(
        Permission::CREATE | Permission::DELETE | Permission::WRITE | Permission::ADMIN,
        AuthId::anyone(),
    )];
    spoiler.set_acl(&directory, &hidden, None).await.expect("ACL set");
    let lease = guard.valid_until();
    let outlived = retry_until_ok("the first lease has passed", BOUND, async || match lease.has_passed() {
        true => Ok(()),
        false => Err(TestFailure::new(format!("{:?} are left", lease.remaining()))),
    });
    outlived.await.expect("first lease has passed");
    assert!(guard.is_valid() && !waiting.is_finished());
    spoiler.set_acl(&directory, &Acls::anyone_all(), None).await.expect("ACL set");
    in_time(guard.release()).await.expect("lock released");
    await_guard(waiting).await.release().await.expect("lock released");
    holder.close().await;
    next.close().await;
});

/// Sends `deleteContainer` from a session without credentials. Returns the error code of the reply.
///
/// The server itself uses this request to remove an empty container, and checks no access control
/// list for it.
async fn delete_container(place: &Place, path: &str) -> i32 {
    let mut client =
        RawClient::open_session(place.server().socket_addr(), 10_000, 0).await.expect("connected");
    let mut frame = BytesMut::new();
    Writer::frame(&mut frame, |writer| {
        RequestHeader { xid: 1, op: opcode::DELETE_CONTAINER }.encode(writer);
        writer.string(path);
    });
    client.write(&frame).await.expect("request sent");
    let (header, _) = client.read_reply(opcode::DELETE_CONTAINER).await.expect("server answered");
    header.err
}

on_both_servers!(delete_container_removes_no_held_lock, |place| async move {
    let builder = settings().auth("digest", "jobs:secret");
    let zl = builder.connect(&place.connect_string()).await.expect("connected");
    let guard = zl.mutex("nightly").lock().await.expect("lock granted");
    let node = format!("{}{}", place.chroot(), guard.node_path());
    for path in [node.clone(), directory(&place, "nightly")] {
        assert_ne!(delete_container(&place, &path).await, 0, "{path}");
    }
    let client = tree::connect(&place.addr()).await.expect("connected");
    assert!(client.check_stat(&node).await.expect("server answered").is_some());
    assert!(guard.is_valid());
    guard.release().await.expect("lock released");
    zl.close().await;
});
