//! Runs programs of other projects, and finds the files beside these tests.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use tokio::process::Command;
use zoolock_tests::apache::{self, Availability};
use zoolock_tests::other_libraries::{PYTHON, installed};

const ZKCLI: &str = "/usr/share/zookeeper/bin/zkCli.sh";

/// Returns the path of a file below `tests/foreign`.
pub(crate) fn test_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(name)
}

/// Returns whether Python can create a virtual environment, which Debian packages separately.
pub(crate) fn python_environments() -> Availability {
    let python = if Path::new(PYTHON).exists() { PYTHON } else { "python3" };
    match std::process::Command::new(python).args(["-c", "import venv, ensurepip"]).output() {
        Ok(output) if output.status.success() => Availability::Available,
        Ok(_) | Err(_) => Availability::Missing("no python3 with venv, install python3-venv".to_owned()),
    }
}

/// Returns whether test `name` can run `zkCli.sh`. If it cannot, reports the test as skipped.
pub(crate) fn zkcli_or_skip(name: &str) -> bool {
    // `apache::availability` checks for Java.
    apache::availability().or_skip(name) && installed([ZKCLI], "zookeeper").or_skip(name)
}

/// Returns a command that connects `zkCli.sh` to the server at `addr`.
pub(crate) fn zkcli(addr: &str) -> Command {
    let mut zkcli = Command::new(ZKCLI);
    zkcli.args(["-server", addr]);
    zkcli
}

/// The result of a program that has ended.
pub(crate) struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Ended {
    /// Returns the standard output.
    ///
    /// # Panics
    /// Panics if the program failed.
    pub(crate) fn output(self) -> String {
        let Self { status, stdout, stderr } = self;
        assert!(status.success(), "{status}, with the output\n{stdout}\nand the errors\n{stderr}");
        stdout
    }
}

/// Runs a program until it ends. Dropping the future kills the program.
pub(crate) async fn run(command: &mut Command) -> Ended {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = match command.output().await {
        Ok(output) => output,
        Err(error) => panic!("cannot run {command:?}: {error}"),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) }
}
