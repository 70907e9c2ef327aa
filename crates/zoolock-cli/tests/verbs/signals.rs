//! Signals to `zoolock run` and `hold`: which of them reach the command, and how zoolock ends.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::Signal;

use crate::common::{Running, Sandbox, read_until, wait_until};
use crate::terminal::Terminal;

/// A command that writes its pid to the file `started`, and does not handle signals.
const JOB: [&str; 4] = ["--", "sh", "-c", "echo $$ > started; exec sleep 1000"];

/// Sends a signal by its name in bash, because real-time signals have no other name.
fn send(running: &Running, name: &str) {
    let pid = running.0.id().to_string();
    let sent = Command::new("bash").args(["-c", "kill -s $0 $1", name, &pid]).status();
    assert!(sent.expect("bash starts").success(), "{name}");
}

#[test]
fn signal_ends_zoolock_as_it_ends_the_command() {
    for signal in [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP] {
        let sandbox = Sandbox::new();
        let mut holding = sandbox.start_piped(&["hold", "held"]);
        read_until(&mut holding.take_stdout(), &mut String::new(), "\n");
        let mut waiting = sandbox.start(&[&["run", "held"][..], &JOB].concat());
        sandbox.wait_for_contenders("held", 2);
        let mut running = sandbox.start(&[&["run", "x"][..], &JOB].concat());
        sandbox.wait_for_file("started");

        for zoolock in [&mut waiting, &mut running] {
            zoolock.signal(signal);
            assert_eq!(zoolock.wait().signal(), Some(signal.as_raw()));
        }
        assert_eq!((sandbox.contenders("held"), sandbox.contenders("x")), (1, 0));
        // TERM is the usual end of a `hold`.
        holding.signal(signal);
        let expected = if signal == Signal::TERM { None } else { Some(signal.as_raw()) };
        assert_eq!(holding.wait().signal(), expected, "{signal:?}");
        assert_eq!(sandbox.contenders("held"), 0);
    }
}

#[test]
fn keeper_ends_by_the_signal() {
    for signal in [Signal::INT, Signal::QUIT, Signal::TERM] {
        let sandbox = Sandbox::new();
        let mut keeping = sandbox.start(&[&["run", "--keep", "x"][..], &JOB].concat());
        sandbox.wait_for_file("started");
        keeping.signal(signal);
        assert_eq!(keeping.wait().signal(), Some(signal.as_raw()));
        assert_eq!(sandbox.contenders("x"), 0);
    }
}

#[test]
fn second_interrupt_kills_and_ends_by_interrupt() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo > first' INT; echo > started; while :; do sleep 0.02; done";
    let mut running = sandbox.start(&["run", "x", "--", "sh", "-c", script]);
    sandbox.wait_for_file("started");
    running.signal(Signal::INT);
    sandbox.wait_for_file("first");
    // Two signals within 0.3 s count as one.
    wait_until("zoolock has killed the command", || {
        running.signal(Signal::INT);
        running.0.try_wait().expect("status of our child").is_some()
    });
    assert_eq!(running.wait().signal(), Some(Signal::INT.as_raw()));
}

#[test]
fn signal_that_only_ended_the_command_is_an_exit_code() {
    let sandbox = Sandbox::new();
    let done = sandbox.zoolock(["run", "x", "--", "sh", "-c", "kill -TERM $$"]).status().expect("it starts");
    assert_eq!((done.code(), done.signal()), (Some(143), None));
    // The command handles TERM, and its exit code says how it ended.
    let script = "trap 'exit 7' TERM; echo > started; while :; do sleep 0.02; done";
    let mut handled = sandbox.start(&["run", "x", "--", "sh", "-c", script]);
    sandbox.wait_for_file("started");
    handled.signal(Signal::TERM);
    assert_eq!(handled.wait().code(), Some(7));
}

#[test]
fn process_one_exits_with_the_code_of_the_signal() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command("unshare");
    let flags = ["--map-root-user", "--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_zoolock")];
    let script = "kill -TERM 1; exec sleep 1000";
    command.args(flags).args(["run", "x", "--", "sh", "-c", script]);
    let probe = sandbox.command("unshare").args(&flags[..4]).arg("true").status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: cannot make a pid namespace");
        return;
    }
    assert_eq!(command.status().expect("unshare starts").code(), Some(143));
}

/// Types `key` when the script shows `ready`, and returns what the terminal shows after that.
fn interrupt(sandbox: &Sandbox, script: &str, ready: &str, key: &[u8]) -> String {
    let script = script.replace("zoolock", env!("CARGO_BIN_EXE_zoolock"));
    std::fs::write(sandbox.path("script"), script).expect("file written");
    let mut terminal = Terminal::start(sandbox, "exec bash ./script");
    terminal.read_until(ready);
    terminal.write(key);
    terminal.rest()
}

#[test]
fn interrupt_on_terminal_ends_the_script() {
    let steps = [
        ("zoolock run x -- sh -c 'echo ready; exec sleep 1000'", "ready"),
        (
            "zoolock run x -- bash -c 'trap \"exit 130\" INT; echo ready; while :; do sleep 0.02; done'",
            "ready",
        ),
        ("zoolock run x -- zoolock run y -- sh -c 'echo ready; exec sleep 1000'", "ready"),
        ("zoolock run x -- sh -c 'echo ready; exec sleep 1000' | cat", "ready"),
        ("zoolock run --keep x -- sh -c 'echo ready; exec sleep 1000'", "ready"),
        ("zoolock run held -- true", "held by"),
        ("zoolock hold x", "holding x"),
        ("zoolock watch x", "watching"),
        ("sh -c 'zoolock run x -- sh -c \"echo ready; exec sleep 1000\"; echo went on'", "ready"),
        ("echo 1 | xargs zoolock run x -- sh -c 'echo ready; exec sleep 1000'", "ready"),
        ("echo 1 | xargs -o zoolock run x -- sh -c 'echo ready; exec sleep 1000'", "ready"),
    ];
    let sandbox = Sandbox::new();
    let _holder = sandbox.start_piped(&["hold", "held"]);
    sandbox.wait_for_contenders("held", 1);
    for (step, ready) in steps {
        let script = format!("for i in 1 2; do [ $i = 1 ] || break; {step}; done; echo went on");
        let rest = interrupt(&sandbox, &script, ready, b"\x03");
        assert!(!rest.contains("went on"), "{step}: {rest}");
        wait_until("the lock is free", || sandbox.contenders("x") == 0 && sandbox.contenders("held") == 1);
    }
}

