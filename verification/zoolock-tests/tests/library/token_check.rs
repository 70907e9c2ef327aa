//! Whether a token is that of a present holder.

use std::time::Duration;

use zoolock::admin::TokenCheck;
use zoolock::{Error, Ticket, Zoolock};
use zoolock_tests::locks::{connect, lock_in_background, settings, until_queued};
use zoolock_tests::on_both_servers;
use zoolock_tests::wait::finish_in_time;

async fn is_current((zl, name): (&Zoolock, &str), ticket: impl Into<Ticket>) -> bool {
    matches!(
        finish_in_time(zl.admin().check_token(name, ticket)).await.expect("check succeeds"),
        TokenCheck::Current
    )
}

/// Returns the process of the first holder.
async fn holder_of((zl, name): (&Zoolock, &str), ticket: impl Into<Ticket>) -> Option<u32> {
    match finish_in_time(zl.admin().check_token(name, ticket)).await.expect("check succeeds") {
        TokenCheck::NotCurrent { holder, .. } => holder.and_then(|holder| holder.pid),
        current => panic!("{current:?}"),
    }
}

on_both_servers!(token_is_current_while_its_holder_holds, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let (mutex, seen) = (zl.mutex("x"), (&other, "x"));
    let first = mutex.lock().await.expect("lock acquired");
    let (token, ticket) = (first.token(), first.ticket());
    assert!(is_current(seen, token).await && is_current(seen, ticket).await);
    let waiting = lock_in_background(&mutex);
    until_queued(&other, "x", 2).await;
    let queue = other.admin().snapshot("x").await.expect("read succeeds");
    let waiter: Ticket = queue.waiters[0].token.expect("a token");
    assert_eq!(holder_of(seen, waiter).await, Some(std::process::id()), "a waiter does not hold");
    first.release().await.expect("release succeeds");
    let second = finish_in_time(waiting).await.expect("task ends").expect("lock acquired");
    assert!(second.ticket() == waiter && is_current(seen, waiter).await);
    assert_eq!(holder_of(seen, token).await, Some(std::process::id()), "the token is old");
    second.release().await.expect("release succeeds");
    assert_eq!(holder_of(seen, waiter).await, None);
    assert_eq!(holder_of((&other, "never used"), token).await, None);
});

on_both_servers!(tickets_of_other_kinds_are_current, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let (one, two) =
        (zl.rwlock("rw").read().await.expect("acquired"), other.rwlock("rw").read().await.expect("acquired"));
    let permits = zl.semaphore("sem", 3).acquire(2).await.expect("acquired");
    let both = zl.multi(["a", "b"]).lock().await.expect("acquired");
    assert!(is_current((&other, "rw"), one.ticket()).await && is_current((&zl, "rw"), two.ticket()).await);
    assert!(is_current((&other, "sem"), permits.ticket()).await);
    assert!(is_current((&other, "a"), both.ticket()).await);
    one.release().await.expect("release succeeds");
    assert_eq!(holder_of((&other, "rw"), permits.ticket()).await, Some(std::process::id()));
    // Each task of a shared hold has a token of its own, and the server knows only that of the znode.
    let shared = zl.mutex("shared").shared_hold(Duration::from_secs(5));
    let first = shared.lock().await.expect("acquired");
    let token = first.token();
    let next = tokio::spawn({
        let shared = shared.clone();
        async move { shared.lock().await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    first.release().await.expect("release succeeds");
    let next = finish_in_time(next).await.expect("task ends").expect("acquired");
    assert!(next.token() > token && is_current((&other, "shared"), next.token()).await);
    next.release().await.expect("release succeeds");
});

on_both_servers!(unreadable_holder_is_no_answer, |place| async move {
    let owner = settings().auth("digest", "jobs:secret").connect(&place.connect_string()).await;
    let owner = owner.expect("session starts");
    let guard = owner.mutex("secret/held").lock().await.expect("lock acquired");
    let stranger = connect(&place).await;
    let error = finish_in_time(stranger.admin().check_token("secret/held", guard.token())).await;
    assert!(matches!(error, Err(Error::Denied { .. })), "{error:?}");
    guard.release().await.expect("release succeeds");
});
