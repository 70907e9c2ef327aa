//! The words of errors: in an outage, at a refusal, after a close, and of a multi-lock.

use std::process::Stdio;
use std::time::Duration;

use zoolock::{Builder, Connection, Error, FencingToken, Guard, Owner, Zoolock};
use zoolock_tests::locks::{connect, settings};
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{Place, Proxy, ZoolockBinary, on_both_servers};

/// Texts that mean nothing to a user, or that name a code of the protocol without its meaning.
const BAD_WORDS: [&str; 8] =
    ["Throttled", "-127", "Refused(", "Unknown", "Some(", "RequestFailure", "session: ", "::"];

fn assert_plain(what: &str, text: &str) {
    let first = text.chars().next().unwrap_or('.');
    assert!(!first.is_uppercase() && !text.trim_end().ends_with('.'), "{what}: {text}");
    for bad in BAD_WORDS {
        assert!(!text.contains(bad), "{what} has {bad:?}: {text}");
    }
}

/// The failed calls of one client, with their names.
type Failures = Vec<(&'static str, Error)>;

/// Makes calls of each kind, which all fail.
async fn call_everything(zl: &Zoolock, token: FencingToken) -> Failures {
    let short = Duration::from_millis(50);
    let mutex = zl.mutex("held");
    let mut failures = Vec::new();
    macro_rules! fail {
        ($($name:literal: $call:expr;)+) => {
            $(failures.push(($name, finish_in_time($call).await.map(drop).expect_err($name)));)+
        };
    }
    fail! {
        "lock": zl.mutex("new").lock_timeout(short);
        "try_lock": mutex.try_lock();
        "lock_as": mutex.lock_as_timeout(&Owner::new(), short);
        "shared_hold": mutex.clone().shared_hold(short).lock_timeout(short);
        "read": zl.rwlock("new").read_timeout(short);
        "semaphore": zl.semaphore("new", 2).acquire_timeout(1, short);
        "write": zl.rwlock("new").write_timeout(short);
        "upgradable_read": zl.rwlock("new").upgradable_read_timeout(short);
        "adopt_size": zl.semaphore("new", 2).adopt_size().acquire_timeout(1, short);
        "available_permits": zl.semaphore("held", 2).available_permits();
        "with_lock": zl.with_lock("new", short, async |_| ());
        "leader": zl.election("held").leader();
        "multi": zl.multi(["held", "new"]).lock_timeout(short);
        "snapshot": zl.admin().snapshot("held");
        "locks": zl.admin().locks(Some("held"), usize::MAX);
        "why": zl.admin().why("held");
        "deadlocks": zl.admin().deadlocks(Some("held"));
        "revoke": zl.admin().revoke("held", token);
        "break_lock": zl.admin().break_lock("held", token);
        "resize": zl.semaphore("held", 2).resize(3);
        "history": zl.admin().history(None, 10);
    }
    failures
}

/// Returns a client with a connection through a proxy that refuses all connections, with a session that still lives.
async fn cut_off(place: &Place) -> (Zoolock, Guard, Proxy) {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let patient =
        settings().session_timeout(Duration::from_secs(60)).answer_timeout(Duration::from_millis(200));
    let zl = patient.connect(&place.connect_string_through(&proxy.addr())).await.expect("session starts");
    let guard = zl.mutex("kept").lock().await.expect("lock acquired");
    proxy.refuse(true).await;
    proxy.close_connections().await;
    let mut connection = guard.connection_changes();
    finish_in_time(connection.wait_for(|now| now == Connection::Suspect)).await;
    (zl, guard, proxy)
}

on_both_servers!(outage_is_described_with_the_address, |place| async move {
    let (zl, guard, proxy) = cut_off(&place).await;
    for (call, error) in call_everything(&zl, guard.token()).await {
        assert_plain(call, &error.to_string());
        match &error {
            Error::Unavailable { servers, .. } => assert_eq!(servers, &proxy.addr(), "{call}: {error}"),
            _ => panic!("{call}: {error:?}"),
        }
    }
    let refused = settings().connect_timeout(Duration::from_secs(1)).connect(&proxy.addr()).await;
    let error = refused.expect_err("no server is reached");
    assert_plain("connect", &error.to_string());
    assert!(matches!(&error, Error::Unavailable { servers, .. } if *servers == proxy.addr()), "{error:?}");
});

on_both_servers!(closed_client_says_so, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("held").lock().await.expect("lock acquired");
    let token = guard.token();
    zl.close().await;
    for (call, error) in call_everything(&zl, token).await {
        assert_plain(call, &error.to_string());
        assert!(matches!(error, Error::Closed), "{call}: {error:?}");
    }
    let error = guard.release().await.expect_err("the lock is lost");
    assert!(error.to_string().ends_with("lost, the session was closed"), "{error}");
});

