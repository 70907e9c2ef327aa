//! Reports of skipped tests, on stdout and in the file that `ZOOLOCK_SKIPPED` names.
//!
//! The file is needed because a test runner hides the output of passing tests. `./check` prints the
//! file after all tests.

use std::fs::OpenOptions;
use std::io::Write;

/// The availability of a test's prerequisite on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// This machine has the prerequisite.
    Available,
    /// This machine does not have the prerequisite, for this reason.
    Missing(String),
}

impl Availability {
    /// Returns whether test `name` can run. If it cannot, reports it as skipped.
    ///
    /// # Panics
    /// Panics if the test cannot run and `CI` is `true`, because a skipped test would look like a passed one.
    pub fn or_skip(&self, name: &str) -> bool {
        match self {
            Self::Available => true,
            Self::Missing(reason) => {
                skip(name, reason);
                false
            }
        }
    }
}

/// Returns whether test `name`, which takes minutes, is to run. If not, reports it as skipped.
///
/// With `ZOOLOCK_LONG=1`, long tests run. `./check --long` sets this variable. A skipped long test
/// does not fail in CI.
pub fn long_or_skip(name: &str) -> bool {
    let long = is_long();
    if !long {
        report(name, "takes long, set ZOOLOCK_LONG=1");
    }
    long
}

/// Returns whether `ZOOLOCK_LONG=1` is set. If so, tests run at full length.
pub fn is_long() -> bool {
    std::env::var("ZOOLOCK_LONG").is_ok_and(|value| value == "1")
}

/// Reports that test `name` is skipped because of `reason`.
///
/// # Panics
/// Panics if `CI` is `true`.
pub fn skip(name: &str, reason: &str) {
    assert!(
        !std::env::var("CI").is_ok_and(|value| value == "true"),
        "{name} may not be skipped in CI: {reason}"
    );
    report(name, reason);
}

fn report(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
    let Some(path) = std::env::var_os("ZOOLOCK_SKIPPED") else { return };
    // The line is appended in one write, so that lines of concurrent tests do not mix.
    let line = format!("{name}: {reason}\n");
    let written = OpenOptions::new().create(true).append(true).open(path);
    let written = written.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("ZOOLOCK_SKIPPED names a writable file");
}
