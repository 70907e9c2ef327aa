//! Whatever happens to zoolock, its reaper, the command or the server: nothing of the command lives when another can have
//! the lock, and the exit code says what it was.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant, SystemTime};

use crate::common::band::{Band, LEASE, child_of, rounds, rounds_of_each, signal};
use crate::common::{Running, Sandbox, lives, server, wait_until};
use rustix::process::Signal;
use zoolock_tests::proxy::Proxy;

/// How late the end may be.
const SLACK: Duration = Duration::from_millis(200);

/// What keeps a server from answering.
enum Outage {
    Stopped,
    Killed,
    CutOff,
}

/// Waits for the lock; when it has it, nothing of `band` may live.
fn rival(sandbox: &Sandbox, address: &str, name: &str) -> Running {
    sandbox.converse(&["hold", "--session-timeout", "6s", "--connect", address, name])
}

fn assert_alone(rival: &mut Running, band: &Band) {
    let mut line = String::new();
    BufReader::new(rival.0.stdout.take().expect("caught")).read_line(&mut line).expect("a token");
    assert_eq!(band.living(), Vec::<String>::new(), "another has the lock, {line}");
}

#[test]
fn command_dies_when_zoolock_is_killed() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    rounds(|round| {
        // A command that would rather finish without its lock has nobody to say so, either.
        let flags: &[&str] = if round % 3 == 2 { &["--on-lost", "warn"] } else { &[] };
        let mut band = Band::start(&sandbox, &address, &format!("x{round}"), flags);
        let reaper = band.reaper();
        let begun = SystemTime::now();
        band.zoolock.signal(Signal::KILL);
        assert_eq!(band.zoolock.wait().signal(), Some(Signal::KILL.as_raw()));
        let worked = band.worked_since(begun);
        assert!(worked < LEASE / 2, "round {round}: {worked:?}");
        wait_until("its work is done", || !lives(&reaper));
    });
}

#[test]
fn command_dies_within_lease_of_stopped_zoolock() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    rounds(|round| {
        let name = format!("x{round}");
        let mut band = Band::start(&sandbox, &address, &name, &[]);
        let mut rival = rival(&sandbox, &address, &name);
        let begun = SystemTime::now();
        band.zoolock.signal(Signal::STOP);
        let worked = band.worked_since(begun);
        assert!(worked < LEASE + SLACK, "round {round}: {worked:?}");
        assert_alone(&mut rival, &band);
        band.zoolock.signal(Signal::CONT);
        assert_eq!(band.zoolock.code(), 70, "round {round}");
    });
}

#[test]
fn signal_to_zoolock_ends_the_whole_group() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    rounds_of_each(&[(Signal::TERM, 143), (Signal::INT, 130)], |&(wanted, code), round| {
        let mut band = Band::start(&sandbox, &address, &format!("x{round}"), &[]);
        band.zoolock.signal(wanted);
        assert_eq!(band.zoolock.code(), code, "round {round}");
        assert_eq!(band.living_of_group(), Vec::<String>::new(), "round {round}");
    });
}

#[test]
fn group_ends_when_signal_kills_its_leader() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    let ends = [(Signal::KILL, 137), (Signal::TERM, 143), (Signal::INT, 130)];
    rounds_of_each(&ends, |&(wanted, code), round| {
        let mut band = Band::start(&sandbox, &address, &format!("x{round}"), &[]);
        signal(&band.leader, wanted);
        assert_eq!(band.zoolock.code(), code, "round {round}");
        assert_eq!(band.living_of_group(), Vec::<String>::new(), "round {round}");
    });
}

#[test]
fn stopped_command_keeps_lock_until_zoolock_ends() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    rounds_of_each(&[Signal::TERM, Signal::KILL], |&wanted, round| {
        let name = format!("x{round}");
        let mut band = Band::start(&sandbox, &address, &name, &[]);
        signal(&band.leader, Signal::STOP);
        std::thread::sleep(LEASE + LEASE / 4);
        assert!(lives(&band.leader) && lives(&band.stubborn), "round {round}: the lease is renewed");
        let mut rival = rival(&sandbox, &address, &name);
        band.zoolock.signal(wanted);
        match wanted {
            // It is continued, so that it can answer.
            Signal::TERM => {
                assert_eq!(band.zoolock.code(), 143, "round {round}");
                assert_eq!(band.living_of_group(), Vec::<String>::new(), "round {round}");
            }
            _ => {
                band.zoolock.wait();
                assert_alone(&mut rival, &band);
            }
        }
    });
}

