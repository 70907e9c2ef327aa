//! Lists of children from ZooKeeper's own command line, which has no support for locks.

use zoolock_tests::Place;

use crate::programs::{run, zkcli};

/// Returns the names of the children of a directory.
pub(crate) async fn listed(place: &Place, directory: &str) -> Vec<String> {
    let output = run(zkcli(&place.addr()).args(["ls", directory])).await.output();
    list_in(&output).unwrap_or_else(|| panic!("no list in\n{output}"))
}

/// Parses the list. Another thread of the client can print an event in the middle of the list.
fn list_in(output: &str) -> Option<Vec<String>> {
    let event = output.lines().find(|line| line.starts_with("WatchedEvent "));
    let output = output.replace("WATCHER::", "").replace(event.unwrap_or("WATCHER::"), "");
    let output = format!("\n{output}");
    let (names, _) = output.split_once("\n[")?.1.split_once(']')?;
    Some(names.replace('\n', "").split(", ").map(str::to_owned).collect())
}

#[test]
fn list_is_parsed_with_events_in_it() {
    let event = "WatchedEvent state:SyncConnected type:None path:null";
    for output in [
        format!("Connecting to 127.0.0.1:1\n\nWATCHER::\n\n{event}\n[a, b]\n"),
        format!("Connecting to 127.0.0.1:1\n[a\nWATCHER::\n, b]\n\n{event}\n"),
        format!("[a, \nWATCHER::\n\n{event}\nb]\n"),
    ] {
        assert_eq!(list_in(&output).expect("a list"), ["a", "b"], "{output}");
    }
}

/// Returns the sequence number at the end of a name.
pub(crate) fn number(name: &str) -> u32 {
    name[name.len() - 10..].parse().unwrap_or_else(|_| panic!("no number at the end of {name}"))
}
