//! `zoolock history`, and `revoke --wait`, on `zoolock serve` and on Apache ZooKeeper.

use rustix::process::Signal;
use serde_json::Value;
use zookeeper_client::{Acls, CreateMode};
use zoolock::Zoolock;
use zoolock_tests::{Place, on_both_servers, tree};

use crate::common::watching::Watch;
use crate::common::{CommandOutput, Lines, Sandbox, wait_until};

/// Runs zoolock with the user `ann` on this server.
fn run_as_ann(sandbox: &Sandbox, zookeeper: &Place, line: &[&str]) -> CommandOutput {
    let connect = ["--connect".to_owned(), zookeeper.connect_string()];
    let line = connect.into_iter().chain(line.iter().map(|&word| word.to_owned()));
    let done =
        sandbox.zoolock(line).env("USER", "ann").env_remove("SUDO_USER").output().expect("zoolock starts");
    CommandOutput::from(done)
}

fn json(sandbox: &Sandbox, zookeeper: &Place, line: &[&str]) -> Value {
    let done = run_as_ann(sandbox, zookeeper, &[line, &["--json"]].concat());
    serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("JSON is printed: {done:?}"))
}

on_both_servers!(crash_and_break_stay_visible, |zookeeper| async move {
    let (sandbox, connect) = (Sandbox::new(), zookeeper.connect_string());
    let hold = |flags: &[&str]| {
        let line =
            [&["hold", "x", "--connect", &connect, "--session-timeout", "6s", "--crash-detection"], flags];
        sandbox.start_piped(&line.concat())
    };
    let watch = Watch::start(&sandbox, &["x", "--json", "--connect", &connect]);
    let mut first = hold(&[]);
    watch.event("granted");
    // The holder prints its token after it has recorded the beginning of its hold.
    Lines::of(first.take_stdout()).next();
    let mut second = hold(&["--note", "second"]);
    watch.event("queued");
    first.signal(Signal::KILL);
    first.wait();
    let crashed = watch.event("crashed");
    let number =
        crashed["contender"]["node"].as_str().and_then(|node| node.rsplit('-').next()?.parse::<u32>().ok());
    let granted = watch.event("granted");
    Lines::of(second.take_stdout()).next();
    let events =
        || json(&sandbox, &zookeeper, &["history", "x"])["history"].as_array().expect("a list").clone();
    wait_until("the crash is recorded", || !events().is_empty());
    let shown = run_as_ann(&sandbox, &zookeeper, &["show", "x"]).stdout;
    let number = number.expect("a number");
    assert!(shown.contains(&format!("  last end  crashed (number {number}, ")), "{shown}");
    let of_first = format!("crashed: number {number}, {} pid {}", host(), first.0.id());
    assert!(shown.contains(&of_first) && shown.contains("; found by "), "{shown}");

    let token = granted["contender"]["token"].as_str().expect("a token");
    let done = run_as_ann(&sandbox, &zookeeper, &["break", "x", "--token", token, "--note", "it hangs"]);
    assert_eq!(done.code, 0, "{done:?}");
    let broken = watch.event("broken");
    assert_eq!(
        (&broken["by"]["user"], &broken["by"]["note"]),
        (&"ann".into(), &"it hangs".into()),
        "{broken}"
    );
    assert_eq!(second.code(), 70);
    // The next holder releases cleanly. The history still shows what happened before.
    let done = run_as_ann(&sandbox, &zookeeper, &["run", "x", "--crash-detection", "--", "true"]);
    assert_eq!(done.code, 0, "{done:?}");
    let shown = run_as_ann(&sandbox, &zookeeper, &["show", "x"]).stdout;
    assert!(shown.contains("  last end  clean (number "), "{shown}");
    assert!(shown.contains(&of_first), "{shown}");
    assert!(shown.contains(" broken: ") && shown.contains("zoolock break x: it hangs\n"), "{shown}");
    let events = events();
    let words: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(words, ["crashed", "broken"]);
    assert!(events.iter().all(|event| event["at_ms"].is_u64() && event["path"] == "/locks/x"), "{events:?}");
    let all = run_as_ann(&sandbox, &zookeeper, &["history"]).stdout;
    assert!(all.contains("ann on ") && all.contains("found by"), "{all}");
    let hour = run_as_ann(&sandbox, &zookeeper, &["history", "--since", "1h"]).stdout;
    assert_eq!(hour, all);
    let recent = run_as_ann(&sandbox, &zookeeper, &["history", "x", "--since", "1ns"]);
    assert!(recent.stdout.is_empty() && recent.stderr.contains("is recorded in the last 1ns"), "{recent:?}");
    let none = run_as_ann(&sandbox, &zookeeper, &["history", "y"]);
    assert!(none.code == 0 && none.stderr.contains("no history of y at"), "{none:?}");
    drop(watch);
});

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