on_both_servers!(refusal_names_the_lock_and_credentials, |place| async move {
    let owner = settings().auth("digest", "jobs:secret").connect(&place.connect_string()).await;
    let owner = owner.expect("session starts");
    let guard = owner.mutex("held").lock().await.expect("lock acquired");
    // This creates the history, which belongs to the owner.
    owner.admin().revoke("held", guard.token()).await.expect("the holder is asked");
    let stranger = connect(&place).await;
    let paths = |call| if call == "multi" { "/locks/held, /locks/new" } else { "/locks" };
    for (call, error) in call_everything(&stranger, guard.token()).await {
        let text = error.to_string();
        assert_plain(call, &text);
        assert!(matches!(error, Error::Denied { .. }), "{call}: {error:?}");
        assert!(text.contains("credentials"), "{call}: {text}");
        assert!(call == "history" || text.contains(paths(call)), "{call}: {text}");
    }
    guard.release().await.expect("release succeeds");
});

on_both_servers!(multi_lock_names_all_its_locks, |place| async move {
    let (holder, zl) = (connect(&place).await, connect(&place).await);
    let guard = holder.mutex("b").lock().await.expect("lock acquired");
    let late = zl.multi(["a", "b"]).lock_timeout(Duration::from_millis(50)).await;
    match late.expect_err("the lock is busy") {
        Error::Timeout { path, .. } => assert_eq!(path, "/locks/a, /locks/b"),
        other => panic!("{other:?}"),
    }
    guard.release().await.expect("release succeeds");
});

/// Connects with these credentials, and returns the refusal.
async fn refusal(builder: Builder) -> String {
    let refused = builder.connect_timeout(Duration::from_millis(10)).connect("127.0.0.1:1").await;
    match refused.expect_err("no server is there") {
        error @ Error::Invalid { .. } => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn credentials_without_a_user_are_refused() {
    for (scheme, secret) in
        [("digest", "nocolon"), ("digest", ":password"), ("digest", ""), ("", "user:password")]
    {
        let text = refusal(settings().auth("digest", "good:one").auth(scheme, secret)).await;
        assert!(text.contains("`user:password`") && !text.contains("nocolon"), "{text}");
    }
    let other =
        settings().auth("digest", "user:").auth("team", "nocolon").connect_timeout(Duration::from_millis(10));
    let error = other.connect("127.0.0.1:1").await.expect_err("no server is there");
    assert!(matches!(error, Error::Unavailable { .. }), "other schemes have other formats: {error}");
}

/// The arguments of commands that need the server.
const COMMANDS: [&[&str]; 10] = [
    &["run", "held", "--timeout", "100ms", "--", "true"],
    &["run", "held", "new", "--timeout", "100ms", "--", "true"],
    &["ls"],
    &["show", "held"],
    &["why", "held"],
    &["deadlocks"],
    &["history"],
    &["revoke", "held"],
    &["break", "held", "--token", "00000000-0000000000000001-00000000"],
    &["resize", "held", "--permits", "2"],
];

/// Runs all commands, which fail, and returns their messages.
async fn messages_of_commands(connect: &str) -> Vec<(String, String)> {
    let zoolock = ZoolockBinary::find().expect("zoolock binary is built");
    let mut messages = Vec::new();
    for arguments in COMMANDS {
        let mut command = zoolock.command(["--connect", connect]);
        command.env("ZOOLOCK_CONNECT_TIMEOUT", "500ms");
        let done = finish_in_time(command.args(arguments).stdin(Stdio::null()).output())
            .await
            .expect("command runs");
        let text = String::from_utf8(done.stderr).expect("messages are text");
        assert!(!done.status.success(), "{arguments:?}: {text}");
        messages.push((arguments.join(" "), text));
    }
    messages
}

on_both_servers!(commands_describe_an_outage_and_a_refusal, |place| async move {
    let nobody = Proxy::start(&place.addr()).await.expect("proxy starts");
    nobody.refuse(true).await;
    for (command, text) in messages_of_commands(&place.connect_string_through(&nobody.addr())).await {
        assert_plain(&command, &text);
        assert!(text.contains(&nobody.addr()), "{command}: {text}");
    }
    let owner = settings().auth("digest", "jobs:secret").connect(&place.connect_string()).await;
    let owner = owner.expect("session starts");
    let guard = owner.mutex("held").lock().await.expect("lock acquired");
    owner.admin().revoke("held", guard.token()).await.expect("the holder is asked");
    for (command, text) in messages_of_commands(&place.connect_string()).await {
        assert_plain(&command, &text);
        assert!(text.contains("/locks") || text.contains("history"), "{command}: {text}");
    }
    guard.release().await.expect("release succeeds");
});
