//! Nested commands: an inner command that requests the lock of its outer command, and `why` and `deadlocks`.

use crate::common::{CommandOutput, Running, Sandbox, start_server, wait_until};
use serde_json::Value;

/// Starts a command that holds the lock `outer`, waits until `count` such commands hold their outer lock, and then runs a
/// command with the lock `inner`.
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
    assert_eq!(sandbox.output(&["run", "a", "--", "true"]).code, 0);
    let free = sandbox.output(&["why", "a"]);
    assert_eq!((free.code, free.stdout.as_str()), (0, "a is free\n"), "{free:?}");

    let (mut first, mut second) = (nested(&sandbox, "a", "b", 2), nested(&sandbox, "b", "a", 2));
    wait_until("both wait", || sandbox.contenders("a") == 2 && sandbox.contenders("b") == 2);
    let found = sandbox.json_with_code(&["deadlocks"], 1);
    let edges = found["deadlocks"][0]["edges"].as_array().expect("a list");
    let locks: Vec<_> =
        edges.iter().map(|edge| (&edge["holds"]["path"], &edge["waits_for"]["path"])).collect();
    let (a, b) = (Value::from("/locks/a"), Value::from("/locks/b"));
    assert_eq!((found["deadlocks"].as_array().map(Vec::len), locks), (Some(1), vec![(&a, &b), (&b, &a)]));
    assert_eq!(edges[0]["owner"], sandbox.wait_for_file("owner-a"), "the command inherits its owner");
    assert_eq!((&edges[0]["owner_kind"], &edges[1]["owner_kind"]), (&"owner".into(), &"owner".into()));
    assert_ne!(edges[0]["holds"]["pid"], edges[0]["waits_for"]["pid"], "two processes are one owner");
    assert_eq!(sandbox.json(&["deadlocks", "elsewhere"])["deadlocks"], Value::Array(Vec::new()));
    // If only the contenders of lock `a` are read, no deadlock is found.
    assert_eq!(sandbox.json(&["deadlocks", "a"])["deadlocks"], Value::Array(Vec::new()));

    let why = sandbox.json(&["why", "a"]);
    assert_eq!((&why["path"], &why["end"]), (&"/locks/a".into(), &"circle".into()));
    let text = sandbox.output(&["why", "a"]).stdout;
    assert!(text.starts_with("a is held by ") && text.contains("who waits for b (exclusive)"), "{text}");
    assert!(text.contains(" again: a deadlock\n  1 waits: "), "{text}");
    assert!(text.contains("\n  see:     zoolock deadlocks\n  to end it, take "), "{text}");

    let text = sandbox.output(&["deadlocks"]).stdout;
    assert!(text.starts_with("deadlock of 2 owners\n"), "{text}");
    let command = |label: &str| -> Vec<&str> {
        let line = text.lines().find_map(|line| line.strip_prefix(label));
        line.unwrap_or_else(|| panic!("{label}: {text}")).split(' ').collect()
    };
    let to_break = &found["deadlocks"][0]["to_break"];
    let name =
        to_break["path"].as_str().and_then(|lock| lock.strip_prefix("/locks/")).expect("a lock below /locks");
    let token = to_break["token"].as_str().expect("a token");
    assert_eq!(command("  or else: zoolock "), ["break", name, "--token", token]);
    let ask = command("  ask it:  zoolock ");
    assert_eq!(ask, ["revoke", name, "--token", token]);
    let asked = sandbox.output(&[&ask[..], &["--wait", "30s"]].concat());
    assert_eq!(asked.code, 0, "{asked:?}");
    let (asked, other) = if name == "a" { (&mut first, &mut second) } else { (&mut second, &mut first) };
    assert_eq!(other.code(), 0);
    assert_ne!(asked.code(), 0);
    assert_eq!(sandbox.json(&["deadlocks"])["deadlocks"], Value::Array(Vec::new()));
}

