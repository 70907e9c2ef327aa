//! No process of the command outlives the lock, and the exit code is right. The tests kill or stop zoolock, its reaper, the
//! command and the server.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::common::process_tree::{
    LEASE, ProcessTree, child_of, rounds, rounds_with_cases, signal, wait_until_no_zombie_of, zombies,
};
use crate::common::{
    CommandOutput, Lines, Running, Sandbox, is_alive, read_until, set_mode, start_server, wait_until,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    recv, send as socket_send, sendmsg, socketpair,
};
use rustix::process::{Signal, getpid, set_child_subreaper};
use zoolock_tests::proxy::Proxy;

/// Time after the end of the lease within which the command must end.
const SLACK: Duration = Duration::from_millis(200);

/// A reason why a server does not answer.
enum Outage {
    Stopped,
    Killed,
    CutOff,
}

/// Starts another contender for the lock, with `zoolock hold`.
fn rival(sandbox: &Sandbox, address: &str, name: &str) -> Running {
    sandbox.start_piped(&["hold", "--session-timeout", "6s", "--connect", address, name])
}

/// Waits until `rival` holds the lock, and asserts that all processes of `tree` are dead by then.
fn assert_dead_at_grant(rival: &mut Running, tree: &ProcessTree) {
    let token = Lines::of(rival.take_stdout()).next();
    assert_eq!(tree.live_pids(), Vec::<String>::new(), "the rival holds the lock with token {token}");
}

#[test]
fn command_dies_when_zoolock_is_killed() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    rounds(|round| {
        let mut tree = ProcessTree::start(&sandbox, &address, &format!("x{round}"), &[]);
        let reaper = tree.reaper();
        let begun = SystemTime::now();
        tree.zoolock.signal(Signal::KILL);
        assert_eq!(tree.zoolock.wait().signal(), Some(Signal::KILL.as_raw()));
        let last_heartbeat = tree.wait_until_dead(begun);
        assert!(last_heartbeat < LEASE / 2, "round {round}: {last_heartbeat:?}");
        wait_until("the reaper has ended", || !is_alive(&reaper));
    });
}

#[test]
fn command_dies_within_lease_of_stopped_zoolock() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    rounds(|round| {
        let name = format!("x{round}");
        let mut tree = ProcessTree::start(&sandbox, &address, &name, &[]);
        let mut rival = rival(&sandbox, &address, &name);
        let begun = SystemTime::now();
        tree.zoolock.signal(Signal::STOP);
        let last_heartbeat = tree.wait_until_dead(begun);
        assert!(last_heartbeat < LEASE + SLACK, "round {round}: {last_heartbeat:?}");
        assert_dead_at_grant(&mut rival, &tree);
        tree.zoolock.signal(Signal::CONT);
        assert_eq!(tree.zoolock.code(), 70, "round {round}");
    });
}

#[test]
fn signal_to_zoolock_ends_the_whole_group() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    rounds_with_cases(&[(Signal::TERM, 143), (Signal::INT, 130)], |&(wanted, code), round| {
        let mut tree = ProcessTree::start(&sandbox, &address, &format!("x{round}"), &[]);
        tree.zoolock.signal(wanted);
        assert_eq!(tree.zoolock.code(), code, "round {round}");
        assert_eq!(tree.live_pids_of_group(), Vec::<String>::new(), "round {round}");
    });
}

#[test]
fn group_ends_when_signal_kills_its_leader() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let ends = [(Signal::KILL, 137), (Signal::TERM, 143), (Signal::INT, 130)];
    rounds_with_cases(&ends, |&(wanted, code), round| {
        let mut tree = ProcessTree::start(&sandbox, &address, &format!("x{round}"), &[]);
        signal(&tree.leader, wanted);
        assert_eq!(tree.zoolock.code(), code, "round {round}");
        assert_eq!(tree.live_pids_of_group(), Vec::<String>::new(), "round {round}");
    });
}

