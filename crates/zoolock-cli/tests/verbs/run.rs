//! `zoolock run`: the command's surroundings, its end, and its signals.

use crate::common::{Sandbox, lives, wait_until};
use rustix::process::Signal;

#[test]
fn the_exit_code_is_the_commands_own() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 3, 64, 75, 255] {
        let done = sandbox.output(&["run", "x", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(done.code, code, "{done:?}");
        assert_eq!(done.stderr.is_empty(), code == 0, "{done:?}");
    }
    let done = sandbox.output(&["run", "x", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(done.code, 137, "{done:?}");
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn a_command_that_cannot_run_is_told_apart() {
    let sandbox = Sandbox::new();
    for (command, code) in
        [("no-such-command-anywhere", 127), ("/no/such", 127), ("/etc/passwd", 126), ("/", 126)]
    {
        let done = sandbox.output(&["run", "x", "--", command]);
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.stderr.starts_with("zoolock: ") && done.stderr.contains(command), "{done:?}");
    }
    assert!(!sandbox.state().exists(), "no server is started for a command that cannot run");
    // It looks fine, but is not: seen only when it is started.
    std::fs::write(sandbox.path("broken"), "#!/no/such/interpreter\n").expect("writable");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(sandbox.path("broken"), mode).expect("ours");
    let done = sandbox.output(&["run", "x", "--", "./broken"]);
    assert_eq!(done.code, 127, "{done:?}");
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn the_environment_says_which_lock_it_is() {
    let sandbox = Sandbox::new();
    let script = "echo $ZOOLOCK_NAME $ZOOLOCK_PATH $ZOOLOCK_PREVIOUS $ZOOLOCK_TOKEN";
    let mut last = String::new();
    for round in 0..3 {
        let done = sandbox.output(&["run", "dir/x", "--", "sh", "-c", script]);
        let words: Vec<_> = done.stdout.split_whitespace().collect();
        let [name, path, previous, token] = words.as_slice() else { panic!("{done:?}") };
        assert_eq!((*name, *path), ("dir/x", "/locks/dir/x"));
        assert_eq!(*previous, if round == 0 { "unknown" } else { "clean" });
        assert!(*token > last.as_str(), "tokens rise as text: {last} {token}");
        last = (*token).to_owned();
    }
}

#[test]
fn standard_input_is_the_commands() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.converse(&["run", "x", "--", "cat"]);
    running.say("one\ntwo\n");
    running.end_of_input();
    let done = running.done();
    assert_eq!((done.code, done.stdout.as_str()), (0, "one\ntwo\n"));
}

#[test]
fn signals_reach_the_whole_group_and_a_second_one_kills() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo heard > heard' TERM; sh -c 'echo $$ > grandchild; exec sleep 1000' & \
        while :; do sleep 0.05; done";
    let mut running = sandbox.start(&["run", "x", "--", "sh", "-c", script]);
    let grandchild = sandbox.wait_for_file("grandchild");
    running.signal(Signal::TERM);
    // Two signals that come at once are one.
    sandbox.wait_for_file("heard");
    wait_until("the grandchild got it too", || !lives(&grandchild));
    std::thread::sleep(std::time::Duration::from_millis(400));
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 137);
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn a_signal_is_passed_on_and_answered() {
    let sandbox = Sandbox::new();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::USR1, "USR1"), (Signal::USR2, "USR2")] {
        let file = format!("ready-{name}");
        let script = format!(
            "trap 'wait; exit 7' {name}; sh -c 'trap \"echo heard > heard-{name}; exit 0\" {name}; \
             echo $$ > {file}; while :; do sleep 0.05; done' & wait; wait; wait"
        );
        let mut running = sandbox.start(&["run", "x", "--", "sh", "-c", &script]);
        sandbox.wait_for_file(&file);
        running.signal(signal);
        assert_eq!(sandbox.wait_for_file(&format!("heard-{name}")), "heard", "{name}");
        assert_eq!(running.code(), 7, "{name}");
    }
}

#[test]
fn the_command_dies_with_us() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start(&["run", "x", "--", "sh", "-c", "echo $$ > child; exec sleep 1000"]);
    let child = sandbox.wait_for_file("child");
    running.signal(Signal::KILL);
    running.wait();
    wait_until("the command is dead", || !lives(&child));
}

#[test]
fn twenty_at_once_count_to_two_hundred() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("f"), "0\n").expect("writable");
    for _ in 0..10 {
        let script = "n=$(cat f); echo $((n+1)) > f";
        let mut all: Vec<_> =
            (0..20).map(|_| sandbox.start(&["run", "counter", "--", "sh", "-c", script])).collect();
        for running in &mut all {
            assert_eq!(running.code(), 0);
        }
    }
    assert_eq!(std::fs::read_to_string(sandbox.path("f")).expect("there").trim(), "200");
    assert_eq!(sandbox.contenders("counter"), 0);
}
