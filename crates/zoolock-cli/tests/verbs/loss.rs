//! Loss of the lock while the command runs: the command dies before another contender can acquire the lock.

use std::time::{Duration, Instant};

use crate::common::{Running, Sandbox, is_alive, read_until, server_with, start_server, wait_until};
use rustix::process::Signal;
use zoolock::TestServer;

const SESSION: Duration = Duration::from_secs(6);
/// Flag for [`SESSION`].
const SESSION_FLAG: &str = "--session-timeout=6s";

/// Starts `zoolock run` with a shell script as its command.
fn run(sandbox: &Sandbox, address: &str, flags: &[&str], script: &str) -> Running {
    sandbox.start_piped(&[&["run", "--connect", address], flags, &["x", "--", "sh", "-c", script]].concat())
}

#[test]
fn command_group_dies_before_session_expires() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    // The command and its child ignore TERM.
    let script =
        "trap '' TERM; sleep 1000 & echo $! > grandchild; echo $$ > child; while :; do sleep 1; done";
    let running = run(&sandbox, &address, &[SESSION_FLAG], script);
    let child = sandbox.wait_for_file("child");
    let grandchild = sandbox.wait_for_file("grandchild");
    let stopped = Instant::now();
    server.signal(Signal::STOP);
    wait_until("the command is dead", || !is_alive(&child));
    assert!(stopped.elapsed() < SESSION, "it took {:?}", stopped.elapsed());
    wait_until("the group is dead", || !is_alive(&grandchild));
    let done = running.wait_for_output();
    assert_eq!(done.code, 70, "{done:?}");
    assert!(done.stderr.contains("TERM") && done.stderr.contains(" while sh ran"), "{done:?}");
    assert!(!done.stderr.contains(PAUSED), "{done:?}");
    server.signal(Signal::CONT);
}

/// The hint at a pause that the clocks of this machine do not show.
const PAUSED: &str = "was this virtual machine paused, moved or restored?";

/// The server's clock moves forward, and that of the holder does not, as after a pause by a hypervisor.
#[test]
fn session_that_ends_before_its_lease_hints_at_pause() {
    let sandbox = Sandbox::new();
    let runtime = tokio::runtime::Runtime::new().expect("runtime created");
    let server = runtime.block_on(TestServer::start()).expect("server started");
    for verb in
        [&["hold", "x"][..], &["run", "x", "--", "sleep", "1000"], &["run", "--keep", "x", "--", "false"]]
    {
        let connect = ["--connect", &server.address()].map(str::to_owned);
        let args: Vec<&str> = verb[..1].iter().copied().chain(connect.iter().map(String::as_str)).collect();
        let mut holder = sandbox.start_piped(&[&args[..], &verb[1..]].concat());
        wait_until("the lock is held", || sandbox.contenders_with(&args[1..], "x") == 1);
        let mut stderr = holder.take_stderr();
        if verb.contains(&"--keep") {
            read_until(&mut stderr, &mut String::new(), "starting it again");
        }
        server.advance(Duration::from_secs(3600));
        read_until(&mut stderr, &mut String::new(), PAUSED);
        holder.signal(Signal::TERM);
        holder.wait();
    }
}

#[test]
fn blocked_stderr_does_not_delay_the_kill() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    // The script fills the pipe that is the standard error of both the command and zoolock.
    let script = "echo $$ > child; head -c 10000000 /dev/zero >&2";
    let running = run(&sandbox, &address, &["-v", SESSION_FLAG], script);
    let child = sandbox.wait_for_file("child");
    let stopped = Instant::now();
    server.signal(Signal::STOP);
    wait_until("the command is dead", || !is_alive(&child));
    assert!(stopped.elapsed() < SESSION, "it took {:?}", stopped.elapsed());
    assert_eq!(running.wait_for_output().code, 70);
    server.signal(Signal::CONT);
}

#[test]
fn command_that_handles_term_gets_its_grace() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    let script = "trap 'echo cleaned > cleaned; exit 0' TERM; echo $$ > child; while :; do sleep 0.05; done";
    let running = run(&sandbox, &address, &[SESSION_FLAG, "--grace", "1s"], script);
    sandbox.wait_for_file("child");
    server.signal(Signal::STOP);
    assert_eq!(sandbox.wait_for_file("cleaned"), "cleaned");
    assert_eq!(running.wait_for_output().code, 70);
    server.signal(Signal::CONT);
}

/// A grace period of 5 s is too long for the granted session timeout of 16 s. zoolock shortens its
/// default of 5 s, but refuses `--grace 5s`.
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
    let (server, address) = start_server(&sandbox);
    let script = "sh -c 'trap \"sleep 0.5; echo cleaned > cleaned; exit\" TERM; echo $$ > left; while :; do sleep 0.02; done' &
        setsid sleep 1000 & echo $! > outside
        trap 'echo ended > ended; exit 0' TERM; while ! [ -s left ]; do sleep 0.02; done; echo $$ > child
        while :; do sleep 0.02; done";
    let running = run(&sandbox, &address, &[SESSION_FLAG, "--grace", "1s"], script);
    sandbox.wait_for_file("child");
    server.signal(Signal::STOP);
    assert_eq!(sandbox.wait_for_file("cleaned"), "cleaned");
    assert_eq!(running.wait_for_output().code, 70);
    assert_eq!(sandbox.wait_for_file("ended"), "ended");
    // After the grace period, all processes of the command are dead.
    assert!(!is_alive(&sandbox.wait_for_file("left")) && !is_alive(&sandbox.wait_for_file("outside")));
    server.signal(Signal::CONT);
}

#[test]
fn short_outage_keeps_the_lock() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    let script = "echo $$ > child; while ! [ -e go ]; do sleep 0.05; done";
    let mut running = run(&sandbox, &address, &["--session-timeout", "18s"], script);
    sandbox.wait_for_file("child");
    server.signal(Signal::STOP);
    let mut stderr = running.take_stderr();
    let mut printed = String::new();
    read_until(&mut stderr, &mut printed, "the lease on x ends in");
    server.signal(Signal::CONT);
    read_until(&mut stderr, &mut printed, "the lease on x is renewed");
    std::fs::write(sandbox.path("go"), "").expect("file written");
    assert_eq!(running.code(), 0, "{printed}");
}

#[test]
fn hold_ends_when_its_lock_is_lost() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    let holder = sandbox.start_piped(&["hold", "--session-timeout", "6s", "--connect", &address, "x"]);
    wait_until("the lock is held", || {
        sandbox.output(&["show", "x", "--connect", &address]).stdout.contains("held by")
    });
    server.signal(Signal::STOP);
    let done = holder.wait_for_output();
    assert_eq!(done.code, 70, "{done:?}");
    assert!(done.stderr.contains("lost x"), "{done:?}");
    server.signal(Signal::CONT);
}
