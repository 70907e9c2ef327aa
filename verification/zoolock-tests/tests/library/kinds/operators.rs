//! Revocation, broken locks, lock events and fenced ZooKeeper transactions.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock::{Error, LockEvent, LossReason, Previous, Ticket};
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{TestFailure, on_both_servers, tree};

use zoolock_tests::locks::{
    await_guard, connect, directory, lock_in_background, short_session_settings, until_queued,
};

const SOON: Duration = Duration::from_secs(20);

on_both_servers!(revoke_reaches_holders_of_every_kind, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let guard = zl.mutex("m").lock().await.expect("lock acquired");
    assert!(!guard.is_revoked());
    other.admin().revoke("m", guard.token()).await.expect("znode exists");
    timeout(SOON, guard.revoked()).await.expect("event arrives in time");
    assert!(guard.is_revoked() && guard.is_valid(), "a revocation alone does not end the hold");
    let shown = other.admin().snapshot("m").await.expect("snapshot read").holder.expect("lock has a holder");
    assert!(shown.pid.is_some(), "the holder is still identified");
    guard.release().await.expect("release succeeds");

    let reader = zl.rwlock("r").read().await.expect("lock acquired");
    other.admin().revoke("r", reader.ticket()).await.expect("znode exists");
    timeout(SOON, reader.revoked()).await.expect("event arrives in time");
    let permits = zl.semaphore("s", 3).acquire(2).await.expect("lock acquired");
    other.admin().revoke("s", permits.ticket()).await.expect("znode exists");
    timeout(SOON, permits.revoked()).await.expect("event arrives in time");
    let multi = zl.multi(["x", "y"]).lock().await.expect("lock acquired");
    other.admin().revoke("y", multi.token()).await.expect("znode exists");
    timeout(SOON, multi.revoked()).await.expect("event arrives in time");
    let error = other.admin().revoke("m", multi.token()).await.expect_err("no such holder");
    assert!(matches!(error, Error::NoSuchHolder { .. }), "{error}");
});

on_both_servers!(both_revocation_words_reach_waiters_too, |place| async move {
    let zl = connect(&place).await;
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    for (name, word) in [("unlock", &b"unlock"[..]), ("curator", b"__REVOKE__")] {
        let held = zl.mutex(name).lock().await.expect("lock acquired");
        let waiting = tokio::spawn({
            let zl = zl.clone();
            async move { zl.mutex(name).lock().await }
        });
        until_queued(&zl, name, 2).await;
        for number in 0..2 {
            let node = format!("{}/lock-{number:010}", directory(&place, name));
            operator.set_data(&node, word, None).await.expect("znode exists");
        }
        timeout(SOON, held.revoked()).await.expect("event arrives in time");
        held.release().await.expect("release succeeds");
        let next = timeout(SOON, await_guard(waiting)).await.expect("granted in time");
        timeout(SOON, next.revoked()).await.expect("revocation reported after the grant");
        next.release().await.expect("release succeeds");
        tree::assert_no_contenders(&place.addr(), &directory(&place, name)).await;
    }
});

on_both_servers!(granted_waiter_reads_whether_it_was_revoked, |place| async move {
    let zl = connect(&place).await;
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    for (name, asked) in [("quiet", false), ("asked", true)] {
        let other = format!("{name}-too");
        let held = zl.mutex(name).lock().await.expect("lock acquired");
        assert!(
            !timeout(SOON, held.revoked_by_now()).await.expect("answered in time"),
            "no contender was revoked"
        );
        let held_too = zl.mutex(&other).lock().await.expect("lock acquired");
        let waiting = tokio::spawn({
            let zl = zl.clone();
            async move { zl.mutex(name).lock().await }
        });
        until_queued(&zl, name, 2).await;
        let several = tokio::spawn({
            let (zl, other) = (zl.clone(), other.clone());
            async move { zl.multi([name, &other]).lock().await }
        });
        until_queued(&zl, &other, 2).await;
        if asked {
            for node in [format!("{name}/lock-0000000001"), format!("{other}/lock-0000000001")] {
                operator.set_data(&directory(&place, &node), b"unlock", None).await.expect("znode exists");
            }
        }
        held_too.release().await.expect("release succeeds");
        held.release().await.expect("release succeeds");
        let next = timeout(SOON, await_guard(waiting)).await.expect("granted in time");
        assert_eq!(timeout(SOON, next.revoked_by_now()).await.expect("answered in time"), asked, "{name}");
        assert_eq!(next.is_revoked(), asked, "{name}");
        next.release().await.expect("release succeeds");
        let next = timeout(SOON, await_guard(several)).await.expect("granted in time");
        assert_eq!(timeout(SOON, next.revoked_by_now()).await.expect("answered in time"), asked, "{other}");
        next.release().await.expect("release succeeds");
    }
});

