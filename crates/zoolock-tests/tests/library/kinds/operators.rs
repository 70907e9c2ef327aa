//! Asking to let go, taking away, listening, fencing inside ZooKeeper.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;
use zoolock::{Error, LockEvent, LossReason, Previous, Ticket};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, on_both_arms, tree};

use zoolock_tests::locks::{brisk_settings, connect, directory, lock_in_background, until_queued};

const SOON: Duration = Duration::from_secs(20);

on_both_arms!(a_holder_of_any_kind_is_asked_to_let_go, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let guard = zl.mutex("m").lock().await.expect("free");
    assert!(!guard.is_revoked());
    other.mutex("m").revoke(guard.token()).await.expect("it is there");
    timeout(SOON, guard.revoked()).await.expect("told");
    assert!(guard.is_revoked() && guard.is_valid(), "it is only asked");
    let shown = other.mutex("m").snapshot().await.expect("a look").holder.expect("held");
    assert!(shown.pid.is_some(), "it still says who it is");
    guard.release().await.expect("ours");

    let reader = zl.rwlock("r").read().await.expect("free");
    other.rwlock("r").revoke(reader.ticket()).await.expect("it is there");
    timeout(SOON, reader.revoked()).await.expect("told");
    let permits = zl.semaphore("s", 3).acquire_many(2).await.expect("free");
    other.semaphore("s", 3).revoke(permits.ticket()).await.expect("it is there");
    timeout(SOON, permits.revoked()).await.expect("told");
    let multi = zl.multi(["x", "y"]).lock().await.expect("free");
    other.mutex("y").revoke(multi.token()).await.expect("it is there");
    timeout(SOON, multi.revoked()).await.expect("told");
    let error = other.mutex("m").revoke(multi.token()).await.expect_err("not there");
    assert!(matches!(error, Error::NoSuchHolder { .. }), "{error}");
});

on_both_arms!(both_spellings_ask_also_who_still_waits, |place| async move {
    let zl = connect(&place).await;
    let operator = tree::connect(&place.addr()).await.expect("a session");
    for (name, word) in [("unlock", &b"unlock"[..]), ("curator", b"__REVOKE__")] {
        let held = zl.mutex(name).lock().await.expect("free");
        let waiting = tokio::spawn({
            let zl = zl.clone();
            async move { zl.mutex(name).lock().await }
        });
        until_queued(&zl, name, 2).await;
        for number in 0..2 {
            let node = format!("{}/lock-{number:010}", directory(&place, name));
            operator.set_data(&node, word, None).await.expect("there");
        }
        timeout(SOON, held.revoked()).await.expect("told");
        held.release().await.expect("ours");
        let next = timeout(SOON, waiting).await.expect("its turn").expect("no panic").expect("granted");
        timeout(SOON, next.revoked()).await.expect("told when it holds");
        next.release().await.expect("ours");
        tree::assert_no_contenders(&place.addr(), &directory(&place, name)).await;
    }
});

on_both_arms!(who_waited_knows_with_one_look_whether_it_was_asked, |place| async move {
    let zl = connect(&place).await;
    let operator = tree::connect(&place.addr()).await.expect("a session");
    for (name, asked) in [("quiet", false), ("asked", true)] {
        let other = format!("{name}-too");
        let held = zl.mutex(name).lock().await.expect("free");
        assert!(!timeout(SOON, held.revoked_by_now()).await.expect("an answer"), "nobody was there to ask");
        let held_too = zl.mutex(&other).lock().await.expect("free");
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
                operator.set_data(&directory(&place, &node), b"unlock", None).await.expect("there");
            }
        }
        held_too.release().await.expect("ours");
        held.release().await.expect("ours");
        let next = timeout(SOON, waiting).await.expect("its turn").expect("no panic").expect("granted");
        assert_eq!(timeout(SOON, next.revoked_by_now()).await.expect("an answer"), asked, "{name}");
        assert_eq!(next.is_revoked(), asked, "{name}");
        next.release().await.expect("ours");
        let next = timeout(SOON, several).await.expect("its turn").expect("no panic").expect("granted");
        assert_eq!(timeout(SOON, next.revoked_by_now()).await.expect("an answer"), asked, "{other}");
        next.release().await.expect("ours");
    }
});

