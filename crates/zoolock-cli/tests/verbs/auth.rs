//! Credentials that a command prints (`--auth digest:command:COMMAND`).

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Sandbox, is_alive, start_server, wait_until};
use crate::terminal::Terminal;

/// Returns the arguments of a `run` whose credentials come from `command`.
fn run<'a>(address: &'a str, flags: &[&'a str], auth: &'a str) -> Vec<&'a str> {
    [&["run", "--connect", address, "--auth", auth], flags, &["x", "--", "touch", "ran"]].concat()
}

#[test]
fn hanging_credentials_command_keeps_to_the_timeout() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    for flags in [&["--timeout", "1s"][..], &["--timeout", "1s", "--on-busy-exit", "0"]] {
        let began = Instant::now();
        let done = sandbox.output(&run(&address, flags, "digest:command:sleep 1000"));
        assert_eq!(done.code, 69, "{done:?}");
        assert!(done.stderr.contains("did not end within 1s") && !sandbox.path("ran").exists(), "{done:?}");
        assert!(began.elapsed() < Duration::from_secs(30), "{flags:?}");
    }
}

#[test]
fn question_that_is_not_answered_in_time_is_named() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let flags = format!("--connect {address} --timeout 1s --auth 'digest:command:read answer; echo $answer'");
    let line = format!("{} run {flags} x -- true", env!("CARGO_BIN_EXE_zoolock"));
    let seen = Terminal::start(&sandbox, &line).rest();
    assert!(seen.contains("the command that prints the credentials (--auth) did not end in time"), "{seen}");
}

#[test]
fn slow_credentials_command_is_awaited() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let done = sandbox.output(&run(&address, &["--timeout", "30s"], "digest:command:sleep 2; echo me:pw"));
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn failing_credentials_command_exits_69() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    for scheme in ["digest", "sasl"] {
        for command in ["exit 2", "echo connection refused", ":"] {
            let done = sandbox.output(&run(&address, &[], &format!("{scheme}:command:{command}")));
            assert_eq!(done.code, 69, "{done:?}");
        }
    }
    assert_eq!(sandbox.output(&run(&address, &[], "digest:env:NOT_SET")).code, 64);
}

#[test]
fn end_signal_ends_the_credentials_command() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let auth = "digest:command:sleep 1000 & echo $! >sleeping; wait";
    for (verb, signal, code) in [("run", Signal::TERM, 143), ("hold", Signal::INT, 130)] {
        let _ = std::fs::remove_file(sandbox.path("sleeping"));
        let args = run(&address, &[], auth);
        let args = if verb == "run" { args } else { [&["hold"], &args[1..5], &["x"]].concat() };
        let mut running = sandbox.start(&args);
        let sleeping = sandbox.wait_for_file("sleeping");
        running.signal(signal);
        assert_eq!(running.code(), code);
        wait_until("the command has ended", || !is_alive(&sleeping));
    }
}