#[test]
fn owner_comes_from_environment() {
    let sandbox = Sandbox::new();
    let owner_of = |args: &[&str], owner: &str| {
        let mut command = sandbox.zoolock(args);
        let done = CommandOutput::from(command.env("ZOOLOCK_OWNER", owner).output().expect("zoolock starts"));
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout.trim().to_owned()
    };
    let script = ["--", "sh", "-c", "echo $ZOOLOCK_OWNER"];
    assert_eq!(owner_of(&[&["run", "x"], &script[..]].concat(), "job-7"), "job-7");
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
    let mut holder = sandbox.start_piped(&["hold", "--note", "maintenance", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let text = sandbox.output(&["why", "x"]).stdout;
    assert!(text.starts_with("x is held by ") && text.contains("maintenance"), "{text}");
    assert!(text.contains("it waits for no lock that zoolock sees: it is busy, stuck or dead"), "{text}");
    assert!(text.contains(&format!("look at: process {} on ", holder.0.id())), "{text}");
    assert_eq!(sandbox.json(&["why", "x"])["end"], "working");
    // The lines are ready to copy.
    let command = |label: &str| -> Vec<String> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(label));
        let line = line.unwrap_or_else(|| panic!("{label} in {text}")).trim();
        line.strip_prefix("zoolock ").expect("a command").split(' ').map(str::to_owned).collect()
    };
    let done = sandbox.output(&command("or else:").iter().map(String::as_str).collect::<Vec<_>>());
    assert!(done.code == 0 && done.stderr.contains("removed"), "{done:?}");
    assert_eq!(command("ask it:")[..3], ["revoke", "x", "--token"].map(str::to_owned));
    assert_eq!(holder.code(), 70);
}

#[test]
fn copied_command_reaches_the_same_lock() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let auth = format!("digest:@{}", sandbox.write_private("credentials", "me:pw\n"));
    let flags = ["--connect", &address, "--root", "/it's here", "--auth", &auth];
    let run = |line: &str| {
        let line = line.replacen("zoolock", env!("CARGO_BIN_EXE_zoolock"), 1);
        CommandOutput::from(sandbox.command("sh").args(["-c", &line]).output().expect("sh starts"))
    };
    for verb in ["why", "break"] {
        let mut holder = sandbox.start_piped(&[&["hold", "x"], &flags[..]].concat());
        wait_until("the lock is held", || sandbox.contenders_with(&flags, "x") == 1);
        let done = sandbox.output(&[&[verb, "x"], &flags[..]].concat());
        let label = if verb == "why" { "or else: " } else { "run: " };
        let text = done.stdout + &done.stderr;
        let command = text.split(label).nth(1).and_then(|rest| rest.lines().next());
        let command = command.unwrap_or_else(|| panic!("{label} in {text}"));
        assert!(command.starts_with("zoolock break x --token ") && !command.contains("me:pw"), "{command}");
        let broken = run(command);
        assert!(broken.code == 0 && broken.stderr.contains("removed"), "{command}: {broken:?}");
        assert_eq!(holder.code(), 70);
    }
    let free = sandbox.output(&[&["break", "x"], &flags[..]].concat());
    let command = free.stderr.split("run: ").nth(1).unwrap_or_else(|| panic!("{free:?}"));
    let shown = run(command.trim());
    assert!(shown.code == 0 && shown.stdout.contains("/it's here/x"), "{shown:?}");
}

#[test]
fn copied_command_leaves_out_the_environment() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let mut holder = sandbox.start_piped(&["hold", "x", "--connect", &address, "--root", "/r"]);
    wait_until("the lock is held", || {
        sandbox.contenders_with(&["--connect", &address, "--root", "/r"], "x") == 1
    });
    let mut why = sandbox.zoolock(["why", "x", "--root", "/r"]);
    let why = CommandOutput::from(why.env("ZOOLOCK_CONNECT", &address).output().expect("zoolock starts"));
    let commands: Vec<_> = why.stdout.lines().filter(|line| line.contains(" --token ")).collect();
    assert_eq!(commands.len(), 2, "{why:?}");
    for command in commands {
        assert!(command.ends_with(" --root /r") && !command.contains("--connect"), "{command}");
    }
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

/// Starts a script under a lock. The script calls zoolock as `$ZL`.
fn start_script(sandbox: &Sandbox, outer: &[&str], script: &str) -> Running {
    let mut command = sandbox.zoolock([&["run"], outer, &["--", "sh", "-c", script]].concat());
    Running(command.env("ZL", env!("CARGO_BIN_EXE_zoolock")).spawn().expect("zoolock starts"))
}

fn assert_refused(done: &CommandOutput, name: &str) {
    assert_eq!(done.code, 64, "{done:?}");
    let message = format!("zoolock: {name} is held by the command that runs this one, which waits");
    assert!(done.stderr.contains(&message), "{done:?}");
}

