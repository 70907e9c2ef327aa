//! Clients of other makes that do as they are told.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use zoolock_tests::skip::Availability;
use zoolock_tests::{Place, apache};

use crate::foreign::installed;

/// Their manifests name the jars they need.
const CURATOR: &str = "/usr/share/java/curator-recipes.jar";
const LOGGER: &str = "/usr/share/java/slf4j-simple.jar";
/// Debian's, which no other Python finds.
const KAZOO: &str = "/usr/lib/python3/dist-packages/kazoo/client.py";
/// A virtual machine starts in it, on a busy computer too.
const SOON: Duration = Duration::from_secs(60);

/// A process of another make; it ends when it is dropped.
pub(crate) struct Make {
    _child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

/// Whether Curator can run for this test.
pub(crate) fn curator_or_skip(name: &str) -> bool {
    // Java itself is looked for there.
    apache::availability().or_skip(name)
        && installed([CURATOR, LOGGER], "libcurator-recipes-java").or_skip(name)
}

/// Whether kazoo is here.
pub(crate) fn kazoo() -> Availability {
    installed([KAZOO], "python3-kazoo")
}

impl Make {
    /// Curator.
    pub(crate) fn curator(place: &Place) -> Make {
        let mut java = Command::new("java");
        java.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
            .args(["-cp", &[CURATOR, LOGGER].join(":")])
            .arg(beside("java/Curators.java"));
        Make::start(java, place)
    }

    /// kazoo.
    pub(crate) fn kazoo(place: &Place) -> Make {
        let mut python = Command::new("/usr/bin/python3");
        python.arg("-B").arg(beside("kazoo/holders.py"));
        Make::start(python, place)
    }

    fn start(mut command: Command, place: &Place) -> Make {
        command.arg(place.connect_string()).kill_on_drop(true);
        let mut child = match command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) => panic!("cannot run {command:?}: {error}"),
        };
        let orders = child.stdin.take().expect("piped");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines();
        Make { _child: child, orders, said }
    }

    /// Gives an order.
    pub(crate) async fn told(&mut self, order: &str) {
        self.orders.write_all(format!("{order}\n").as_bytes()).await.expect("it reads");
    }

    /// Waits until it says this next.
    pub(crate) async fn says(&mut self, expected: &str) {
        let said = timeout(SOON, self.said.next_line()).await;
        let said = said.unwrap_or_else(|_| panic!("it never said: {expected}")).expect("text");
        assert_eq!(said.as_deref(), Some(expected), "why is above, on standard error");
    }
}

fn beside(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/everybody").join(name)
}
