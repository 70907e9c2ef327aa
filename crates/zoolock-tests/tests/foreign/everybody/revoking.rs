//! Asking to let go, from one make to another.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;
use zoolock::{Error, Naming, Ticket};
use zoolock_tests::{ZoolockBinary, on_both_arms, tree};

use crate::everybody::make::{Make, curator_or_skip};
use crate::everybody::queue::{Queue, holders, shown, zoolock};
use zoolock_tests::locks::{connect, directory};

const UUID: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";
const SOON: Duration = Duration::from_secs(30);

on_both_arms!(curator_lets_go_when_we_ask, |place| async move {
    if !curator_or_skip(&format!("curator_lets_go_when_we_ask::{}", place.arm())) {
        return;
    }
    let mut curator = Make::curator(&place);
    curator.told("mutex /locks/by-library").await;
    curator.says("holds /locks/by-library").await;
    let zl = connect(&place).await;
    let holder = zl.mutex("by-library").snapshot().await.expect("a look").holder.expect("held");
    assert!(!holder.revoked);
    assert_eq!((holder.host, holder.identifier), (None, None), "Curator says something where it listens");
    let ticket: Ticket = holder.token.expect("readable").parse().expect("a ticket");
    zl.mutex("by-library").revoke(ticket).await.expect("it is there");
    curator.says("is asked for /locks/by-library").await;
    curator.says("let go of /locks/by-library").await;
    let ours = zl.mutex("by-library").try_lock().await.expect("an answer").expect("free");
    ours.release().await.expect("ours");

    curator.told("mutex /locks/by-command").await;
    curator.says("holds /locks/by-command").await;
    let said = zoolock(&place, &["revoke", "by-command"]).await;
    assert_eq!(said.code, Some(0), "{}", said.notes);
    assert!(said.notes.contains("asked Curator to let go"), "{}", said.notes);
    curator.says("is asked for /locks/by-command").await;
    curator.says("let go of /locks/by-command").await;

    curator.told("write-and-read /locks/deaf").await;
    curator.says("holds /locks/deaf").await;
    let said = zoolock(&place, &["revoke", "deaf"]).await;
    assert_eq!(said.code, Some(64), "{}", said.notes);
    assert!(
        said.notes.contains("a writer of Curator") && said.notes.contains("makeRevocable"),
        "{}",
        said.notes
    );
    let writer = zl.mutex("deaf").snapshot().await.expect("a look").holder.expect("held");
    assert!(!writer.revoked && writer.host.is_some(), "it was written over: {writer:?}");
});

on_both_arms!(we_hear_when_curator_asks, |place| async move {
    if !curator_or_skip(&format!("we_hear_when_curator_asks::{}", place.arm())) {
        return;
    }
    let mut curator = Make::curator(&place);
    let zl = connect(&place).await;
    for naming in [Naming::Native, Naming::Curator] {
        let mutex = zl.mutex("ours").naming(naming);
        let guard = mutex.lock().await.expect("free");
        assert!(!guard.is_revoked());
        let node = holders(&shown(&place, "ours").await, "node")[0].as_str().expect("text").to_owned();
        assert_eq!(node.starts_with("_c_"), naming == Naming::Curator, "{node}");
        curator.told(&format!("revoke /locks/ours/{node}")).await;
        curator.says(&format!("asked /locks/ours/{node}")).await;
        timeout(SOON, guard.revoked()).await.expect("told");
        assert!(guard.is_valid(), "it is only asked");
        assert_eq!(holders(&shown(&place, "ours").await, "revoked"), [&serde_json::json!(true)]);
        // Whoever asks again, in whatever words, changes nothing.
        mutex.revoke(guard.ticket()).await.expect("it is asked already");
        guard.release().await.expect("ours");
        tree::assert_no_contenders(&place.addr(), &directory(&place, "ours")).await;
    }
});

