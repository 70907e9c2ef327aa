//! The lock is lost while the command runs: it is dead before anyone else can have the lock.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use crate::common::{Sandbox, lives, server, server_with, wait_until};
use rustix::process::Signal;

const SESSION: Duration = Duration::from_secs(6);

#[test]
fn command_group_dies_before_session_expires() {
    let sandbox = Sandbox::new();
    let (server, address) = server(&sandbox);
    // It takes no notice of TERM, and has a child that does not either.
    let script =
        "trap '' TERM; sleep 1000 & echo $! > grandchild; echo $$ > child; while :; do sleep 1; done";
    let flags = ["run", "--session-timeout", "6s", "--connect", address.as_str()];
    let running = sandbox.converse(&[&flags[..], &["x", "--", "sh", "-c", script]].concat());
    let child = sandbox.wait_for_file("child");
    let grandchild = sandbox.wait_for_file("grandchild");
    let stopped = Instant::now();
    server.signal(Signal::STOP);
    wait_until("the command is dead", || !lives(&child));
    assert!(stopped.elapsed() < SESSION, "it took {:?}", stopped.elapsed());
    wait_until("all of its group is dead", || !lives(&grandchild));
    let done = running.done();
    assert_eq!(done.code, 70, "{done:?}");
    assert!(done.stderr.contains("TERM") && done.stderr.contains("lost x"), "{done:?}");
    server.signal(Signal::CONT);
}

#[test]
fn blocked_stderr_does_not_delay_the_kill() {
    let sandbox = Sandbox::new();
    let (server, address) = server(&sandbox);
    // Fills the pipe that is its standard error and ours.
    let script = "echo $$ > child; head -c 10000000 /dev/zero >&2";
    let flags = ["run", "-v", "--session-timeout", "6s", "--connect", address.as_str()];
    let running = sandbox.converse(&[&flags[..], &["x", "--", "sh", "-c", script]].concat());
    let child = sandbox.wait_for_file("child");
    let stopped = Instant::now();
    server.signal(Signal::STOP);
    wait_until("the command is dead", || !lives(&child));
    assert!(stopped.elapsed() < SESSION, "it took {:?}", stopped.elapsed());
    assert_eq!(running.done().code, 70);
    server.signal(Signal::CONT);
}

#[test]
fn command_that_handles_term_gets_its_grace() {
    let sandbox = Sandbox::new();
    let (server, address) = server(&sandbox);
    let script = "trap 'echo cleaned > cleaned; exit 0' TERM; echo $$ > child; while :; do sleep 0.05; done";
    let flags = ["run", "--session-timeout", "6s", "--grace", "1s", "--connect", address.as_str()];
    let running = sandbox.converse(&[&flags[..], &["x", "--", "sh", "-c", script]].concat());
    sandbox.wait_for_file("child");
    server.signal(Signal::STOP);
    assert_eq!(sandbox.wait_for_file("cleaned"), "cleaned");
    assert_eq!(running.done().code, 70);
    server.signal(Signal::CONT);
}

/// 5 s of grace are too much for the session of 16 s that is granted here; they are refused where they were asked for.
#[test]
fn default_grace_follows_granted_session_timeout() {
    let sandbox = Sandbox::new();
    let (_server, address) = server_with(&sandbox, &["--max-session-timeout", "16s"]);
    let flags = ["--connect", address.as_str(), "x", "--", "true"];
    let done = sandbox.output(&[&["run"][..], &flags].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let done = sandbox.output(&[&["run", "--grace", "5s"][..], &flags].concat());
    assert!(done.code != 0 && done.stderr.contains("grace 5s"), "{done:?}");
}

#[test]
fn group_gets_its_grace_after_command_ends() {
    let sandbox = Sandbox::new();
    let (server, address) = server(&sandbox);
    let script = "sh -c 'trap \"sleep 0.5; echo cleaned > cleaned; exit\" TERM; echo $$ > left; while :; do sleep 0.02; done' &
        setsid sleep 1000 & echo $! > outside
        trap 'echo ended > ended; exit 0' TERM; while ! [ -s left ]; do sleep 0.02; done; echo $$ > child
        while :; do sleep 0.02; done";
    let flags = ["run", "--session-timeout", "6s", "--grace", "1s", "--connect", address.as_str()];
    let running = sandbox.converse(&[&flags[..], &["x", "--", "sh", "-c", script]].concat());
    sandbox.wait_for_file("child");
    server.signal(Signal::STOP);
    assert_eq!(sandbox.wait_for_file("cleaned"), "cleaned");
    assert_eq!(running.done().code, 70);
    assert_eq!(sandbox.wait_for_file("ended"), "ended");
    // Without the lock nobody goes on.
    assert!(!lives(&sandbox.wait_for_file("left")) && !lives(&sandbox.wait_for_file("outside")));
    server.signal(Signal::CONT);
}

#[test]
fn command_finishes_with_on_lost_warn() {
    let sandbox = Sandbox::new();
    let (server, address) = server(&sandbox);
    let script = "echo $$ > child; while ! [ -e go ]; do sleep 0.05; done; exit 4";
    let flags = ["run", "--session-timeout", "6s", "--on-lost", "warn", "--connect", address.as_str()];
    let mut running = sandbox.converse(&[&flags[..], &["x", "--", "sh", "-c", script]].concat());
    let child = sandbox.wait_for_file("child");
    server.signal(Signal::STOP);
    let mut stderr = BufReader::new(running.0.stderr.take().expect("caught"));
    let mut said = String::new();
    while !said.contains("goes on") {
        assert!(stderr.read_line(&mut said).expect("text") > 0, "{said}");
    }
    assert!(lives(&child));
    std::fs::write(sandbox.path("go"), "").expect("writable");
    assert_eq!(running.code(), 4, "{said}");
    server.signal(Signal::CONT);
}

#[test]
fn short_outage_keeps_the_lock() {
    let sandbox = Sandbox::new();
    let (server, address) = server(&sandbox);
    let script = "echo $$ > child; while ! [ -e go ]; do sleep 0.05; done";
    let flags = ["run", "--session-timeout", "18s", "--connect", address.as_str()];
    let mut running = sandbox.converse(&[&flags[..], &["x", "--", "sh", "-c", script]].concat());
    sandbox.wait_for_file("child");
    server.signal(Signal::STOP);
    let mut stderr = BufReader::new(running.0.stderr.take().expect("caught"));
    let mut said = String::new();
    while !said.contains("for another") {
        assert!(stderr.read_line(&mut said).expect("text") > 0, "{said}");
    }
    server.signal(Signal::CONT);
    while !said.contains("still ours") {
        assert!(stderr.read_line(&mut said).expect("text") > 0, "{said}");
    }
    std::fs::write(sandbox.path("go"), "").expect("writable");
    assert_eq!(running.code(), 0, "{said}");
}

#[test]
fn hold_ends_when_its_lock_is_lost() {
    let sandbox = Sandbox::new();
    let (server, address) = server(&sandbox);
    let holder = sandbox.converse(&["hold", "--session-timeout", "6s", "--connect", &address, "x"]);
    wait_until("it is held", || {
        sandbox.output(&["show", "x", "--connect", &address]).stdout.contains("held by")
    });
    server.signal(Signal::STOP);
    let done = holder.done();
    assert_eq!(done.code, 70, "{done:?}");
    assert!(done.stderr.contains("lost x"), "{done:?}");
    server.signal(Signal::CONT);
}
