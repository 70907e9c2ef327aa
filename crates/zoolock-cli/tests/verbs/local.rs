//! Local mode: one server per user, which starts when needed and exits when idle.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use crate::common::process_tree::{child_of, signal, wait_until_no_zombie_of};
use crate::common::{CommandOutput, Running, Sandbox, is_alive, read_until, set_mode, wait_until};
use rustix::process::{Pid, Signal, geteuid, getsid, kill_process};
use serde_json::Value;
use zoolock_tests::skip::Availability;

/// Returns the output of `serve --status --json`.
fn status(sandbox: &Sandbox) -> Value {
    let done = sandbox.output(&["serve", "--status", "--json"]);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(done.code, if status["running"] == true { 0 } else { 1 }, "{done:?}");
    status
}

fn server_pid(sandbox: &Sandbox) -> Pid {
    let pid = status(sandbox)["pid"].as_i64().expect("the server runs");
    Pid::from_raw(i32::try_from(pid).expect("valid process id")).expect("nonzero process id")
}

/// Kills the server, and waits until it has ended.
fn kill_server(sandbox: &Sandbox) {
    let server = server_pid(sandbox);
    kill_process(server, Signal::KILL).expect("server killed");
    wait_until("the server has ended", || !is_alive(&server.as_raw_nonzero().to_string()));
}

/// Changes the machine id, boot or host name that the state directory records. Returns whether
/// this machine has a machine id.
fn remember(sandbox: &Sandbox, change: impl FnOnce(&mut [String])) -> bool {
    let file = sandbox.state().join("machine");
    let text = std::fs::read_to_string(&file).expect("the server wrote the file");
    let mut words: Vec<String> = text.trim_end().splitn(3, ' ').map(str::to_owned).collect();
    let has_id = words[0] != "-";
    change(&mut words);
    std::fs::write(&file, words.join(" ")).expect("file written");
    has_id
}

#[test]
fn lock_of_an_earlier_boot_is_free() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    // Kills the holder without a release, as a power cut does.
    holder.signal(Signal::KILL);
    holder.wait();
    let run = || sandbox.output(&["run", "--try", "x", "--", "true"]);
    kill_server(&sandbox);
    let done = run();
    assert_eq!(done.code, 75, "in the same boot, processes of the holder may still run: {done:?}");
    kill_server(&sandbox);
    let has_id = remember(&sandbox, |words| words[1] = "earlier-boot".to_owned());
    let done = run();
    assert_eq!(done.code, if has_id { 0 } else { 75 }, "{done:?}");
}

/// Starts a command that has a descendant in a session of its own. Returns zoolock, its reaper, and that descendant.
fn command_with_descendant(sandbox: &Sandbox) -> (Running, String, String) {
    let script = "setsid sleep 1000 & echo $! > descendant; exec sleep 1000";
    let running = sandbox.start(&["run", "x", "--", "sh", "-c", script]);
    let descendant = sandbox.wait_for_file("descendant");
    let reaper = child_of(&running.0.id().to_string(), "lock-reaper").expect("zoolock has a reaper");
    (running, reaper, descendant)
}

#[test]
fn lock_of_a_dead_command_is_free() {
    let sandbox = Sandbox::new();
    let (mut running, reaper, descendant) = command_with_descendant(&sandbox);
    running.signal(Signal::KILL);
    running.wait();
    wait_until("the reaper has ended", || !is_alive(&reaper));
    assert!(!is_alive(&descendant));
    kill_server(&sandbox);
    let done = sandbox.output(&["run", "--try", "x", "--", "true"]);
    assert_eq!(done.code, 0, "{done:?}");
    let left = std::fs::read_dir(sandbox.state().join("holders")).expect("directory exists").count();
    assert_eq!(left, 0);
}

