//! A client with rights in the queue, and requests that no access control list covers.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Error as Refusal, Permission};
use zoolock::{Error, LossReason};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, on_both_arms, opcode, tree};

use super::BOUND;
use zoolock_tests::locks::{brisk_settings, connect, directory, settings, until_queued};

/// How long a waiter is watched that must not be granted the lock.
const MOMENT: Duration = Duration::from_millis(300);

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(BOUND, what).await.expect("done in time")
}

on_both_arms!(forged_contender_delays_waiters_and_grants_nobody, |place| async move {
    let zl = connect(&place).await;
    let looker = tree::connect(&place.addr()).await.expect("a session");
    let anyone = [Acl::new(Permission::ALL, AuthId::anyone())];
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::new(&anyone));
    // The holder has number 0 and the waiter gets number 3. With 2 the forged znode is its computed predecessor.
    for number in [1, 2] {
        let name = format!("nightly-{number}");
        let lock = directory(&place, &name);
        let forged = format!("{lock}/lock-{number:010}");
        let guard = zl.mutex(&name).lock().await.expect("free");
        let forger = tree::connect(&place.addr()).await.expect("a session");
        forger.create(&format!("{lock}/x"), b"", &ephemeral).await.expect("created");
        forger.create(&forged, b"", &ephemeral).await.expect("created");
        let mutex = zl.mutex(&name);
        let mut waiter = tokio::spawn(async move { mutex.lock().await });
        until_queued(&zl, &name, 3).await;
        // The forged znode goes with its session while the lock is held.
        drop(forger);
        let gone = async || match looker.check_stat(&forged).await.expect("answered") {
            None => Ok(()),
            Some(_) => Err(Failure::new("it still exists")),
        };
        eventually("the forged znode goes", BOUND, gone).await.expect("its session was closed");
        assert!(timeout(MOMENT, &mut waiter).await.is_err(), "two holders");
        // Waiters wait for a forged znode also when nobody holds the lock.
        let forger = tree::connect(&place.addr()).await.expect("a session");
        forger.create(&forged, b"", &ephemeral).await.expect("created");
        guard.release().await.expect("released");
        assert!(timeout(MOMENT, &mut waiter).await.is_err(), "the forged znode was ignored");
        drop(forger);
        let guard = in_time(waiter).await.expect("no panic").expect("lock granted");
        guard.release().await.expect("released");
    }
    zl.close().await;
});

on_both_arms!(holder_without_renewals_loses_before_the_next_grant, |place| async move {
    let holder = brisk_settings().connect(&place.connect_string()).await.expect("a session");
    let next = brisk_settings().connect(&place.connect_string()).await.expect("a session");
    let guard = holder.mutex("nightly").lock().await.expect("free");
    let spoiler = tree::connect(&place.addr()).await.expect("a session");
    let renewals = directory(&place, ".sessions");
    let written = async || match spoiler.list_children(&renewals).await {
        Ok(nodes) if nodes.len() == 1 => Ok(nodes),
        other => Err(Failure::new(format!("{other:?}"))),
    };
    let nodes = eventually("the holder renews", BOUND, written).await.expect("renewed by writes");
    // A znode of that name to which the holder may not write.
    let readable = [Acl::new(Permission::READ, AuthId::anyone())];
    let persistent = CreateMode::Persistent.with_acls(Acls::new(&readable));
    let node = format!("{renewals}/{}", nodes[0]);
    let spoil = async || match spoiler.delete(&node, None).await {
        Ok(()) | Err(Refusal::NoNode) => {
            spoiler.create(&node, b"", &persistent).await.map_err(|error| Failure::new(error.to_string()))
        }
        Err(error) => Err(Failure::new(error.to_string())),
    };
    eventually("the znode is replaced", BOUND, spoil).await.expect("the directory is open");
    assert!(guard.is_valid(), "renewed until now");
    let mutex = next.mutex("nightly");
    let mut waiter = tokio::spawn(async move { mutex.lock().await });
    let told = in_time(async {
        tokio::select! {
            biased;
            reason = guard.lost() => reason,
            _ = &mut waiter => panic!("two holders"),
        }
    });
    assert_eq!(told.await, LossReason::Unreachable);
    assert!(!guard.is_valid());
    let released = in_time(guard.release()).await;
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    in_time(waiter).await.expect("no panic").expect("lock granted").release().await.expect("released");
    holder.close().await;
    next.close().await;
});

/// Sends the server's own request to remove an empty container, which checks no access control list, from a session
/// without credentials. Returns the error code of the answer.
async fn delete_container(place: &Place, path: &str) -> i32 {
    let mut stream = TcpStream::connect(place.server().socket_addr()).await.expect("it listens");
    let mut hello = [0i32.to_be_bytes().as_slice(), &[0; 8], &10_000i32.to_be_bytes(), &[0; 8]].concat();
    hello.extend(16i32.to_be_bytes());
    hello.extend([0; 17]);
    let length = i32::try_from(path.len()).expect("a short path");
    let words = [1, opcode::DELETE_CONTAINER, length].map(i32::to_be_bytes).concat();
    for frame in [hello, [words.as_slice(), path.as_bytes()].concat()] {
        let length = i32::try_from(frame.len()).expect("a short frame");
        stream.write_all(&[&length.to_be_bytes(), frame.as_slice()].concat()).await.expect("sent");
    }
    let mut answer = Vec::new();
    for _ in 0..2 {
        let length = in_time(stream.read_i32()).await.expect("answered");
        answer = vec![0; usize::try_from(length).expect("a length")];
        in_time(stream.read_exact(&mut answer)).await.expect("answered");
    }
    i32::from_be_bytes(answer[12..16].try_into().expect("four bytes"))
}

on_both_arms!(delete_container_removes_no_held_lock, |place| async move {
    let builder = settings().auth("digest", "jobs:secret");
    let zl = builder.connect(&place.connect_string()).await.expect("a session");
    let guard = zl.mutex("nightly").lock().await.expect("free");
    let node = format!("{}{}", place.chroot(), guard.node_path());
    for path in [node.clone(), directory(&place, "nightly")] {
        assert_ne!(delete_container(&place, &path).await, 0, "{path}");
    }
    let client = tree::connect(&place.addr()).await.expect("a session");
    assert!(client.check_stat(&node).await.expect("answered").is_some());
    assert!(guard.is_valid());
    guard.release().await.expect("released");
    zl.close().await;
});
