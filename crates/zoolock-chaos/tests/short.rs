//! A run of a minute, and runs in which something is wrong that must be found; most of them with `ZOOLOCK_LONG=1` only.

use std::process::{Command, Output, Stdio};

use zoolock_tests::apache::availability;
use zoolock_tests::skip::long_or_skip;

/// Runs it to its end, and shows what it said where the test fails.
fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoolock-chaos"));
    command.arg("run").args(args).stdin(Stdio::null());
    let output = command.output().expect("it can be executed");
    println!("{}\n{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    output
}

#[test]
fn apache_in_pieces_lets_no_older_token_write() {
    if !availability().or_skip("apache_in_pieces_lets_no_older_token_write") {
        return;
    }
    let kinds = "kill-leader,isolate-follower,stop-client,delete-directory";
    let output = run(&["--time", "40s", "--workers", "2", "--only", kinds]);
    assert_eq!(output.status.code(), Some(0), "there are violations, or it could not be judged");
    let report = String::from_utf8_lossy(&output.stdout);
    for kind in ["mutex", "read/write", "semaphore", "multi", "tenure", "reentrant"] {
        assert!(report.contains(&format!("{kind} ")), "no {kind} was held");
    }
}

/// Of what is wrong, what it is found by.
fn is_found(broken: &str, fault: &str, finding: &str) {
    if !availability().or_skip(broken) {
        return;
    }
    let output = run(&["--time", "4s", "--workers", "2", "--only", fault, "--break", broken]);
    assert_eq!(output.status.code(), Some(1), "{broken} was not found");
    let report = String::from_utf8_lossy(&output.stdout);
    let found = |line: &str| line.starts_with("VIOLATION") && line.contains(finding);
    assert!(report.lines().any(found), "{broken} was found by something else");
}

#[test]
fn apache_whose_lock_is_not_taken_is_found() {
    is_found("no-lock", "flapping-client", " believed from ");
}

#[test]
fn apache_whose_lock_is_not_released_is_found() {
    if long_or_skip("apache_whose_lock_is_not_released_is_found") {
        is_found("no-release", "flapping-client", "its release was confirmed");
    }
}

#[test]
fn apache_whose_holder_never_looks_is_found() {
    if long_or_skip("apache_whose_holder_never_looks_is_found") {
        is_found("no-check", "stop-client", " believed from ");
    }
}

#[test]
fn apache_without_a_fence_is_found() {
    if long_or_skip("apache_without_a_fence_is_found") {
        is_found("unfenced", "stop-client", " wrote with ");
    }
}