#[test]
fn lock_with_a_living_descendant_stays_held() {
    let sandbox = Sandbox::new();
    let (mut running, reaper, descendant) = command_with_descendant(&sandbox);
    // A running zoolock would kill the command in place of the reaper, so zoolock is stopped first.
    running.signal(Signal::STOP);
    signal(&reaper, Signal::KILL);
    wait_until("the reaper has ended", || !is_alive(&reaper));
    running.signal(Signal::KILL);
    running.wait();
    assert!(is_alive(&descendant));
    let run = || {
        kill_server(&sandbox);
        sandbox.output(&["run", "--try", "x", "--", "true"])
    };
    let done = run();
    assert_eq!(done.code, 75, "{done:?}");
    signal(&descendant, Signal::KILL);
    wait_until("the descendant has ended", || !is_alive(&descendant));
    let done = run();
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn holder_after_reboot_outlives_server_crash() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    kill_server(&sandbox);
    remember(&sandbox, |words| words[1] = "earlier-boot".to_owned());
    let _holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    kill_server(&sandbox);
    assert_eq!(sandbox.output(&["run", "--try", "x", "--", "true"]).code, 75);
}

#[test]
fn directory_of_another_machine_is_refused_until_adopted() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let adopt = || sandbox.output(&["serve", "--adopt"]);
    let done = adopt();
    assert!(done.code == 69 && done.stderr.contains("serve --stop"), "a server runs: {done:?}");
    holder.signal(Signal::KILL);
    holder.wait();
    kill_server(&sandbox);
    let has_id = remember(&sandbox, |words| {
        words[1] = "their-boot".to_owned();
        words[2] = "build7".to_owned();
    });
    for args in
        [&["run", "--try", "x", "--", "true"][..], &["ls"], &["serve", "--status"], &["serve", "--stop"]]
    {
        let done = sandbox.output(args);
        assert_eq!(done.code, 69, "{done:?}");
        for part in ["build7", "--connect", "serve --adopt"] {
            assert!(done.stderr.contains(part), "{part}: {done:?}");
        }
    }
    let done = adopt();
    assert!(done.code == 0 && done.stderr.contains("belongs to this machine"), "{done:?}");
    let done = sandbox.output(&["run", "--try", "x", "--", "true"]);
    assert_eq!(done.code, if has_id { 0 } else { 75 }, "{done:?}");
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0);
    assert_eq!(adopt().code, 0, "adopting again changes nothing");
}

/// A script that mounts one directory twice, so that the mounts share no file locks. It runs a command in the first mount,
/// and a command in the second mount while the first command holds the lock. Exits with 99 if it cannot mount.
const TWO_MOUNTS: &str = r#"
mount -t tmpfs tmpfs . && cd "$PWD" && mkdir lower upper work-a work-b a b || exit 99
for side in a b; do
    mount -t overlay overlay -o "lowerdir=lower,upperdir=upper,workdir=work-$side" "$side" || exit 99
done
ZOOLOCK_STATE_DIR=$PWD/a/state "$0" run x -- sh -c 'echo > held; until [ -e done ]; do sleep 0.1; done' &
until [ -e held ]; do kill -0 $! || exit 1; sleep 0.1; done
ZOOLOCK_STATE_DIR=$PWD/b/state ZOOLOCK_CONNECT_TIMEOUT=1s "$0" run --try x -- true
second=$?
echo > done
wait $!
echo "$? $second"
ZOOLOCK_STATE_DIR=$PWD/a/state "$0" --quiet serve --stop
"#;

#[test]
fn second_mount_without_common_locks_is_refused() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("mounts")).expect("directory created");
    let mut script = sandbox.command("unshare");
    script.args(["-rm", "sh", "-c", "cd mounts && eval \"$1\"", env!("CARGO_BIN_EXE_zoolock"), TWO_MOUNTS]);
    let done = CommandOutput::from(script.output().expect("unshare starts"));
    let availability = match done.code {
        99 => Availability::Missing(format!("this user cannot mount: {}", done.stderr)),
        _ if done.stderr.contains("unshare failed") => Availability::Missing(done.stderr.clone()),
        _ => Availability::Available,
    };
    if availability.or_skip("second_mount_without_common_locks_is_refused") {
        assert_eq!((done.code, done.stdout.as_str()), (0, "0 69\n"), "{done:?}");
        assert!(done.stderr.contains("without its file lock"), "{done:?}");
        assert!(!done.stderr.contains("lost"), "{done:?}");
    }
}