#[test]
fn stopped_command_keeps_lock_until_zoolock_ends() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    rounds_with_cases(&[Signal::TERM, Signal::KILL], |&wanted, round| {
        let name = format!("x{round}");
        let mut tree = ProcessTree::start(&sandbox, &address, &name, &[]);
        signal(&tree.leader, Signal::STOP);
        std::thread::sleep(LEASE + LEASE / 4);
        assert!(is_alive(&tree.leader) && is_alive(&tree.stubborn), "round {round}: the command was killed");
        let mut rival = rival(&sandbox, &address, &name);
        tree.zoolock.signal(wanted);
        match wanted {
            // zoolock resumes the stopped command, so that the command can handle TERM.
            Signal::TERM => {
                assert_eq!(tree.zoolock.code(), 143, "round {round}");
                assert_eq!(tree.live_pids_of_group(), Vec::<String>::new(), "round {round}");
            }
            _ => {
                tree.zoolock.wait();
                assert_dead_at_grant(&mut rival, &tree);
            }
        }
    });
}

#[test]
fn command_dies_when_reaper_is_killed() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    rounds(|round| {
        let mut tree = ProcessTree::start(&sandbox, &address, &format!("x{round}"), &[]);
        signal(&tree.reaper(), Signal::KILL);
        assert_eq!(tree.zoolock.code(), 137, "round {round}");
        assert_eq!(tree.live_pids(), Vec::<String>::new(), "round {round}");
    });
}

#[test]
fn command_dies_within_lease_of_server_outage() {
    let sandbox = Sandbox::new();
    rounds_with_cases(&[Outage::Stopped, Outage::Killed, Outage::CutOff], |outage, round| {
        let (server, address) = start_server(&sandbox);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("runtime built");
        let proxy = runtime.block_on(Proxy::start(&address)).expect("proxy started");
        let mut tree = ProcessTree::start(&sandbox, &proxy.addr(), &format!("x{round}"), &[]);
        let begun = SystemTime::now();
        match outage {
            Outage::Stopped => server.signal(Signal::STOP),
            Outage::Killed => server.signal(Signal::KILL),
            Outage::CutOff => proxy.blackhole(true),
        }
        let last_heartbeat = tree.wait_until_dead(begun);
        assert!(last_heartbeat < LEASE + SLACK, "round {round}: {last_heartbeat:?}");
        assert_eq!(tree.zoolock.code(), 70, "round {round}");
    });
}

#[test]
fn zoolock_kills_group_while_reaper_is_stopped() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    let mut tree = ProcessTree::start(&sandbox, &address, "x", &[]);
    let begun = Instant::now();
    signal(&tree.reaper(), Signal::STOP);
    server.signal(Signal::STOP);
    wait_until("the group is dead", || tree.live_pids_of_group().is_empty());
    assert!(begun.elapsed() < LEASE + SLACK, "it took {:?}", begun.elapsed());
    assert_eq!(tree.zoolock.code(), 70);
    assert_eq!(tree.live_pids(), Vec::<String>::new());
}

/// The server may give the lock to another client a twelfth of the session timeout after the end of
/// the lease, half a second here. The bound is longer, for a busy machine.
#[test]
fn escaped_process_dies_soon_after_group() {
    let sandbox = Sandbox::new();
    let (server, address) = start_server(&sandbox);
    let mut tree = ProcessTree::start(&sandbox, &address, "x", &[]);
    signal(&tree.reaper(), Signal::STOP);
    server.signal(Signal::STOP);
    wait_until("the group is dead", || tree.live_pids_of_group().is_empty());
    let killed = Instant::now();
    wait_until("the escaped process is dead", || !is_alive(&tree.escaped));
    assert!(killed.elapsed() < Duration::from_millis(900), "it took {:?}", killed.elapsed());
    assert_eq!(tree.zoolock.code(), 70);
}

