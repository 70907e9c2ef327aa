//! Revocation between libraries: requests to release a lock.

use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;
use zoolock::{Error, Naming, Ticket};
use zoolock_tests::locks::{connect, directory};
use zoolock_tests::{ZoolockBinary, on_both_servers, tree};

use crate::clients::{Client, Library};
use crate::mixed_queues::queue::{Queue, holders, of_holder, shown, zoolock};

const SOON: Duration = Duration::from_secs(30);

on_both_servers!(curator_releases_when_asked, |place| async move {
    if !Library::Java.or_skip(&place) {
        return;
    }
    let curator = Client::start(Library::Java, &place).await;
    let mut asked = curator.hold("curator-revocable-mutex", "/locks/by-library").await;
    let zl = connect(&place).await;
    let mutex = zl.mutex("by-library");
    let holder = zl.admin().snapshot("by-library").await.expect("snapshot read").holder.expect("a holder");
    assert!(!holder.revoked);
    assert_eq!((holder.host, holder.identifier), (None, None), "a revocable znode of Curator has no data");
    let ticket: Ticket = holder.token.expect("the token is readable");
    zl.admin().revoke("by-library", ticket).await.expect("the holder exists");
    asked.receive("asked").await.expect("the holder is asked");
    asked.release().await.expect("release succeeds");
    let guard = mutex.try_lock().await.expect("the queue can be joined").expect("lock granted");
    guard.release().await.expect("release succeeds");

    let mut asked = curator.hold("curator-revocable-mutex", "/locks/by-command").await;
    zoolock(&place, &["revoke", "by-command"]).await.assert(0, &["asked Curator to release it"]);
    asked.receive("asked").await.expect("the holder is asked");

    let _unasked = curator.hold("curator-write-and-read", "/locks/not-revocable").await;
    let output = zoolock(&place, &["revoke", "not-revocable"]).await;
    output.assert(78, &["Curator", "makeRevocable"]);
    let writer = zl.admin().snapshot("not-revocable").await.expect("snapshot read").holder;
    let writer = writer.expect("a holder");
    assert!(!writer.revoked && writer.host.is_some(), "its data was overwritten: {writer:?}");
});

on_both_servers!(guard_is_revoked_by_curator, |place| async move {
    if !Library::Java.or_skip(&place) {
        return;
    }
    let mut revoker = Client::start(Library::Java, &place).await.lock("curator-mutex", "/locks/ours");
    let zl = connect(&place).await;
    for naming in [Naming::Native, Naming::Curator] {
        let mutex = zl.mutex("ours").naming(naming);
        let guard = mutex.lock().await.expect("lock granted");
        assert!(!guard.is_revoked());
        let lock = shown(&place, "ours").await;
        let node = of_holder(&lock, "node");
        assert_eq!(node.starts_with("_c_"), naming == Naming::Curator, "{node}");
        revoker.revoke(&format!("/locks/ours/{node}")).await;
        timeout(SOON, guard.revoked()).await.expect("the guard is revoked");
        assert!(guard.is_valid(), "a request to release loses no lock");
        assert_eq!(holders(&shown(&place, "ours").await, "revoked"), [&json!(true)]);
        // A second request changes nothing. It comes from zoolock, which writes another word than
        // Curator.
        zl.admin().revoke("ours", guard.ticket()).await.expect("the holder exists");
        guard.release().await.expect("release succeeds");
        tree::assert_no_contenders(&place.addr(), &directory(&place, "ours")).await;
    }
});

