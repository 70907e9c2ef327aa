//! `why` and `deadlocks`, with locks that nested commands hold.

use crate::common::{Done, Running, Sandbox, wait_until};
use serde_json::Value;

/// Starts a command that holds the lock `outer`, waits until `count` such commands hold theirs, and then runs a command with
/// the lock `inner`.
fn nested(sandbox: &Sandbox, outer: &str, inner: &str, count: usize) -> Running {
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    let script = format!(
        "touch holds-{outer}; while [ $(ls holds-* | wc -l) -lt {count} ]; do sleep 0.02; done; \
         echo $ZOOLOCK_OWNER > owner-{outer}; {zoolock} run {inner} -- true"
    );
    sandbox.start(&["run", outer, "--", "sh", "-c", &script])
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
    let found = sandbox.json(&["deadlocks"]);
    let edges = found["deadlocks"][0]["edges"].as_array().expect("a list");
    let locks: Vec<_> =
        edges.iter().map(|edge| (&edge["holds"]["lock"], &edge["waits_for"]["lock"])).collect();
    let (a, b) = (Value::from("/locks/a"), Value::from("/locks/b"));
    assert_eq!((found["deadlocks"].as_array().map(Vec::len), locks), (Some(1), vec![(&a, &b), (&b, &a)]));
    assert_eq!(edges[0]["owner"], sandbox.wait_for_file("owner-a"), "the command inherits its owner");
    assert_eq!((&edges[0]["owner_kind"], &edges[1]["owner_kind"]), (&"owner".into(), &"owner".into()));
    assert_ne!(edges[0]["holds"]["pid"], edges[0]["waits_for"]["pid"], "two processes are one owner");
    assert_eq!(sandbox.json(&["deadlocks", "elsewhere"])["deadlocks"], Value::Array(Vec::new()));
    // With the contenders of only one of the two locks, no deadlock is found.
    assert_eq!(sandbox.json(&["deadlocks", "a"])["deadlocks"], Value::Array(Vec::new()));

    let why = sandbox.json(&["why", "a"]);
    assert_eq!((&why["lock"], &why["end"]), (&"/locks/a".into(), &"circle".into()));
    let text = sandbox.output(&["why", "a"]).stdout;
    assert!(text.starts_with("a is held by ") && text.contains("who waits for b (alone)"), "{text}");
    assert!(text.contains("as said above: a circle"), "{text}");

    let text = sandbox.output(&["deadlocks"]).stdout;
    assert!(text.starts_with("2 wait for each other, for ever\n"), "{text}");
    let next = text.lines().last().expect("the next step").trim().strip_prefix("next: zoolock ");
    let next: Vec<_> = next.unwrap_or_else(|| panic!("{text}")).split(' ').collect();
    let to_break = &found["deadlocks"][0]["to_break"];
    let name =
        to_break["lock"].as_str().and_then(|lock| lock.strip_prefix("/locks/")).expect("a lock below /locks");
    assert_eq!(next, ["break", name, "--token", to_break["token"].as_str().expect("a token")]);
    let broken = sandbox.output(&next);
    assert_eq!(broken.code, 0, "{broken:?}");
    let (broken, other) = if name == "a" { (&mut first, &mut second) } else { (&mut second, &mut first) };
    assert_eq!((other.code(), broken.code()), (0, 70));
    assert_eq!(sandbox.json(&["deadlocks"])["deadlocks"], Value::Array(Vec::new()));
}

#[test]
fn owner_comes_from_environment_or_flag() {
    let sandbox = Sandbox::new();
    let owner_of = |args: &[&str], owner: &str| {
        let mut command = sandbox.zoolock(args);
        let done = Done::from(command.env("ZOOLOCK_OWNER", owner).output().expect("zoolock starts"));
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout.trim().to_owned()
    };
    let script = ["--", "sh", "-c", "echo $ZOOLOCK_OWNER"];
    assert_eq!(owner_of(&[&["run", "x"], &script[..]].concat(), "job-7"), "job-7");
    assert_eq!(owner_of(&[&["run", "x", "--owner", "job-8"], &script[..]].concat(), "job-7"), "job-8");
    let (one, two) = (
        owner_of(&[&["run", "x"], &script[..]].concat(), ""),
        sandbox.output(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_OWNER"]),
    );
    assert!(one.starts_with("run-") && one != two.stdout.trim(), "{one} {two:?}");
    let refused =
        sandbox.zoolock(["hold", "x"]).env("ZOOLOCK_OWNER", "two words").output().expect("zoolock starts");
    assert_eq!(refused.status.code(), Some(64));
}

#[test]
fn holder_that_waits_for_nothing_is_working() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.converse(&["hold", "--note", "maintenance", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let text = sandbox.output(&["why", "x"]).stdout;
    assert!(text.starts_with("x is held by ") && text.contains("maintenance"), "{text}");
    assert!(text.contains("it works, or waits for something else"), "{text}");
    assert_eq!(sandbox.json(&["why", "x"])["end"], "working");
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}
