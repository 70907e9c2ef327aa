//! `zoolock ui` in a real browser: Debian's Chromium, driven by Playwright. What it sees is in `pages.py`; here are the
//! servers, the pages' process, and the deadlock that it asks for.

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
use zoolock_tests::{Arm, on_both_arms};

use super::{TOKEN, start, token_file};
use crate::common::Sandbox;

const CHROMIUM: &str = "/usr/bin/chromium";
/// Much more than all of it takes.
const PATIENCE: Duration = Duration::from_secs(240);

/// Trials of how a page is made, and of who is let in: the same whatever the service.
const SAME_EVERYWHERE: [&str; 5] = [
    "only_the_right_token_logs_in",
    "hostile_names_are_shown_harmlessly",
    "pages_work_without_javascript",
    "axe_finds_no_serious_violation",
    "pages_fit_on_a_phone",
];

fn browser() -> Availability {
    if !Path::new(CHROMIUM).exists() {
        return Availability::Missing(format!("no {CHROMIUM}, install chromium"));
    }
    let venv = std::process::Command::new("/usr/bin/python3").args(["-c", "import venv, ensurepip"]).output();
    match venv {
        Ok(said) if said.status.success() => Availability::Available,
        Ok(_) | Err(_) => Availability::Missing("no python3 with venv, install python3-venv".to_owned()),
    }
}

/// Three services hold one lock each, and want the next one's. Each lets go of all it has when it has both.
async fn circle(addr: SocketAddr) -> JoinSet<()> {
    let (all, mut tasks) = (Arc::new(Barrier::new(4)), JoinSet::new());
    for (program, mine, next) in
        [("billing", "invoice", "order"), ("orders", "order", "parcel"), ("shipping", "parcel", "invoice")]
    {
        let zl = Zoolock::builder().program(program).connect(&addr.to_string()).await.expect("a session");
        let all = Arc::clone(&all);
        tasks.spawn(async move {
            let guard = zl.mutex(format!("{mine}/7")).lock().await.expect("it is free");
            all.wait().await;
            let both = zl.mutex(format!("{next}/7")).lock().await.expect("somebody breaks the circle");
            drop((guard, both));
        });
    }
    all.wait().await;
    tasks
}

/// Does what the browser's side asks for, until it ends.
async fn attend(script: &mut Child, mut asked: Lines<BufReader<ChildStdout>>, addr: SocketAddr) -> String {
    let mut answers = script.stdin.take().expect("piped");
    let mut said = String::new();
    let mut tasks = JoinSet::new();
    while let Some(line) = asked.next_line().await.expect("text") {
        let answer = match line.as_str() {
            "PLEASE deadlock" => {
                tasks = circle(addr).await;
                "made"
            }
            "PLEASE all free" => {
                while let Some(ended) = tasks.join_next().await {
                    ended.expect("no panic");
                }
                "free"
            }
            other => {
                said.push_str(other);
                said.push('\n');
                continue;
            }
        };
        answers.write_all(format!("{answer}\n").as_bytes()).await.expect("it reads");
    }
    said
}

/// Pictures of our own server's pages are kept; those of the other are beside them.
fn screenshots(arm: Arm) -> PathBuf {
    let directory = match std::env::var_os("ZOOLOCK_SCREENSHOTS") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/screenshots"),
    };
    match arm {
        Arm::Embedded => directory,
        Arm::Apache => directory.join("apache"),
    }
}

on_both_arms!(private the_pages_work_in_a_browser, |place| async move {
    if !browser().or_skip("the_pages_work_in_a_browser") {
        return;
    }
    let sandbox = Sandbox::new();
    let (server, connect) = (place.server().socket_addr(), place.addr());
    let token = token_file(&sandbox);
    let flags = ["--connect", &connect, "--allow-operate", "--token-file", &token];
    let (_ui, address) = start(&sandbox, &flags);

    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs/ui/browser");
    let mut script = Command::new(here.join("run"));
    script.env("UI", format!("http://{address}")).env("TOKEN", TOKEN).env("CONNECT", &connect);
    script.env("ZOOLOCK", env!("CARGO_BIN_EXE_zoolock")).env("CHROMIUM", CHROMIUM);
    script.env("SCREENSHOTS", screenshots(place.server().arm()));
    if place.server().arm() == Arm::Apache && std::env::var_os("ONLY").is_none() {
        script.env("LEAVE_OUT", SAME_EVERYWHERE.join(" "));
    }
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut script = script.spawn().expect("it starts");
    let asked = BufReader::new(script.stdout.take().expect("piped")).lines();
    let mut errors = script.stderr.take().expect("piped");
    let errors = tokio::spawn(async move {
        let mut said = String::new();
        let _ = errors.read_to_string(&mut said).await;
        said
    });
    let said = timeout(PATIENCE, attend(&mut script, asked, server)).await.expect("it ends in time");
    let status = script.wait().await.expect("it ends");
    assert!(status.success(), "{said}\n{}", errors.await.expect("no panic"));
    assert!(said.trim_end().ends_with("all is well"), "{said}");
    // How long what took, for whoever asks for the output of tests that pass.
    println!("{said}");
});
