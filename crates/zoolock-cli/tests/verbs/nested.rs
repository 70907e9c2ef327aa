//! `why` and `deadlocks`, over locks that commands take inside of each other.

use crate::common::{Running, Sandbox, wait_until};
use serde_json::Value;

/// Holds one lock, waits until everybody has started, and asks for another one inside.
fn nested(sandbox: &Sandbox, outer: &str, inner: &str, all: usize) -> Running {
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    let script = format!(
        "touch holds-{outer}; while [ $(ls holds-* | wc -l) -lt {all} ]; do sleep 0.02; done; \
         echo $ZOOLOCK_OWNER > owner-{outer}; {zoolock} run {inner} -- true"
    );
    sandbox.start(&["run", outer, "--", "sh", "-c", &script])
}

fn json(sandbox: &Sandbox, args: &[&str]) -> Value {
    let done = sandbox.output(&[args, &["--json"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let document: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(document["schema"], "zoolock/1");
    document
}

#[test]
fn nested_commands_share_owner_and_deadlock_is_found() {
    let sandbox = Sandbox::new();
    let none = sandbox.output(&["deadlocks"]);
    assert_eq!((none.code, none.stdout.as_str()), (0, ""), "{none:?}");
    assert!(none.stderr.contains("no deadlocks"), "{none:?}");
    let free = sandbox.output(&["why", "a"]);
    assert_eq!((free.code, free.stdout.as_str()), (0, "a is free\n"), "{free:?}");

    let (mut first, mut second) = (nested(&sandbox, "a", "b", 2), nested(&sandbox, "b", "a", 2));
    wait_until("both wait", || sandbox.contenders("a") == 2 && sandbox.contenders("b") == 2);
    let found = json(&sandbox, &["deadlocks"]);
    let edges = found["deadlocks"][0]["edges"].as_array().expect("a list");
    let locks: Vec<_> =
        edges.iter().map(|edge| (&edge["holds"]["lock"], &edge["waits_for"]["lock"])).collect();
    let (a, b) = (Value::from("/locks/a"), Value::from("/locks/b"));
    assert_eq!((found["deadlocks"].as_array().map(Vec::len), locks), (Some(1), vec![(&a, &b), (&b, &a)]));
    assert_eq!(edges[0]["owner"], sandbox.wait_for_file("owner-a"), "the command inherits its owner");
    assert_eq!((&edges[0]["owner_kind"], &edges[1]["owner_kind"]), (&"owner".into(), &"owner".into()));
    assert_ne!(edges[0]["holds"]["pid"], edges[0]["waits_for"]["pid"], "two processes are one owner");
    assert_eq!(json(&sandbox, &["deadlocks", "elsewhere"])["deadlocks"], Value::Array(Vec::new()));
    // One of the two locks alone shows no circle.
    assert_eq!(json(&sandbox, &["deadlocks", "a"])["deadlocks"], Value::Array(Vec::new()));

    let why = json(&sandbox, &["why", "a"]);
    assert_eq!((&why["lock"], &why["end"]), (&"/locks/a".into(), &"circle".into()));
    let told = sandbox.output(&["why", "a"]).stdout;
    assert!(told.starts_with("a is held by ") && told.contains("who waits for b (alone)"), "{told}");
    assert!(told.contains("as said above: a circle"), "{told}");

    let told = sandbox.output(&["deadlocks"]).stdout;
    assert!(told.starts_with("2 wait for each other, for ever\n"), "{told}");
    let next = told.lines().last().expect("the next step").trim().strip_prefix("next: zoolock ");
    let next: Vec<_> = next.unwrap_or_else(|| panic!("{told}")).split(' ').collect();
    let cut = &found["deadlocks"][0]["to_break"];
    let name = cut["lock"].as_str().and_then(|lock| lock.strip_prefix("/locks/")).expect("one of them");
    assert_eq!(next, ["break", name, "--token", cut["token"].as_str().expect("text")]);
    let broken = sandbox.output(&next);
    assert_eq!(broken.code, 0, "{broken:?}");
    let (broken, other) = if name == "a" { (&mut first, &mut second) } else { (&mut second, &mut first) };
    assert_eq!((other.code(), broken.code()), (0, 70));
    assert_eq!(json(&sandbox, &["deadlocks"])["deadlocks"], Value::Array(Vec::new()));
}

#[test]
fn owner_comes_from_environment_or_flag() {
    let sandbox = Sandbox::new();
    let said = |args: &[&str], owner: &str| {
        let mut command = sandbox.zoolock(args);
        let done =
            crate::common::Done::from(command.env("ZOOLOCK_OWNER", owner).output().expect("it starts"));
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout.trim().to_owned()
    };
    let script = ["--", "sh", "-c", "echo $ZOOLOCK_OWNER"];
    assert_eq!(said(&[&["run", "x"], &script[..]].concat(), "job-7"), "job-7");
    assert_eq!(said(&[&["run", "x", "--owner", "job-8"], &script[..]].concat(), "job-7"), "job-8");
    let (one, two) = (
        said(&[&["run", "x"], &script[..]].concat(), ""),
        sandbox.output(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_OWNER"]),
    );
    assert!(one.starts_with("run-") && one != two.stdout.trim(), "{one} {two:?}");
    let refused =
        sandbox.zoolock(["hold", "x"]).env("ZOOLOCK_OWNER", "two words").output().expect("it starts");
    assert_eq!(refused.status.code(), Some(64));
}

#[test]
fn holder_that_waits_for_nothing_is_working() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.converse(&["hold", "--note", "maintenance", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let told = sandbox.output(&["why", "x"]).stdout;
    assert!(told.starts_with("x is held by ") && told.contains("maintenance"), "{told}");
    assert!(told.contains("it works, or waits for something else"), "{told}");
    assert_eq!(json(&sandbox, &["why", "x"])["end"], "working");
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}
