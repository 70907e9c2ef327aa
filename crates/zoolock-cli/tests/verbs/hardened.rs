//! `--hardened`: those who queue for a lock cannot take it from its holder.

use std::io::{BufRead, BufReader};

use crate::common::{Done, Running, Sandbox, server};

const FLAG: &str = "--hardened";

fn hold(sandbox: &Sandbox, address: &str, name: &str) -> (Running, String) {
    let mut holder = sandbox.converse(&["hold", "--connect", address, FLAG, name]);
    let mut token = String::new();
    BufReader::new(holder.0.stdout.take().expect("caught")).read_line(&mut token).expect("it prints");
    (holder, token.trim().to_owned())
}

#[test]
fn a_hardened_lock_is_run_under_shown_and_not_broken() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    let connect = ["--connect", address.as_str()];
    let on = |args: &[&str]| sandbox.output(&[&args[..1], &connect, &args[1..]].concat());
    let done = on(&["run", FLAG, "nightly", "--", "sh", "-c", "echo $ZOOLOCK_PREVIOUS; exit 3"]);
    assert_eq!((done.code, done.stdout.as_str()), (3, "unknown\n"), "{done:?}");
    let (mut holder, token) = hold(&sandbox, &address, "nightly");
    for args in [
        &["run", FLAG, "--try", "nightly", "--", "true"][..],
        &["run", FLAG, "--timeout", "200ms", "nightly", "--", "true"],
        &["run", FLAG, "--try", "nightly", "other", "--", "true"],
        &["run", FLAG, "--try", "--shared", "nightly", "--", "true"],
    ] {
        assert_eq!(on(args).code, 75, "{args:?}");
    }
    assert!(on(&["show", FLAG, "nightly"]).stdout.contains(&token));
    assert!(on(&["ls"]).stdout.contains("nightly"), "whoever looks needs no flag");
    for (args, deed) in [
        (&["break", "nightly", "--token", &token][..], "take it away"),
        (&["break", FLAG, "nightly", "--token", &token], "take it away"),
        (&["revoke", "nightly"], "ask it to let go"),
    ] {
        let done = on(args);
        assert_eq!(done.code, 77, "{done:?}");
        let said = &done.stderr;
        assert!(said.contains("is hardened") && said.contains(deed) && said.contains("super"), "{said}");
    }
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
    assert_eq!(on(&["run", FLAG, "--try", "nightly", "--", "true"]).code, 0, "it is let go at the end");
}

#[test]
fn a_directory_that_was_there_before_is_refused_with_what_to_do() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    let run = |flags: &[&str]| {
        sandbox.output(&[&["run", "--connect", &address], flags, &["nightly", "--", "true"]].concat())
    };
    assert_eq!(run(&[]).code, 0);
    let done = run(&[FLAG]);
    assert_eq!(done.code, 77, "{done:?}");
    assert!(done.stderr.contains("use another name") && done.stderr.contains("setAcl"), "{done:?}");
}

#[test]
fn the_variable_is_for_services_and_not_for_this_machine_s_own_server() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    let on = |args: &[&str]| {
        let mut command = sandbox.zoolock(args);
        Done::from(command.env("ZOOLOCK_HARDENED", "1").output().expect("the command starts"))
    };
    let run = ["run", "nightly", "--", "sh", "-c", "echo $ZOOLOCK_PREVIOUS"];
    for previous in ["unknown\n", "clean\n"] {
        let done = on(&run);
        assert_eq!((done.code, done.stdout.as_str()), (0, previous), "{done:?}");
    }
    assert_eq!(on(&["run", FLAG, "nightly", "--", "true"]).code, 64);
    let connect = ["run", "--connect", &address, "nightly", "--", "sh", "-c", "echo $ZOOLOCK_PREVIOUS"];
    for _ in 0..2 {
        let done = on(&connect);
        assert_eq!((done.code, done.stdout.as_str()), (0, "unknown\n"), "{done:?}");
    }
}
