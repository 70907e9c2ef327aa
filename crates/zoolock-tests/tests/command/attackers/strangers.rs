//! Another user of the machine, in local mode. Only root can be somebody else.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use zoolock::{Error, Tls};
use zoolock_tests::ZoolockBinary;
use zoolock_tests::skip::Availability;

use zoolock_tests::locks::settings;

/// Nobody.
const OTHER: u32 = 65_534;

fn root_or_skip(test: &str) -> bool {
    match rustix::process::geteuid().is_root() {
        true => Availability::Available,
        false => Availability::Missing("only root can be another user".to_owned()),
    }
    .or_skip(test)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_gets_nothing_of_this_users_server() {
    if !root_or_skip("another_user_gets_nothing_of_this_users_server") {
        return;
    }
    let zoolock = ZoolockBinary::find().expect("built");
    let state = zoolock.home().join("ours");
    // Their way to it, up to the directory that is ours alone.
    std::fs::set_permissions(zoolock.home(), PermissionsExt::from_mode(0o755)).expect("ours");
    let ours = |args: &[&str]| {
        let mut command = zoolock.command(args);
        command.env("ZOOLOCK_STATE_DIR", &state);
        command
    };
    assert!(ours(&["run", "nightly", "--", "true"]).status().await.expect("it starts").success());
    let status = ours(&["serve", "--status", "--json"]).output().await.expect("it starts");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let address = status["address"].as_str().expect("it runs").to_owned();

    for file in ["secret", "identity", "address", "log", "data/owed"] {
        let mut cat = Command::new("cat");
        cat.arg(state.join(file)).uid(OTHER).gid(OTHER).stdout(Stdio::piped()).stderr(Stdio::null());
        let read = cat.output().await.expect("it starts");
        assert!(!read.status.success() && read.stdout.is_empty(), "{file}");
    }
    // A copy that they may execute, wherever this one was built.
    let copy = zoolock.home().join("zoolock");
    std::fs::copy(zoolock.path(), &copy).expect("copied");
    let theirs = |args: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(args).uid(OTHER).gid(OTHER).current_dir("/").env_clear();
        command.env("HOME", "/nonexistent").env("PATH", "/usr/bin:/bin");
        command
    };
    let pointed = theirs(&["ls"]).env("ZOOLOCK_STATE_DIR", &state).output().await.expect("it starts");
    assert_eq!(pointed.status.code(), Some(77), "{pointed:?}");
    // They cannot know it by its certificate, and it speaks nothing else than TLS. Suppose they did.
    let known = zoolock.home().join("known.pem");
    let identity = std::fs::read_to_string(state.join("identity")).expect("ours");
    let certificate = &identity[identity.find("-----BEGIN CERTIFICATE").expect("it has one")..];
    std::fs::write(&known, certificate).expect("writable");
    std::fs::set_permissions(&known, PermissionsExt::from_mode(0o644)).expect("ours");
    let known = known.display().to_string();
    // Somebody of ours holds it, whose token they have got to know, too.
    let mut holder = ours(&["hold", "nightly", "--json"]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
    let mut token = None;
    while token.is_none() {
        let shown = ours(&["show", "nightly", "--json"]).output().await.expect("it starts");
        let lock: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        token = lock["holder"]["token"].as_str().map(str::to_owned);
    }
    let token = token.expect("it is held");
    for args in [&["ls"][..], &["break", "nightly", "--token", &token], &["run", "nightly", "--", "true"]] {
        let flags = ["--connect", &address, "--cacert", &known, "--connect-timeout", "2s"];
        let args = [&flags[..], args].concat();
        let done = theirs(&args).output().await.expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(77), "{args:?}: {done:?}");
        assert!(said.contains("give credentials"), "{args:?}: {said}");
    }
    let guessed = settings().tls(Tls::with_ca(certificate)).auth("digest", "zoolock:0000");
    match guessed.connect_timeout(Duration::from_secs(2)).connect(&address).await {
        Err(Error::Denied { .. }) => {}
        other => panic!("a guess: {other:?}"),
    }
    // Nothing has happened to whoever holds it.
    drop(holder.stdin.take());
    assert!(holder.wait().await.expect("ours").success());
    assert!(ours(&["serve", "--stop"]).status().await.expect("it starts").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_of_another_user_is_refused() {
    if !root_or_skip("a_state_directory_of_another_user_is_refused") {
        return;
    }
    let zoolock = ZoolockBinary::find().expect("built");
    let state = zoolock.home().join("theirs");
    std::fs::create_dir(&state).expect("writable");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).expect("ours");
    std::os::unix::fs::chown(&state, Some(OTHER), Some(OTHER)).expect("root may");
    let mut command = zoolock.command(["run", "nightly", "--", "true"]);
    let done = command.env("ZOOLOCK_STATE_DIR", &state).output().await.expect("it starts");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(77), "{said}");
    assert!(said.contains("belongs to user 65534"), "{said}");
    assert_eq!(std::fs::read_dir(&state).expect("readable").count(), 0);
    assert_eq!(std::fs::metadata(&state).expect("there").uid(), OTHER);
}
