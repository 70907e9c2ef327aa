//! What the tests of the drills have in common.

use std::process::{Command, Output, Stdio};

/// Runs a drill to its end, and shows what it said where the test fails.
pub(crate) fn drill(what: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoolock-chaos"));
    command.arg(what).args(args).stdin(Stdio::null());
    let output = command.output().expect("it can be executed");
    println!("{}\n{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    output
}

/// Whether a violation of which this is said was found.
pub(crate) fn finds(output: &Output, finding: &str) -> bool {
    let report = String::from_utf8_lossy(&output.stdout);
    report.lines().any(|line| line.starts_with("VIOLATION") && line.contains(finding))
}
