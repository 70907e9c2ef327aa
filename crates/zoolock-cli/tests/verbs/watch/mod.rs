//! `zoolock watch`: prints the events of a lock, one per line.

mod both_servers;

use std::process::Stdio;

use crate::common::watching::Watch;
use crate::common::{Lines, Running, Sandbox, start_server};
use rustix::process::Signal;

#[test]
fn nonexistent_lock_can_be_watched() {
    let sandbox = Sandbox::new();
    let watch = Watch::start(&sandbox, &["db/main", "--json"]);
    let mut holder = sandbox.start_piped(&["hold", "db/main", "--note", "first"]);
    let granted = watch.event("granted");
    assert_eq!((&granted["schema"], &granted["path"]), (&"zoolock/1".into(), &"/locks/db/main".into()));
    assert_eq!((&granted["contender"]["note"], &granted["at_least"]), (&"first".into(), &false.into()));
    let waiter = sandbox.start(&["run", "db/main", "--", "sleep", "1000"]);
    let queued = watch.event("queued");
    assert_eq!((&queued["place"], &queued["waiting"]), (&1.into(), &1.into()));
    assert_eq!(queued["contender"]["pid"], waiter.0.id());
    holder.end_of_input();
    let released = watch.event("released");
    assert_eq!(released["contender"]["token"], granted["contender"]["token"]);
    assert!(released["held_ms"].is_u64(), "{released}");
    assert_eq!(watch.event("granted")["contender"]["token"], queued["contender"]["token"]);
    assert_eq!(watch.end(Signal::INT), (130, String::new()));
}

#[test]
fn existing_contenders_are_printed_first() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "x", "--note", "\x1b[2Jgone\nfake"]);
    sandbox.wait_for_contenders("x", 1);
    let watch = Watch::start(&sandbox, &["x"]);
    let line = watch.line();
    assert!(line.contains("  holds     ") && line.contains("token 0"), "{line}");
    assert!(line.contains("\\u{1b}[2Jgone\\nfake") && !line.contains('\x1b'), "{line:?}");
    holder.end_of_input();
    let line = watch.line();
    assert!(line.contains("  released  ") && line.contains("held at least "), "{line}");
    assert_eq!(watch.end(Signal::TERM), (0, String::new()));
}

#[test]
fn crash_is_reported_with_crash_detection() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    let connect = ["--connect", &address, "--session-timeout", "6s"];
    let watch = Watch::start(&sandbox, &[&["x", "--json"], &connect[..]].concat());
    let line = [&["hold", "x", "--crash-detection"], &connect[..]].concat();
    let mut holder = sandbox.start_piped(&line);
    watch.event("granted");
    // The holder creates its znode, then records its start, and then prints its token. A kill
    // counts as a crash only after that.
    Lines::of(holder.take_stdout()).next();
    holder.signal(Signal::KILL);
    assert_eq!(watch.event("crashed")["at_least"], false);
    drop((watch, server));
}

#[test]
fn watch_ends_when_its_reader_closes() {
    let sandbox = Sandbox::new();
    let (reader, writer) = std::io::pipe().expect("pipe created");
    let mut command = sandbox.zoolock(["watch", "x"]);
    let mut watch = Running(command.stdout(writer).stderr(Stdio::null()).spawn().expect("zoolock starts"));
    drop((reader, command));
    assert_eq!(watch.code(), 0);
}

#[test]
fn outage_and_recovery_are_events() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    let watch = Watch::start(&sandbox, &["x", "--json", "--connect", &address]);
    let _holder = sandbox.start(&["run", "x", "--connect", &address, "--", "sleep", "1000"]);
    watch.event("granted");
    server.signal(Signal::STOP);
    assert!(watch.event("unreachable")["message"].as_str().is_some_and(|why| !why.is_empty()));
    server.signal(Signal::CONT);
    watch.event("back");
    let _waiter = sandbox.start(&["run", "x", "--connect", &address, "--", "true"]);
    watch.event("queued");
    assert_eq!(watch.end(Signal::INT), (130, String::new()));
}
