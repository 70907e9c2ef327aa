//! Other client libraries: programs in Java with Curator and with ZooKeeper's lock recipe, and programs in Python with
//! kazoo.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::skip::Availability;
use crate::{Result, TestFailure, apache};

/// Debian's Python. Any other Python does not find Debian's kazoo.
pub const PYTHON: &str = "/usr/bin/python3";

/// Jars of Curator and of ZooKeeper's lock recipe. Their manifests name the other jars that they need.
const JARS: [&str; 4] = [
    "/usr/share/java/curator-recipes.jar",
    "/usr/share/java/zookeeper-recipes-lock.jar",
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
];

const KAZOO: &str = "/usr/lib/python3/dist-packages/kazoo/client.py";

/// Returns whether all `files` exist. `package` contains them.
pub fn installed<'a>(files: impl IntoIterator<Item = &'a str>, package: &str) -> Availability {
    match files.into_iter().find(|file| !Path::new(file).exists()) {
        None => Availability::Available,
        Some(file) => Availability::Missing(format!("no {file}, install the package {package}")),
    }
}

/// Returns whether this machine has Java, Curator and ZooKeeper's lock recipe.
pub fn java_availability() -> Availability {
    // `apache::availability` checks for Java.
    match apache::availability() {
        Availability::Available => installed(JARS, "libcurator-recipes-java and libzookeeper-java"),
        missing => missing,
    }
}

/// Returns whether this machine has Debian's kazoo.
pub fn kazoo_availability() -> Availability {
    installed([KAZOO], "python3-kazoo")
}

/// Returns a command that runs a class of these classes. It needs the name of the class.
pub fn java(classes: &Path) -> Command {
    let mut java = Command::new("java");
    java.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error").arg("-cp").arg(class_path(Some(classes)));
    java
}

/// Compiles Java sources, and returns the directory of the classes, which is below `target`.
///
/// Each version of the sources is compiled once. Tests run in separate processes, which can compile at the same time. The
/// first process that renames its directory to the final name succeeds, and the other processes use that directory.
///
/// # Errors
/// Fails if the sources cannot be read or do not compile.
pub async fn compile_java(sources: &[PathBuf], target: &Path) -> Result<PathBuf> {
    let failed = |error| TestFailure::during("compiling the Java sources", error);
    let mut hasher = DefaultHasher::new();
    for source in sources {
        std::fs::read(source).map_err(failed)?.hash(&mut hasher);
    }
    let classes = target.join(format!("java-{:016x}", hasher.finish()));
    if classes.exists() {
        return Ok(classes);
    }
    let own = tempfile::tempdir_in(target).map_err(failed)?;
    let mut javac = Command::new("javac");
    javac.args(["-J-Xmx128m", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "-nowarn"]);
    javac.arg("-cp").arg(class_path(None)).arg("-d").arg(own.path()).args(sources);
    let output = javac.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let output =
        output.map_err(|error| TestFailure::during("no javac, install default-jdk-headless", error))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(TestFailure::new(format!("javac ends with {}: {errors}", output.status)));
    }
    match std::fs::rename(own.path(), &classes) {
        Ok(()) => Ok(classes),
        Err(_) if classes.exists() => Ok(classes),
        Err(error) => Err(failed(error)),
    }
}

fn class_path(classes: Option<&Path>) -> String {
    let jars = JARS.map(str::to_owned);
    classes.map(|path| path.display().to_string()).into_iter().chain(jars).collect::<Vec<_>>().join(":")
}