on_both_arms!(a_lock_is_taken_away_from_the_one_that_was_seen_and_nobody_else, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let guard = zl.mutex("breakable").lock().await.expect("free");
    let first = guard.token();
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.mutex("breakable").lock().await }
    });
    until_queued(&zl, "breakable", 2).await;
    other.mutex("breakable").break_lock(first).await.expect("it is there");
    assert_eq!(timeout(SOON, guard.lost()).await.expect("told"), LossReason::Broken);
    let next = timeout(SOON, waiting).await.expect("its turn").expect("no panic").expect("granted");
    assert_eq!(next.previous(), Previous::Unknown);
    let error = other.mutex("breakable").break_lock(first).await.expect_err("it is gone");
    assert!(matches!(error, Error::NoSuchHolder { .. }), "{error}");
    assert!(error.to_string().contains(&first.to_string()), "{error}");
    assert!(next.is_valid());
    drop(guard);
    next.release().await.expect("ours");
    // Who did it to whom stays to be read.
    let operator = tree::connect(&place.addr()).await.expect("a session");
    let audit = format!("{}/locks/.audit", place.chroot());
    let lines = operator.list_children(&audit).await.expect("it is there");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let (line, _) = operator.get_data(&format!("{audit}/{}", lines[0])).await.expect("a line");
    let line: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
    assert_eq!(line["lock"], "/locks/breakable");
    assert_eq!(line["ticket"], first.to_string());
    assert!(line["by"]["pid"].is_number(), "{line}");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "breakable")).await;
});

on_both_arms!(a_ticket_of_another_epoch_names_nobody, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("epochs").lock().await.expect("free");
    let other: Ticket =
        guard.token().to_string().replacen("00000000", "00000001", 1).parse().expect("a ticket");
    let error = zl.mutex("epochs").break_lock(other).await.expect_err("another epoch");
    assert!(matches!(error, Error::NoSuchHolder { .. }), "{error}");
    assert!(guard.is_valid());
});

on_both_arms!(the_whole_story_of_a_lock_is_heard, |place| async move {
    let zl = brisk_settings().connect(&place.connect_string()).await.expect("a session");
    let mutex = zl.mutex("story");
    let heard: Arc<Mutex<Vec<LockEvent>>> = Arc::default();
    mutex.listen({
        let heard = heard.clone();
        move |event| heard.lock().expect("no panic").push(event)
    });
    let mut stream = mutex.events();
    let held = zl.mutex("story").lock().await.expect("free");
    let waiting = lock_in_background(&mutex);
    until_queued(&zl, "story", 2).await;
    held.release().await.expect("ours");
    let guard = timeout(SOON, waiting).await.expect("its turn").expect("no panic").expect("granted");
    let ticket = guard.ticket();
    mutex.revoke(ticket).await.expect("it is there");
    timeout(SOON, guard.revoked()).await.expect("told");
    guard.release().await.expect("ours");
    let guard = mutex.lock().await.expect("free");
    let second = guard.ticket();
    mutex.break_lock(second).await.expect("it is there");
    timeout(SOON, guard.lost()).await.expect("told");
    drop(guard);
    let gave_up = zl.mutex("story").lock().await.expect("free");
    assert!(mutex.try_lock().await.expect("an answer").is_none());
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
        let event = timeout(SOON, stream.next()).await.expect("told").expect("it goes on");
        assert_eq!(event, *expected);
    }
    let last = |event: Option<LockEvent>| matches!(event, Some(LockEvent::Queued { .. } | LockEvent::GaveUp));
    assert!(last(timeout(SOON, stream.next()).await.expect("told")));
    eventually("the callback hears the same", SOON, || {
        let heard = heard.lock().expect("no panic").clone();
        let same = heard.get(..story.len()) == Some(&story[..]);
        async move { if same { Ok(()) } else { Err(Failure::new(format!("{heard:?}"))) } }
    })
    .await
    .expect("it does");
});

