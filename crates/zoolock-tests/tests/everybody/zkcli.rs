//! ZooKeeper's own command line, which knows nothing of locks.

use tokio::process::Command;
use zoolock_tests::{Place, apache};

use crate::foreign::{installed, run};

const ZKCLI: &str = "/usr/share/zookeeper/bin/zkCli.sh";

/// Whether it can run for this test.
pub(crate) fn zkcli_or_skip(name: &str) -> bool {
    // Java itself is looked for there.
    apache::availability().or_skip(name) && installed([ZKCLI], "zookeeper").or_skip(name)
}

/// The names that it lists.
pub(crate) async fn listed(place: &Place, directory: &str) -> Vec<String> {
    let said = run(Command::new(ZKCLI).args(["-server", &place.addr(), "ls", directory])).await.if_well();
    let names = said.lines().find_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    let names = names.unwrap_or_else(|| panic!("no list in\n{said}"));
    names.split(", ").map(str::to_owned).collect()
}

/// The number at the end of a name, by hand.
pub(crate) fn number(name: &str) -> u32 {
    name[name.len() - 10..].parse().unwrap_or_else(|_| panic!("no number at the end of {name}"))
}
