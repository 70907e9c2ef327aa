//! `zoolock ui` in a real browser: Debian's Chromium, driven by Playwright. `pages.py` checks the pages. This module starts
//! the server, `zoolock ui` and `pages.py`, and creates the deadlock that `pages.py` requests.

mod many;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;
use zoolock::Zoolock;
use zoolock_tests::skip::Availability;
use zoolock_tests::{ServerKind, on_both_servers};

use super::start;
use crate::common::Sandbox;

const CHROMIUM: &str = "/usr/bin/chromium";
/// Time limit for all of `pages.py`, much longer than it takes.
const PATIENCE: Duration = Duration::from_secs(240);

/// Tests in `pages.py` that do not depend on the kind of server. They run on one server only.
const SERVER_INDEPENDENT: [&str; 10] = [
    "refused_page_is_not_live",
    "open_stream_alone_is_not_live",
    "outage_is_not_live",
    "refused_event_stream_is_polled",
    "commands_are_copied_and_work",
    "waiters_are_collapsed",
    "hostile_names_are_shown_harmlessly",
    "pages_work_without_javascript",
    "axe_finds_no_serious_violation",
    "pages_fit_on_a_phone",
];

/// Returns whether Chromium and the Python for Playwright are installed.
fn browser() -> Availability {
    if !Path::new(CHROMIUM).exists() {
        return Availability::Missing(format!("no {CHROMIUM}, install chromium"));
    }
    let venv = std::process::Command::new("/usr/bin/python3").args(["-c", "import venv, ensurepip"]).output();
    match venv {
        Ok(output) if output.status.success() => Availability::Available,
        Ok(_) | Err(_) => Availability::Missing("no python3 with venv, install python3-venv".to_owned()),
    }
}

/// Creates a deadlock: three programs hold one lock each, and wait for the lock of the next program. A program that acquires
/// both locks releases them.
async fn create_deadlock(addr: SocketAddr) -> JoinSet<()> {
    let (all_hold, mut tasks) = (Arc::new(Barrier::new(4)), JoinSet::new());
    for (program, own, next) in
        [("billing", "invoice", "order"), ("orders", "order", "parcel"), ("shipping", "parcel", "invoice")]
    {
        let zl =
            Zoolock::builder().program(program).connect(&addr.to_string()).await.expect("session created");
        let all_hold = Arc::clone(&all_hold);
        tasks.spawn(async move {
            let guard = zl.mutex(format!("{own}/7")).lock().await.expect("lock granted");
            all_hold.wait().await;
            let both = zl
                .mutex(format!("{next}/7"))
                .lock()
                .await
                .expect("lock granted after the deadlock is broken");
            drop((guard, both));
        });
    }
    all_hold.wait().await;
    tasks
}

/// Serves the requests of `pages.py` until it ends, and returns the rest of its output.
async fn serve_requests(
    script: &mut Child,
    mut lines: Lines<BufReader<ChildStdout>>,
    addr: SocketAddr,
) -> String {
    let mut answers = script.stdin.take().expect("piped");
    let mut output = String::new();
    let mut tasks = JoinSet::new();
    while let Some(line) = lines.next_line().await.expect("UTF-8") {
        let answer = match line.as_str() {
            "PLEASE deadlock" => {
                tasks = create_deadlock(addr).await;
                "made"
            }
            "PLEASE all free" => {
                while let Some(ended) = tasks.join_next().await {
                    ended.expect("task does not panic");
                }
                "free"
            }
            other => {
                output.push_str(other);
                output.push('\n');
                continue;
            }
        };
        answers.write_all(format!("{answer}\n").as_bytes()).await.expect("the script reads");
    }
    output
}

/// Returns the directory for screenshots. Screenshots with Apache ZooKeeper are in a subdirectory.
fn screenshots(server_kind: ServerKind) -> PathBuf {
    let directory = match std::env::var_os("ZOOLOCK_SCREENSHOTS") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/screenshots"),
    };
    match server_kind {
        ServerKind::Embedded => directory,
        ServerKind::Apache => directory.join("apache"),
    }
}

on_both_servers!(private the_pages_work_in_a_browser, |zookeeper| async move {
    if !browser().or_skip("the_pages_work_in_a_browser") {
        return;
    }
    let sandbox = Sandbox::new();
    let (server, connect) = (zookeeper.server().socket_addr(), zookeeper.addr());
    let flags = ["--connect", connect.as_str()];
    let (_ui, address) = start(&sandbox, &flags);
    let (_other_ui, other_address) = start(&sandbox, &flags);

    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs/ui/browser");
    let mut script = Command::new(directory.join("run"));
    script.env("UI", format!("http://{address}")).env("CONNECT", &connect);
    script.env("OTHER_UI", format!("http://{other_address}"));
    script.env("ZOOLOCK", env!("CARGO_BIN_EXE_zoolock")).env("CHROMIUM", CHROMIUM);
    script.env("SCREENSHOTS", screenshots(zookeeper.server().server_kind()));
    if zookeeper.server().server_kind() == ServerKind::Apache && std::env::var_os("ONLY").is_none() {
        script.env("LEAVE_OUT", SERVER_INDEPENDENT.join(" "));
    }
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut script = script.spawn().expect("the script starts");
    let lines = BufReader::new(script.stdout.take().expect("piped")).lines();
    let mut stderr = script.stderr.take().expect("piped");
    let errors = tokio::spawn(async move {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text).await;
        text
    });
    let output = timeout(PATIENCE, serve_requests(&mut script, lines, server)).await.expect("the script ends in time");
    let status = script.wait().await.expect("the script ends");
    assert!(status.success(), "{output}\n{}", errors.await.expect("task does not panic"));
    assert!(output.trim_end().ends_with("all is well"), "{output}");
    // The output has the duration of each test. A test runner shows it on request.
    println!("{output}");
});
