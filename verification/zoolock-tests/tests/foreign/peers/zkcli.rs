//! ZooKeeper's own command line, with the same commands on both servers.

use std::process::Stdio;

use zoolock_tests::{AnyServer, ServerKind, ServerOptions};

use crate::programs::{test_file, zkcli, zkcli_or_skip};

/// Runs the commands and returns the output.
///
/// One pipe is used for both output streams, so that error messages keep their positions.
async fn run_commands(server: &AnyServer) -> String {
    let commands = std::fs::File::open(test_file("peers/zkcli/commands")).expect("the file exists");
    let (mut reader, writer) = std::io::pipe().expect("a pipe can be created");
    let mut command = zkcli(&server.addr());
    command.stdin(Stdio::from(commands)).kill_on_drop(true);
    command.stderr(writer.try_clone().expect("a descriptor is free")).stdout(writer);
    let mut child = command.spawn().expect("zkCli.sh starts");
    // Dropping the command closes this process's write ends of the pipe. So reading ends with the
    // child.
    drop(command);
    let read = tokio::task::spawn_blocking(move || std::io::read_to_string(&mut reader));
    let output = read.await.expect("task does not panic").expect("the output is text");
    let status = child.wait().await.expect("zkCli.sh ends");
    assert!(status.success(), "{status}, with the output\n{output}");
    output
}

/// Returns the output without the events, and the sorted events.
///
/// Another thread of the client prints the events, so their place in the output varies.
fn separate_events(output: &str) -> (String, Vec<String>) {
    let (mut events, rest): (Vec<_>, Vec<_>) = output
        .lines()
        .filter(|line| !line.is_empty() && *line != "WATCHER::")
        .filter(|line| !line.starts_with("Connecting to ") && !line.starts_with("SLF4J: "))
        .map(comparable)
        .partition(|line| line.starts_with("WatchedEvent "));
    events.sort();
    (rest.join("\n"), events)
}

/// Replaces parts of a line that differ between two servers.
fn comparable(line: &str) -> String {
    // Apache ZooKeeper lists children in no order.
    if let Some(names) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let mut names: Vec<_> = names.split(", ").collect();
        names.sort();
        return names.join(", ");
    }
    let Some((field, value)) = line.split_once(" = ") else { return line.to_owned() };
    let value = match field {
        "ctime" | "mtime" => "a time".to_owned(),
        "ephemeralOwner" if value != "0x0" => "a session".to_owned(),
        // On the embedded server, the upper half of a zxid counts the starts of the server.
        "cZxid" | "mZxid" | "pZxid" => match i64::from_str_radix(value.trim_start_matches("0x"), 16) {
            Ok(zxid) => (zxid & 0xffff_ffff).to_string(),
            Err(_) => value.to_owned(),
        },
        _ => value.to_owned(),
    };
    format!("{field} = {value}")
}

#[tokio::test(flavor = "multi_thread")]
async fn zkcli_output_is_the_same_as_on_apache() {
    if !zkcli_or_skip("zkcli_output_is_the_same_as_on_apache") {
        return;
    }
    let mut outputs = Vec::new();
    for server_kind in [ServerKind::Apache, ServerKind::Embedded] {
        let server =
            AnyServer::start(server_kind, ServerOptions::default()).await.expect("the server starts");
        outputs.push(separate_events(&run_commands(&server).await));
    }
    let [(apache, apache_events), (embedded, embedded_events)] =
        <[_; 2]>::try_from(outputs).expect("there are two servers");
    // Two empty outputs would be equal, so the output must contain some known lines.
    for known in [
        "Created /a/es-0000000002",
        "mZxid = 4",
        "Insufficient permission",
        "- history",
        "Created /ttl-s-0000000004",
    ] {
        assert!(apache.contains(known), "no {known} in\n{apache}");
    }
    if let Some(at) = embedded.lines().zip(apache.lines()).position(|(here, there)| here != there) {
        let around =
            |text: &str| text.lines().skip(at.saturating_sub(5)).take(10).collect::<Vec<_>>().join("\n");
        panic!("the embedded server\n{}\n\nApache ZooKeeper\n{}", around(&embedded), around(&apache));
    }
    assert_eq!(embedded.lines().count(), apache.lines().count());
    assert_eq!(embedded_events, apache_events);
}