#[test]
fn lock_of_outer_command_is_refused() {
    let sandbox = Sandbox::new();
    for (outer, script, name) in [
        (&["x"][..], "$ZL run x -- touch ran", "x"),
        (&["x"], "$ZL run --try --on-busy-exit 0 x -- touch ran", "x"),
        (&["x"], "$ZL run --timeout 1h x -- touch ran", "x"),
        (&["x"], "$ZL run --keep x -- touch ran", "x"),
        (&["x"], "$ZL run --shared --try x -- touch ran", "x"),
        (&["x"], "$ZL run --try y x -- touch ran", "x"),
        (&["x"], "$ZL run y -- $ZL run x -- touch ran", "x"),
        (&["x"], "$ZL hold x", "x"),
        (&["y", "x"], "$ZL run /locks/x -- touch ran", "/locks/x"),
        (&["--shared", "x"], "$ZL run x -- touch ran", "x"),
        (&["--shared", "y", "x"], "$ZL run --naming native,rw --try x -- touch ran", "x"),
        (&["--permits", "2/3", "s"], "$ZL run --permits 2/3 s -- touch ran", "s"),
        (&["--naming", "curator", "c"], "$ZL run --naming curator --try c -- touch ran", "c"),
        (&["--naming", "kazoo", "k"], "$ZL run --naming kazoo k -- touch ran", "k"),
    ] {
        assert_refused(&start_script(&sandbox, outer, script).wait_for_output(), name);
    }
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn lock_beside_outer_command_is_granted() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let elsewhere = format!("$ZL run --connect {address} x -- true");
    for (outer, script) in [
        (&["--shared", "x"][..], "$ZL run --shared --try x -- true"),
        (&["--shared", "x"], "$ZL run --shared x -- $ZL run --shared x -- true"),
        (&["--permits", "2/3", "s"], "$ZL run --permits 3 s -- true"),
        (&["x"], "$ZL run --try y -- true && $ZL run --try y -- true"),
        // Below another root, and on another server, `x` is another lock.
        (&["x"], "$ZL run --root /other --try x -- true"),
        (&["x"], elsewhere.as_str()),
    ] {
        let done = start_script(&sandbox, outer, script).wait_for_output();
        assert_eq!(done.code, 0, "{script}: {done:?}");
    }
}

/// The inner command would wait behind a rival, which waits for the outer command. The rival
/// requests the lock exclusively, or requests all permits.
#[test]
fn wait_behind_waiter_for_outer_is_refused() {
    let script =
        |flags: &str| format!("while [ ! -e queued ]; do sleep 0.02; done; $ZL run {flags} x -- touch ran");
    for (flags, rival) in [("--shared", &[][..]), ("--permits 3", &["--permits", "3/3"])] {
        for inner in ["", "--try --on-busy-exit 0 "] {
            let sandbox = Sandbox::new();
            let outer: Vec<&str> = flags.split(' ').chain(["x"]).collect();
            let outer = start_script(&sandbox, &outer, &script(&format!("{inner}{flags}")));
            sandbox.wait_for_contenders("x", 1);
            let mut rival = sandbox.start(&[&["run"], rival, &["x", "--", "true"]].concat());
            sandbox.wait_for_contenders("x", 2);
            std::fs::write(sandbox.path("queued"), "").expect("file written");
            assert_refused(&outer.wait_for_output(), "x");
            assert_eq!(rival.code(), 0);
            assert!(!sandbox.path("ran").exists());
        }
    }
}

#[test]
fn permits_of_other_holders_are_busy() {
    let sandbox = Sandbox::new();
    let mut other = sandbox.start_piped(&["hold", "--permits", "2", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let done = start_script(&sandbox, &["--permits", "2", "x"], "$ZL run --permits 2 --try x -- true")
        .wait_for_output();
    assert_eq!(done.code, 75, "{done:?}");
    other.end_of_input();
    assert_eq!(other.code(), 0);
}

#[test]
fn inherited_variable_alone_refuses_no_lock() {
    let sandbox = Sandbox::new();
    let ended = start_script(&sandbox, &["x"], "echo $ZOOLOCK_HELD").wait_for_output();
    let (id, server) = ended.stdout.trim().split_once(" @ ").expect("an id and a server");
    assert_eq!((id.len(), &server[..6]), (32, "unix:/"), "{ended:?}");
    let with_variable = |args: &[&str]| {
        let mut command = sandbox.zoolock(args);
        CommandOutput::from(
            command.env("ZOOLOCK_HELD", ended.stdout.trim()).output().expect("zoolock starts"),
        )
    };
    let free = with_variable(&["run", "x", "--", "true"]);
    assert_eq!(free.code, 0, "{free:?}");
    let mut other = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    for patience in [&["--try"][..], &["--timeout", "200ms"]] {
        let busy = with_variable(&[&["run"], patience, &["x", "--", "true"]].concat());
        assert_eq!(busy.code, 75, "{busy:?}");
    }
    other.end_of_input();
    assert_eq!(other.code(), 0);
}
