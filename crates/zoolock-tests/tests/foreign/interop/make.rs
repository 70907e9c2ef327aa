//! The makes of clients, and how their peers are started.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use tokio::process::Command;
use zoolock_tests::skip::Availability;
use zoolock_tests::{Place, Result, apache};

use crate::foreign::{installed, run};

/// Their manifests name the jars they need.
const JARS: [&str; 4] = [
    "/usr/share/java/curator-recipes.jar",
    "/usr/share/java/zookeeper-recipes-lock.jar",
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
];
/// Debian's, which no other Python finds.
const KAZOO: &str = "/usr/lib/python3/dist-packages/kazoo/client.py";

/// Whose client it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    Ours,
    /// Curator, and the recipe that comes with ZooKeeper.
    Java,
    /// Debian's kazoo.
    Kazoo,
    /// A newer one, whose read locks do not wait for writers that came later.
    NewKazoo,
}

impl Make {
    /// Whether its clients are on this machine.
    pub(crate) fn availability(self) -> Availability {
        match self {
            Make::Ours => Availability::Available,
            // Java itself is looked for there.
            Make::Java => match apache::availability() {
                Availability::Available => installed(JARS, "libcurator-recipes-java and libzookeeper-java"),
                missing => missing,
            },
            Make::Kazoo => installed([KAZOO], "python3-kazoo"),
            Make::NewKazoo => environments(),
        }
    }

    /// The command that starts a peer of this make, without its arguments.
    pub(crate) async fn command(self) -> Command {
        match self {
            Make::Ours => Command::new(env!("CARGO_BIN_EXE_interop-peer")),
            Make::Java => java("Peer").await,
            Make::Kazoo => python("/usr/bin/python3".into()),
            Make::NewKazoo => {
                let found = run(&mut Command::new(beside("kazoo/newer"))).await.if_well();
                python(found.trim_end().into())
            }
        }
    }
}

/// What a peer is to do.
#[derive(Debug, Clone)]
pub(crate) struct Role {
    pub(crate) make: Make,
    /// What the peer calls it.
    pub(crate) kind: String,
    pub(crate) contenders: usize,
}

impl Role {
    /// The command that starts it, on a lock and with a referee below the chroot. No sections: until it is stopped.
    pub(crate) async fn command(&self, place: &Place, lock: &str, referee: &str, sections: usize) -> Command {
        let mut command = self.make.command().await;
        command.arg(place.connect_string()).arg(&self.kind).args([lock, referee]);
        command.arg(sections.to_string()).arg(self.contenders.to_string());
        command
    }

    /// How many permits it thinks there are.
    pub(crate) fn permits(&self) -> Option<u32> {
        self.kind.split(':').nth(1).map(|permits| permits.parse().expect("a number"))
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.make, self.kind)
    }
}

/// Debian keeps apart what a new environment is filled from.
fn environments() -> Availability {
    match std::process::Command::new("/usr/bin/python3").args(["-c", "import venv, ensurepip"]).output() {
        Ok(said) if said.status.success() => Availability::Available,
        Ok(_) | Err(_) => Availability::Missing("no python3 with venv, install python3-venv".to_owned()),
    }
}

/// The file of this name beside these tests.
fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/interop").join(name)
}

fn python(interpreter: PathBuf) -> Command {
    let mut python = Command::new(interpreter);
    python.arg("-B").arg(beside("kazoo/peer.py"));
    python
}

/// Runs one of the classes beside these tests.
pub(crate) async fn java(class: &str) -> Command {
    let classes = compiled().await.expect("a directory for classes");
    let path: Vec<&str> = JARS.into_iter().chain(classes.to_str()).collect();
    let mut java = Command::new("java");
    java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        .args(["-cp", &path.join(":"), class]);
    java
}

/// The classes, compiled once for each state of their sources. Each test is a process: whoever is first to rename its
/// directory into place wins, and the others use that.
async fn compiled() -> Result<PathBuf> {
    let failed = |error| zoolock_tests::Failure::during("compiling what is in Java", error);
    let sources = ["java/Peer.java", "java/Numbers.java"].map(beside);
    let mut hasher = DefaultHasher::new();
    for source in &sources {
        std::fs::read(source).map_err(failed)?.hash(&mut hasher);
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let classes = target.join(format!("interop-{:016x}", hasher.finish()));
    if classes.exists() {
        return Ok(classes);
    }
    let own = tempfile::tempdir_in(target).map_err(failed)?;
    let mut javac = Command::new("javac");
    javac.args(["-J-Xmx128m", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "-nowarn"]);
    javac.args(["-cp", &JARS.join(":"), "-d"]).arg(own.path());
    run(javac.args(&sources)).await.if_well();
    match std::fs::rename(own.path(), &classes) {
        Ok(()) => Ok(classes),
        Err(_) if classes.exists() => Ok(classes),
        Err(error) => Err(failed(error)),
    }
}
