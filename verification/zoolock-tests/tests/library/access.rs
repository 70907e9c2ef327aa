//! Access control lists of the znodes that a client creates.

use zookeeper_client::{Acl, AuthId, Permission};
use zoolock::{Builder, Error, Zoolock};
use zoolock_tests::locks::{connect, directory, lock_and_release, settings};
use zoolock_tests::{Place, on_both_servers, tree};

async fn open(place: &Place, builder: Builder) -> Zoolock {
    builder.connect(&place.connect_string()).await.expect("session starts")
}

fn ours() -> Builder {
    settings().auth("digest", "jobs:secret")
}

async fn is_denied<T: std::fmt::Debug>(what: impl Future<Output = Result<T, Error>>) {
    match what.await {
        Err(Error::Denied { .. }) => {}
        other => panic!("{other:?}"),
    }
}

on_both_servers!(credentials_protect_every_created_znode, |place| async move {
    let (first, second) = (open(&place, ours()).await, open(&place, ours()).await);
    let (stranger, other) =
        (connect(&place).await, open(&place, settings().auth("digest", "jobs:wrong")).await);
    let guard = first.mutex("nightly").lock().await.expect("lock acquired");
    assert!(second.mutex("nightly").try_lock().await.expect("attempt succeeds").is_none());
    for denied in [&stranger, &other] {
        is_denied(denied.mutex("nightly").try_lock()).await;
        is_denied(denied.admin().snapshot("nightly")).await;
        is_denied(denied.admin().break_lock("nightly", guard.token())).await;
        is_denied(denied.admin().revoke("nightly", guard.token())).await;
        // Creating a sibling is denied too, because the root has the same ACL.
        is_denied(denied.mutex("other").try_lock()).await;
    }
    // The root, the lock directory and the contender's znode have the same ACL.
    let client = tree::connect(&place.addr()).await.expect("session starts");
    client.auth("digest", b"jobs:secret").await.expect("any credentials will do");
    let node = second.admin().snapshot("nightly").await.expect("snapshot read").holder.expect("held").node;
    let top = format!("{}/locks", place.chroot());
    for path in [top, directory(&place, "nightly"), format!("{}/{node}", directory(&place, "nightly"))] {
        let (acls, _) = client.get_acl(&path).await.expect("ACL read succeeds");
        assert_eq!(acls.len(), 1, "{path}: {acls:?}");
        assert_eq!(acls[0].permission(), Permission::ALL, "{path}");
        assert_eq!(acls[0].scheme(), "digest", "{path}");
        assert!(acls[0].id().starts_with("jobs:"), "{path}");
    }
    // The other kinds of lock create znodes with the same ACL. So every client with the credentials
    // may use these locks, and no other client may.
    let rwlock = first.rwlock("config");
    let read = rwlock
        .upgradable_read()
        .await
        .expect("lock acquired")
        .upgrade()
        .await
        .expect("upgrade succeeds")
        .downgrade();
    is_denied(stranger.rwlock("config").read()).await;
    assert!(second.rwlock("config").try_write().await.expect("attempt succeeds").is_none());
    drop(read.await);
    second
        .semaphore("encoders", 2)
        .acquire(1)
        .await
        .expect("permits acquired")
        .release()
        .await
        .expect("release succeeds");
    first.multi(["a", "b"]).lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let tracked = first.mutex("tracked").crash_detection();
    tracked.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    second.admin().break_lock("nightly", guard.token()).await.expect("break succeeds");
    lock_and_release(&second.mutex("nightly")).await;
    for zl in [first, second, stranger, other] {
        zl.close().await;
    }
});

on_both_servers!(denied_audit_write_names_the_path, |place| async move {
    // The root is open to all; each client protects its own locks below it.
    let anybody = connect(&place).await;
    lock_and_release(&anybody.mutex("open")).await;
    let (first, second) =
        (open(&place, ours()).await, open(&place, settings().auth("digest", "ops:x")).await);
    let broken = first.mutex("theirs").lock().await.expect("lock acquired");
    first.admin().break_lock("theirs", broken.token()).await.expect("first break creates the audit znode");
    let kept = second.mutex("mine").lock().await.expect("lock acquired");
    match second.admin().break_lock("mine", kept.token()).await {
        Err(error @ Error::Denied { .. }) => assert!(error.to_string().contains("/locks/.audit"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(kept.is_valid(), "a refused break has no effect");
    kept.release().await.expect("release succeeds");
    for zl in [anybody, first, second] {
        zl.close().await;
    }
});

on_both_servers!(reader_identities_may_only_read, |place| async move {
    let zl = open(&place, ours().allow_read("world", "anyone")).await;
    let guard = zl.mutex("nightly").lock().await.expect("lock acquired");
    let reader = connect(&place).await;
    let seen = reader.admin().snapshot("nightly").await.expect("reader may read");
    assert_eq!(seen.holder.expect("lock has a holder").token, Some(guard.ticket()));
    assert_eq!(reader.admin().locks(None, usize::MAX).await.expect("reader may read").len(), 1);
    is_denied(reader.mutex("nightly").try_lock()).await;
    is_denied(reader.admin().break_lock("nightly", guard.token())).await;
    is_denied(reader.admin().revoke("nightly", guard.token())).await;
    assert!(guard.is_valid());
    guard.release().await.expect("release succeeds");
    zl.close().await;
    reader.close().await;
});

on_both_servers!(world_writable_queue_is_open_without_credentials, |place| async move {
    let zl = open(&place, ours().world_writable()).await;
    let guard = zl.mutex("nightly").lock().await.expect("lock acquired");
    let stranger = connect(&place).await;
    assert!(stranger.mutex("nightly").try_lock().await.expect("attempt succeeds").is_none());
    let client = tree::connect(&place.addr()).await.expect("session starts");
    let (acls, _) = client.get_acl(&directory(&place, "nightly")).await.expect("ACL read succeeds");
    assert_eq!(acls, [Acl::new(Permission::ALL, AuthId::anyone())]);
    guard.release().await.expect("release succeeds");
    lock_and_release(&stranger.mutex("nightly")).await;
    zl.close().await;
    stranger.close().await;
});

#[tokio::test]
async fn invalid_reader_identities_are_refused_locally() {
    let builders = [
        (settings().allow_read("world", "anyone"), "credentials"),
        (ours().allow_read("", "x"), "not a valid identity"),
        (ours().allow_read("digest", "ops:x").world_writable(), "world-writable"),
    ];
    for (builder, word) in builders {
        match builder.connect("h:1").await {
            Err(error @ Error::Invalid { .. }) => assert!(error.to_string().contains(word), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}