on_both_arms!(a_silence_is_suspect_and_then_confirmed, |place| async move {
    let proxy = zoolock_tests::Proxy::start(&place.addr()).await.expect("a proxy");
    let zl = brisk_settings().connect(&place.through(&proxy.addr())).await.expect("a session");
    let mutex = zl.mutex("silence");
    let mut events = mutex.events();
    let guard = mutex.lock().await.expect("free");
    let ticket = guard.ticket();
    assert_eq!(timeout(SOON, events.next()).await.expect("told"), Some(LockEvent::Acquired(ticket)));
    proxy.cut().await;
    assert_eq!(timeout(SOON, events.next()).await.expect("told"), Some(LockEvent::Suspect(ticket)));
    assert_eq!(timeout(SOON, events.next()).await.expect("told"), Some(LockEvent::Confirmed(ticket)));
    assert!(guard.is_valid());
});

on_both_arms!(a_waiter_that_asked_for_it_queues_again_when_its_session_expires, |place| async move {
    let (zl, proxy) = {
        let proxy = zoolock_tests::Proxy::start(&place.addr()).await.expect("a proxy");
        (brisk_settings().connect(&place.through(&proxy.addr())).await.expect("a session"), proxy)
    };
    let other = brisk_settings().connect(&place.connect_string()).await.expect("a session");
    let held = other.mutex("again").lock().await.expect("free");
    let waiting = tokio::spawn(async move { zl.mutex("again").requeue_on_expiry().lock().await });
    until_queued(&other, "again", 2).await;
    proxy.blackhole(true);
    let gone = || async {
        let seen = other.mutex("again").snapshot().await.map_err(|e| Failure::new(e.to_string()))?;
        if seen.waiters.is_empty() { Ok(()) } else { Err(Failure::new("it still waits")) }
    };
    eventually("the waiter's session expires", SOON, gone).await.expect("it does");
    proxy.blackhole(false);
    until_queued(&other, "again", 2).await;
    held.release().await.expect("ours");
    let guard = timeout(SOON, waiting).await.expect("its turn").expect("no panic").expect("granted");
    guard.release().await.expect("ours");
});

on_both_arms!(a_transaction_with_the_guards_check_is_refused_when_the_lock_is_lost, |place| async move {
    let zl = connect(&place).await;
    let client = tree::connect(&place.addr()).await.expect("a session");
    let state = format!("{}/state", place.chroot());
    let persistent = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    client.mkdir(&state, &persistent).await.expect("made");
    let write = |check: zoolock::Check, data: &'static [u8]| {
        let (client, state) = (client.clone(), state.clone());
        async move {
            let mut writer = client.new_multi_writer();
            writer.add_check_version(&check.path, check.version).expect("a path");
            writer.add_set_data(&state, data, None).expect("a path");
            writer.commit().await
        }
    };
    let guard = zl.mutex("fenced").lock().await.expect("free");
    let check = guard.check();
    write(check.clone(), b"ours").await.expect("it is held");
    zl.mutex("fenced").revoke(guard.token()).await.expect("there");
    timeout(SOON, guard.revoked()).await.expect("told");
    write(check.clone(), b"still ours").await.expect("it is held, though asked to let go");
    zl.mutex("fenced").break_lock(guard.token()).await.expect("there");
    write(check, b"late").await.expect_err("it is lost");
    assert_eq!(client.get_data(&state).await.expect("there").0, b"still ours");
    // A reader that has become a writer has the writer's.
    let writer = zl.rwlock("fenced/rw").read().await.expect("free").upgrade().await.expect("alone");
    let check = writer.check();
    assert!(check.path.contains("__WRIT__"), "{check:?}");
    write(check, b"writer").await.expect("it is held");
});
