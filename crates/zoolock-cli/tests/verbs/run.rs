//! `zoolock run`: the environment, exit code and signals of its command.

use std::time::{Duration, Instant};

use crate::common::{CommandOutput, Running, Sandbox, is_alive, read_until, set_mode, wait_until};
use rustix::process::Signal;
use zoolock_tests::on_both_servers;
use zoolock_tests::skip::is_long;

#[test]
fn run_exits_with_code_of_its_command() {
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
fn unrunnable_command_exits_126_or_127() {
    let sandbox = Sandbox::new();
    for (command, code) in
        [("no-such-command-anywhere", 127), ("/no/such", 127), ("/etc/passwd", 126), ("/", 126)]
    {
        let done = sandbox.output(&["run", "x", "--", command]);
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.stderr.starts_with("zoolock: ") && done.stderr.contains(command), "{done:?}");
    }
    let line = sandbox.output(&["run", "x", "--", "echo a && /bin/echo b"]);
    assert!(line.code == 127 && line.stderr.contains("as sh -c '...'"), "{line:?}");
    assert!(!sandbox.state().exists(), "no server is started for a command that cannot run");
    // The interpreter of this program is missing, which is found only when the program is started.
    std::fs::write(sandbox.path("broken"), "#!/no/such/interpreter\n").expect("file written");
    set_mode(sandbox.path("broken"), 0o755);
    let done = sandbox.output(&["run", "x", "--", "./broken"]);
    assert_eq!(done.code, 127, "{done:?}");
    assert!(done.stderr.contains("interpreter /no/such/interpreter is missing"), "{done:?}");
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn missing_proc_is_named() {
    let sandbox = Sandbox::new();
    for command in ["run --connect 127.0.0.1:1 x -- touch ran", "run x -- touch ran", "ls"] {
        let script = format!("mount -t tmpfs tmpfs /proc && exec \"$0\" {command}");
        let Some(done) = sandbox.in_mount_namespace(&script) else { return };
        assert_eq!(done.code, 69, "{done:?}");
        assert!(done.stderr.contains("mount -t proc"), "{done:?}");
    }
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn sockets_of_systemd_are_handed_on() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("socket"), "hello\n").expect("file written");
    let script = "exec 3< socket; export LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_PIDFDID=1 WATCHDOG_PID=$$; \
        exec \"$0\" run x -- sh -c 'echo $$ $LISTEN_PID $WATCHDOG_PID ${LISTEN_PIDFDID-none}; cat <&3'";
    let mut shell = sandbox.command("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_zoolock")]);
    let done = CommandOutput::from(shell.output().expect("the shell starts"));
    let words: Vec<_> = done.stdout.split_whitespace().collect();
    let [pid, listen, watchdog, "none", "hello"] = words.as_slice() else { panic!("{done:?}") };
    assert_eq!((pid, pid), (listen, watchdog), "{done:?}");
    // A variable that names another process stays unchanged.
    let mut command = sandbox.zoolock(["run", "x", "--", "sh", "-c", "echo $LISTEN_PID"]);
    let done = CommandOutput::from(command.env("LISTEN_PID", "1").output().expect("zoolock starts"));
    assert_eq!(done.stdout, "1\n", "{done:?}");
}

#[test]
fn name_of_many_parts_is_locked() {
    let sandbox = Sandbox::new();
    let name = vec!["a"; 60].join("/");
    for _ in 0..2 {
        let done = sandbox.output(&["run", &name, "--", "true"]);
        assert_eq!(done.code, 0, "{done:?}");
    }
}

#[test]
fn hold_names_what_releases_the_lock() {
    let sandbox = Sandbox::new();
    let mut held = sandbox.zoolock(["hold", "x"]);
    let mut held = Running(held.spawn().expect("the command starts"));
    read_until(&mut held.take_stderr(), &mut String::new(), "holding x; ^C or TERM releases it");
    held.signal(Signal::TERM);
    assert_eq!(held.code(), 0);
    let mut held = sandbox.start_piped(&["hold", "x"]);
    read_until(&mut held.take_stderr(), &mut String::new(), "^C or the end of input releases it");
    held.end_of_input();
    assert_eq!(held.code(), 0);
}

