//! `zoolock run --keep`: one host of a fleet runs the command, and restarts it when it ends.

use std::time::{Duration, Instant};

use crate::common::process_tree::signal;
use crate::common::{Sandbox, is_alive, read_until, start_server, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

/// Returns the lines of a file in the sandbox.
fn lines(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(sandbox.path(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn ended_command_restarts_after_growing_pauses() {
    let sandbox = Sandbox::new();
    let script = "echo $$ >> starts; [ $(wc -l < starts) -lt 3 ] && exit 5; trap 'exit 7' TERM; echo $$ > third; while :; do sleep 0.02; done";
    let begun = Instant::now();
    let running = sandbox.start_piped(&["run", "--keep", "x", "--", "sh", "-c", script]);
    sandbox.wait_for_file("third");
    // The pauses are half a second and one second.
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    running.signal(Signal::TERM);
    let done = running.wait_for_output();
    assert_eq!(done.code, 7, "{done:?}");
    assert!(done.stderr.contains("exit code 5; starting it again in 500ms"), "{done:?}");
    assert_eq!(lines(&sandbox, "starts").len(), 3);
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn failed_start_is_retried() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start_piped(&["run", "--keep", "x", "--", "sh", "-c", "echo $$ >> starts"]);
    let mut stderr = running.take_stderr();
    let pid = i32::try_from(running.0.id()).ok().and_then(Pid::from_raw).expect("valid process id");
    sandbox.wait_for_file("starts");
    // zoolock cannot open more files until the limit is restored.
    let no_files = Rlimit { current: Some(3), maximum: getrlimit(Resource::Nofile).maximum };
    let before = prlimit(Some(pid), Resource::Nofile, no_files).expect("limit set");
    read_until(&mut stderr, &mut String::new(), "ulimit -n");
    prlimit(Some(pid), Resource::Nofile, before).expect("limit restored");
    let starts = lines(&sandbox, "starts").len();
    wait_until("the command is started again", || lines(&sandbox, "starts").len() > starts);
    running.signal(Signal::TERM);
    running.wait();
}

#[test]
fn escaped_descendant_is_dead_before_restart() {
    let sandbox = Sandbox::new();
    // The trap ends the script also if INT comes between two commands.
    let script = "[ -s escaped ] && {
            trap 'exit 130' INT
            kill -0 $(cat escaped) && echo alive > verdict || echo dead > verdict
            while :; do sleep 0.02; done
        }
        (setsid sh -c 'trap \"\" TERM; echo $$ > escaped; while :; do sleep 0.02; done' &)
        while ! [ -s escaped ]; do sleep 0.01; done";
    let mut running = sandbox.start(&["run", "--keep", "--grace", "300ms", "x", "--", "sh", "-c", script]);
    assert_eq!(sandbox.wait_for_file("verdict"), "dead");
    running.signal(Signal::INT);
    assert_eq!(running.code(), 130);
}

#[test]
fn standby_takes_over_from_killed_keeper() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let keeper = |name: &str| {
        let script = format!("echo $$ >> {name}; exec sleep 1000");
        sandbox.start(&[
            "run",
            "--keep",
            "--session-timeout",
            "6s",
            "--connect",
            &address,
            "x",
            "--",
            "sh",
            "-c",
            &script,
        ])
    };
    let first = keeper("first");
    let first_child = sandbox.wait_for_file("first");
    let mut second = keeper("second");
    first.signal(Signal::KILL);
    let second_child = sandbox.wait_for_file("second");
    assert!(!is_alive(&first_child) && is_alive(&second_child));
    second.signal(Signal::TERM);
    assert_eq!(second.code(), 143);
}

#[test]
fn keeper_restarts_command_after_losing_lock() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    let script = "echo $$ >> starts; exec sleep 1000";
    let flags = [
        "run",
        "--keep",
        "--session-timeout",
        "6s",
        "ZOOLOCK_CONNECT_TIMEOUT=1s",
        "--connect",
        address.as_str(),
    ];
    let mut running = sandbox.start_piped(&[&flags[..], &["x", "--", "sh", "-c", script]].concat());
    let (mut stderr, mut printed) = (running.take_stderr(), String::new());
    let first = sandbox.wait_for_file("starts");
    server.signal(Signal::STOP);
    wait_until("the command has ended", || !is_alive(&first));
    // An attempt to connect fails while the server is stopped.
    read_until(&mut stderr, &mut printed, "waiting for x again in");
    server.signal(Signal::CONT);
    wait_until("the command is started again", || lines(&sandbox, "starts").len() == 2);
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 143, "{printed}");
    assert!(
        printed.contains("x could not be renewed in time") && printed.contains("waiting for it again"),
        "{printed}"
    );
}

