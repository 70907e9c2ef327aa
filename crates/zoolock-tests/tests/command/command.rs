//! End-to-end tests of the command, on both servers and in local mode.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use zoolock_tests::locks::{connect, until_queued};
use zoolock_tests::{ZoolockBinary, on_both_arms, tree};

/// A shell command that loses updates if two of them run at once.
const INCREMENT: &str = "n=$(cat f); echo $((n+1)) > f";
const CONCURRENT_RUNS: usize = 20;
const ROUNDS: usize = 50;

fn binary() -> ZoolockBinary {
    ZoolockBinary::find().expect("zoolock was built")
}

/// Runs the command to its end. Returns its status and its output.
async fn output(mut command: tokio::process::Command) -> (ExitStatus, String, String) {
    let output = command.stdin(Stdio::null()).output().await.expect("command started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status, text(&output.stdout), text(&output.stderr))
}

/// Increments a counter a thousand times under a lock, with 20 runs at once. Checks that no update is lost.
async fn assert_no_update_is_lost(binary: &ZoolockBinary, connect: &[&str], directory: &Path) {
    std::fs::write(directory.join("f"), "0\n").expect("file written");
    for _ in 0..ROUNDS {
        let mut runs = tokio::task::JoinSet::new();
        for _ in 0..CONCURRENT_RUNS {
            let arguments = connect.iter().copied().chain(["run", "counter", "--", "sh", "-c", INCREMENT]);
            let mut command = binary.command(arguments);
            command.current_dir(directory);
            runs.spawn(output(command));
        }
        while let Some(run) = runs.join_next().await {
            let (status, _, stderr) = run.expect("the task does not panic");
            assert!(status.success(), "{status}: {stderr}");
        }
    }
    let counted = std::fs::read_to_string(directory.join("f")).expect("file read");
    assert_eq!(counted.trim(), (CONCURRENT_RUNS * ROUNDS).to_string());
    let arguments = connect.iter().copied().chain(["ls", "--json"]);
    let (status, stdout, stderr) = output(binary.command(arguments)).await;
    assert!(status.success(), "{stderr}");
    assert!(!stdout.contains("\"node\""), "a contender is left: {stdout}");
}

on_both_arms!(concurrent_runs_lose_no_update, |place| async move {
    let scratch = tempfile::tempdir().expect("directory created");
    let address = place.connect_string();
    assert_no_update_is_lost(&binary(), &["--connect", &address], scratch.path()).await;
});

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_runs_lose_no_update_in_local_mode() {
    let scratch = tempfile::tempdir().expect("directory created");
    let binary = binary();
    assert_no_update_is_lost(&binary, &[], scratch.path()).await;
    let (status, _, stderr) = output(binary.command(["serve", "--stop"])).await;
    assert!(status.success(), "{stderr}");
}

/// The shortest session timeout that the command accepts, because it does not know the server's tick time.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
/// Time for the server to notice an expiry and for the next command to start.
const SLACK: Duration = Duration::from_millis(1500);

fn arguments<'a>(address: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    ["--session-timeout", "6s", "--connect", address].into_iter().chain(rest.iter().copied()).collect()
}

/// Waits until the file has a whole line, and returns it.
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

on_both_arms!(killed_holder_frees_lock_within_session_timeout, |place| async move {
    let scratch = tempfile::tempdir().expect("directory created");
    let (binary, address) = (binary(), place.connect_string());
    let started = scratch.path().join("started");
    let hold = format!("echo held > {}; exec sleep 600", started.display());
    let mut holder = binary.spawn(arguments(&address, &["run", "killed", "--", "sh", "-c", &hold]));
    until_written(&started).await;
    let took = scratch.path().join("took");
    let take = format!("echo $ZOOLOCK_PREVIOUS > {}", took.display());
    let mut waiter = binary.spawn(arguments(&address, &["run", "killed", "--", "sh", "-c", &take]));
    let zl = connect(&place).await;
    until_queued(&zl, "killed", 2).await;
    let killed = Instant::now();
    holder.kill().await.expect("the holder runs");
    assert_eq!(until_written(&took).await, "unknown");
    let waited = killed.elapsed();
    assert!(waited <= SESSION_TIMEOUT + SLACK, "{waited:?}");
    assert!(waiter.wait().await.expect("waiter ended").success());
});

/// Returns whether the process exists and is no zombie.
fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

on_both_arms!(private command_is_killed_before_session_timeout_without_server, |place| async move {
    let scratch = tempfile::tempdir().expect("directory created");
    let (binary, address) = (binary(), place.connect_string());
    let pids = scratch.path().join("pids");
    // Ignores TERM, and so does its child.
    let stubborn = format!(
        "trap '' TERM; sh -c \"trap '' TERM; while :; do sleep 1; done\" & echo $$ $! > {}; while :; do sleep 1; done",
        pids.display()
    );
    let run = binary.spawn(arguments(&address, &["run", "orphan", "--", "sh", "-c", &stubborn]));
    let pids = until_written(&pids).await;
    let killed = Instant::now();
    place.server().kill().await;
    let ended = tokio::time::timeout(SESSION_TIMEOUT, run.wait_with_output()).await;
    let ended = ended.expect("ended within the session timeout").expect("output read");
    let waited = killed.elapsed();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(70), "{stderr}");
    assert!(stderr.contains("lost"), "{stderr}");
    for pid in pids.split(' ') {
        assert!(!is_alive(pid), "{pid} still runs {waited:?} after the server was killed");
    }
    assert!(waited < SESSION_TIMEOUT, "{waited:?}");
});

on_both_arms!(show_prints_holder_and_note, |place| async move {
    let (binary, address) = (binary(), place.connect_string());
    let mut holder = binary.spawn(["--connect", &address, "hold", "shown", "--note", "maintenance"]);
    let zl = connect(&place).await;
    while zl.mutex("shown").snapshot().await.expect("snapshot read").holder.is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, stdout, stderr) = output(binary.command(["--connect", &address, "show", "shown"])).await;
    assert!(status.success(), "{stderr}");
    assert!(stdout.contains("maintenance"), "{stdout}");
    let (_, stdout, _) = output(binary.command(["--connect", &address, "--json", "show", "shown"])).await;
    let shown: serde_json::Value = serde_json::from_str(&stdout).expect("the output is JSON");
    assert_eq!(shown["holder"]["note"], "maintenance", "{stdout}");
    assert_eq!(shown["path"], "/locks/shown");
    // `hold` releases the lock at the end of its input.
    drop(holder.stdin.take());
    assert!(holder.wait().await.expect("holder ended").success());
    assert!(zl.mutex("shown").try_lock().await.expect("server answered").is_some());
});

on_both_arms!(bench_reports_every_figure_and_leaves_no_znodes, |place| async move {
    let (binary, address) = (binary(), place.connect_string());
    let line = ["bench", "--connect", &address, "--time", "200ms", "--json"];
    let (status, stdout, stderr) = output(binary.command(line)).await;
    assert!(status.success(), "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("the output is JSON");
    let works = report["works"].as_array().expect("works is a list");
    assert_eq!(works.len(), 6, "{stdout}");
    for work in works {
        assert!(work["median_ns"].as_u64() > Some(0) && work["turns"].as_u64() > Some(0), "{work}");
    }
    let left = tree::descendants(&place.addr(), place.chroot()).await.expect("server answered");
    assert_eq!(left, Vec::<String>::new());
});