#[test]
fn zoolock_kills_leftovers_while_reaper_is_stopped() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let mut tree = ProcessTree::start(&sandbox, &address, "x", &["--grace", "500ms"]);
    let mut stderr = tree.zoolock.take_stderr();
    signal(&tree.leader, Signal::KILL);
    read_until(&mut stderr, &mut String::new(), "left behind");
    signal(&tree.reaper(), Signal::STOP);
    assert_eq!(tree.zoolock.code(), 137);
    assert_eq!(tree.live_pids_of_group(), Vec::<String>::new());
}

#[test]
fn resumed_reaper_reads_renewals_before_killing() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    rounds(|round| {
        let mut tree = ProcessTree::start(&sandbox, &address, &format!("x{round}"), &[]);
        let reaper = tree.reaper();
        let begun = Instant::now();
        signal(&reaper, Signal::STOP);
        // This wait is longer than the last lease that the reaper has read.
        wait_until("the lease has ended", || begun.elapsed() > LEASE + LEASE / 2);
        signal(&reaper, Signal::CONT);
        let state = || std::fs::read_to_string(format!("/proc/{reaper}/stat")).unwrap_or_default();
        wait_until("the reaper waits again", || state().contains("(lock-reaper) S"));
        assert!(is_alive(&tree.leader) && is_alive(&tree.stubborn), "round {round}");
        tree.zoolock.signal(Signal::KILL);
        tree.zoolock.wait();
        wait_until("all processes of the command are dead", || tree.live_pids().is_empty());
    });
}

