//! `zoolock hold` ends with the script that started it.

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::common::process_tree::signal;
use crate::common::{Running, Sandbox, is_alive, wait_until};
use rustix::process::Signal;

/// Starts a script with zoolock as `$0`.
fn start(sandbox: &Sandbox, script: &str) -> Running {
    let mut command = sandbox.command("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_zoolock")]).stdin(Stdio::null()).process_group(0);
    Running(command.spawn().expect("sh starts"))
}

/// Returns whether x stays held for five seconds.
fn stays_held(sandbox: &Sandbox) -> bool {
    sandbox.output(&["run", "--timeout", "5s", "x", "--", "true"]).code == 75
}

#[test]
fn hold_ends_with_its_script() {
    let sandbox = Sandbox::new();
    let hold = r#""$0" hold --quiet x >token & until [ -s token ]; do sleep 0.02; done; "#;
    // A failure, and a kill.
    assert_eq!(start(&sandbox, &format!("{hold} exit 1")).code(), 1);
    sandbox.wait_for_contenders("x", 0);
    std::fs::remove_file(sandbox.path("token")).expect("file removed");
    let mut script = start(&sandbox, &format!("{hold} echo ready >ready; read -r line </dev/zero"));
    sandbox.wait_for_file("ready");
    assert_eq!(sandbox.contenders("x"), 1);
    script.signal(Signal::KILL);
    script.wait();
    sandbox.wait_for_contenders("x", 0);
}

#[test]
fn waiting_hold_ends_with_its_script() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.start(&["run", "x", "--", "sleep", "1000"]);
    sandbox.wait_for_contenders("x", 1);
    let mut script = start(&sandbox, r#""$0" hold x & wait"#);
    sandbox.wait_for_contenders("x", 2);
    script.signal(Signal::KILL);
    script.wait();
    sandbox.wait_for_contenders("x", 1);
}

/// `pid=$(zoolock hold … & echo $!)` and a loop in a pipe run `hold` in a subshell.
#[test]
fn subshell_counts_as_its_script() {
    let sandbox = Sandbox::new();
    // The first subshell ends later than `hold` starts, the second one earlier.
    for subshell in ["until [ -s token ]; do sleep 0.02; done", "true"] {
        let script = format!(
            "( \"$0\" hold --quiet x >token & {subshell} ); until [ -s token ]; do sleep 0.02; done; echo left >left; \
             while :; do sleep 0.1; done"
        );
        let mut script = start(&sandbox, &script);
        sandbox.wait_for_file("left");
        assert!(stays_held(&sandbox), "{subshell}");
        script.signal(Signal::KILL);
        script.wait();
        sandbox.wait_for_contenders("x", 0);
        ["left", "token"]
            .iter()
            .for_each(|name| std::fs::remove_file(sandbox.path(name)).expect("file removed"));
    }
}

#[test]
fn hold_can_outlive_its_script() {
    let sandbox = Sandbox::new();
    for how in [r#""$0" hold --stay"#, r#"setsid "$0" hold"#, r#"nohup "$0" hold"#] {
        let script = format!(
            "{how} --quiet x >token 2>nohup & echo $! >pid; until [ -s token ]; do sleep 0.02; done; exit 1"
        );
        assert_eq!(start(&sandbox, &script).code(), 1, "{how}");
        assert!(stays_held(&sandbox), "{how}");
        let pid = sandbox.wait_for_file("pid");
        signal(&pid, Signal::TERM);
        wait_until("the hold has ended", || !is_alive(&pid));
        std::fs::remove_file(sandbox.path("token")).expect("file removed");
    }
}

#[test]
fn script_under_nohup_takes_its_hold_along() {
    let sandbox = Sandbox::new();
    let script =
        r#"nohup sh -c '"$0" hold --quiet x >token & until [ -s token ]; do sleep 0.02; done' "$0" 2>nohup"#;
    assert_eq!(start(&sandbox, script).code(), 0);
    sandbox.wait_for_contenders("x", 0);
}