#[test]
fn next_server_waits_for_server_without_lock() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let old = server_pid(&sandbox).as_raw_nonzero().to_string();
    std::fs::remove_file(sandbox.state().join("lock")).expect("file removed");
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    assert!(!is_alive(&old), "two servers");
}

#[test]
fn simultaneous_commands_share_one_server() {
    let sandbox = Sandbox::new();
    let commands: Vec<_> = (0..20)
        .map(|n| sandbox.start_piped(&["run", &format!("lock-{n}"), "--", "sh", "-c", "echo $ZOOLOCK_TOKEN"]))
        .collect();
    let done: Vec<_> = commands.into_iter().map(Running::wait_for_output).collect();
    for done in &done {
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        // Each start of the server raises the upper half of the zxid in a token.
        assert!(done.stdout.contains("-00000001"), "{done:?}");
    }
    let log = std::fs::read_to_string(sandbox.state().join("log")).expect("the log exists");
    assert_eq!(log.matches("serving on").count(), 1, "{log}");
    assert_eq!(status(&sandbox)["running"], true);
}

#[test]
fn server_status_and_stop_work() {
    let sandbox = Sandbox::new();
    assert_eq!(status(&sandbox)["running"], false);
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0, "stopping without a server is not an error");
    let mut holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    wait_until("the session is counted", || status(&sandbox)["sessions"].as_u64() >= Some(1));
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0);
    assert_eq!(status(&sandbox)["running"], false);
    assert_eq!(
        sandbox.output(&["run", "x", "--", "true"]).code,
        0,
        "the next command starts the server again"
    );
    assert_eq!(status(&sandbox)["running"], true);
}

#[test]
fn tokens_rise_after_server_crash() {
    let sandbox = Sandbox::new();
    let token = || sandbox.output(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN"]).stdout;
    let before = token();
    kill_process(server_pid(&sandbox), Signal::KILL).expect("server killed");
    let after = token();
    assert!(after > before && !before.is_empty(), "{before} {after}");
}

#[test]
fn queue_survives_killed_server() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN >first; cat"]);
    let first = sandbox.wait_for_file("first");
    let waiter = sandbox.start_piped(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN >second"]);
    sandbox.wait_for_contenders("x", 2);
    let queue = || {
        let lock = sandbox.json(&["show", "x"]);
        (
            lock["holder"]["pid"].clone(),
            lock["waiters"][0]["pid"].clone(),
            lock["waiters"].as_array().map(Vec::len),
        )
    };
    let before = queue();
    assert_eq!(before.0, holder.0.id());
    // The kernel sends KILL when memory is short. systemd sends TERM when the unit that started the server ends.
    for signal in [Signal::KILL, Signal::TERM] {
        let old = server_pid(&sandbox);
        kill_process(old, signal).expect("signal sent");
        // `serve --status` starts no server. The holder and the waiter start it.
        wait_until("another server runs", || {
            let status = status(&sandbox);
            status["pid"].is_number() && status["pid"] != old.as_raw_pid()
        });
        assert_eq!(sandbox.output(&["run", "--try", "x", "--", "true"]).code, 75, "the lock is still held");
        assert_eq!(queue(), before, "the queue is unchanged");
        // The holder may be the parent of the killed server, and must then reap that server.
        wait_until_no_zombie_of(&holder.0.id().to_string());
    }
    assert!(holder.0.try_wait().expect("status of our child").is_none(), "the command still runs");
    holder.end_of_input();
    let (holder, waiter) = (holder.wait_for_output(), waiter.wait_for_output());
    assert_eq!((holder.code, waiter.code), (0, 0), "{holder:?} {waiter:?}");
    assert!(!holder.stderr.contains("lost") && !waiter.stderr.contains("lost"), "{holder:?} {waiter:?}");
    assert!(sandbox.wait_for_file("second") > first);
}

#[test]
fn local_server_ignores_hup() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let server = server_pid(&sandbox);
    kill_process(server, Signal::HUP).expect("signal sent");
    let log = || std::fs::read_to_string(sandbox.state().join("log")).expect("the log exists");
    wait_until("the server has ignored HUP", || log().contains("ignored HUP"));
    assert_eq!(server_pid(&sandbox), server);
    kill_process(server, Signal::TERM).expect("signal sent");
    wait_until("the server names the signal", || log().contains("stopped by TERM"));
}

