//! The server that a command uses: named by a flag, the environment, the file of the machine or an outer `run`, or by no
//! place.

use std::process::Command;

use crate::common::{Running, Sandbox, output, set_mode, start_server, wait_until};

/// Returns a command that runs a script. The script calls zoolock as `$ZL`.
fn script(sandbox: &Sandbox, outer: &[&str], script: &str) -> Command {
    let mut command = sandbox.zoolock([&["run"], outer, &["--", "sh", "-c", script]].concat());
    command.env("ZL", env!("CARGO_BIN_EXE_zoolock"));
    command
}

/// Starts a server on which `b` is held.
fn server_with_held_lock(sandbox: &Sandbox) -> ([Running; 2], String) {
    let (server, address) = start_server(sandbox);
    let holder = sandbox.start_piped(&["hold", "--connect", &address, "b"]);
    wait_until("b is held", || sandbox.contenders_with(&["--connect", &address], "b") == 1);
    ([holder, server], address)
}

#[test]
fn inner_command_uses_the_server_of_the_outer() {
    let sandbox = Sandbox::new();
    let (_running, address) = server_with_held_lock(&sandbox);
    for (inner, code) in [("run --try b -- touch ran", 75), ("run --try a -- touch ran", 64), ("show a", 0)] {
        let mut command = script(&sandbox, &["--connect", &address, "a"], &format!("$ZL {inner}"));
        let done = output(command.env_remove("ZOOLOCK_CONNECT"));
        assert_eq!(done.code, code, "{inner}: {done:?}");
    }
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn inner_command_uses_the_root_and_credentials_of_the_outer() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let file = sandbox.write_private("credentials", "me:pw\n");
    let print = "cd /; echo $ZOOLOCK_ROOT $ZOOLOCK_AUTH $ZOOLOCK_TOKEN_EPOCH; $ZL show a";
    let outer = ["--connect", &address, "--root", "/r", "--auth", "digest:@credentials", "a"];
    let done = output(script(&sandbox, &outer, print).env("ZOOLOCK_TOKEN_EPOCH", "3"));
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.starts_with(&format!("/r digest:@{file} 3\n")), "{done:?}");
}

#[test]
fn secrets_are_not_passed_in_the_environment() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let auth = "digest:command:echo me:hunter2";
    let mut command = script(&sandbox, &["--connect", &address, "--auth", auth, "a"], "env");
    let done = output(command.env("ZOOLOCK_AUTH", "digest:env:OTHER"));
    let auth = done.stdout.lines().find(|line| line.starts_with("ZOOLOCK_AUTH"));
    assert!(done.code == 0 && auth.is_none() && !done.stdout.contains("hunter2"), "{done:?}");
}

#[test]
fn other_server_than_that_of_the_outer_is_refused() {
    let sandbox = Sandbox::new();
    let (_first, first) = start_server(&sandbox);
    let (_second, second) = start_server(&sandbox);
    for (inner, code) in [
        ("env -u ZOOLOCK_CONNECT $ZL run x -- true".to_owned(), 64),
        (format!("env ZOOLOCK_CONNECT={second} $ZL run x -- true"), 64),
        (format!("env ZOOLOCK_CONNECT={second} $ZL hold x"), 64),
        // One server in common means one ensemble, and a flag shows the intention.
        (format!("env ZOOLOCK_CONNECT={second},{first} $ZL run x -- true"), 0),
        (format!("$ZL run --connect {second} x -- true"), 0),
        ("$ZL run --connect local x -- true".to_owned(), 0),
        (format!("env ZOOLOCK_CONNECT={second} env -u ZOOLOCK_HELD $ZL run x -- true"), 0),
    ] {
        let done = output(&mut script(&sandbox, &["--connect", &first, "a"], &inner));
        assert_eq!(done.code, code, "{inner}: {done:?}");
        assert_eq!(
            code == 64,
            done.stderr.contains(&format!("under a lock at {first}, and would use")),
            "{done:?}"
        );
    }
    let elsewhere =
        format!("env ZOOLOCK_STATE_DIR={} $ZL run x -- true", sandbox.path("elsewhere").display());
    let done = output(&mut script(&sandbox, &["a"], &elsewhere));
    assert_eq!(done.code, 64, "{done:?}");
}

#[test]
fn unasked_local_server_is_announced_once() {
    let sandbox = Sandbox::new();
    let run = |flags: &[&str]| {
        let mut command = sandbox.zoolock([&["run"], flags, &["x", "--", "true"]].concat());
        let done = output(command.env_remove("ZOOLOCK_CONNECT"));
        assert_eq!(done.code, 0, "{done:?}");
        done.stderr
    };
    let note = run(&[]);
    assert_eq!(note.lines().count(), 1, "{note}");
    for part in ["ZOOLOCK_CONNECT", "sudo, su -, ssh and env -i", "--connect local"] {
        assert!(note.contains(part), "{note}");
    }
    assert_eq!(run(&[]), "");
    for flags in [&["--quiet"][..], &["--connect", "local"]] {
        assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0);
        assert_eq!(run(flags), "", "{flags:?}");
    }
}

#[test]
fn unknown_variable_is_named() {
    let sandbox = Sandbox::new();
    for (variable, named) in [
        ("ZOOLOCK_CONNCT", Some("ZOOLOCK_CONNCT is not a setting")),
        ("ZOOLOCK_XYZ", Some("ZOOLOCK_XYZ is not a setting")),
        // Kubernetes sets these for a service with the name zoolock.
        ("ZOOLOCK_PORT_2181_TCP", None),
        ("ZOOLOCK_SERVICE_HOST", None),
        ("ZOOLOCK_STATE_DIR", None),
    ] {
        let mut command = sandbox.zoolock(["run", "--quiet", "x", "--", "true"]);
        let done = output(command.env(variable, sandbox.state()));
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(done.stderr.is_empty(), named.is_none(), "{done:?}");
        assert!(done.stderr.contains(named.unwrap_or_default()), "{done:?}");
    }
    let (_server, address) = start_server(&sandbox);
    let mut command = sandbox.zoolock(["ls", "--connect", &address, "--auth", "digest:env:ZOOLOCK_PASS"]);
    let done = output(command.env("ZOOLOCK_PASS", "me:pw"));
    assert!(!done.stderr.contains("ZOOLOCK_PASS"), "{done:?}");
}

