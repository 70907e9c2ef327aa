//! Saying that a test did not run: on stdout, and in the file that `ZOOLOCK_SKIPPED` names, since a test runner
//! hides what passing tests print. `./check` lists that file at its end.

use std::fs::OpenOptions;
use std::io::Write;

/// Whether something a test needs is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It is.
    Available,
    /// It is not, and why.
    Missing(String),
}

impl Availability {
    /// Whether test `name` can run; if not, says so on stdout.
    ///
    /// # Panics
    /// When it cannot and `CI` is `true`: a skipped test would look like a passed one.
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

/// Whether test `name`, which takes minutes, is to run: `ZOOLOCK_LONG=1`, as `./check --long` sets. If not, says
/// so on stdout; that is a choice, not something missing, so it is no failure in CI.
pub fn long_or_skip(name: &str) -> bool {
    let long = std::env::var("ZOOLOCK_LONG").is_ok_and(|value| value == "1");
    if !long {
        say(name, "takes long, set ZOOLOCK_LONG=1");
    }
    long
}

/// Says that test `name` is skipped because of `reason`.
///
/// # Panics
/// When `CI` is `true`.
pub fn skip(name: &str, reason: &str) {
    assert!(
        !std::env::var("CI").is_ok_and(|value| value == "true"),
        "{name} may not be skipped in CI: {reason}"
    );
    say(name, reason);
}

fn say(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
    let Some(path) = std::env::var_os("ZOOLOCK_SKIPPED") else { return };
    // One write to a file opened for appending: lines of concurrent tests do not mix.
    let line = format!("{name}: {reason}\n");
    let written = OpenOptions::new().create(true).append(true).open(path);
    let written = written.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("whoever sets ZOOLOCK_SKIPPED names a file that can be written");
}
