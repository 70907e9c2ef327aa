//! `zoolock-bench scale`, with little of everything: that it works, not what it measures.

use std::process::{Command, Stdio};

use zoolock_tests::ZoolockBinary;
use zoolock_tests::apache::availability;

#[test]
fn points_are_measured_fitted_and_carried_on() {
    if !availability().or_skip("points_are_measured_fitted_and_carried_on") {
        return;
    }
    let zoolock = ZoolockBinary::find().expect("the command is built");
    let mut scale = Command::new(env!("CARGO_BIN_EXE_zoolock-bench"));
    scale.args(["scale", "--quick"]).arg("--zoolock").arg(zoolock.path()).stdin(Stdio::null());
    let output = scale.output().expect("it can be executed");
    let (said, table) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{said}");
    let rows = |begin: &str| table.lines().filter(|line| line.starts_with(begin)).count();
    for begin in ["| 1 |", "| 8 |", "| 32 |"] {
        assert!(rows(begin) >= 1, "no row {begin}\n{table}");
    }
    for what in ["an idle session: memory", "a held lock: memory", "a waiter: memory"] {
        assert_eq!(rows(&format!("| {what} |")), 1, "{table}");
    }
    // As many clients as asked, alone and ten for each lock, on one ensemble and on two; and none of it without a figure.
    assert_eq!(rows("| 1000 | 1 |") + rows("| 1000 | 10 |"), 4, "{table}");
    assert!(!table.contains("NaN") && !table.contains("inf"), "{table}");
}

#[test]
fn without_figures_of_an_earlier_run_it_says_so() {
    let empty = tempfile::tempdir().expect("a directory");
    std::fs::write(empty.path().join("Cargo.lock"), "").expect("it is ours");
    let mut again = Command::new(env!("CARGO_BIN_EXE_zoolock-bench"));
    again.args(["scale", "--again"]).current_dir(&empty).stdin(Stdio::null());
    let output = again.output().expect("it can be executed");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("bench/results/scale.json"), "{said}");
}