on_both_servers!(command_is_terminated_when_curator_asks, |place| async move {
    if !Library::Java.or_skip(&place) {
        return;
    }
    let mut revoker = Client::start(Library::Java, &place).await.lock("curator-mutex", "/locks/job");
    let binary = ZoolockBinary::find().expect("the command has been built");
    let script = "trap 'echo told; exit 7' TERM; echo began; while :; do sleep 0.05; done";
    for naming in ["native", "curator"] {
        let connect = place.connect_string();
        let arguments = ["--connect", &connect, "run", "--naming", naming, "job", "--", "sh", "-c", script];
        let mut command = binary.command(arguments);
        let mut run =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the command starts");
        let mut output = BufReader::new(run.stdout.take().expect("stdout is piped")).lines();
        let mut next =
            async || timeout(SOON, output.next_line()).await.expect("a line in time").expect("text");
        assert_eq!(next().await.as_deref(), Some("began"));
        let lock = shown(&place, "job").await;
        revoker.revoke(&format!("/locks/job/{}", of_holder(&lock, "node"))).await;
        assert_eq!(next().await.as_deref(), Some("told"), "{naming}");
        assert_eq!(run.wait().await.expect("the command ends").code(), Some(7));
    }
});

on_both_servers!(guard_is_revoked_under_every_naming, |place| async move {
    let zl = connect(&place).await;
    for naming in [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
        let guard = zl.mutex("ours").naming(naming).lock().await.expect("lock granted");
        zoolock(&place, &["revoke", "ours"]).await.assert(0, &[]);
        timeout(SOON, guard.revoked()).await.expect("the guard is revoked");
        let shown = shown(&place, "ours").await;
        assert_eq!(holders(&shown, "pid"), [&json!(std::process::id())], "{naming}");
        guard.release().await.expect("release succeeds");
    }
});

on_both_servers!(holders_that_cannot_be_asked_stay_unchanged, |place| async move {
    let zl = connect(&place).await;
    let cases = [
        ("HEX__lock__", "a lock of kazoo"),
        ("HEX__rlock__", "a reader of kazoo"),
        ("x-5-", "a WriteLock of ZooKeeper's recipes"),
        ("ex", "a lock of zk-ruby"),
        ("read-", "a reader or writer of .NET"),
        ("lock-HEX-", "a lock of aiozk"),
        ("job-", "a contender of an unknown client library"),
        ("lock-", "a mutex of zoolock (or .NET)"),
        ("_c_HEX-lock-", "a mutex of Curator"),
        ("UUID-lock-", "a mutex of Curator"),
        ("UUID-lease-", "a semaphore's user of Curator"),
    ];
    for (at, (prefix, holder)) in cases.into_iter().enumerate() {
        let name = format!("queue-{at}");
        let queue = Queue::new(&place, &name).await;
        let node = queue.join(prefix, b"job 7").await;
        let seen = zl.admin().snapshot(&name).await.expect("snapshot read").holder.expect("a holder");
        let token = seen.token.expect("the token is readable");
        let error = zl.admin().revoke(&name, token).await;
        let error = error.expect_err("the holder does not read requests");
        assert!(matches!(error, Error::NotRevocable { .. }), "{error}");
        let message = error.to_string();
        for words in [holder, &token.to_string(), "zoolock break"] {
            assert!(message.contains(words), "no {words} in {message}");
        }
        let output = zoolock(&place, &["revoke", &name]).await;
        let reason =
            message.split(" cannot be asked to release: ").nth(1).and_then(|rest| rest.split(';').next());
        let reason = format!(" cannot be asked to release: {}; ", reason.expect("a reason"));
        let command = format!("zoolock break {name} --token {token} --connect ");
        output.assert(78, &["job 7", &reason, &command]);
        assert_eq!(queue.data(&node).await, b"job 7", "its data was overwritten");
    }
    // If at least one holder can be asked, the command succeeds. The command also names the holder
    // that cannot be asked.
    let queue = Queue::new(&place, "beside").await;
    let curator = queue.join("UUID-__READ__", b"").await;
    let kazoo = queue.join("HEX__rlock__", b"job 7").await;
    let output = zoolock(&place, &["revoke", "beside"]).await;
    output.assert(0, &["asked Curator to release it", "kazoo: job 7"]);
    assert_eq!(queue.data(&curator).await, b"__REVOKE__");
    assert_eq!(queue.data(&kazoo).await, b"job 7");
});