#[test]
fn stopped_server_is_not_restarted_by_holder() {
    let sandbox = Sandbox::new();
    let holder = sandbox.start_piped(&["run", "--session-timeout", "6s", "x", "--", "sleep", "100"]);
    sandbox.wait_for_contenders("x", 1);
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0);
    assert_eq!(holder.wait_for_output().code, 70);
    assert_eq!(status(&sandbox)["running"], false);
}

#[test]
fn waiter_reports_a_stopped_server() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.start_piped(&["hold", "x"]);
    sandbox.wait_for_contenders("x", 1);
    let mut waiter = sandbox.start_piped(&["run", "x", "--", "true"]);
    sandbox.wait_for_contenders("x", 2);
    let (mut stderr, mut printed) = (waiter.take_stderr(), String::new());
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0);
    read_until(&mut stderr, &mut printed, "this user's server was stopped");
    assert_eq!(status(&sandbox)["running"], false);
}

#[test]
fn server_inherits_no_open_files() {
    let sandbox = Sandbox::new();
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    let mut shell = sandbox.command("sh");
    shell.args(["-c", "exec 9>held; exec \"$0\" run x -- true", zoolock]);
    assert_eq!(shell.status().expect("the shell starts").code(), Some(0));
    let files = std::fs::read_dir(format!("/proc/{}/fd", server_pid(&sandbox))).expect("the server runs");
    let files: Vec<_> = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    assert!(files.iter().any(|file| file.ends_with("state/lock")), "{files:?}");
    assert!(!files.iter().any(|file| file.ends_with("held")), "{files:?}");
}

#[test]
fn server_is_independent_of_its_first_job() {
    let sandbox = Sandbox::new();
    let mut shell = sandbox.command("sh");
    let line =
        "ulimit -S -n 100; ulimit -S -t 3600; umask 0; exec env --ignore-signal=TERM \"$0\" run x -- true";
    shell.args(["-c", line, env!("CARGO_BIN_EXE_zoolock")]);
    shell.env("BUILD_ID", "17").env("JENKINS_NODE_COOKIE", "c").env("PASSWORD", "secret");
    assert_eq!(shell.status().expect("the shell starts").code(), Some(0));
    let pid = server_pid(&sandbox);
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("readable");

    let environment = read("environ");
    let names: Vec<_> =
        environment.split_terminator('\0').filter_map(|pair| pair.split('=').next()).collect();
    assert!(names.contains(&"ZOOLOCK_STATE_DIR"), "{names:?}");
    let needed = ["ZOOLOCK_STATE_DIR", "LD_LIBRARY_PATH"];
    assert!(names.iter().all(|name| needed.contains(name)), "{names:?}");

    assert_eq!((read("comm").as_str(), read("cmdline").as_str()), ("zoolock\n", "zoolock\0serve\0--local\0"));
    assert!(read("status").contains("\nUmask:\t0077\n"), "{}", read("status"));
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).expect("readable");
    assert_eq!((cwd.to_str(), getsid(Some(pid)).ok()), (Some("/"), Some(pid)));
    let limits = read("limits");
    for limit in ["Max open files", "Max cpu time"] {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit)).expect("the kernel reports it");
        let values: Vec<_> = line.split_whitespace().collect();
        assert_eq!(values[0], values[1], "{limits}");
    }
    assert_eq!(sandbox.output(&["serve", "--stop"]).code, 0, "the server does not ignore TERM");
}

