//! `zoolock ui` in a real browser: Debian's Chromium, driven by Playwright. What it sees is in `pages.py`; here are the
//! servers, the pages' process, and the deadlock that it asks for.

mod many;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
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
use zoolock_tests::{Arm, ZoolockBinary, on_both_arms};

const CHROMIUM: &str = "/usr/bin/chromium";
const TOKEN: &str = "a token for tests, 32 characters";
/// Much more than all of it takes.
const PATIENCE: Duration = Duration::from_secs(240);

/// Trials of how a page is made, and of who is let in: the same whatever the service.
const SAME_EVERYWHERE: [&str; 9] = [
    "the_token_opens_and_others_do_not",
    "forms_of_others_are_refused",
    "other_sites_are_kept_out",
    "without_login_nothing_can_be_done",
    "hostile_names_are_shown_and_do_nothing",
    "pages_are_whole_without_a_script",
    "nothing_serious_is_found_by_axe",
    "everything_fits_on_a_phone",
    "metrics_are_there",
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

/// Starts the pages, and says where they are.
async fn pages(mut command: Command) -> (Child, String) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().expect("the command starts");
    let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
    let url = timeout(PATIENCE, said.next_line()).await.expect("in time").expect("text").expect("an address");
    (child, url)
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
    let binary = ZoolockBinary::find().expect("the command has been built");
    let (server, connect) = (place.server().socket_addr(), place.addr());
    let token = binary.home().join("token");
    std::fs::write(&token, TOKEN).expect("writable");
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).expect("ours");
    let ui = ["ui", "--listen", "127.0.0.1:0", "--connect", &connect];
    let mut operating = binary.command(ui);
    operating.arg("--allow-operate").arg("--token-file").arg(&token);
    let (mut operating, url) = pages(operating).await;
    let (mut reading, read_only) = pages(binary.command(ui)).await;

    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs/ui/browser");
    let mut script = Command::new(here.join("run"));
    script.env("UI", &url).env("READ_ONLY", &read_only).env("TOKEN", TOKEN).env("CONNECT", &connect);
    script.env("ZOOLOCK", binary.path()).env("CHROMIUM", CHROMIUM).env("SCREENSHOTS", screenshots(place.server().arm()));
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
    operating.kill().await.expect("it runs");
    reading.kill().await.expect("it runs");
});
