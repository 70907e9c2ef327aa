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
    list_in(&said).unwrap_or_else(|| panic!("no list in\n{said}"))
}

/// Another of its threads may say in the middle of the list that it is connected.
fn list_in(said: &str) -> Option<Vec<String>> {
    let event = said.lines().find(|line| line.starts_with("WatchedEvent "));
    let said = said.replace("WATCHER::", "").replace(event.unwrap_or("WATCHER::"), "");
    let said = format!("\n{said}");
    let (names, _) = said.split_once("\n[")?.1.split_once(']')?;
    Some(names.replace('\n', "").split(", ").map(str::to_owned).collect())
}

#[test]
fn its_list_is_read_whatever_comes_in_between() {
    let event = "WatchedEvent state:SyncConnected type:None path:null";
    for said in [
        format!("Connecting to 127.0.0.1:1\n\nWATCHER::\n\n{event}\n[a, b]\n"),
        format!("Connecting to 127.0.0.1:1\n[a\nWATCHER::\n, b]\n\n{event}\n"),
        format!("[a, \nWATCHER::\n\n{event}\nb]\n"),
    ] {
        assert_eq!(list_in(&said).expect("a list"), ["a", "b"], "{said}");
    }
}

/// The number at the end of a name, by hand.
pub(crate) fn number(name: &str) -> u32 {
    name[name.len() - 10..].parse().unwrap_or_else(|_| panic!("no number at the end of {name}"))
}