on_both_servers!(break_lock_affects_only_the_named_ticket, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let guard = zl.mutex("breakable").lock().await.expect("lock acquired");
    let first = guard.token();
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.mutex("breakable").lock().await }
    });
    until_queued(&zl, "breakable", 2).await;
    other.admin().break_lock("breakable", first).await.expect("znode exists");
    assert_eq!(timeout(SOON, guard.lost()).await.expect("event arrives in time"), LossReason::Broken);
    let next = timeout(SOON, await_guard(waiting)).await.expect("granted in time");
    assert_eq!(next.previous(), Previous::Unknown);
    let error = other.admin().break_lock("breakable", first).await.expect_err("holder has changed");
    assert!(matches!(error, Error::NoSuchHolder { .. }), "{error}");
    assert!(error.to_string().contains(&first.to_string()), "{error}");
    assert!(next.is_valid());
    drop(guard);
    next.release().await.expect("release succeeds");
    // The audit entry names the operator and the broken ticket.
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    let audit = format!("{}/locks/.audit", place.chroot());
    let lines = operator.list_children(&audit).await.expect("znode exists");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let (line, _) = operator.get_data(&format!("{audit}/{}", lines[0])).await.expect("audit entry read");
    let line: serde_json::Value = serde_json::from_slice(&line).expect("audit entry is JSON");
    assert_eq!(line["path"], "/locks/breakable");
    assert_eq!(line["token"], first.to_string());
    assert!(line["by"]["pid"].is_number(), "{line}");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "breakable")).await;
});

on_both_servers!(audit_entry_has_no_session_id, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("recipe").lock().await.expect("lock acquired");
    let client = tree::connect(&place.addr()).await.expect("session starts");
    let recipe = format!("{}/x-72057594037927936-", directory(&place, "recipe"));
    let sequential = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    client.create(&recipe, b"", &sequential).await.expect("znode created");
    let seen = zl.admin().snapshot("recipe").await.expect("snapshot read");
    let waiter = seen.waiters.first().and_then(|waiter| waiter.token).expect("recipe is queued");
    zl.admin().break_lock("recipe", waiter).await.expect("znode exists");
    let audit = format!("{}/locks/.audit", place.chroot());
    let lines = client.list_children(&audit).await.expect("znode exists");
    let (line, _) = client.get_data(&format!("{audit}/{}", lines[0])).await.expect("audit entry read");
    let line = String::from_utf8(line).expect("audit entry is text");
    assert!(line.contains(r#""number":1,"#) && !line.contains("72057594037927936"), "{line}");
    guard.release().await.expect("release succeeds");
});

on_both_servers!(contender_with_children_is_not_broken, |place| async move {
    let zl = connect(&place).await;
    let client = tree::connect(&place.addr()).await.expect("session starts");
    let job = format!("{}/job-0000000000", directory(&place, "jobs"));
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir(&format!("{job}/child"), &persistent).await.expect("znodes created");
    let seen = zl.admin().snapshot("jobs").await.expect("snapshot read");
    let token = seen.holder.and_then(|holder| holder.token).expect("the znode is a contender");
    let error = zl.admin().break_lock("jobs", token).await.expect_err("the znode has a child");
    let is_named =
        matches!(&error, Error::Invalid { message, .. } if message.contains("znode with children"));
    assert!(is_named, "{error}");
    assert_eq!(client.list_children(&job).await.expect("znode exists"), ["child"]);
});

on_both_servers!(ticket_of_another_epoch_is_not_found, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("epochs").lock().await.expect("lock acquired");
    let other: Ticket =
        guard.token().to_string().replacen("00000000", "00000001", 1).parse().expect("ticket is valid");
    let error = zl.admin().break_lock("epochs", other).await.expect_err("ticket has another epoch");
    assert!(matches!(error, Error::NoSuchHolder { .. }), "{error}");
    assert!(guard.is_valid());
});

on_both_servers!(stream_receives_every_event, |place| async move {
    let zl = short_session_settings().connect(&place.connect_string()).await.expect("session starts");
    let mutex = zl.mutex("story");
    let mut stream = mutex.events();
    let held = zl.mutex("story").lock().await.expect("lock acquired");
    let waiting = lock_in_background(&mutex);
    until_queued(&zl, "story", 2).await;
    held.release().await.expect("release succeeds");
    let guard = timeout(SOON, await_guard(waiting)).await.expect("granted in time");
    let ticket = guard.ticket();
    zl.admin().revoke("story", ticket).await.expect("znode exists");
    timeout(SOON, guard.revoked()).await.expect("event arrives in time");
    guard.release().await.expect("release succeeds");
    let guard = mutex.lock().await.expect("lock acquired");
    let second = guard.ticket();
    zl.admin().break_lock("story", second).await.expect("znode exists");
    timeout(SOON, guard.lost()).await.expect("event arrives in time");
    drop(guard);
    let gave_up = zl.mutex("story").lock().await.expect("lock acquired");
    assert!(mutex.try_lock().await.expect("attempt succeeds").is_none());
    drop(gave_up);
    let story = [
        LockEvent::Queued { ahead: 1 },
        LockEvent::Acquired(ticket),
        LockEvent::Revoked(ticket),
        LockEvent::Released(ticket),
        LockEvent::Acquired(second),
        LockEvent::Lost(second, LossReason::Broken),
    ];
    for expected in &story {
        let event = timeout(SOON, stream.next())
            .await
            .expect("event arrives in time")
            .expect("event stream continues");
        assert_eq!(event, *expected);
    }
    let last = |event: Option<LockEvent>| matches!(event, Some(LockEvent::Queued { .. } | LockEvent::GaveUp));
    assert!(last(timeout(SOON, stream.next()).await.expect("event arrives in time")));
});

