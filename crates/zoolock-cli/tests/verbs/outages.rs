//! Outages: the server is killed, or stopped so that it accepts connections but answers nothing. An outage is never reported
//! as a busy lock, and the command never starts.

use std::time::Duration;

use rustix::process::Signal;
use zoolock_tests::proxy::Proxy;

use crate::common::{Running, Sandbox, start_server, wait_until};

const OUTAGES: [Signal; 2] = [Signal::KILL, Signal::STOP];

/// The calls under test, without the arguments for the server and the lock.
const CALLS: [&[&str]; 5] = [
    &["run", "--timeout", "3s"],
    &["run", "--timeout", "3s", "--quiet", "--on-busy-exit", "0"],
    &["run", "--timeout", "0s", "--on-busy-exit", "0"],
    &["run", "--try", "--quiet", "--on-busy-exit", "0"],
    &["hold", "--timeout", "3s", "--on-busy-exit", "0"],
];

/// Starts a call for the lock `x`.
fn call(sandbox: &Sandbox, address: &str, call: &[&str]) -> Running {
    let service = ["--connect", address, "ZOOLOCK_CONNECT_TIMEOUT=2s", "x"];
    let command: &[&str] = if call[0] == "run" { &["--", "touch", "ran"] } else { &[] };
    sandbox.start_piped(&[call, &service, command].concat())
}

/// Checks that a call ended because of the outage.
fn assert_unavailable(sandbox: &Sandbox, outage: Signal, call: &[&str], running: Running) {
    let done = running.wait_for_output();
    assert_eq!(done.code, 69, "{outage:?} {call:?}: {done:?}");
    assert!(!done.stderr.is_empty() && !done.stderr.contains("is held"), "{outage:?} {call:?}: {done:?}");
    assert!(!sandbox.path("ran").exists(), "{outage:?} {call:?}: the command started");
}

#[test]
fn outage_before_the_call_is_unavailable() {
    for outage in OUTAGES {
        let sandbox = Sandbox::new();
        let (server, address) = start_server(&sandbox);
        server.signal(outage);
        let calls = CALLS.map(|flags| (flags, call(&sandbox, &address, flags)));
        for (flags, running) in calls {
            assert_unavailable(&sandbox, outage, flags, running);
        }
        server.signal(Signal::CONT);
    }
}

#[test]
fn outage_while_waiting_is_unavailable() {
    // Only calls with `--timeout 3s` still wait when the outage begins.
    let waits = |flags: &&&[&str]| flags.contains(&"3s");
    for outage in OUTAGES {
        let sandbox = Sandbox::new();
        let (server, address) = start_server(&sandbox);
        let _holder = sandbox.start_piped(&["hold", "--connect", &address, "x"]);
        let count = |contenders| sandbox.contenders_with(&["--connect", &address], "x") == contenders;
        wait_until("the lock is held", || count(1));
        let calls: Vec<_> =
            CALLS.iter().filter(waits).map(|flags| (*flags, call(&sandbox, &address, flags))).collect();
        wait_until("all are queued", || count(1 + calls.len()));
        server.signal(outage);
        for (flags, running) in calls {
            assert_unavailable(&sandbox, outage, flags, running);
        }
        server.signal(Signal::CONT);
    }
}

/// Each answer takes half of the time limit. So the time limit passes twice if it does not include the connection, or if the
/// waits for answers at the end add up.
#[tokio::test]
async fn slow_answers_do_not_prolong_the_time_limit() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let _holder = sandbox.start_piped(&["hold", "--connect", &address, "x"]);
    wait_until("the lock is held", || sandbox.contenders_with(&["--connect", &address], "x") == 1);
    let proxy = Proxy::start(&address).await.expect("proxy started");
    proxy.delay(Duration::from_secs(2));
    let wait = |timeout: &str, server: &str| {
        sandbox.start_piped(&["run", "--timeout", timeout, "--connect", server, "x", "--", "touch", "ran"])
    };
    let slow = wait("8s", &proxy.addr());
    let mut twice_as_long = wait("16s", &address);
    let done = slow.wait_for_output();
    assert_eq!(done.code, 69, "{done:?}");
    assert!(twice_as_long.0.try_wait().expect("a child").is_none(), "{done:?}");
    assert!(!sandbox.path("ran").exists());
}
