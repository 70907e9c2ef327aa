//! The command on a whole: what its users were promised, on both servers and in local mode.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use zoolock_tests::{ServerOptions, ZoolockBinary, on_both_arms};

/// The shell's own way to lose updates if two run at once.
const COUNT: &str = "n=$(cat f); echo $((n+1)) > f";
const AT_ONCE: usize = 20;
const ROUNDS: usize = 50;

fn binary() -> ZoolockBinary {
    ZoolockBinary::find().expect("the command has been built")
}

/// Runs the command to its end.
async fn output(mut command: tokio::process::Command) -> (ExitStatus, String, String) {
    let output = command.stdin(Stdio::null()).output().await.expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status, text(&output.stdout), text(&output.stderr))
}

/// Twenty at once, fifty times over.
async fn count_to_a_thousand(binary: &ZoolockBinary, connect: &[&str], directory: &Path) {
    std::fs::write(directory.join("f"), "0\n").expect("a file");
    for _ in 0..ROUNDS {
        let mut runs = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE {
            let arguments = connect.iter().copied().chain(["run", "counter", "--", "sh", "-c", COUNT]);
            let mut command = binary.command(arguments);
            command.current_dir(directory);
            runs.spawn(output(command));
        }
        while let Some(run) = runs.join_next().await {
            let (status, _, stderr) = run.expect("no panic");
            assert!(status.success(), "{status}: {stderr}");
        }
    }
    let counted = std::fs::read_to_string(directory.join("f")).expect("a file");
    assert_eq!(counted.trim(), (AT_ONCE * ROUNDS).to_string());
    let arguments = connect.iter().copied().chain(["ls", "--json"]);
    let (status, stdout, stderr) = output(binary.command(arguments)).await;
    assert!(status.success(), "{stderr}");
    assert!(!stdout.contains("\"node\""), "somebody is left: {stdout}");
}

on_both_arms!(a_thousand_runs_count_to_a_thousand, |place| async move {
    let scratch = tempfile::tempdir().expect("a directory");
    let address = place.connect_string();
    count_to_a_thousand(&binary(), &["--connect", &address], scratch.path()).await;
});

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_runs_count_to_a_thousand_in_local_mode() {
    let scratch = tempfile::tempdir().expect("a directory");
    let binary = binary();
    count_to_a_thousand(&binary, &[], scratch.path()).await;
    let (status, _, stderr) = output(binary.command(["serve", "--stop"])).await;
    assert!(status.success(), "{stderr}");
}

fn brisk() -> ServerOptions {
    ServerOptions { tick: TICK, ..Default::default() }
}

const TICK: Duration = Duration::from_millis(500);
/// The shortest that the command takes, which cannot see the server's tick.
const SESSION: Duration = Duration::from_secs(6);

fn arguments<'a>(address: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    ["--session-timeout", "6s", "--connect", address].into_iter().chain(rest.iter().copied()).collect()
}

/// Waits until the file has something in it.
async fn until_written(path: &Path) -> String {
    let written = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            match std::fs::read_to_string(path) {
                Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    written.await.unwrap_or_else(|_| panic!("{} was never written", path.display()))
}

on_both_arms!(private(brisk()) a_holder_that_is_killed_makes_room_within_its_session, |place| async move {
    let scratch = tempfile::tempdir().expect("a directory");
    let (binary, address) = (binary(), place.connect_string());
    let started = scratch.path().join("started");
    let hold = format!("echo held > {}; exec sleep 600", started.display());
    let mut holder = binary.spawn(arguments(&address, &["run", "killed", "--", "sh", "-c", &hold]));
    until_written(&started).await;
    let took = scratch.path().join("took");
    let take = format!("echo $ZOOLOCK_PREVIOUS > {}", took.display());
    let mut waiter = binary.spawn(arguments(&address, &["run", "killed", "--", "sh", "-c", &take]));
    // It stands in the queue.
    let zl = zoolock::Zoolock::builder().tick_time(TICK).connect(&address).await.expect("a session");
    while zl.mutex("killed").snapshot().await.expect("a look").waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let killed = Instant::now();
    holder.kill().await.expect("it runs");
    assert_eq!(until_written(&took).await, "unknown");
    let waited = killed.elapsed();
    assert!(waited <= SESSION + TICK + Duration::from_secs(1), "{waited:?}");
    assert!(waiter.wait().await.expect("it ends").success());
});

/// Whether the process is there and no zombie.
fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

on_both_arms!(private(brisk()) when_the_server_dies_the_child_dies_before_the_session_could, |place| async move {
    let scratch = tempfile::tempdir().expect("a directory");
    let (binary, address) = (binary(), place.connect_string());
    let pids = scratch.path().join("pids");
    // Deaf to TERM, and with a child of its own that is so too.
    let stubborn = format!(
        "trap '' TERM; sh -c \"trap '' TERM; while :; do sleep 1; done\" & echo $$ $! > {}; while :; do sleep 1; done",
        pids.display()
    );
    let run = binary.spawn(arguments(&address, &["run", "orphan", "--", "sh", "-c", &stubborn]));
    let pids = until_written(&pids).await;
    let killed = Instant::now();
    place.server().kill().await;
    let ended = tokio::time::timeout(SESSION, run.wait_with_output()).await;
    let ended = ended.expect("before the session timeout is over").expect("it ends");
    let waited = killed.elapsed();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(70), "{stderr}");
    assert!(stderr.contains("lost"), "{stderr}");
    for pid in pids.split(' ') {
        assert!(!is_alive(pid), "{pid} outlived the lock, {waited:?} after the server");
    }
    assert!(waited < SESSION, "{waited:?}");
});

on_both_arms!(locks_are_listed_and_shown_with_who_holds_and_who_waits, |place| async move {
    let (binary, address) = (binary(), place.connect_string());
    let mut holder = binary.spawn(["--connect", &address, "hold", "shown", "--note", "maintenance"]);
    let zl = zoolock::Zoolock::builder().tick_time(TICK).connect(&address).await.expect("a session");
    while zl.mutex("shown").snapshot().await.expect("a look").holder.is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, stdout, stderr) = output(binary.command(["--connect", &address, "show", "shown"])).await;
    assert!(status.success(), "{stderr}");
    assert!(stdout.contains("maintenance"), "{stdout}");
    let (_, stdout, _) = output(binary.command(["--connect", &address, "--json", "show", "shown"])).await;
    let shown: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(shown["holder"]["note"], "maintenance", "{stdout}");
    assert_eq!(shown["path"], "/locks/shown");
    // The end of its input lets it go.
    drop(holder.stdin.take());
    assert!(holder.wait().await.expect("it ends").success());
    assert!(zl.mutex("shown").try_lock().await.expect("an answer").is_some());
});
