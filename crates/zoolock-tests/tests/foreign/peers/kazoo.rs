//! kazoo: its own tests, all of them, and its recipes by several sessions at once.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;
use zoolock_tests::four_letter::watch_count;
use zoolock_tests::skip::{Availability, long_or_skip};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Arm, Failure, Proxy, Server, ServerOptions, Serving, ZoolockBinary, on_both_arms, tree};

use crate::foreign::{beside, installed, run};

/// Debian's, which no other Python finds.
const KAZOO: &str = "/usr/lib/python3/dist-packages/kazoo/client.py";

/// The digest of the password that kazoo's tests know.
const SUPER: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";
/// Longer than kazoo needs between two looks at its queue, on a busy machine too.
const LATE: Duration = Duration::from_millis(200);

/// What the suite's script looks for, in the same order.
fn python() -> Availability {
    let system = "/usr/bin/python3";
    let python = if Path::new(system).exists() { system } else { "python3" };
    // Debian keeps apart what a new environment is filled from.
    match std::process::Command::new(python).args(["-c", "import venv, ensurepip"]).output() {
        Ok(said) if said.status.success() => Availability::Available,
        Ok(_) | Err(_) => Availability::Missing("no python3 with venv, install python3-venv".to_owned()),
    }
}

/// Runs the suite on the server at `addr`, and again late where that is wanted.
async fn suite(addr: SocketAddr) {
    let slow = Proxy::start(&addr.to_string()).await.expect("a proxy");
    slow.delay(LATE);
    let mut suite = Command::new(beside("kazoo/suite"));
    let said = run(suite.arg(addr.to_string()).env("ZK_SLOW", slow.addr())).await.if_well();
    // What is skipped needs servers that kazoo starts, stops and configures itself.
    let last = said.trim_end().lines().last().unwrap_or_default();
    assert!(last.starts_with("472 passed, 21 skipped in "), "{said}");
    let counted =
        eventually("every watch goes", Duration::from_secs(15), async || match watch_count(addr).await? {
            0 => Ok(()),
            left => Err(Failure::new(format!("{left} watches left"))),
        });
    counted.await.expect("what is closed leaves no watch");
}

/// The command as somebody would run it, with a directory to whose disk everything goes before it is answered.
#[tokio::test(flavor = "multi_thread")]
async fn own_suite_of_kazoo_passes_on_zoolock_serve() {
    if !python().or_skip("own_suite_of_kazoo_passes_on_zoolock_serve") {
        return;
    }
    let binary = ZoolockBinary::find().expect("the command has been built");
    let digest = binary.home().join("super");
    std::fs::write(&digest, SUPER).expect("writable");
    std::fs::set_permissions(&digest, PermissionsExt::from_mode(0o600)).expect("ours");
    let mut command = binary.command(["serve", "--listen", "127.0.0.1:0", "--tick", "2s"]);
    command.args(["--max-session-timeout", "40s", "--words", "envi,mntr,ruok,srvr"]);
    command.arg("--data").arg(binary.home().join("data")).arg("--super-digest-file").arg(&digest);
    let server = Serving::start(command).await.expect("up");
    suite(server.addr()).await;
    let ended = server.terminate().await.expect("it ends");
    assert_eq!((ended.code, ended.notes.as_str()), (Some(0), ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn own_suite_of_kazoo_passes_on_apache() {
    let name = "own_suite_of_kazoo_passes_on_apache";
    if !long_or_skip(name) || !python().or_skip(name) || !Arm::Apache.availability().or_skip(name) {
        return;
    }
    let options = ServerOptions {
        tick: Duration::from_secs(2),
        max_session_timeout: Duration::from_secs(40),
        super_digest: Some(SUPER.to_owned()),
        ..Default::default()
    };
    let server = Server::start(Arm::Apache, options).await.expect("a server");
    suite(server.socket_addr()).await;
}

on_both_arms!(recipes_of_kazoo_exclude_and_leave_nothing, |place| async move {
    let name = format!("recipes_of_kazoo_exclude_and_leave_nothing::{}", place.arm());
    if !installed([KAZOO], "python3-kazoo").or_skip(&name) {
        return;
    }
    let mut python = Command::new("/usr/bin/python3");
    let said =
        run(python.arg("-B").arg(beside("kazoo/recipes.py")).arg(place.connect_string())).await.if_well();
    let recipes =
        ["lock", "read_and_write_lock", "semaphore", "election", "barrier", "double_barrier", "queues"];
    assert_eq!(said.lines().collect::<Vec<_>>(), recipes);
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
    for directory in ["lock", "read-write", "semaphore", "election", "queue", "double-barrier"] {
        tree::assert_no_contenders(&place.connect_string(), &format!("/{directory}")).await;
    }
    place.assert_no_watches().await;
});