#[test]
fn environment_describes_the_lock() {
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
fn command_reads_standard_input() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start_piped(&["run", "x", "--", "cat"]);
    running.write("one\ntwo\n");
    running.end_of_input();
    let done = running.wait_for_output();
    assert_eq!((done.code, done.stdout.as_str()), (0, "one\ntwo\n"));
}

#[test]
fn term_reaches_group_and_second_one_kills() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo heard > heard' TERM; sh -c 'echo $$ > grandchild; exec sleep 1000' & \
        while :; do sleep 0.05; done";
    let mut running = sandbox.start(&["run", "x", "--", "sh", "-c", script]);
    let grandchild = sandbox.wait_for_file("grandchild");
    running.signal(Signal::TERM);
    // The first TERM must be handled before the second one: two pending signals would be delivered as one.
    sandbox.wait_for_file("heard");
    wait_until("the grandchild got the signal too", || !is_alive(&grandchild));
    std::thread::sleep(std::time::Duration::from_millis(400));
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 137);
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn signals_are_passed_to_the_group() {
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
fn command_dies_with_zoolock() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start(&["run", "x", "--", "sh", "-c", "echo $$ > child; exec sleep 1000"]);
    let child = sandbox.wait_for_file("child");
    running.signal(Signal::KILL);
    running.wait();
    wait_until("the command is dead", || !is_alive(&child));
}

/// Runs twenty commands at once, ten times, or fifty times with `ZOOLOCK_LONG=1`. Each command
/// increments a number in a file. If two commands overlap, one increment is lost.
fn assert_runs_never_overlap(connect: &[&str]) {
    let rounds = if is_long() { 50 } else { 10 };
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("f"), "0\n").expect("file written");
    let line = [connect, &["run", "counter", "--", "sh", "-c", "n=$(cat f); echo $((n+1)) > f"]].concat();
    for _ in 0..rounds {
        let commands: Vec<_> = (0..20).map(|_| sandbox.start_piped(&line)).collect();
        for running in commands {
            let done = running.wait_for_output();
            assert_eq!(done.code, 0, "{done:?}");
        }
    }
    let counted = std::fs::read_to_string(sandbox.path("f")).expect("readable");
    assert_eq!(counted.trim(), (rounds * 20).to_string());
    let listed = sandbox.output(&[connect, &["ls", "--json"]].concat());
    assert!(listed.code == 0 && !listed.stdout.contains("\"node\""), "{listed:?}");
}

on_both_servers!(runs_never_overlap, |zookeeper| async move {
    assert_runs_never_overlap(&["--connect", &zookeeper.connect_string()]);
});

#[test]
fn local_runs_never_overlap() {
    assert_runs_never_overlap(&[]);
}

on_both_servers!(private lock_of_killed_holder_is_freed_within_session, |zookeeper| async move {
    let sandbox = Sandbox::new();
    // The shortest session timeout that zoolock requests.
    let (address, session) = (zookeeper.connect_string(), Duration::from_secs(6));
    let flags = ["--session-timeout", "6s", "--connect", &address];
    let run = |script: &str| sandbox.start(&[&["run"][..], &flags, &["killed", "--", "sh", "-c", script]].concat());
    let holder = run("echo held > started; exec sleep 600");
    sandbox.wait_for_file("started");
    let mut waiter = run("echo $ZOOLOCK_PREVIOUS > took");
    wait_until("the second command waits", || sandbox.contenders_with(&flags, "killed") == 2);
    let killed = Instant::now();
    holder.signal(Signal::KILL);
    assert_eq!(sandbox.wait_for_file("took"), "unknown");
    let tick = zookeeper.server().options().tick;
    assert!(killed.elapsed() <= session + tick + Duration::from_secs(1), "{:?}", killed.elapsed());
    assert_eq!(waiter.code(), 0);
});
