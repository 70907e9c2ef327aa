//! Waiting for a lock: timeouts, signals and messages.

use crate::common::{Running, Sandbox};
use rustix::process::Signal;

#[test]
fn busy_lock_sets_exit_code_and_names_holder() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.start(&["run", "--note", "nightly backup", "x", "--", "sleep", "1000"]);
    sandbox.wait_for_contenders("x", 1);
    for (flags, code) in [
        (&["--try"][..], 75),
        (&["--timeout", "200ms"], 75),
        (&["--try", "--on-busy-exit", "0"], 0),
        (&["--timeout=0s", "--on-busy-exit=9"], 9),
    ] {
        let done = sandbox.output(&[&["run"], flags, &["x", "--", "touch", "ran"]].concat());
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.stderr.contains("nightly backup"), "{done:?}");
    }
    assert!(!sandbox.path("ran").exists());
    assert_eq!(sandbox.contenders("x"), 1);
}

/// cron sends a mail about any output. So a busy lock that is no error must print nothing.
#[test]
fn quiet_busy_lock_prints_nothing_with_exit_zero() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.start(&["run", "x", "--", "sleep", "1000"]);
    sandbox.wait_for_contenders("x", 1);
    for (flags, prints) in [
        (&["--try", "--on-busy-exit", "0", "--quiet"][..], false),
        (&["--timeout=200ms", "--on-busy-exit=0", "--quiet"], false),
        (&["--try", "--on-busy-exit", "0"], true),
        (&["--try", "--on-busy-exit", "1", "--quiet"], true),
        (&["--try", "--quiet"], true),
    ] {
        for verb in ["run", "hold"] {
            let args = if verb == "run" { &["x", "--", "touch", "ran"][..] } else { &["x"] };
            let done = sandbox.output(&[&[verb][..], flags, args].concat());
            assert_eq!(!done.stderr.is_empty(), prints, "{verb} {flags:?}: {done:?}");
        }
    }
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn signal_while_waiting_leaves_no_contender() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    for signal in [Signal::TERM, Signal::USR1] {
        let mut waiter = sandbox.start_piped(&["run", "x", "--", "true"]);
        sandbox.wait_for_contenders("x", 2);
        waiter.signal(signal);
        if signal == Signal::TERM {
            let done = waiter.wait_for_output();
            assert_eq!(done.code, 143, "{done:?}");
            assert!(done.stderr.contains("ended by TERM while waiting for x"), "{done:?}");
            assert_eq!(sandbox.contenders("x"), 1);
        } else {
            // zoolock passes USR1 to its command, and ignores it before the command starts.
            holder.end_of_input();
            // On a slow machine, zoolock may see the signal only after it has started the command. Then USR1 ends the command.
            let code = waiter.code();
            assert!(matches!(code, 0 | 138), "{code}");
        }
    }
    assert_eq!(holder.code(), 0);
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn end_of_input_ends_the_wait_of_hold() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    // The input of this waiter is /dev/null. The end of such an input does not end the wait.
    let _service = sandbox.start(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 2);
    let mut waiter = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 3);
    waiter.end_of_input();
    let done = waiter.wait_for_output();
    assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{done:?}");
    assert!(done.stderr.contains("the input ended while waiting for x; no longer in the queue"), "{done:?}");
    assert_eq!(sandbox.contenders("x"), 2);
    // An empty file as input ends the wait too.
    std::fs::write(sandbox.path("empty"), "").expect("file written");
    let mut command = sandbox.zoolock(["hold", "--on-busy-exit", "9", "x"]);
    command.stdin(std::fs::File::open(sandbox.path("empty")).expect("file opened"));
    assert_eq!(Running(command.spawn().expect("zoolock starts")).code(), 9);
    assert_eq!(sandbox.contenders("x"), 2);
}

#[test]
fn wait_without_terminal_prints_one_line() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "--note", "me", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = sandbox.zoolock(["run", "x", "--", "true"]);
    let mut waiter = Running(command.stderr(writer).spawn().expect("zoolock starts"));
    drop(command);
    let mut printed = String::new();
    while !printed.ends_with('\n') {
        let mut byte = [0];
        std::io::Read::read_exact(&mut reader, &mut byte).expect("zoolock prints a line");
        printed.push(byte[0].into());
    }
    assert!(printed.starts_with("zoolock: waiting for x, held by ") && printed.contains("me"), "{printed}");
    holder.end_of_input();
    assert_eq!(waiter.code(), 0);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut reader, &mut rest).expect("UTF-8");
    assert!(!rest.contains("waiting"), "{rest}");
}
