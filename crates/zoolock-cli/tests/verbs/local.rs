//! Local mode: one server for this user, started when needed, gone when not.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;

use crate::common::{Sandbox, is_alive, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn status(sandbox: &Sandbox) -> Value {
    let done = sandbox.output(&["serve", "--status", "--json"]);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(done.code, if status["running"] == true { 0 } else { 1 }, "{done:?}");
    status
}

fn server_pid(sandbox: &Sandbox) -> Pid {
    let pid = status(sandbox)["pid"].as_i64().expect("a server");
    Pid::from_raw(i32::try_from(pid).expect("a process id")).expect("not zero")
}

#[test]
fn simultaneous_commands_share_one_server() {
    let sandbox = Sandbox::new();
    let mut all: Vec<_> = (0..20)
        .map(|n| sandbox.converse(&["run", &format!("lock-{n}"), "--", "sh", "-c", "echo $ZOOLOCK_TOKEN"]))
        .collect();
    let done: Vec<_> = all.drain(..).map(crate::common::Running::done).collect();
    for done in &done {
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        // The epoch of each start is in the token: all had the same.
        assert!(done.stdout.contains("-00000001"), "{done:?}");
    }
    let log = std::fs::read_to_string(sandbox.state().join("log")).expect("there");
    assert_eq!(log.matches("serving on").count(), 1, "{log}");
    assert_eq!(status(&sandbox)["running"], true);
}

#[test]
fn server_status_and_stop_work() {
    let sandbox = Sandbox::new();
    assert_eq!(status(&sandbox)["running"], false);
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0, "nothing to stop is no error");
    let mut holder = sandbox.converse(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    wait_until("its session is counted", || status(&sandbox)["sessions"].as_u64() >= Some(1));
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0);
    assert_eq!(status(&sandbox)["running"], false);
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0, "the next one starts it again");
    assert_eq!(status(&sandbox)["running"], true);
}

#[test]
fn tokens_rise_after_server_crash() {
    let sandbox = Sandbox::new();
    let token = || sandbox.output(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN"]).stdout;
    let before = token();
    kill_process(server_pid(&sandbox), Signal::KILL).expect("ours");
    let after = token();
    assert!(after > before && !before.is_empty(), "{before} {after}");
}

#[test]
fn queue_survives_killed_server() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.converse(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN >first; cat"]);
    let first = sandbox.wait_for_file("first");
    let waiter = sandbox.converse(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN >second"]);
    sandbox.wait_for_contenders("x", 2);
    let queue = || {
        let shown = sandbox.output(&["show", "x", "--json"]);
        let lock: Value = serde_json::from_str(&shown.stdout).expect("JSON");
        (
            lock["holder"]["pid"].clone(),
            lock["waiters"][0]["pid"].clone(),
            lock["waiters"].as_array().map(Vec::len),
        )
    };
    let before = queue();
    assert_eq!(before.0, holder.0.id());
    // By KILL, as the kernel does when memory is short; and by TERM, as systemd does when the unit ends that started it.
    for signal in [Signal::KILL, Signal::TERM] {
        let old = server_pid(&sandbox);
        kill_process(old, signal).expect("ours");
        // Only to look starts nothing.
        wait_until("another server is there", || {
            let status = status(&sandbox);
            status["pid"].is_number() && status["pid"] != old.as_raw_pid()
        });
        assert_eq!(sandbox.output(&["run", "--try", "x", "--", "true"]).code, 75, "nobody else gets in");
        assert_eq!(queue(), before, "each is where it was");
    }
    assert!(holder.0.try_wait().expect("ours").is_none(), "the command goes on");
    holder.end_of_input();
    let (holder, waiter) = (holder.done(), waiter.done());
    assert_eq!((holder.code, waiter.code), (0, 0), "{holder:?} {waiter:?}");
    assert!(!holder.stderr.contains("lost") && !waiter.stderr.contains("lost"), "{holder:?} {waiter:?}");
    assert!(sandbox.wait_for_file("second") > first);
}

#[test]
fn stopped_server_is_not_restarted_by_holder() {
    let sandbox = Sandbox::new();
    let holder = sandbox.converse(&["run", "--session-timeout", "6s", "x", "--", "sleep", "100"]);
    sandbox.wait_for_contenders("x", 1);
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0);
    assert_eq!(holder.done().code, 70);
    assert_eq!(status(&sandbox)["running"], false);
}

#[test]
fn server_inherits_no_open_files() {
    let sandbox = Sandbox::new();
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "exec 9>held; exec \"$0\" run x -- true", zoolock]);
    shell.env("ZOOLOCK_STATE_DIR", sandbox.state()).current_dir(sandbox.path(""));
    assert_eq!(shell.status().expect("it starts").code(), Some(0));
    let files = std::fs::read_dir(format!("/proc/{}/fd", server_pid(&sandbox))).expect("it runs");
    let files: Vec<_> = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    assert!(files.iter().any(|file| file.ends_with("state/lock")), "{files:?}");
    assert!(!files.iter().any(|file| file.ends_with("held")), "{files:?}");
}

#[test]
fn idle_server_exits_without_failing_commands() {
    let sandbox = Sandbox::new();
    let run = |name: &str| {
        let mut command = sandbox.zoolock(["run", name, "--", "true"]);
        command.env("ZOOLOCK_LOCAL_IDLE", "200ms").output().expect("it starts").status.code()
    };
    assert_eq!(run("x"), Some(0));
    wait_until("it has left", || status(&sandbox)["running"] == false);
    // Come and go around the moment at which it leaves.
    for round in 0..12 {
        assert_eq!(run("x"), Some(0), "round {round}");
        std::thread::sleep(std::time::Duration::from_millis(150 + 50 * round));
    }
}

