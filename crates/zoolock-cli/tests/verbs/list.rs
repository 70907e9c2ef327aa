//! `hold`, `ls` and `show`.

use std::process::Stdio;

use crate::common::{Lines, Running, Sandbox};
use serde_json::Value;

#[test]
fn held_lock_is_listed_and_shown() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["ls"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    assert!(!done.stderr.is_empty(), "{done:?}");

    let mut holder = sandbox.start_piped(&["hold", "--json", "--note", "maintenance", "db/main"]);
    let line = Lines::of(holder.take_stdout()).next();
    let held: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(held["path"], "/locks/db/main");

    let waiter = sandbox.start(&["run", "db/main", "--", "true"]);
    sandbox.wait_for_contenders("db/main", 2);
    let shown: Value =
        serde_json::from_str(&sandbox.output(&["--json", "show", "db/main"]).stdout).expect("JSON");
    assert_eq!(shown["holder"]["token"], held["token"]);
    assert_eq!(shown["holder"]["note"], "maintenance");
    assert_eq!(shown["holder"]["pid"], holder.0.id());
    assert_eq!(shown["waiters"][0]["pid"], waiter.0.id());
    let listed = sandbox.json(&["ls"]);
    assert_eq!(shown["schema"], "zoolock/1");
    let mut shown_in_list = shown.clone();
    shown_in_list.as_object_mut().expect("an object").remove("schema");
    assert_eq!(listed["locks"][0], shown_in_list);
    assert_eq!(sandbox.json(&["ls", "db"]), listed);
    assert_eq!(sandbox.json(&["ls", "other"])["locks"], Value::Array(Vec::new()));

    let table = sandbox.output(&["ls"]).stdout;
    let row: Vec<_> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!((row[0], row[2]), ("db/main", "1"), "{table}");
    assert!(table.starts_with("LOCK     SINCE") && table.contains("  LONGEST  HOLDER"), "{table}");
    assert!(table.contains("maintenance") && !table.contains('\x1b'), "{table}");
    let shown = sandbox.output(&["show", "db/main"]).stdout;
    assert!(shown.contains("maintenance") && shown.contains("lock-"), "{shown}");

    holder.end_of_input();
    assert_eq!(holder.code(), 0);
    drop(waiter);
}

#[test]
fn free_lock_can_be_shown() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["show", "never/used"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("free"), "{done:?}");
}

#[test]
fn closed_stdout_is_not_an_error() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    for args in [&["ls"][..], &["show", "x", "--json"], &["serve", "--status"], &["--help"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = sandbox.zoolock(args);
        let mut running =
            Running(command.stdout(writer).stderr(Stdio::piped()).spawn().expect("zoolock starts"));
        assert_eq!(running.code(), 0, "{args:?}");
    }
}

#[test]
fn hostile_note_cannot_write_to_the_terminal() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "--note", "\x1b[2J\x07gone\nfake\u{202e}", "x"]);
    sandbox.wait_for_contenders("x", 1);
    for args in [&["ls"][..], &["show", "x"]] {
        let done = sandbox.output(args);
        assert!(!done.stdout.contains(['\x1b', '\x07', '\u{202e}']), "{done:?}");
        assert!(!done.stdout.contains("\nfake"), "{done:?}");
    }
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

#[test]
fn unwritable_stdout_exits_74() {
    let sandbox = Sandbox::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has /dev/full");
    let done = sandbox.zoolock(["ls", "--json"]).stdout(full).output().expect("zoolock starts");
    assert_eq!(done.status.code(), Some(74), "{done:?}");
}
