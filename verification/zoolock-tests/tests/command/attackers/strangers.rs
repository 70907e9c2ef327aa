//! Attacks by another user of the machine on a user's own server (local mode). Only root can run a
//! command as another user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

use tokio::process::Command;
use zoolock_tests::ZoolockBinary;
use zoolock_tests::skip::Availability;

/// The user id of `nobody`.
const OTHER: u32 = 65_534;

fn root_or_skip(test: &str) -> bool {
    match rustix::process::geteuid().is_root() {
        true => Availability::Available,
        false => Availability::Missing("only root can run a command as another user".to_owned()),
    }
    .or_skip(test)
}

#[tokio::test(flavor = "multi_thread")]
async fn other_user_cannot_use_local_server() {
    if !root_or_skip("other_user_cannot_use_local_server") {
        return;
    }
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    let state = zoolock.home().join("ours");
    // The other user may enter the home directory, but not the state directory in it.
    std::fs::set_permissions(zoolock.home(), PermissionsExt::from_mode(0o755)).expect("mode set");
    let ours = |args: &[&str]| {
        let mut command = zoolock.command(args);
        command.env("ZOOLOCK_STATE_DIR", &state);
        command
    };
    assert!(ours(&["run", "nightly", "--", "true"]).status().await.expect("command started").success());
    let status = ours(&["serve", "--status", "--json"]).output().await.expect("command started");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("the output is JSON");
    let socket = status["socket"].as_str().expect("the server runs").to_owned();

    for file in ["socket", "server", "log", "data/owed"] {
        let mut cat = Command::new("cat");
        cat.arg(state.join(file)).uid(OTHER).gid(OTHER).stdout(Stdio::piped()).stderr(Stdio::null());
        let read = cat.output().await.expect("cat started");
        assert!(!read.status.success() && read.stdout.is_empty(), "{file}");
    }
    // The other user executes a copy of the command, because that user may have no access to the
    // build directory.
    let copy = zoolock.home().join("zoolock");
    std::fs::copy(zoolock.path(), &copy).expect("file copied");
    let theirs = |args: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(args).uid(OTHER).gid(OTHER).current_dir("/").env_clear();
        command.env("HOME", "/nonexistent").env("PATH", "/usr/bin:/bin");
        command
    };
    let done = theirs(&["ls"]).env("ZOOLOCK_STATE_DIR", &state).output().await.expect("command started");
    assert_eq!(done.status.code(), Some(77), "{done:?}");
    // This user holds a lock. Assume that the other user knows the fencing token of the holder.
    let mut holder = ours(&["hold", "nightly", "--json"]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("command started");
    let mut token = None;
    while token.is_none() {
        let shown = ours(&["show", "nightly", "--json"]).output().await.expect("command started");
        let lock: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("the output is JSON");
        token = lock["holder"]["token"].as_str().map(str::to_owned);
    }
    let token = token.expect("the lock is held");
    let address = format!("unix:{socket}");
    // At first the mode of the state directory keeps the other user out. In the second round the directory is open, and
    // the server closes the connection.
    for fragment in ["Permission denied", "accepts only its own user"] {
        for args in [&["ls"][..], &["break", "nightly", "--token", &token], &["run", "nightly", "--", "true"]]
        {
            let flags = ["--connect", &address];
            let args = [&flags[..], args].concat();
            let done =
                theirs(&args).env("ZOOLOCK_CONNECT_TIMEOUT", "1s").output().await.expect("command started");
            let stderr = String::from_utf8_lossy(&done.stderr);
            assert_eq!(done.status.code(), Some(69), "{args:?}: {done:?}");
            assert!(stderr.contains(fragment), "{args:?}: {stderr}");
        }
        std::fs::set_permissions(&state, PermissionsExt::from_mode(0o755)).expect("mode set");
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o777)).expect("mode set");
    }
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).expect("mode set");
    // The holder still holds the lock, and releases it at the end of its input.
    drop(holder.stdin.take());
    assert!(holder.wait().await.expect("holder ended").success());
    assert!(ours(&["serve", "--stop"]).status().await.expect("command started").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn state_directory_of_other_user_is_refused() {
    if !root_or_skip("state_directory_of_other_user_is_refused") {
        return;
    }
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    let state = zoolock.home().join("theirs");
    std::fs::create_dir(&state).expect("directory created");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).expect("mode set");
    std::os::unix::fs::chown(&state, Some(OTHER), Some(OTHER)).expect("owner set");
    let mut command = zoolock.command(["run", "nightly", "--", "true"]);
    let done = command.env("ZOOLOCK_STATE_DIR", &state).output().await.expect("command started");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(77), "{stderr}");
    assert!(stderr.contains("belongs to user 65534"), "{stderr}");
    assert_eq!(std::fs::read_dir(&state).expect("directory read").count(), 0);
    assert_eq!(std::fs::metadata(&state).expect("metadata read").uid(), OTHER);
}