on_both_servers!(disconnect_sends_suspect_then_confirmed, |place| async move {
    let proxy = zoolock_tests::Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = short_session_settings()
        .connect(&place.connect_string_through(&proxy.addr()))
        .await
        .expect("session starts");
    let mutex = zl.mutex("silence");
    let mut events = mutex.events();
    let guard = mutex.lock().await.expect("lock acquired");
    let ticket = guard.ticket();
    assert_eq!(
        timeout(SOON, events.next()).await.expect("event arrives in time"),
        Some(LockEvent::Acquired(ticket))
    );
    proxy.close_connections().await;
    assert_eq!(
        timeout(SOON, events.next()).await.expect("event arrives in time"),
        Some(LockEvent::Suspect(ticket))
    );
    assert_eq!(
        timeout(SOON, events.next()).await.expect("event arrives in time"),
        Some(LockEvent::Confirmed(ticket))
    );
    assert!(guard.is_valid());
});

on_both_servers!(waiter_requeues_on_session_expiry, |place| async move {
    let (zl, proxy) = {
        let proxy = zoolock_tests::Proxy::start(&place.addr()).await.expect("proxy starts");
        (
            short_session_settings()
                .connect(&place.connect_string_through(&proxy.addr()))
                .await
                .expect("session starts"),
            proxy,
        )
    };
    let other = connect(&place).await;
    let held = other.mutex("again").lock().await.expect("lock acquired");
    let waiting = tokio::spawn(async move { zl.mutex("again").lock().await });
    until_queued(&other, "again", 2).await;
    proxy.blackhole(true);
    let gone = || async {
        let seen = other.admin().snapshot("again").await.map_err(|e| TestFailure::new(e.to_string()))?;
        if seen.waiters.is_empty() { Ok(()) } else { Err(TestFailure::new("the waiter is still queued")) }
    };
    retry_until_ok("the waiter's session expires", SOON, gone).await.expect("condition is met in time");
    proxy.blackhole(false);
    until_queued(&other, "again", 2).await;
    held.release().await.expect("release succeeds");
    let guard = timeout(SOON, await_guard(waiting)).await.expect("granted in time");
    guard.release().await.expect("release succeeds");
});

on_both_servers!(fenced_transaction_fails_after_lock_loss, |place| async move {
    let zl = connect(&place).await;
    let client = tree::connect(&place.addr()).await.expect("session starts");
    let state = format!("{}/state", place.chroot());
    let persistent = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    client.mkdir(&state, &persistent).await.expect("znode created");
    let write = |check: zoolock::Check, data: &'static [u8]| {
        let (client, state) = (client.clone(), state.clone());
        async move {
            let mut writer = client.new_multi_writer();
            writer.add_check_version(&check.path, check.version).expect("path is valid");
            writer.add_set_data(&state, data, None).expect("path is valid");
            writer.commit().await
        }
    };
    let guard = zl.mutex("fenced").lock().await.expect("lock acquired");
    let check = guard.check();
    write(check.clone(), b"release succeeds").await.expect("transaction commits while the lock is held");
    zl.admin().revoke("fenced", guard.token()).await.expect("znode exists");
    timeout(SOON, guard.revoked()).await.expect("event arrives in time");
    write(check.clone(), b"still ours").await.expect("transaction commits after a revocation");
    zl.admin().break_lock("fenced", guard.token()).await.expect("znode exists");
    write(check, b"late").await.expect_err("lock is lost");
    assert_eq!(client.get_data(&state).await.expect("znode exists").0, b"still ours");
    // For an upgraded reader, `check` names the write znode.
    let writer = zl
        .rwlock("fenced/rw")
        .upgradable_read()
        .await
        .expect("lock acquired")
        .upgrade()
        .await
        .expect("upgrade succeeds");
    let check = writer.check();
    assert!(check.path.contains("__WRIT__"), "{check:?}");
    write(check, b"writer").await.expect("transaction commits while the lock is held");
});
