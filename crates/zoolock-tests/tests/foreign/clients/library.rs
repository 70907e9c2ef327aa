//! The client libraries, and the commands that start their clients.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use tokio::process::Command;
use zoolock_tests::skip::Availability;
use zoolock_tests::{Place, Result, TestFailure, apache};

use crate::programs::{PYTHON, installed, python_environments, run, test_file};

/// Jars of Curator and of ZooKeeper's lock recipe. Their manifests name the other jars that they need.
const JARS: [&str; 4] = [
    "/usr/share/java/curator-recipes.jar",
    "/usr/share/java/zookeeper-recipes-lock.jar",
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
];
const KAZOO: &str = "/usr/lib/python3/dist-packages/kazoo/client.py";

/// A client library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    /// zoolock, the library under test.
    Zoolock,
    /// Curator, and the lock recipe that comes with ZooKeeper.
    Java,
    /// The kazoo of Debian.
    Kazoo,
    /// A newer kazoo, whose readers do not wait for writers that queued later.
    NewKazoo,
    /// aiozk, a client for Python's asyncio.
    Aiozk,
}

impl Library {
    /// Returns whether this machine has the library. If not, reports the test as skipped.
    pub(crate) fn or_skip(self, place: &Place) -> bool {
        let availability = match self {
            Library::Zoolock => Availability::Available,
            // `apache::availability` checks for Java.
            Library::Java => match apache::availability() {
                Availability::Available => installed(JARS, "libcurator-recipes-java and libzookeeper-java"),
                missing => missing,
            },
            Library::Kazoo => installed([KAZOO], "python3-kazoo"),
            Library::NewKazoo | Library::Aiozk => python_environments(),
        };
        availability.or_skip(place.test())
    }

    /// Returns the command that starts a client, without its argument.
    pub(super) async fn command(self) -> Command {
        match self {
            Library::Zoolock => Command::new(env!("CARGO_BIN_EXE_lock-client")),
            Library::Java => java("LockClient").await,
            Library::Kazoo => python(PYTHON, "kazoo"),
            Library::NewKazoo => python(from_pypi("kazoo", "2.11.0").await, "kazoo"),
            Library::Aiozk => python(from_pypi("aiozk", "0.32.0").await, "aiozk"),
        }
    }
}

/// Returns the command that runs the client of a library for Python.
fn python(interpreter: impl AsRef<OsStr>, library: &str) -> Command {
    let mut python = Command::new(interpreter);
    python.arg("-B").arg(test_file(&format!("clients/python/{library}_client.py")));
    python
}

/// Returns the path of a Python interpreter that has this package.
async fn from_pypi(package: &str, version: &str) -> String {
    let mut install = Command::new(test_file("clients/from_pypi"));
    let output = run(install.args([package, version])).await.output();
    output.trim_end().to_owned()
}

/// Returns the command that runs a class from `clients/java`.
pub(crate) async fn java(class: &str) -> Command {
    let classes = compiled().await.expect("the Java sources compile");
    let path: Vec<&str> = JARS.into_iter().chain(classes.to_str()).collect();
    let mut java = Command::new("java");
    java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        .args(["-cp", &path.join(":"), class]);
    java
}

/// Compiles the Java sources and returns the directory of the classes.
///
/// Each version of the sources is compiled once. Tests run in separate processes, which can compile
/// at the same time. The first process that renames its directory to the final name succeeds, and
/// the other processes use that directory.
async fn compiled() -> Result<PathBuf> {
    let failed = |error| TestFailure::during("compiling the Java sources", error);
    let sources = ["clients/java/LockClient.java", "clients/java/Numbers.java"].map(test_file);
    let mut hasher = DefaultHasher::new();
    for source in &sources {
        std::fs::read(source).map_err(failed)?.hash(&mut hasher);
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let classes = target.join(format!("foreign-{:016x}", hasher.finish()));
    if classes.exists() {
        return Ok(classes);
    }
    let own = tempfile::tempdir_in(target).map_err(failed)?;
    let mut javac = Command::new("javac");
    javac.args(["-J-Xmx128m", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "-nowarn"]);
    javac.args(["-cp", &JARS.join(":"), "-d"]).arg(own.path());
    run(javac.args(&sources)).await.output();
    match std::fs::rename(own.path(), &classes) {
        Ok(()) => Ok(classes),
        Err(_) if classes.exists() => Ok(classes),
        Err(error) => Err(failed(error)),
    }
}
