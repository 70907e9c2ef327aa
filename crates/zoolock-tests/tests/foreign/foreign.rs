//! Runs programs that are not ours, from sources beside the tests.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use tokio::process::Command;
use zoolock_tests::apache::Availability;

/// The file of this name beside the tests.
pub(crate) fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/peers").join(name)
}

/// Whether every one of these files is there; `package` has what is missing.
pub(crate) fn installed<'a>(files: impl IntoIterator<Item = &'a str>, package: &str) -> Availability {
    let missing = files.into_iter().find(|file| !Path::new(file).exists());
    match missing {
        None => Availability::Available,
        Some(file) => Availability::Missing(format!("no {file}, install the package {package}")),
    }
}

/// What a program said until it ended.
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Said {
    /// The output of a program that ended well.
    pub(crate) fn if_well(self) -> String {
        let Self { status, output, errors } = self;
        assert!(status.success(), "{status}, having said\n{output}\nand complained\n{errors}");
        output
    }
}

/// Runs a program to its end; it is killed where the test ends first.
pub(crate) async fn run(command: &mut Command) -> Said {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = match command.output().await {
        Ok(output) => output,
        Err(error) => panic!("cannot run {command:?}: {error}"),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { status: output.status, output: text(&output.stdout), errors: text(&output.stderr) }
}