#[test]
fn command_dies_when_reaper_is_killed() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    rounds(|round| {
        let mut band = Band::start(&sandbox, &address, &format!("x{round}"), &[]);
        signal(&band.reaper(), Signal::KILL);
        assert_eq!(band.zoolock.code(), 137, "round {round}");
        assert_eq!(band.living(), Vec::<String>::new(), "round {round}");
    });
}

#[test]
fn command_dies_within_lease_of_server_outage() {
    let sandbox = Sandbox::new();
    rounds_of_each(&[Outage::Stopped, Outage::Killed, Outage::CutOff], |outage, round| {
        let (server, address) = server(&sandbox);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread");
        let proxy = runtime.block_on(Proxy::start(&address)).expect("a port");
        let mut band = Band::start(&sandbox, &proxy.addr(), &format!("x{round}"), &[]);
        let begun = SystemTime::now();
        match outage {
            Outage::Stopped => server.signal(Signal::STOP),
            Outage::Killed => server.signal(Signal::KILL),
            Outage::CutOff => proxy.blackhole(true),
        }
        let worked = band.worked_since(begun);
        assert!(worked < LEASE + SLACK, "round {round}: {worked:?}");
        assert_eq!(band.zoolock.code(), 70, "round {round}");
    });
}

#[test]
fn zoolock_kills_group_while_reaper_is_stopped() {
    let sandbox = Sandbox::new();
    let (server, address) = server(&sandbox);
    let mut band = Band::start(&sandbox, &address, "x", &[]);
    let begun = Instant::now();
    signal(&band.reaper(), Signal::STOP);
    server.signal(Signal::STOP);
    wait_until("the group is dead", || band.living_of_group().is_empty());
    assert!(begun.elapsed() < LEASE + SLACK, "it took {:?}", begun.elapsed());
    assert_eq!(band.zoolock.code(), 70);
    assert_eq!(band.living(), Vec::<String>::new());
}

#[test]
fn zoolock_kills_leftovers_while_reaper_is_stopped() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    let mut band = Band::start(&sandbox, &address, "x", &["--grace", "500ms"]);
    let mut stderr = BufReader::new(band.zoolock.0.stderr.take().expect("caught"));
    let mut said = String::new();
    signal(&band.leader, Signal::KILL);
    while !said.contains("left behind") {
        assert!(stderr.read_line(&mut said).expect("text") > 0, "{said}");
    }
    signal(&band.reaper(), Signal::STOP);
    assert_eq!(band.zoolock.code(), 137);
    assert_eq!(band.living_of_group(), Vec::<String>::new());
}

#[test]
fn resumed_reaper_reads_renewals_before_killing() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    rounds(|round| {
        let mut band = Band::start(&sandbox, &address, &format!("x{round}"), &[]);
        let reaper = band.reaper();
        let begun = Instant::now();
        signal(&reaper, Signal::STOP);
        // Longer than what it knows of.
        wait_until("its lease is over", || begun.elapsed() > LEASE + LEASE / 2);
        signal(&reaper, Signal::CONT);
        let state = || std::fs::read_to_string(format!("/proc/{reaper}/stat")).unwrap_or_default();
        wait_until("it waits again", || state().contains("(lock-reaper) S"));
        assert!(lives(&band.leader) && lives(&band.stubborn), "round {round}");
        band.zoolock.signal(Signal::KILL);
        band.zoolock.wait();
        wait_until("all of it is dead", || band.living().is_empty());
    });
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
    assert!(!lives(&sandbox.wait_for_file("left")));
    let daemon = sandbox.wait_for_file("daemon");
    assert!(lives(&daemon));
    signal(&daemon, Signal::KILL);
}

/// One that runs under a name that is no text, in the group and outside of it.
const NO_TEXT: &str = r#"name=$(printf 'caf\351'); cp "$(command -v sleep)" "$name"
    "./$name" 1000 > /dev/null 2>&1 & echo $! > inside
    setsid "./$name" 1000 > /dev/null 2>&1 & echo $! > outside
    for it in inside outside; do
        while ! readlink /proc/$(cat $it)/exe | grep -q caf; do sleep 0.01; done
    done
    echo $$ > leader"#;

#[test]
fn group_member_with_non_utf8_name_is_killed() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["run", "x", "--", "sh", "-c", &format!("{NO_TEXT}; exit 3")]);
    assert_eq!(done.code, 3, "{done:?}");
    let outside = sandbox.wait_for_file("outside");
    assert!(!lives(&sandbox.wait_for_file("inside")) && lives(&outside));
    signal(&outside, Signal::KILL);
}

