//! `AnyGuard`, the guard of a lock of any kind.

use std::time::Duration;

use zoolock::{AnyGuard, Error, Owner, Previous, Zoolock};
use zoolock_tests::locks::connect;
use zoolock_tests::on_both_servers;

/// Holds one lock of each kind. Returns each guard with the name of its kind, and with whether it holds alone.
async fn hold_each_kind(zl: &Zoolock) -> Result<Vec<(&'static str, AnyGuard, bool)>, Error> {
    let lock = |name| zl.rwlock(name);
    let upgraded = lock("upgraded").upgradable_read().await?.upgrade().await?;
    let back = lock("back").upgradable_read().await?.upgrade().await?.downgrade().await?;
    Ok(vec![
        ("mutex", zl.mutex("mutex").lock().await?.into(), true),
        ("owner", zl.mutex("owner").lock_as(&Owner::new()).await?.into(), true),
        ("shared hold", zl.mutex("shared").shared_hold(Duration::ZERO).lock().await?.into(), true),
        ("writer", lock("writer").write().await?.into(), true),
        ("reader", lock("reader").read().await?.into(), false),
        ("upgradable reader", lock("upgradable").upgradable_read().await?.into(), false),
        ("upgraded reader", upgraded.into(), true),
        ("downgraded writer", lock("downgraded").write().await?.downgrade().await?.into(), false),
        ("reader that was upgraded", back.into(), false),
        ("permits", zl.semaphore("semaphore", 3).acquire(2).await?.into(), false),
        ("multi-lock", zl.multi(["one", "two"]).lock().await?.into(), true),
        ("reader of a multi-lock", zl.multi(["one-read", "two-read"]).read().await?.into(), false),
    ])
}

on_both_servers!(any_guard_has_token_only_if_it_holds_alone, |place| async move {
    let zl = connect(&place).await;
    let guards = hold_each_kind(&zl).await.expect("locks acquired");
    for (kind, guard, holds_alone) in &guards {
        assert!(guard.is_valid() && guard.loss().is_none(), "{kind}");
        assert_eq!(guard.token().is_some(), *holds_alone, "{kind}");
        assert_eq!(guard.previous(), Previous::Unknown, "{kind}");
    }
});

on_both_servers!(any_guard_releases_each_kind, |place| async move {
    let zl = connect(&place).await;
    for dropped in [false, true] {
        for (kind, guard, _) in hold_each_kind(&zl).await.expect("locks acquired") {
            if dropped {
                drop(guard);
            } else {
                guard.release().await.unwrap_or_else(|error| panic!("{kind}: {error}"));
            }
        }
        let locks = zl.admin().locks(None, usize::MAX).await.expect("locks read");
        let held: Vec<&str> =
            locks.iter().filter(|lock| lock.holder.is_some()).map(|lock| lock.path.as_str()).collect();
        assert_eq!(held, [""; 0], "after a drop: {dropped}");
    }
});

on_both_servers!(any_guard_of_owner_leaves_lock_to_other_guards, |place| async move {
    let zl = connect(&place).await;
    let (mutex, owner) = (zl.mutex("m"), Owner::new());
    let outer = AnyGuard::from(mutex.lock_as(&owner).await.expect("lock acquired"));
    let inner = AnyGuard::from(mutex.lock_as(&owner).await.expect("owner holds the lock"));
    assert_eq!(inner.token(), outer.token());
    outer.release().await.expect("other guard keeps the lock");
    assert!(inner.is_valid() && mutex.try_lock().await.expect("server answers").is_none());
    inner.release().await.expect("release succeeds");
    assert!(mutex.try_lock().await.expect("server answers").is_some());
});