/// The pauses before the restarts reach their maximum after half a minute.
#[test]
fn failing_keeper_hands_over_to_standby() {
    let sandbox = Sandbox::new();
    // The standby waits for one of two locks.
    let mut failing =
        sandbox.start_piped(&["run", "--keep", "x", "y", "--", "sh", "-c", "echo >>ran; exit 1"]);
    sandbox.wait_for_contenders("y", 1);
    let mut healthy =
        sandbox.start(&["run", "--keep", "y", "--", "sh", "-c", "echo $$ >healthy; exec sleep 1000"]);
    let (mut stderr, mut printed) = (failing.take_stderr(), String::new());
    read_until(&mut stderr, &mut printed, "releasing it");
    sandbox.wait_for_file("healthy");
    // The failing host waits behind the standby.
    sandbox.wait_for_contenders("y", 2);
    assert!(printed.contains("others wait for x and y"), "{printed}");
    for (running, code) in [(&mut failing, 143), (&mut healthy, 143)] {
        running.signal(Signal::TERM);
        assert_eq!(running.code(), code);
    }
}

/// Without a waiter, another queue position would bring nothing.
#[test]
fn failing_keeper_keeps_the_lock_alone() {
    let sandbox = Sandbox::new();
    let mut failing = sandbox.start_piped(&["run", "--keep", "x", "--", "false"]);
    let (mut stderr, mut printed) = (failing.take_stderr(), String::new());
    read_until(&mut stderr, &mut printed, "starting it again in 30s");
    assert_eq!(sandbox.contenders("x"), 1);
    assert!(!printed.contains("releasing"), "{printed}");
    failing.signal(Signal::TERM);
    assert_eq!(failing.code(), 143);
}

#[test]
fn revoked_keeper_hands_over() {
    let sandbox = Sandbox::new();
    let keeper = |name: &str| {
        let script = format!("echo $$ >> {name}; exec sleep 1000");
        sandbox.start(&["run", "--keep", "x", "--", "sh", "-c", &script])
    };
    let mut first = keeper("first");
    let first_child = sandbox.wait_for_file("first");
    let mut second = keeper("second");
    sandbox.wait_for_contenders("x", 2);
    assert_eq!(sandbox.output(&["revoke", "x"]).code, 0);
    sandbox.wait_for_file("second");
    assert!(!is_alive(&first_child));
    // The first keeper waits, and takes over again later.
    sandbox.wait_for_contenders("x", 2);
    second.signal(Signal::TERM);
    assert_eq!(second.code(), 143);
    wait_until("the first keeper holds the lock again", || lines(&sandbox, "first").len() == 2);
    let child = lines(&sandbox, "first").pop().expect("two lines");
    // A keeper that waits to restart its command ends at once on TERM.
    signal(&child, Signal::KILL);
    wait_until("the command is dead", || !is_alive(&child));
    first.signal(Signal::TERM);
    assert_eq!(first.code(), 143);
}

#[test]
fn flags_that_conflict_with_keep_are_refused() {
    let sandbox = Sandbox::new();
    for flags in [&["--try"][..], &["--timeout", "1s"], &["--on-busy-exit", "0"]] {
        let done = sandbox.output(&[&["run", "--keep"], flags, &["x", "--", "true"]].concat());
        assert_eq!(done.code, 64, "{done:?}");
    }
}

#[test]
fn short_session_is_renewed() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let flags = ["run", "--session-timeout", "6s", "--connect", &address];
    let done = sandbox.output(&[&flags[..], &["x", "--", "sleep", "5"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
}
