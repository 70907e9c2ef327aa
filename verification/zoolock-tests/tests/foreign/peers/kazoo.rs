//! kazoo: its own test suite, and its recipes in several sessions at the same time.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tokio::process::Command;
use zoolock_tests::four_letter::watch_count;
use zoolock_tests::other_libraries::PYTHON;
use zoolock_tests::skip::long_or_skip;
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{
    AnyServer, Proxy, ServeProcess, ServerKind, ServerOptions, TestFailure, ZoolockBinary, on_both_servers,
    tree,
};

use crate::clients::Library::Kazoo;
use crate::interop::contenders::{assert_shared_fairly, role};
use crate::programs::{python_environments, run, test_file};

/// The superuser that kazoo's tests use, with the digest of the password.
const SUPER: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";
/// Delay of the slow proxy. It is longer than kazoo takes to drop a connection on a busy machine.
const LATE: Duration = Duration::from_millis(200);

/// Runs kazoo's test suite on the server at `addr`. Tests that need a slow server use a proxy.
async fn run_suite(addr: SocketAddr) {
    let slow = Proxy::start(&addr.to_string()).await.expect("the proxy starts");
    slow.delay(LATE);
    let mut suite = Command::new(test_file("peers/kazoo/suite"));
    let output = run(suite.arg(addr.to_string()).env("ZK_SLOW", slow.addr())).await.output();
    // The skipped tests need servers that kazoo starts, stops and configures itself.
    let last = output.trim_end().lines().last().unwrap_or_default();
    assert!(last.starts_with("472 passed, 21 skipped in "), "{output}");
    let removed = retry_until_ok("every watch is removed", Duration::from_secs(15), async || {
        match watch_count(addr).await? {
            0 => Ok(()),
            left => Err(TestFailure::new(format!("{left} watches left"))),
        }
    });
    removed.await.expect("closed sessions leave no watch");
}

/// Runs the suite on `zoolock serve` with a data directory, as a user starts it. The server fsyncs
/// writes before it acknowledges them.
#[tokio::test(flavor = "multi_thread")]
async fn own_suite_of_kazoo_passes_on_zoolock_serve() {
    if !python_environments().or_skip("own_suite_of_kazoo_passes_on_zoolock_serve") {
        return;
    }
    let binary = ZoolockBinary::find().expect("the command has been built");
    let digest = binary.home().join("super");
    std::fs::write(&digest, SUPER).expect("the home directory is writable");
    std::fs::set_permissions(&digest, PermissionsExt::from_mode(0o600)).expect("the file is ours");
    let mut command = binary.command(["serve", "--listen", "127.0.0.1:0", "--tick", "2s"]);
    command.args(["--max-session-timeout", "40s", "--words", "envi,mntr,ruok,srvr"]);
    command.arg("--data").arg(binary.home().join("data")).arg("--super-digest-file").arg(&digest);
    let server = ServeProcess::start(command).await.expect("the server starts");
    run_suite(server.addr()).await;
    let ended = server.terminate().await.expect("the server ends");
    assert_eq!((ended.code, ended.notes.as_str()), (Some(0), "zoolock: TERM received; stopping\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn own_suite_of_kazoo_passes_on_apache() {
    let name = "own_suite_of_kazoo_passes_on_apache";
    if !long_or_skip(name)
        || !python_environments().or_skip(name)
        || !ServerKind::Apache.availability().or_skip(name)
    {
        return;
    }
    let options = ServerOptions {
        tick: Duration::from_secs(2),
        max_session_timeout: Duration::from_secs(40),
        super_digest: Some(SUPER.to_owned()),
        ..Default::default()
    };
    let server = AnyServer::start(ServerKind::Apache, options).await.expect("the server starts");
    run_suite(server.socket_addr()).await;
}

on_both_servers!(kazoo_locks_exclude_each_other, |place| async move {
    assert_shared_fairly(&place, &[role(Kazoo, "lock", 4)]).await;
});

on_both_servers!(kazoo_semaphore_keeps_its_size, |place| async move {
    assert_shared_fairly(&place, &[role(Kazoo, "semaphore:2", 4)]).await;
});

on_both_servers!(other_recipes_of_kazoo_work_and_leave_nothing, |place| async move {
    if !Kazoo.or_skip(&place) {
        return;
    }
    let mut python = Command::new(PYTHON);
    python.arg("-B").arg(test_file("peers/kazoo/recipes.py")).arg(place.connect_string());
    let output = run(&mut python).await.output();
    let recipes = ["read_and_write_lock", "election", "barrier", "double_barrier", "queues"];
    assert_eq!(output.lines().collect::<Vec<_>>(), recipes);
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
    for directory in ["read-write", "election", "queue", "double-barrier"] {
        tree::assert_no_contenders(&place.connect_string(), &format!("/{directory}")).await;
    }
    place.assert_no_watches().await;
});