#[test]
fn idle_server_exits_without_failing_commands() {
    let sandbox = Sandbox::new();
    let run = |name: &str| {
        let mut command = sandbox.zoolock(["run", name, "--", "true"]);
        command.env("ZOOLOCK_LOCAL_IDLE", "200ms").output().expect("zoolock starts").status.code()
    };
    assert_eq!(run("x"), Some(0));
    wait_until("the server has exited", || status(&sandbox)["running"] == false);
    // Runs commands around the moment at which the server exits.
    for round in 0..12 {
        assert_eq!(run("x"), Some(0), "round {round}");
        std::thread::sleep(std::time::Duration::from_millis(150 + 50 * round));
    }
}

#[test]
fn server_with_a_session_keeps_running() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.zoolock(["run", "x", "--", "sleep", "2"]);
    let status = command.env("ZOOLOCK_LOCAL_IDLE", "100ms").status().expect("zoolock starts");
    assert_eq!(status.code(), Some(0));
    let log = std::fs::read_to_string(sandbox.state().join("log")).expect("the log exists");
    assert_eq!(log.matches("serving on").count(), 1, "{log}");
}

#[test]
fn server_exits_when_its_files_are_removed() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let old = server_pid(&sandbox);
    std::fs::remove_dir_all(sandbox.state()).expect("directory removed");
    wait_until("the old server exits", || !is_alive(&old.as_raw_nonzero().to_string()));
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    assert_ne!(server_pid(&sandbox), old);
}

#[test]
fn server_exits_if_another_machine_uses_its_directory() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let old = server_pid(&sandbox).as_raw_nonzero().to_string();
    std::fs::write(sandbox.state().join("server"), "1 7 0.1.0 pid:[1] - boot build7\n")
        .expect("file written");
    wait_until("the server exits", || !is_alive(&old));
    let log = std::fs::read_to_string(sandbox.state().join("log")).expect("the log exists");
    assert!(log.contains("another server uses the state directory"), "{log}");
    assert!(sandbox.state().join("server").exists(), "the file of the other server stays");
}

#[test]
fn deep_state_directory_works() {
    let sandbox = Sandbox::new();
    // The kernel accepts socket paths of at most 107 bytes.
    let deep = sandbox.path("deep").join("x".repeat(200));
    let zoolock = |args: &[&str]| {
        let mut command = sandbox.zoolock(args);
        CommandOutput::from(command.env("ZOOLOCK_STATE_DIR", &deep).output().expect("zoolock starts"))
    };
    let done = zoolock(&["run", "x", "--", "true"]);
    let status = zoolock(&["serve", "--status"]);
    let stopped = zoolock(&["serve", "--stop"]);
    assert_eq!((done.code, status.code, stopped.code), (0, 0, 0), "{done:?} {status:?} {stopped:?}");
}

#[test]
fn socket_can_be_named_in_a_connect_string() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let status = status(&sandbox);
    let address = format!("unix:{}", status["socket"].as_str().expect("the server has a socket"));
    let done = sandbox.output(&["--connect", &address, "run", "x", "--", "true"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let done = sandbox.output(&["--connect", "unix:/nowhere", "ZOOLOCK_CONNECT_TIMEOUT=500ms", "ls"]);
    assert_eq!(done.code, 69, "{done:?}");
    assert!(done.stderr.contains("unix:/nowhere") && done.stderr.contains("No such file"), "{done:?}");
    let done = sandbox.output(&["--connect", "unix:nowhere", "ls"]);
    assert!(done.code == 64 && done.stderr.contains("absolute path"), "{done:?}");
}

#[test]
fn state_directory_open_to_others_is_refused() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.state()).expect("directory created");
    set_mode(sandbox.state(), 0o755);
    let done = sandbox.output(&["run", "x", "--", "true"]);
    assert_eq!(done.code, 77, "{done:?}");
    assert!(done.stderr.contains("chmod 700"), "{done:?}");
    std::fs::remove_dir(sandbox.state()).expect("directory removed");
    std::fs::write(sandbox.state(), "").expect("file written");
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 69);
}

