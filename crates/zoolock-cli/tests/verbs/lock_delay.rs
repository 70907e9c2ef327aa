//! `--lock-delay`: the wait before the grant, unless the previous holder released the lock cleanly.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use zoolock_tests::on_both_servers;

use crate::common::{Lines, Running, Sandbox};

/// Makes it unknown how the last holder of x left, because another contender gave up after it.
fn leave_unknown(sandbox: &Sandbox) {
    let mut holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    assert_eq!(sandbox.output(&["run", "--try", "x", "--", "true"]).code, 75);
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

#[test]
fn first_holder_has_no_delay() {
    let sandbox = Sandbox::new();
    for (number, (flags, runs)) in [
        (&["--timeout", "30s"][..], 2),
        (&["--try"], 2),
        (&["--try", "--crash-detection"], 2),
        // A reader records no release.
        (&["--try", "--shared"], 1),
    ]
    .into_iter()
    .enumerate()
    {
        let (one, other) = (format!("one-{number}"), format!("other-{number}"));
        let began = Instant::now();
        // The first run acquires two new locks, the second run locks that were released.
        for _ in 0..runs {
            let run = [&["run", "--lock-delay", "40s"], flags, &[&one, &other, "--", "true"]].concat();
            let done = sandbox.output(&run);
            assert_eq!(done.code, 0, "{done:?}");
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{flags:?}");
    }
}

/// A timeout below the delay would end each attempt after a crash, so this is no busy lock.
#[test]
fn timeout_below_the_delay_is_a_usage_error() {
    let sandbox = Sandbox::new();
    leave_unknown(&sandbox);
    for verb in ["run", "hold"] {
        let command = if verb == "run" { &["x", "--", "touch", "ran"][..] } else { &["x"] };
        let flags = [verb, "--quiet", "--timeout", "5s", "--lock-delay", "1m", "--on-busy-exit", "0"];
        let done = sandbox.output(&[&flags[..], command].concat());
        assert_eq!(done.code, 64, "{done:?}");
        assert!(done.stderr.contains("raise --timeout above --lock-delay (1m00s)"), "{done:?}");
    }
    assert!(!sandbox.path("ran").exists());
    // A longer timeout lets the delay pass.
    let done =
        sandbox.output(&["run", "--timeout", "30s", "--lock-delay", "500ms", "x", "--", "touch", "ran"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(sandbox.path("ran").exists());
}

#[test]
fn waiting_line_names_the_delay() {
    let sandbox = Sandbox::new();
    leave_unknown(&sandbox);
    let mut command = sandbox.zoolock(["run", "--lock-delay", "1h", "x", "--", "true"]);
    let mut waiter = Running(command.spawn().expect("zoolock starts"));
    let line = Lines::of(waiter.take_stderr()).next();
    assert!(line.contains("waiting for x, free after the lock delay of 1h00m"), "{line}");
}

on_both_servers!(delay_follows_a_crash, |zookeeper| async move {
    let (sandbox, connect) = (Sandbox::new(), zookeeper.connect_string());
    let run = |flags: &[&'static str], script: &'static str| {
        let session = ["run", "--connect", &connect, "--session-timeout", "6s"];
        let line = [&session[..], flags, &["x", "--", "sh", "-c", script]].concat();
        sandbox.start(&line)
    };
    let crashed = run(&[], "echo > started; exec sleep 1000");
    sandbox.wait_for_file("started");
    crashed.signal(Signal::KILL);
    let killed = Instant::now();
    let mut next = run(&["--timeout", "5m", "--lock-delay", "10s"], "true");
    assert_eq!(next.0.wait().expect("status of our child").code(), Some(0));
    assert!(killed.elapsed() > Duration::from_secs(10), "{:?}", killed.elapsed());
});
