//! The client libraries, and the commands that start their clients.

use std::ffi::OsStr;
use std::path::Path;

use tokio::process::Command;
use zoolock_tests::Place;
use zoolock_tests::other_libraries::{self, PYTHON, compile_java, java_availability, kazoo_availability};
use zoolock_tests::skip::Availability;

use crate::programs::{python_environments, run, test_file};

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
            Library::Java => java_availability(),
            Library::Kazoo => kazoo_availability(),
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
    let sources = ["clients/java/LockClient.java", "clients/java/Numbers.java"].map(test_file);
    let classes = compile_java(&sources, Path::new(env!("CARGO_TARGET_TMPDIR"))).await;
    let mut java = other_libraries::java(&classes.expect("the Java sources compile"));
    java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", class]);
    java
}