#[test]
fn missing_home_is_a_clear_error() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.zoolock(["run", "x", "--", "true"]);
    command.env_remove("HOME").env_remove("XDG_STATE_HOME").env_remove("ZOOLOCK_STATE_DIR");
    let done = CommandOutput::from(command.output().expect("zoolock starts"));
    assert_eq!(done.code, 64, "{done:?}");
    assert!(done.stderr.contains("HOME") && done.stderr.contains("--connect"), "{done:?}");
}

#[test]
fn home_of_another_user_is_refused() {
    let sandbox = Sandbox::new();
    let home = if geteuid().is_root() {
        std::fs::create_dir(sandbox.path("home")).expect("directory created");
        std::os::unix::fs::chown(sandbox.path("home"), Some(65_534), None).expect("owner set");
        sandbox.path("home")
    } else {
        "/usr".into()
    };
    for (variable, other) in [("HOME", "XDG_STATE_HOME"), ("XDG_STATE_HOME", "HOME")] {
        let mut command = sandbox.zoolock(["run", "x", "--", "true"]);
        command.env_remove("ZOOLOCK_STATE_DIR").env_remove(other).env(variable, &home);
        let done = CommandOutput::from(command.output().expect("zoolock starts"));
        assert_eq!(done.code, 77, "{done:?}");
        // Root is told to use `sudo -H`. For any other user the directory is not writable, so another remedy is named.
        let named = if geteuid().is_root() { "sudo -H" } else { "ZOOLOCK_STATE_DIR" };
        assert!(done.stderr.contains(named), "{done:?}");
        assert!(!home.join(".local").exists() && !home.join("zoolock").exists());
    }
}

#[test]
fn parents_of_state_directory_are_private() {
    let sandbox = Sandbox::new();
    let mut shell = sandbox.command("sh");
    shell.args(["-c", "umask 0; mkdir home; exec \"$0\" serve --status", env!("CARGO_BIN_EXE_zoolock")]);
    shell.env("HOME", sandbox.path("home")).env_remove("XDG_STATE_HOME").env_remove("ZOOLOCK_STATE_DIR");
    let done = CommandOutput::from(shell.output().expect("the shell starts"));
    assert_eq!(done.code, 1, "{done:?}");
    for path in ["home/.local", "home/.local/state", "home/.local/state/zoolock"] {
        let mode = std::fs::metadata(sandbox.path(path)).expect("directory created").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "{path}");
    }
}

/// Creates the state directory, and locks its file `lock` as a running server does. Closing the file releases the lock.
fn take_server_lock(sandbox: &Sandbox) -> File {
    std::fs::create_dir(sandbox.state()).expect("directory created");
    set_mode(sandbox.state(), 0o700);
    let lock = File::create(sandbox.state().join("lock")).expect("file created");
    lock.lock().expect("file locked");
    lock
}

#[test]
fn server_that_is_not_ready_is_reported() {
    let sandbox = Sandbox::new();
    let _lock = take_server_lock(&sandbox);
    let done = sandbox.output(&["ls", "ZOOLOCK_CONNECT_TIMEOUT=300ms"]);
    assert_eq!(done.code, 69, "{done:?}");
    assert!(done.stderr.contains("not ready within 300ms; run the command again"), "{done:?}");
}

