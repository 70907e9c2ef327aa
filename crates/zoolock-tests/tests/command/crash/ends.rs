//! A second server on one directory, and a disk that is full.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Resource, Rlimit, prlimit};
use tempfile::TempDir;
use tokio::process::Command;
use zoolock_tests::{Serving, ZoolockBinary};

use crate::crash::client::Client;
use crate::crash::world::{World, command};

fn here() -> (ZoolockBinary, TempDir) {
    let binary = ZoolockBinary::find().expect("the command has been built");
    (binary, tempfile::tempdir().expect("a directory"))
}

#[tokio::test]
async fn a_second_server_on_one_directory_is_refused_and_the_first_goes_on() {
    let (binary, data) = here();
    let first = Serving::start(command(&binary, data.path())).await.expect("up");
    let second = command(&binary, data.path()).stdin(Stdio::null()).output().await.expect("it starts");
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(69), "{said}");
    let path = data.path().display();
    assert!(
        said.contains(&format!("the data directory {path} is in use by another server; stop it")),
        "{said}"
    );
    Client::begin(first.addr(), 10_000, 0).await.expect("the first one serves");
    // Nor is the directory left behind in use.
    first.kill().await;
    let third = Serving::start(command(&binary, data.path())).await.expect("up");
    assert_eq!(third.terminate().await.expect("it ends").code, Some(0));
}

const SEED: u64 = 4711;

/// The server has said why it ends, and what to do.
fn assert_told(said: &str, data: &Path, why: &str) {
    let file = format!(" {}/log.0", data.display());
    for part in ["stopping, nothing was lost: cannot ", &file, why, "see to the disk"] {
        assert!(said.contains(part), "nothing of {part:?} in {said}");
    }
}

/// Where files may only be so large, a log can become no larger.
async fn fill_a_file() {
    let (binary, data) = here();
    let mut world = World::new(&binary, data.path(), SEED);
    let server = Serving::start(command(&binary, data.path())).await.expect("up");
    let most = Some(10 << 20);
    prlimit(Some(server.pid()), Resource::Fsize, Rlimit { current: most, maximum: most })
        .expect("it is ours");
    let ended = world.while_writing(server.addr(), true, server.ended()).await.expect("it ends");
    assert_eq!(ended.code, Some(69), "{}", ended.notes);
    assert_told(&ended.notes, data.path(), "File too large");
    world.last().await.expect("nothing that was acknowledged is lost");
}

/// A small file system that nobody else sees; whoever is not root becomes it there.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c"]).kill_on_drop(true);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_files_may_not_grow_the_server_says_so_and_nothing_is_lost() {
    fill_a_file().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_the_server_says_so_and_nothing_is_lost() {
    const TWICE: &str = r#"
        data=$1; shift
        mount -t tmpfs -o size=20m tmpfs "$data" || exit
        "$@"; echo "ended with $?" >&2
        mount -o remount,size=400m tmpfs "$data" && exec "$@""#;
    let (binary, data) = here();
    let probe = unshare().args(["mount -t tmpfs tmpfs \"$1\"", "sh"]).arg(data.path()).output().await;
    if !probe.is_ok_and(|probe| probe.status.success()) {
        // Not for everybody: then this is as near as we come.
        println!("no file system can be mounted here, files that may not grow stand in for it");
        return fill_a_file().await;
    }
    let mut twice = unshare();
    let serve = command(&binary, data.path());
    twice
        .args([TWICE, "sh"])
        .arg(data.path())
        .arg(serve.as_std().get_program())
        .args(serve.as_std().get_args());
    let mut world = World::new(&binary, data.path(), SEED);
    let mut server = Serving::start(twice).await.expect("up");
    let said = world.while_writing(server.addr(), true, server.next()).await.expect("another one follows");
    assert_told(&said, data.path(), "No space left on device");
    assert!(said.contains("ended with 69"), "{said}");
    world.check(&server).await.expect("nothing that was acknowledged is lost");
    let ended = server.terminate().await.expect("it ends");
    assert_eq!(ended.code, Some(0), "{}", ended.notes);
}