#[test]
fn escaped_process_with_non_utf8_name_is_killed() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    let script = format!("{NO_TEXT}; sleep 1000");
    let mut running = sandbox.start(&["run", "--connect", &address, "x", "--", "sh", "-c", &script]);
    sandbox.wait_for_file("leader");
    let outside = sandbox.wait_for_file("outside");
    running.signal(Signal::KILL);
    running.wait();
    wait_until("nobody is left", || !lives(&outside));
}

#[test]
fn local_server_survives_the_command_that_started_it() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    let inner = format!("{} run inner -- sh -c 'echo $$ > inner; sleep 1000'", env!("CARGO_BIN_EXE_zoolock"));
    let mut outer = sandbox.start(&[
        "run",
        "--connect",
        &address,
        "outer",
        "--",
        "env",
        "-u",
        "ZOOLOCK_CONNECT",
        "sh",
        "-c",
        &inner,
    ]);
    let inner = sandbox.wait_for_file("inner");
    outer.signal(Signal::KILL);
    outer.wait();
    wait_until("the inner command is dead too", || !lives(&inner));
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
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &line]).env("ZOOLOCK_STATE_DIR", sandbox.state()).current_dir(sandbox.path("."));
    let mut running = Running(shell.env_remove("ZOOLOCK_CONNECT").spawn().expect("it starts"));
    let child = sandbox.wait_for_file("child");
    let other = sandbox.wait_for_file("other");
    signal(&child_of(&running.0.id().to_string(), "lock-reaper").expect("a reaper"), Signal::KILL);
    assert_eq!(running.code(), 137);
    assert!(!lives(&child) && lives(&other));
    signal(&other, Signal::KILL);
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
    std::fs::write(sandbox.path("input"), "").expect("writable");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &line]).env("ZOOLOCK_STATE_DIR", sandbox.state()).current_dir(sandbox.path("."));
    let mut running = Running(shell.env_remove("ZOOLOCK_CONNECT").spawn().expect("it starts"));
    sandbox.wait_for_file("child");
    let files = sandbox.wait_for_file("files");
    assert!(files.contains("/nine") && files.contains("/input") && !files.contains("socket"), "{files}");
    assert!(sandbox.wait_for_file("blocked").ends_with("0000000000000000"));
    let reaper = child_of(&running.0.id().to_string(), "lock-reaper").expect("a reaper");
    let open: Vec<_> = std::fs::read_dir(format!("/proc/{reaper}/fd"))
        .expect("it lives")
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    for ours in ["nine", "input", "output", "memfd"] {
        assert!(!open.iter().any(|path| path.contains(ours)), "{open:?}");
    }
    assert_eq!(std::fs::read_link(format!("/proc/{reaper}/cwd")).expect("it lives").as_os_str(), "/");
    // It is deaf.
    for wanted in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
        signal(&reaper, wanted);
    }
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 143);
}

#[test]
fn exit_code_is_known_when_sigchld_is_ignored() {
    let sandbox = Sandbox::new();
    let mut env = std::process::Command::new("env");
    env.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_zoolock"), "run", "x", "--", "sh", "-c", "exit 3"]);
    env.env("ZOOLOCK_STATE_DIR", sandbox.state()).current_dir(sandbox.path("."));
    let status = env.env_remove("ZOOLOCK_CONNECT").status().expect("it starts");
    assert_eq!(status.code(), Some(3));
}

#[test]
fn reaper_killed_during_start_leaves_nothing() {
    let sandbox = Sandbox::new();
    let (_server, address) = server(&sandbox);
    rounds(|round| {
        let name = format!("x{round}");
        let script = format!("sh -c 'echo $$ > {name}.left; exec sleep 1000' & exec sleep 1000");
        let flags = ["run", "--connect", &address, &name, "--", "sh", "-c", &script];
        let mut running = sandbox.converse(&flags);
        let zoolock = running.0.id().to_string();
        wait_until("there is a reaper", || child_of(&zoolock, "lock-reaper").is_some());
        // At all times up to 40 ms later.
        std::thread::sleep(Duration::from_micros(400) * u32::try_from(round * 37 % 100).expect("few"));
        signal(&child_of(&zoolock, "lock-reaper").expect("a reaper"), Signal::KILL);
        assert_eq!(running.code(), 137, "round {round}");
        let left = std::fs::read_to_string(sandbox.path(&format!("{name}.left"))).unwrap_or_default();
        assert!(left.is_empty() || !lives(left.trim()), "round {round}");
    });
}