#[test]
fn quit_on_terminal_ends_zoolock() {
    let sandbox = Sandbox::new();
    let job = "-- sh -c 'echo ready; exec sleep 1000'";
    let steps = [format!("run x {job}"), format!("run --keep x {job}"), "hold x".to_owned()];
    for (step, ready) in steps.iter().zip(["ready", "ready", "holding x"]) {
        // bash ignores QUIT, and names the signal that ended its child.
        let script = format!("zoolock -v {step}; echo went on");
        let rest = interrupt(&sandbox, &script, ready, b"\x1c");
        assert!(rest.contains("Quit") && rest.contains("went on"), "{step}: {rest}");
    }
}

#[test]
fn hangup_ends_a_keeper_on_a_terminal() {
    let sandbox = Sandbox::new();
    let line =
        format!("exec {} run --keep x -- sh -c 'echo ready; exec sleep 1000'", env!("CARGO_BIN_EXE_zoolock"));
    let mut terminal = Terminal::start(&sandbox, &line);
    terminal.read_until("ready");
    let _keeper = terminal.close();
    sandbox.wait_for_contenders("x", 0);
}

#[test]
fn command_gets_every_signal() {
    let signals = [
        "WINCH", "ALRM", "PWR", "IO", "XCPU", "VTALRM", "PROF", "SYS", "TRAP", "ABRT", "STKFLT", "URG",
        "USR1", "USR2", "HUP", "QUIT", "RTMIN", "RTMIN+3", "RTMAX",
    ];
    let sandbox = Sandbox::new();
    let script =
        "for s in \"$@\"; do trap \"echo $s > got.$s\" $s; done; echo > ready; while :; do sleep 0.02; done";
    let line = [&["run", "--quiet", "x", "--", "bash", "-c", script, "bash"][..], &signals].concat();
    let mut running = sandbox.start(&line);
    sandbox.wait_for_file("ready");
    for name in signals {
        send(&running, name);
        assert_eq!(sandbox.wait_for_file(&format!("got.{name}")), name);
    }
    send(&running, "TERM");
    assert_eq!(running.wait().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn no_signal_leaves_the_lock_held() {
    let sandbox = Sandbox::new();
    for (name, number) in [("ALRM", 14), ("PWR", 30), ("IO", 29), ("XCPU", 24), ("VTALRM", 26), ("SYS", 31)]
        .into_iter()
        .chain([("ABRT", 6), ("RTMIN+3", 37)])
    {
        let mut running = sandbox.start(&[&["run", "x"][..], &JOB].concat());
        sandbox.wait_for_file("started");
        let mut waiting = sandbox.start(&["run", "x", "--", "true"]);
        sandbox.wait_for_contenders("x", 2);
        send(&waiting, name);
        assert_eq!((waiting.code(), sandbox.contenders("x")), (128 + number, 1), "{name} to a waiter");
        send(&running, name);
        assert_eq!((running.code(), sandbox.contenders("x")), (128 + number, 0), "{name} to a holder");
        std::fs::remove_file(sandbox.path("started")).expect("the command has written it");
    }
}

/// Returns whether the command of zoolock starts with PIPE ignored. `$0` is zoolock in the script that starts it.
fn ignores_pipe(sandbox: &Sandbox, script: &str) -> bool {
    let done = sandbox.command("sh").args(["-c", script, env!("CARGO_BIN_EXE_zoolock")]).output();
    let printed = String::from_utf8(done.expect("sh starts").stdout).expect("UTF-8");
    let mask = printed.trim().rsplit('\t').next().and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.unwrap_or_else(|| panic!("no mask: {printed:?}")) >> (Signal::PIPE.as_raw() - 1) & 1 == 1
}

#[test]
fn command_inherits_whether_pipe_is_ignored() {
    let sandbox = Sandbox::new();
    let run = "\"$0\" run --quiet x -- ";
    let show = "grep SigIgn /proc/self/status";
    let inner = format!("{run} \"$0\" run --quiet y -- {show}");
    // systemd starts services with PIPE ignored (IgnoreSIGPIPE=yes), and their scripts pass this on.
    for (start, ignores) in
        [("trap '' PIPE;", true), ("", false), ("export SYSTEMD_EXEC_PID=$$; exec", false)]
    {
        assert_eq!(ignores_pipe(&sandbox, &format!("{start} {run} {show}")), ignores, "{start}");
        assert_eq!(ignores_pipe(&sandbox, &format!("{start} {inner}")), ignores, "{start} twice");
    }
    // The kernel cuts the name of the process in the middle of a letter.
    let link = "ln -s \"$0\" zoolock-mailer\u{fc} && trap '' PIPE &&";
    let by_link = format!("{link} ./zoolock-mailer\u{fc} run --quiet x -- {show}");
    assert!(ignores_pipe(&sandbox, &by_link));
}