#[test]
fn server_with_a_session_keeps_running() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.zoolock(["run", "x", "--", "sleep", "2"]);
    let status = command.env("ZOOLOCK_LOCAL_IDLE", "100ms").status().expect("it starts");
    assert_eq!(status.code(), Some(0));
    let log = std::fs::read_to_string(sandbox.state().join("log")).expect("there");
    assert_eq!(log.matches("serving on").count(), 1, "{log}");
}

#[test]
fn server_exits_when_its_files_are_removed() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let old = server_pid(&sandbox);
    std::fs::remove_dir_all(sandbox.state()).expect("there");
    wait_until("the old server leaves", || !is_alive(&old.as_raw_nonzero().to_string()));
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    assert_ne!(server_pid(&sandbox), old);
}

#[test]
fn secret_is_required() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let address = status(&sandbox)["address"].as_str().expect("an address").to_owned();
    let identity = sandbox.state().join("identity").display().to_string();
    for args in [&["ls"][..], &["run", "x", "--", "touch", "ran"]] {
        let flags = ["--connect", &address, "--cacert", &identity, "--connect-timeout", "2s"];
        let done = sandbox.output(&[&flags[..], args].concat());
        assert_eq!(done.code, 77, "without: {done:?}");
    }
    assert!(!sandbox.path("ran").exists());
    let secret = sandbox.state().join("secret");
    assert_eq!(std::fs::metadata(&secret).expect("there").permissions().mode() & 0o777, 0o600);
    let old = std::fs::read_to_string(&secret).expect("ours");
    std::fs::write(&secret, format!("{}\n", "0".repeat(64))).expect("ours");
    let done = sandbox.output(&["ls", "--connect-timeout", "2s"]);
    assert_eq!(done.code, 77, "wrong: {done:?}");
    assert!(done.stderr.contains("secret") && !done.stderr.contains(old.trim()), "{done:?}");
}

#[test]
fn unverifiable_server_exits_69_with_remedy() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let identity = sandbox.state().join("identity");
    let others = Sandbox::new();
    assert_eq!(others.output(&["run", "x", "--", "true"]).code, 0);
    std::fs::copy(others.state().join("identity"), &identity).expect("writable");
    for _ in 0..2 {
        for args in [&["ls"][..], &["doctor"], &["run", "x", "--", "touch", "ran"]] {
            let done = sandbox.output(&[&["--connect-timeout", "1s"], args].concat());
            assert_eq!(done.code, 69, "{done:?}");
            assert!(done.stderr.contains("zoolock serve --stop"), "{done:?}");
        }
        // And once more without any.
        let _ = std::fs::remove_file(&identity);
    }
    assert!(!sandbox.path("ran").exists());
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0);
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0, "the next one has an identity again");
}

#[test]
fn process_reusing_server_port_never_sees_secret() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.converse(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let address = status(&sandbox)["address"].as_str().expect("an address").to_owned();
    let secret = std::fs::read_to_string(sandbox.state().join("secret")).expect("ours");
    kill_process(server_pid(&sandbox), Signal::KILL).expect("ours");
    let mut taken = None;
    wait_until("its port is free", || {
        taken = std::net::TcpListener::bind(&address).ok();
        taken.is_some()
    });
    let listener = taken.expect("bound just now");
    listener.set_nonblocking(true).expect("a socket");
    let mut told = Vec::new();
    let mut comers = 0;
    // Whoever comes is answered as an older server would, and heard for as long as he speaks.
    wait_until("the holder has come back often enough", || {
        if let Ok((mut comer, _)) = listener.accept() {
            comer.set_nonblocking(false).expect("a socket");
            comer.set_read_timeout(Some(std::time::Duration::from_millis(500))).expect("a timeout");
            let mut welcome =
                vec![0, 0, 0, 37, 0, 0, 0, 0, 0, 0, 0x75, 0x30, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 16];
            welcome.extend([0; 17]);
            let _ = comer.write_all(&welcome);
            let _ = comer.read_to_end(&mut told);
            comers += 1;
        }
        comers >= 3
    });
    let told = String::from_utf8_lossy(&told);
    assert!(!told.is_empty() && !told.contains(secret.trim()), "{told:?}");
    assert!(!told.contains("zoolock:"), "{told:?}");
    // Another server is there meanwhile, elsewhere, for all who come new.
    drop(listener);
    assert_eq!(sandbox.output(&["run", "y", "--", "true"]).code, 0);
    holder.end_of_input();
    holder.wait();
}

#[test]
fn state_directory_open_to_others_is_refused() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.state()).expect("writable");
    std::fs::set_permissions(sandbox.state(), PermissionsExt::from_mode(0o755)).expect("ours");
    let done = sandbox.output(&["run", "x", "--", "true"]);
    assert_eq!(done.code, 77, "{done:?}");
    assert!(done.stderr.contains("chmod 700"), "{done:?}");
    std::fs::remove_dir(sandbox.state()).expect("empty");
    std::fs::write(sandbox.state(), "").expect("writable");
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 69);
}

#[test]
fn missing_home_is_a_clear_error() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.zoolock(["run", "x", "--", "true"]);
    command.env_remove("HOME").env_remove("XDG_STATE_HOME").env_remove("ZOOLOCK_STATE_DIR");
    let done = crate::common::Done::from(command.output().expect("it starts"));
    assert_eq!(done.code, 64, "{done:?}");
    assert!(done.stderr.contains("HOME") && done.stderr.contains("--connect"), "{done:?}");
}