#[test]
fn stop_is_advised_only_for_another_version() {
    let sandbox = Sandbox::new();
    let _lock = take_server_lock(&sandbox);
    let listener = UnixListener::bind(sandbox.state().join("socket")).expect("socket bound");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let read = |path: &str| std::fs::read_to_string(path).expect("readable").trim().to_owned();
    let namespace = std::fs::read_link("/proc/self/ns/pid").expect("readable");
    let boot = read("/proc/sys/kernel/random/boot_id");
    // Dropping the sandbox runs `serve --stop`, which ends the process that the file `server`
    // names. So the file names this `sleep`.
    let process = Running(sandbox.command("sleep").arg("1000").spawn().expect("the command starts"));
    for (version, advises_stop) in [(env!("CARGO_PKG_VERSION"), false), ("0.0.1-other", true)] {
        let server = format!("{} 7 {version} {} - {boot} host\n", process.0.id(), namespace.display());
        std::fs::write(sandbox.state().join("server"), server).expect("file written");
        for args in [&["ls"][..], &["run", "x", "--", "true"]] {
            let done = sandbox.output(&[&["ZOOLOCK_CONNECT_TIMEOUT=500ms"], args].concat());
            assert_eq!(done.code, 69, "{done:?}");
            assert!(done.stderr.contains("closes it without an answer"), "{done:?}");
            assert!(!done.stderr.contains("check the address"), "{done:?}");
            assert_eq!(done.stderr.contains("serve --stop"), advises_stop, "{done:?}");
            let named = if advises_stop { version.to_owned() } else { format!("process {}", process.0.id()) };
            assert!(done.stderr.contains(&named), "{done:?}");
        }
    }
}

#[test]
fn server_restores_its_file_and_exits_without_socket() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let old = server_pid(&sandbox);
    std::fs::remove_file(sandbox.state().join("server")).expect("file removed");
    wait_until("the file is written again", || status(&sandbox)["pid"] == old.as_raw_pid());
    std::fs::remove_file(sandbox.state().join("socket")).expect("file removed");
    wait_until("the old server exits", || !is_alive(&old.as_raw_nonzero().to_string()));
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
}

#[test]
fn full_disk_is_named_and_server_is_stopped() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.state()).expect("directory created");
    // Each run appends some hundred bytes to the log, and the last block of the log may have room for 4 KiB. So several
    // runs may succeed on the full disk.
    let script = r#"
        mount -t tmpfs -o size=1m,mode=0700 tmpfs "$ZOOLOCK_STATE_DIR" && "$0" run x -- true || exit 1
        cat /dev/zero > "$ZOOLOCK_STATE_DIR/fill" 2> /dev/null
        starts() { grep -c 'serving on' "$ZOOLOCK_STATE_DIR/log"; }
        for round in $(seq 100); do
            before=$(starts); "$0" run --timeout 3s x -- true 2> failure
            code=$?; [ $code -eq 0 ] || break
        done
        cat failure; echo "run: $code"
        "$0" serve --stop 2> /dev/null; echo "stop: $?"
        "$0" serve --status > /dev/null; echo "status: $?"
        echo "starts: $(($(starts) - before))"
    "#;
    let Some(done) = sandbox.in_mount_namespace(script) else { return };
    for part in ["run: 69", "this user's server", "stop: 0", "status: 1"] {
        assert!(done.stdout.contains(part), "no {part:?} in {done:?}");
    }
    let named = ["No space left on device", "the disk is full"].iter().any(|why| done.stdout.contains(why));
    assert!(named && !done.stdout.contains("serve --stop"), "{done:?}");
    let starts: u32 = done.stdout.trim().rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    assert!(starts <= 5, "{done:?}");
}

#[test]
fn limit_on_file_size_is_named() {
    let sandbox = Sandbox::new();
    let mut shell = sandbox.command("sh");
    shell.args(["-c", "ulimit -f 1; exec \"$0\" run x -- true", env!("CARGO_BIN_EXE_zoolock")]);
    let done = CommandOutput::from(shell.output().expect("the shell starts"));
    assert_eq!(done.code, 69, "{done:?}");
    assert!(done.stderr.contains("ulimit -f"), "{done:?}");
}