/// A debugger can stop the reaper for so long that its socket is full of leases that have ended.
#[test]
fn reaper_waits_for_orders_that_had_no_room() {
    let sandbox = Sandbox::new();
    let (socket, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
    let mut reaper =
        sandbox.zoolock(["reap", "--grace", "30s"]).stdin(theirs).spawn().expect("zoolock starts");
    let pid = reaper.id().to_string();
    let send = |order: &str| socket_send(&socket, order.as_bytes(), SendFlags::DONTWAIT);
    let until = |order: &str| {
        let end = Duration::from_nanos(zoolock_client::session_time().0) + Duration::from_secs(60);
        format!(r#"{{"{order}":{{"secs":{},"nanos":0}}}}"#, end.as_secs())
    };
    let input = File::open("/dev/null").expect("it exists");
    let line = "sh\0-c\0trap 'exit 3' TERM; : > ready; while :; do sleep 0.01; done\0";
    std::fs::write(sandbox.path("line"), line).expect("writable");
    let line = File::open(sandbox.path("line")).expect("it exists");
    let files = [input.as_fd(), line.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    // There is no session to end.
    send("null").expect("the reaper reads");
    sendmsg(&socket, &[IoSlice::new(until("Start").as_bytes())], &mut control, SendFlags::empty())
        .expect("the reaper reads");
    let report = || {
        let mut buffer = [0; 64];
        let (_, length) = recv(&socket, &mut buffer, RecvFlags::empty()).expect("the reaper reports");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let started = report();
    assert!(started.starts_with("{\"Started\":"), "{started}");
    wait_until("the command runs", || sandbox.path("ready").exists());

    signal(&pid, Signal::STOP);
    while send(r#"{"Lease":{"secs":0,"nanos":1}}"#).is_ok() {}
    signal(&pid, Signal::CONT);
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    wait_until("the reaper waits", || state().contains("(lock-reaper) S"));
    for order in [until("Lease"), r#""Terminate""#.to_owned()] {
        send(&order).expect("the socket has room");
    }

    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Orders that keep coming must not keep the reaper from its other work.
        scope.spawn(|| {
            while !has_ended.load(Ordering::Acquire) {
                let _ = send(&until("Lease"));
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        assert_eq!(report(), r#""TermSent""#);
        assert_eq!(report(), r#"{"Ended":{"Code":3}}"#);
        has_ended.store(true, Ordering::Release);
    });
    send(r#"{"Finish":"Group"}"#).expect("the socket has room");
    assert_eq!(report(), r#""AllEnded""#);
    send(r#""Dismiss""#).expect("the socket has room");
    assert!(reaper.wait().expect("the reaper ends").success());
}

#[test]
fn clean_end_kills_group_but_spares_daemons() {
    let sandbox = Sandbox::new();
    let script =
        "sh -c 'trap \"echo asked > asked; exit\" TERM; echo $$ > left; while :; do sleep 0.02; done' > /dev/null 2>&1 &
        setsid sh -c 'echo $$ > daemon; exec sleep 1000' > /dev/null 2>&1 &
        while ! [ -s left ] || ! [ -s daemon ]; do sleep 0.01; done; exit 3";
    let done = sandbox.output(&["run", "x", "--", "sh", "-c", script]);
    assert_eq!(done.code, 3, "{done:?}");
    assert!(done.stderr.contains("left behind"), "{done:?}");
    assert_eq!(sandbox.wait_for_file("asked"), "asked");
    assert!(!is_alive(&sandbox.wait_for_file("left")));
    let daemon = sandbox.wait_for_file("daemon");
    assert!(is_alive(&daemon));
    signal(&daemon, Signal::KILL);
}

/// A script that starts two processes whose name is not UTF-8: one in the process group, and one outside of it.
const NON_UTF8: &str = r#"name=$(printf 'caf\351'); cp "$(command -v sleep)" "$name"
    "./$name" 1000 > /dev/null 2>&1 & echo $! > inside
    setsid "./$name" 1000 > /dev/null 2>&1 & echo $! > outside
    for it in inside outside; do
        while ! readlink /proc/$(cat $it)/exe | grep -q caf; do sleep 0.01; done
    done
    echo $$ > leader"#;

#[test]
fn group_member_with_non_utf8_name_is_killed() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["run", "x", "--", "sh", "-c", &format!("{NON_UTF8}; exit 3")]);
    assert_eq!(done.code, 3, "{done:?}");
    let outside = sandbox.wait_for_file("outside");
    assert!(!is_alive(&sandbox.wait_for_file("inside")) && is_alive(&outside));
    signal(&outside, Signal::KILL);
}

#[test]
fn escaped_process_with_non_utf8_name_is_killed() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let script = format!("{NON_UTF8}; sleep 1000");
    let mut running = sandbox.start(&["run", "--connect", &address, "x", "--", "sh", "-c", &script]);
    sandbox.wait_for_file("leader");
    let outside = sandbox.wait_for_file("outside");
    running.signal(Signal::KILL);
    running.wait();
    wait_until("the process outside the group is dead", || !is_alive(&outside));
}

#[test]
fn local_server_survives_the_command_that_started_it() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    let inner = format!("{zoolock} run --connect local inner -- sh -c 'echo $$ > inner; sleep 1000'");
    let mut outer = sandbox.start(&["run", "--connect", &address, "outer", "--", "sh", "-c", &inner]);
    let inner = sandbox.wait_for_file("inner");
    outer.signal(Signal::KILL);
    outer.wait();
    wait_until("the inner command is dead", || !is_alive(&inner));
    let done = sandbox.output(&["serve", "--status"]);
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn children_from_before_exec_are_spared() {
    let sandbox = Sandbox::new();
    let line = format!(
        "sleep 1000 & echo $! > other; exec {} run x -- sh -c 'echo $$ > child; sleep 1000'",
        env!("CARGO_BIN_EXE_zoolock")
    );
    let mut running = Running(sandbox.command("sh").args(["-c", &line]).spawn().expect("the shell starts"));
    let child = sandbox.wait_for_file("child");
    let other = sandbox.wait_for_file("other");
    signal(
        &child_of(&running.0.id().to_string(), "lock-reaper").expect("zoolock has a reaper"),
        Signal::KILL,
    );
    assert_eq!(running.code(), 137);
    assert!(!is_alive(&child) && is_alive(&other));
    signal(&other, Signal::KILL);
}

/// Writes an executable script with a name by which its process can be found. Returns its path.
fn script(sandbox: &Sandbox, name: &str, text: &str) -> String {
    let path = sandbox.path(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("file written");
    set_mode(&path, 0o755);
    path.display().to_string()
}

/// Makes this process the parent of orphans, like a pid 1 that does not reap its children.
/// This affects no other test, because each test is a process of its own.
fn inherit_orphans() {
    set_child_subreaper(Some(getpid())).expect("subreaper");
}

#[test]
fn ended_command_leaves_no_zombie() {
    inherit_orphans();
    let sandbox = Sandbox::new();
    let short = script(&sandbox, "zl-zombie-short", "exit 0");
    for _ in 0..20 {
        let done = sandbox.output(&["run", "x", "--", &short]);
        assert_eq!(done.code, 0, "{done:?}");
    }
    // The reaper is killed, and zoolock inherits the command.
    let long = script(&sandbox, "zl-zombie-long", "echo $$ > long; while :; do sleep 0.1; done");
    let mut running = sandbox.start(&["run", "x", "--", &long]);
    sandbox.wait_for_file("long");
    signal(
        &child_of(&running.0.id().to_string(), "lock-reaper").expect("zoolock has a reaper"),
        Signal::KILL,
    );
    assert_eq!(running.code(), 137);
    assert!(!zombies().iter().any(|(name, _)| name.starts_with("zl-zombie-")), "{:?}", zombies());
}

#[test]
fn restarts_leave_no_zombie() {
    inherit_orphans();
    let sandbox = Sandbox::new();
    let command = script(&sandbox, "zl-restarted", "echo $$ >> restarts");
    let mut running = sandbox.start(&["run", "--keep", "x", "--", &command]);
    let restarts = || std::fs::read_to_string(sandbox.path("restarts")).unwrap_or_default().lines().count();
    wait_until("the command has restarted", || restarts() >= 3);
    // The command that has just ended may be a zombie of its reaper, so only zombies of zoolock and
    // of this process count.
    let parents = [running.0.id().to_string(), std::process::id().to_string()];
    let left =
        zombies().into_iter().filter(|(name, parent)| name == "zl-restarted" && parents.contains(parent));
    assert_eq!(left.collect::<Vec<_>>(), []);
    running.signal(Signal::TERM);
    running.wait();
}

#[test]
fn inherited_children_are_reaped() {
    let sandbox = Sandbox::new();
    let orphan = script(&sandbox, "zl-orphan", "echo $$ > orphan");
    let line = format!(
        "sh -c 'while ! [ -e go ]; do sleep 0.02; done; {orphan} &' & exec {} run x -- sh -c 'echo $$ > child; sleep 1000'",
        env!("CARGO_BIN_EXE_zoolock")
    );
    let mut running = Running(sandbox.command("sh").args(["-c", &line]).spawn().expect("the shell starts"));
    sandbox.wait_for_file("child");
    std::fs::write(sandbox.path("go"), "").expect("file written");
    let orphan = sandbox.wait_for_file("orphan");
    wait_until("the orphan has ended", || !is_alive(&orphan));
    wait_until_no_zombie_of(&running.0.id().to_string());
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 143);
}

#[test]
fn reaper_closes_files_and_command_inherits_them() {
    let sandbox = Sandbox::new();
    let script =
        "ls -l /proc/self/fd > files; grep SigBlk /proc/self/status > blocked; echo $$ > child; sleep 1000";
    let line = format!(
        "exec 9> nine; exec {} run x -- sh -c '{script}' < input > output",
        env!("CARGO_BIN_EXE_zoolock")
    );
    std::fs::write(sandbox.path("input"), "").expect("file written");
    let mut running = Running(sandbox.command("sh").args(["-c", &line]).spawn().expect("the shell starts"));
    sandbox.wait_for_file("child");
    let files = sandbox.wait_for_file("files");
    assert!(files.contains("/nine") && files.contains("/input") && !files.contains("socket"), "{files}");
    assert!(sandbox.wait_for_file("blocked").ends_with("0000000000000000"));
    let reaper = child_of(&running.0.id().to_string(), "lock-reaper").expect("zoolock has a reaper");
    // Only root may look into the reaper.
    let is_root = rustix::process::geteuid().is_root();
    let open: Vec<_> = std::fs::read_dir(format!("/proc/{reaper}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    for name in ["nine", "input", "output", "memfd"] {
        assert!(!open.iter().any(|path| path.contains(name)), "{open:?}");
    }
    let directory = std::fs::read_link(format!("/proc/{reaper}/cwd")).ok();
    assert_eq!(directory, is_root.then(|| "/".into()));
    // The reaper ignores these signals.
    for wanted in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
        signal(&reaper, wanted);
    }
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 143);
}

#[test]
fn exit_code_is_known_when_sigchld_is_ignored() {
    let sandbox = Sandbox::new();
    let mut env = sandbox.command("env");
    env.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_zoolock"), "run", "x", "--", "sh", "-c", "exit 3"]);
    let status = env.status().expect("env starts");
    assert_eq!(status.code(), Some(3));
}

/// Returns the set of signals in a line of `/proc/PID/status`, without the signals from 32 on, which glibc uses.
fn signal_set(status: &str, name: &str) -> Vec<i32> {
    let set = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel lists the signals");
    let set = u64::from_str_radix(set.trim(), 16).expect("a hexadecimal number");
    (1..32).filter(|signal| set >> (signal - 1) & 1 == 1).collect()
}

#[test]
fn command_inherits_signals() {
    let sandbox = Sandbox::new();
    let [hangup, pipe, alarm] = [Signal::HUP, Signal::PIPE, Signal::ALARM].map(Signal::as_raw);
    for (flags, ignored, blocked) in [
        (&[][..], vec![], vec![]),
        (&["--ignore-signal=PIPE,HUP", "--block-signal=ALRM"], vec![hangup, pipe], vec![alarm]),
    ] {
        let mut env = sandbox.command("env");
        env.arg("--default-signal").args(flags).args([env!("CARGO_BIN_EXE_zoolock"), "run", "x", "--"]);
        env.args(["cat", "/proc/self/status"]);
        let done = CommandOutput::from(env.output().expect("env starts"));
        assert_eq!(done.code, 0, "{done:?}");
        let sets = (signal_set(&done.stdout, "SigIgn:"), signal_set(&done.stdout, "SigBlk:"));
        assert_eq!(sets, (ignored, blocked), "{flags:?}");
    }
}

#[test]
fn reaper_killed_during_start_leaves_nothing() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    rounds(|round| {
        let name = format!("x{round}");
        let script = format!("sh -c 'echo $$ > {name}.left; exec sleep 1000' & exec sleep 1000");
        let flags = ["run", "--connect", &address, &name, "--", "sh", "-c", &script];
        let mut running = sandbox.start_piped(&flags);
        let zoolock = running.0.id().to_string();
        wait_until("zoolock has a reaper", || child_of(&zoolock, "lock-reaper").is_some());
        // Spreads the kills over the first 40 ms.
        std::thread::sleep(
            Duration::from_micros(400) * u32::try_from(round * 37 % 100).expect("less than 100"),
        );
        signal(&child_of(&zoolock, "lock-reaper").expect("zoolock has a reaper"), Signal::KILL);
        assert_eq!(running.code(), 137, "round {round}");
        let left = std::fs::read_to_string(sandbox.path(&format!("{name}.left"))).unwrap_or_default();
        assert!(left.is_empty() || !is_alive(left.trim()), "round {round}");
    });
}