on_both_servers!(revoke_waits_for_the_release, |zookeeper| async move {
    let (sandbox, connect) = (Sandbox::new(), zookeeper.connect_string());
    let mut holder = sandbox.start_piped(&["hold", "x", "--connect", &connect]);
    Lines::of(holder.take_stdout()).next();
    let watch = Watch::start(&sandbox, &["x", "--json", "--connect", &connect]);
    watch.event("holds");
    let done = run_as_ann(&sandbox, &zookeeper, &["revoke", "x", "--wait", "60s"]);
    let released = format!("x: {} pid {} (zoolock) has released it\n", host(), holder.0.id());
    assert!(done.code == 0 && done.stderr.contains(&released), "{done:?}");
    assert!(done.stderr.ends_with("zoolock: x: now free\n"), "{done:?}");
    assert_eq!(holder.code(), 0);
    // The watch sees the request only if it reads the lock before the release.
    while watch.next_event()["event"] != "released" {}
    let script = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let mut job = sandbox.start_piped(&["run", "x", "--connect", &connect, "--", "sh", "-c", script]);
    Lines::of(job.take_stdout()).next();
    watch.event("granted");
    let done = run_as_ann(&sandbox, &zookeeper, &["revoke", "x", "--wait", "1s", "--note", "disk full"]);
    assert!(done.code == 76 && done.stderr.contains("is still in the queue after 1s"), "{done:?}");
    assert!(done.stderr.contains("stop it first if they must not overlap"), "{done:?}");
    watch.event("asked");
    // The request is visible everywhere, with the time since then.
    for line in [&["show", "x"][..], &["ls"], &["why", "x"]] {
        let seen = run_as_ann(&sandbox, &zookeeper, line).stdout;
        assert!(seen.contains("to release ") && seen.contains("s ago"), "{line:?}: {seen}");
    }
    let asked = &json(&sandbox, &zookeeper, &["show", "x"])["history"][1];
    assert_eq!(
        (&asked["event"], &asked["by"]["command"], &asked["by"]["note"]),
        (&"asked".into(), &"zoolock revoke x".into(), &"disk full".into()),
        "{asked}"
    );
    let history = run_as_ann(&sandbox, &zookeeper, &["history", "x"]).stdout;
    assert!(history.contains(&format!("pid {} (run of sh)", job.0.id())), "{history}");
    // Another request changes nothing.
    assert_eq!(run_as_ann(&sandbox, &zookeeper, &["revoke", "x"]).code, 0);
    let shown = json(&sandbox, &zookeeper, &["show", "x"]);
    assert_eq!(shown["history"].as_array().map(Vec::len), Some(2), "{shown}");
    assert!(shown["holder"]["asked_ms"].is_u64(), "{shown}");
    let done = run_as_ann(&sandbox, &zookeeper, &["revoke", "nothing"]);
    assert!(done.code == 66 && done.stderr.contains("no lock nothing at"), "{done:?}");
});

on_both_servers!(foreign_holder_has_its_own_exit_code, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let zl = Zoolock::connect(&zookeeper.connect_string()).await.expect("session created");
    zl.mutex("x").lock().await.expect("lock granted").release().await.expect("release succeeds");
    let foreign = tree::connect(&zookeeper.addr()).await.expect("session created");
    let path = format!("{}/locks/x/5f2b8c9a3d4e4f6a8b7c6d5e4f3a2b1c__lock__", zookeeper.chroot());
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    foreign.create(&path, b"host-7", &options).await.expect("znode created");
    let token = zl.admin().snapshot("x").await.expect("snapshot read").holder.and_then(|holder| holder.token);
    let done = run_as_ann(&sandbox, &zookeeper, &["revoke", "x"]);
    let command = format!("zoolock break x --token {}", token.expect("a token"));
    let reason = "cannot be asked to release: its client library does not read requests to release";
    assert!(done.code == 78 && done.stderr.contains(&format!("x: kazoo: host-7 {reason}; ")), "{done:?}");
    assert!(done.stderr.contains(&command) && done.stderr.matches("zoolock break").count() == 1, "{done:?}");
    let token = command.rsplit(' ').next().expect("a token");
    let by_token = run_as_ann(&sandbox, &zookeeper, &["revoke", "x", "--token", token]);
    assert_eq!((by_token.code, by_token.stderr), (78, done.stderr));
    let why = run_as_ann(&sandbox, &zookeeper, &["why", "x"]).stdout;
    assert!(why.contains(&format!("  it {reason}\n  next:    {command}")), "{why}");
    assert!(!why.contains("or else"), "{why}");
    assert_eq!(run_as_ann(&sandbox, &zookeeper, &["break", "x", "--token", token]).code, 0);
    let history = run_as_ann(&sandbox, &zookeeper, &["history", "x"]).stdout;
    assert!(history.contains(", kazoo: host-7 "), "{history}");
    zl.close().await;
});
