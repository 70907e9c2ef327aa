//! ZooKeeper's own command line, with the same commands on both servers.

use std::process::Stdio;

use tokio::process::Command;
use zoolock_tests::{Arm, Server, ServerOptions};

use crate::foreign::{beside, installed};

const ZKCLI: &str = "/usr/share/zookeeper/bin/zkCli.sh";

/// One pipe for both of its streams, so that complaints stand where they were made.
async fn said(server: &Server) -> String {
    let commands = std::fs::File::open(beside("zkcli/commands")).expect("a file beside the tests");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(ZKCLI);
    command.args(["-server", &server.addr()]).kill_on_drop(true);
    command.stdin(Stdio::from(commands)).stderr(writer.try_clone().expect("a descriptor")).stdout(writer);
    let mut child = command.spawn().expect("it is installed");
    // Its ends of the pipe are the last.
    drop(command);
    let read = tokio::task::spawn_blocking(move || std::io::read_to_string(&mut reader));
    let text = read.await.expect("reading does not panic").expect("it writes text");
    let status = child.wait().await.expect("it ends");
    assert!(status.success(), "{status}, having said\n{text}");
    text
}

/// What was said, and the events, which another thread of the client prints.
fn sort_out(text: &str) -> (String, Vec<String>) {
    let (mut events, said): (Vec<_>, Vec<_>) = text
        .lines()
        .filter(|line| !line.is_empty() && *line != "WATCHER::")
        .filter(|line| !line.starts_with("Connecting to ") && !line.starts_with("SLF4J: "))
        .map(what_is_the_same)
        .partition(|line| line.starts_with("WatchedEvent "));
    events.sort();
    (said.join("\n"), events)
}

fn what_is_the_same(line: &str) -> String {
    // Apache lists a hash set.
    if let Some(names) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let mut names: Vec<_> = names.split(", ").collect();
        names.sort();
        return names.join(", ");
    }
    let Some((field, value)) = line.split_once(" = ") else { return line.to_owned() };
    let value = match field {
        "ctime" | "mtime" => "a time".to_owned(),
        "ephemeralOwner" if value != "0x0" => "a session".to_owned(),
        // The upper half counts the starts of our server.
        "cZxid" | "mZxid" | "pZxid" => match i64::from_str_radix(value.trim_start_matches("0x"), 16) {
            Ok(zxid) => (zxid & 0xffff_ffff).to_string(),
            Err(_) => value.to_owned(),
        },
        _ => value.to_owned(),
    };
    format!("{field} = {value}")
}

#[tokio::test(flavor = "multi_thread")]
async fn zkcli_says_on_ours_what_it_says_on_apache() {
    let name = "zkcli_says_on_ours_what_it_says_on_apache";
    if !installed([ZKCLI], "zookeeper").or_skip(name) || !Arm::Apache.availability().or_skip(name) {
        return;
    }
    let mut sorted = Vec::new();
    for arm in [Arm::Apache, Arm::Embedded] {
        let server = Server::start(arm, ServerOptions::default()).await.expect("a server");
        sorted.push(sort_out(&said(&server).await));
    }
    let [(said_there, events_there), (said_here, events_here)] =
        <[_; 2]>::try_from(sorted).expect("two servers");
    // Lest both said nothing.
    for known in [
        "Created /a/es-0000000002",
        "mZxid = 4",
        "Insufficient permission",
        "- history",
        "Created /ttl-s-0000000004",
        "count=4,bytes=120",
    ] {
        assert!(said_there.contains(known), "nothing of {known} in\n{said_there}");
    }
    if let Some(at) = said_here.lines().zip(said_there.lines()).position(|(here, there)| here != there) {
        let around =
            |text: &str| text.lines().skip(at.saturating_sub(5)).take(10).collect::<Vec<_>>().join("\n");
        panic!("on ours\n{}\n\nand on Apache\n{}", around(&said_here), around(&said_there));
    }
    assert_eq!(said_here.lines().count(), said_there.lines().count());
    assert_eq!(events_here, events_there);
}