on_both_arms!(a_command_is_told_to_end_when_curator_asks, |place| async move {
    if !curator_or_skip(&format!("a_command_is_told_to_end_when_curator_asks::{}", place.arm())) {
        return;
    }
    let mut curator = Make::curator(&place);
    let binary = ZoolockBinary::find().expect("the command has been built");
    let script = "trap 'echo told; exit 7' TERM; echo began; while :; do sleep 0.05; done";
    for naming in ["native", "curator"] {
        let connect = place.connect_string();
        let arguments = ["--connect", &connect, "run", "--naming", naming, "job", "--", "sh", "-c", script];
        let mut command = binary.command(arguments);
        let mut run = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(run.stdout.take().expect("piped")).lines();
        let mut next = async || timeout(SOON, said.next_line()).await.expect("in time").expect("text");
        assert_eq!(next().await.as_deref(), Some("began"));
        let node = holders(&shown(&place, "job").await, "node")[0].as_str().expect("text").to_owned();
        curator.told(&format!("revoke /locks/job/{node}")).await;
        curator.says(&format!("asked /locks/job/{node}")).await;
        assert_eq!(next().await.as_deref(), Some("told"), "{naming}");
        assert_eq!(run.wait().await.expect("it ends").code(), Some(7));
    }
});

on_both_arms!(ours_hear_whatever_they_are_called, |place| async move {
    let zl = connect(&place).await;
    for naming in [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
        let guard = zl.mutex("ours").naming(naming).lock().await.expect("free");
        let said = zoolock(&place, &["revoke", "ours"]).await;
        assert_eq!(said.code, Some(0), "{naming}: {}", said.notes);
        timeout(SOON, guard.revoked()).await.expect("told");
        let shown = shown(&place, "ours").await;
        assert_eq!(holders(&shown, "pid"), [&serde_json::json!(std::process::id())], "{naming}");
        guard.release().await.expect("ours");
    }
});

on_both_arms!(who_cannot_be_asked_is_left_as_it_is, |place| async move {
    let zl = connect(&place).await;
    let cases = [
        ("HEX__lock__", "a lock of kazoo"),
        ("HEX__rlock__", "a reader of kazoo"),
        ("x-5-", "a WriteLock of ZooKeeper's recipes"),
        ("ex", "a lock of zk-ruby"),
        ("read-", "a reader or writer of .NET"),
        ("lock-", "a mutex of zoolock (or .NET)"),
        ("_c_HEX-lock-", "a mutex of Curator"),
        ("UUID-lock-", "a mutex of Curator"),
        ("UUID-lease-", "a semaphore's user of Curator"),
    ];
    for (at, (prefix, who)) in cases.into_iter().enumerate() {
        let name = format!("deaf-{at}");
        let queue = Queue::new(&place, &name).await;
        let node = queue.join(&prefix.replace("UUID", UUID).replace("HEX", HEX), b"job 7").await;
        let holder = zl.mutex(&name).snapshot().await.expect("a look").holder.expect("held");
        let token = holder.token.expect("readable");
        let error = zl.mutex(&name).revoke(token.parse::<Ticket>().expect("a ticket")).await;
        let error = error.expect_err("nobody there reads it");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        let told = error.to_string();
        assert!(told.contains(who) && told.contains(&token) && told.contains("zoolock break"), "{told}");
        let said = zoolock(&place, &["revoke", &name]).await;
        assert_eq!((said.code, said.notes.trim_end()), (Some(64), format!("zoolock: {told}").as_str()));
        assert_eq!(queue.data(&node).await, b"job 7", "it was written over");
    }
    // Beside somebody who can be asked it is said, and no failure.
    let queue = Queue::new(&place, "beside").await;
    let curator = queue.join(&format!("{UUID}-__READ__"), b"").await;
    let kazoo = queue.join(&format!("{HEX}__rlock__"), b"job 7").await;
    let said = zoolock(&place, &["revoke", "beside"]).await;
    assert_eq!(said.code, Some(0), "{}", said.notes);
    assert!(
        said.notes.contains("asked Curator to let go") && said.notes.contains("a reader of kazoo"),
        "{}",
        said.notes
    );
    assert_eq!(
        (queue.data(&curator).await, queue.data(&kazoo).await),
        (b"__REVOKE__".to_vec(), b"job 7".to_vec())
    );
});
