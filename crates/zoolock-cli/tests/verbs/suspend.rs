//! The clock of leases while the machine is suspended. No test can suspend the machine. So the tests ask the kernel which
//! clock each timer of the processes uses.

use std::fs::{read_dir, read_to_string};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use zoolock_tests::skip::Availability;

use crate::common::process_tree::{child_of, signal};
use crate::common::{Running, Sandbox, is_alive, start_server, wait_until};

/// Numbers of the clocks in `/proc/PID/fdinfo`.
const MONOTONIC: u32 = 1;
const BOOTTIME: u32 = 7;

/// Returns the clocks of the timers of a process.
fn timer_clocks(pid: &str) -> Vec<u32> {
    let files = read_dir(format!("/proc/{pid}/fdinfo")).expect("the process runs").flatten();
    let infos = files.filter_map(|file| read_to_string(file.path()).ok());
    let clocks = infos.filter_map(|info| info.split_once("clockid: ")?.1.lines().next()?.parse().ok());
    clocks.collect()
}

/// Runs a command under a lock, and returns the clocks of the timers of zoolock and of its reaper.
fn clocks_of_run(sandbox: &Sandbox, name: &str, connect: &[&str]) -> [Vec<u32>; 2] {
    let script = format!("echo started > {name}.started; exec sleep 600");
    let args = [&["run"], connect, &[name, "--", "sh", "-c", &script]].concat();
    let zoolock = sandbox.start(&args);
    sandbox.wait_for_file(&format!("{name}.started"));
    let pid = zoolock.0.id().to_string();
    let reaper = child_of(&pid, "lock-reaper").expect("the reaper runs");
    [timer_clocks(&pid), timer_clocks(&reaper)]
}

#[test]
fn leases_of_local_mode_use_the_clock_of_the_server() {
    let sandbox = Sandbox::new();
    let [zoolock, reaper] = clocks_of_run(&sandbox, "local", &[]);
    assert!(!zoolock.contains(&BOOTTIME), "{zoolock:?}");
    assert_eq!(reaper, [MONOTONIC]);
}

#[test]
fn leases_of_other_servers_count_suspend() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    // A server on this machine may be one behind a forwarded port.
    let [zoolock, reaper] = clocks_of_run(&sandbox, "remote", &["--connect", &address]);
    assert!(zoolock.contains(&BOOTTIME), "{zoolock:?}");
    assert_eq!(reaper, [BOOTTIME]);
}

/// In a time namespace with another boot time, a deadline on one clock never comes, or has passed, on the other clock.
#[test]
fn zoolock_and_its_reaper_use_one_clock() {
    let in_namespace = |sandbox: &Sandbox| -> Command {
        let mut command = sandbox.command("unshare");
        command.args(["--user", "--map-root-user", "--time", "--boottime", "1000000", "--kill-child"]);
        command
    };
    let probe = in_namespace(&Sandbox::new()).arg("true").output();
    let availability = match probe {
        Ok(done) if done.status.success() => Availability::Available,
        _ => Availability::Missing("this user cannot create a time namespace".to_owned()),
    };
    if !availability.or_skip("zoolock_and_its_reaper_use_one_clock") {
        return;
    }
    let sandbox = Sandbox::new();
    let mut command = in_namespace(&sandbox);
    command.arg(env!("CARGO_BIN_EXE_zoolock")).args(["run", "--session-timeout", "6s", "x", "--"]);
    command.args(["sh", "-c", "echo started > started; sleep 600; true"]);
    let mut run = Running(command.stdin(Stdio::null()).spawn().expect("unshare starts"));
    sandbox.wait_for_file("started");
    let child = |parent: &str, name| child_of(parent, name).unwrap_or_else(|| panic!("{name} runs"));
    let zoolock = child(&run.0.id().to_string(), "zoolock");
    let command = child(&child(&zoolock, "lock-reaper"), "sh");
    let status = sandbox.output(&["serve", "--status", "--json"]).stdout;
    let server = serde_json::from_str::<Value>(&status).expect("JSON")["pid"].to_string();
    signal(&server, Signal::STOP);
    // zoolock is stopped, too. So only the reaper can end the command.
    signal(&zoolock, Signal::STOP);
    wait_until("the command has ended", || !is_alive(&command));
    signal(&server, Signal::CONT);
    signal(&zoolock, Signal::CONT);
    assert_ne!(run.code(), 0);
}