#[test]
fn file_of_the_machine_is_read_before_environment_and_flags() {
    let sandbox = Sandbox::new();
    let (_running, address) = server_with_held_lock(&sandbox);
    let file = sandbox.path("zoolock.conf");
    let auth = sandbox.write_private("credentials", "me:pw\n");
    let text = format!(
        "# The ensemble\n\nZOOLOCK_CONNECT = \"{address}\"\nZOOLOCK_ROOT=/r\nZOOLOCK_AUTH=digest:@{auth}\n"
    );
    std::fs::write(&file, text).expect("file written");
    set_mode(&file, 0o644);
    let with = |args: &[&str], connect: Option<&str>| {
        let mut command = sandbox.zoolock(args);
        command.env_remove("ZOOLOCK_CONNECT").env("ZOOLOCK_CONFIG", &file);
        output(command.envs(connect.map(|connect| ("ZOOLOCK_CONNECT", connect))))
    };
    let held = |args: &[&str], connect: Option<&str>| {
        let done = with(&[&["run", "--try"], args, &["b", "--", "true"]].concat(), connect);
        assert!([0, 75].contains(&done.code), "{done:?}");
        done.code == 75
    };
    assert!(held(&["--root", "/locks"], None), "the ensemble of the file");
    assert!(!held(&[], None), "the root of the file");
    assert!(!held(&["--root", "/locks"], Some("local")), "the environment overrides the file");
    assert!(!held(&["--root", "/locks", "--connect", "local"], None), "a flag overrides the file");
    let mut everyone = sandbox.zoolock(["run", "--connect", "local", "x", "--", "true"]);
    assert_eq!(
        output(everyone.env("ZOOLOCK_WORLD_WRITABLE", "1")).code,
        0,
        "the variable is for an ensemble"
    );
    let both = with(&["ls", "--connect", "local", "--auth", "digest:env:X"], None);
    assert_eq!(both.code, 64, "{both:?}");
    let inner = format!("{} run --try --root /locks b -- true", env!("CARGO_BIN_EXE_zoolock"));
    let nested = with(&["run", "a", "--", "sh", "-c", &inner], None);
    assert_eq!(nested.code, 75, "{nested:?}");

    let names = "sets ZOOLOCK_CONNECT, ZOOLOCK_ROOT, ZOOLOCK_AUTH";
    let verbose = with(&["ls", "-v"], None);
    assert!(verbose.stderr.contains(names), "{verbose:?}");
    let doctor = with(&["doctor"], None);
    assert!(doctor.stdout.contains(names), "{doctor:?}");
}

#[test]
fn unusable_file_of_the_machine_is_refused() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("zoolock.conf");
    let with = |text: &str, mode: u32| {
        std::fs::write(&file, text).expect("file written");
        set_mode(&file, mode);
        let mut command = sandbox.zoolock(["run", "x", "--", "true"]);
        output(command.env("ZOOLOCK_CONFIG", &file))
    };
    assert_eq!(with("ZOOLOCK_ROOT=/r\n", 0o644).code, 0);
    for (text, mode, named) in [
        ("ZOOLOCK_CONNCT=zk1:2181\n", 0o644, "\"ZOOLOCK_CONNCT\" is not the variable"),
        ("ZOOLOCK_HELD=x\n", 0o644, "\"ZOOLOCK_HELD\" is not the variable"),
        ("me:hunter2\n", 0o644, "NAME=VALUE"),
        ("ZOOLOCK_SESSION_TIMEOUT=soon\n", 0o644, "--session-timeout"),
        ("ZOOLOCK_CONNECT_TIMEOUT=soon\n", 0o644, "ZOOLOCK_CONNECT_TIMEOUT \"soon\""),
        ("ZOOLOCK_ROOT=/r\n", 0o666, "chmod go-w"),
        ("ZOOLOCK_ROOT=/r\n", 0o664, "chmod go-w"),
    ] {
        let done = with(text, mode);
        assert_eq!(done.code, 64, "{text}: {done:?}");
        assert!(done.stderr.contains(named) && done.stderr.contains("zoolock.conf: "), "{done:?}");
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
    }
    // A missing file counts only if the user has named it.
    std::fs::remove_file(&file).expect("it exists");
    assert_eq!(output(sandbox.zoolock(["ls"]).env("ZOOLOCK_CONFIG", &file)).code, 64);
}

#[test]
fn new_chroot_is_announced() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let notes = |connect: &str, flags: &[&str]| {
        let done = sandbox.output(&[&["run", "--connect", connect], flags, &["x", "--", "true"]].concat());
        assert_eq!(done.code, 0, "{done:?}");
        done.stderr
    };
    let chroot = |name: &str| format!("{address}/{name}");
    assert!(notes(&chroot("team"), &[]).contains("in the chroot /team yet"));
    assert_eq!(notes(&chroot("team"), &[]), "");
    assert!(notes(&chroot("other"), &["--root", "/"]).contains("in the chroot /other yet"));
    assert_eq!(notes(&chroot("third"), &["--quiet"]), "");
    assert_eq!(notes(&address, &["--root", "/new"]), "");
}
