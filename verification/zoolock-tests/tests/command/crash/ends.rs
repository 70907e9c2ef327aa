//! A second server on the same data directory, and a full disk.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Resource, Rlimit, prlimit};
use tempfile::TempDir;
use tokio::process::Command;
use zoolock_tests::raw_client::RawClient;
use zoolock_tests::{ServeProcess, ZoolockBinary};

use crate::crash::world::{World, serve};

/// Returns the command and an empty data directory.
fn set_up() -> (ZoolockBinary, TempDir) {
    let binary = ZoolockBinary::find().expect("zoolock was built");
    (binary, tempfile::tempdir().expect("directory created"))
}

#[tokio::test]
async fn second_server_on_same_directory_is_refused() {
    let (binary, data) = set_up();
    let first = ServeProcess::start(serve(&binary, data.path())).await.expect("server started");
    let second = serve(&binary, data.path()).stdin(Stdio::null()).output().await.expect("command started");
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(69), "{stderr}");
    let path = data.path().display();
    assert!(
        stderr.contains(&format!("the data directory {path} is in use by another server; stop it")),
        "{stderr}"
    );
    RawClient::open_session(first.addr(), 10_000, 0).await.expect("the first server still serves");
    // After the kill the directory is no longer in use.
    first.kill().await;
    let third = ServeProcess::start(serve(&binary, data.path())).await.expect("server started");
    assert_eq!(third.terminate().await.expect("server ended").code, Some(0));
}

const SEED: u64 = 4711;

/// Checks that the server reported why it ended, and what the operator can do.
fn assert_reported(stderr: &str, data: &Path, why: &str, advice: &str) {
    let file = format!(" {}/log.0", data.display());
    for part in ["stopping: cannot ", "no acknowledged write is lost", &file, why, advice] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
}

/// Limits the size of a server's files. Checks that the server reports that its log cannot grow,
/// and that no acknowledged write is lost.
async fn assert_nothing_is_lost_at_file_size_limit() {
    let (binary, data) = set_up();
    let mut world = World::new(&binary, data.path(), SEED);
    let server = ServeProcess::start(serve(&binary, data.path())).await.expect("server started");
    let limit = Some(10 << 20);
    prlimit(Some(server.pid()), Resource::Fsize, Rlimit { current: limit, maximum: limit })
        .expect("limit set");
    let ended = world.while_writing(server.addr(), true, server.wait_for_end()).await.expect("server ended");
    assert_eq!(ended.code, Some(69), "{}", ended.notes);
    assert_reported(&ended.notes, data.path(), "File too large", "ulimit -f");
    world.final_check().await.expect("no acknowledged write is lost");
}

/// Returns a command that runs a shell script as root in its own mount namespace.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c"]).kill_on_drop(true);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_is_lost_at_file_size_limit() {
    assert_nothing_is_lost_at_file_size_limit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_is_lost_on_full_disk() {
    /// A script that runs a command on a small file system, enlarges the file system, and runs the command again.
    const TWICE: &str = r#"
        data=$1; shift
        mount -t tmpfs -o size=20m,mode=0700 tmpfs "$data" || exit
        "$@"; echo "ended with $?" >&2
        mount -o remount,size=400m tmpfs "$data" && exec "$@""#;
    let (binary, data) = set_up();
    let probe = unshare().args(["mount -t tmpfs tmpfs \"$1\"", "sh"]).arg(data.path()).output().await;
    if !probe.is_ok_and(|probe| probe.status.success()) {
        // Not every user may mount a file system. A file size limit is the closest replacement.
        println!("cannot mount a file system; testing a file size limit instead");
        return assert_nothing_is_lost_at_file_size_limit().await;
    }
    let mut twice = unshare();
    let serve = serve(&binary, data.path());
    twice
        .args([TWICE, "sh"])
        .arg(data.path())
        .arg(serve.as_std().get_program())
        .args(serve.as_std().get_args());
    let mut world = World::new(&binary, data.path(), SEED);
    let mut server = ServeProcess::start(twice).await.expect("server started");
    let stderr = world
        .while_writing(server.addr(), true, server.wait_for_second_server())
        .await
        .expect("second server started");
    assert_reported(&stderr, data.path(), "No space left on device", "free space");
    assert!(stderr.contains("ended with 69"), "{stderr}");
    world.check(&server).await.expect("no acknowledged write is lost");
    let ended = server.terminate().await.expect("server ended");
    assert_eq!(ended.code, Some(0), "{}", ended.notes);
}
