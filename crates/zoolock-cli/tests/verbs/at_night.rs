//! The view of an operator on `zoolock serve` and on Apache ZooKeeper: deadlocks, wrong names, commands to copy, and the
//! selection of `ls`.

use std::time::Duration;

use zoolock::{Owner, Zoolock};
use zoolock_tests::locks::{connect, until_queued};
use zoolock_tests::{Place, on_both_servers};

use crate::common::{CommandOutput, Sandbox};

fn run_on(sandbox: &Sandbox, zookeeper: &Place, line: &[&str]) -> CommandOutput {
    sandbox.output(&[&["--connect", &zookeeper.connect_string()], line].concat())
}

/// Returns the names in the first column of `ls`.
fn listed(done: &CommandOutput) -> Vec<&str> {
    done.stdout.lines().skip(1).filter_map(|row| row.split_whitespace().next()).collect()
}

on_both_servers!(deadlock_is_named_by_every_command, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let zl: Zoolock = connect(&zookeeper).await;
    let none = run_on(&sandbox, &zookeeper, &["deadlocks"]);
    assert!(none.code == 0 && none.stderr.contains("no deadlocks"), "{none:?}");
    let owners = [Owner::new(), Owner::new()];
    let first = zl.mutex("first").lock_as(&owners[0]).await.expect("lock granted");
    let second = zl.mutex("second").lock_as(&owners[1]).await.expect("lock granted");
    let calm = run_on(&sandbox, &zookeeper, &["ls"]);
    assert!(!calm.stderr.contains("deadlock"), "{calm:?}");
    let waits: Vec<_> = ["second", "first"]
        .into_iter()
        .zip(owners.clone())
        .map(|(name, owner)| {
            let mutex = zl.mutex(name);
            tokio::spawn(async move { mutex.lock_as(&owner).await.map(drop) })
        })
        .collect();
    until_queued(&zl, "first", 2).await;
    until_queued(&zl, "second", 2).await;

    let list = run_on(&sandbox, &zookeeper, &["ls"]);
    let circle = ["first → second → first", "second → first → second"];
    assert!(circle.iter().any(|circle| list.stderr.contains(&format!("deadlock: {circle}; "))), "{list:?}");
    let found = run_on(&sandbox, &zookeeper, &["deadlocks"]);
    assert!(found.code == 1 && found.stdout.starts_with("deadlock of 2 owners\n"), "{found:?}");
    let why = run_on(&sandbox, &zookeeper, &["why", "first"]);
    assert!(why.stdout.contains(" again: a deadlock\n  1 waits: "), "{why:?}");
    let ending = found.stdout.split_once("  to end it, take ").expect("commands").1;
    assert!(ending.contains("\n  ask it:  zoolock revoke ") && why.stdout.ends_with(ending), "{why:?}");
    for text in [&found.stdout, &why.stdout] {
        assert!(text.contains("stop it first if they must not overlap"), "{text}");
    }
    drop((first, second));
    for wait in waits {
        wait.await.expect("the task ends").expect("lock granted");
    }
    zl.close().await;
});

on_both_servers!(next_step_is_always_printed, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let zl = connect(&zookeeper).await;
    let guard = zl.mutex("nightly").lock().await.expect("lock granted");
    for verb in ["show", "why", "revoke", "break"] {
        let done = run_on(&sandbox, &zookeeper, &[verb, "nihgtly"]);
        assert!(done.code == 66 && done.stdout.is_empty(), "{done:?}");
        assert!(
            done.stderr.contains(&format!("no lock nihgtly at {}", zookeeper.connect_string())),
            "{done:?}"
        );
        assert!(done.stderr.contains("did you mean nightly?"), "{done:?}");
    }
    let command = format!("zoolock break nightly --token {}", guard.ticket());
    let done = run_on(&sandbox, &zookeeper, &["break", "nightly"]);
    assert!(done.code == 64 && done.stderr.contains(&command), "{done:?}");
    assert!(done.stderr.contains("stop it first if they must not overlap"), "{done:?}");
    let done = run_on(&sandbox, &zookeeper, &["why", "nightly"]);
    assert!(
        done.stdout.contains("it waits for no lock that zoolock sees: it is busy, stuck or dead\n"),
        "{done:?}"
    );
    let pid = std::process::id();
    assert!(done.stdout.contains(&format!("look at: process {pid} on ")), "{done:?}");
    assert!(done.stdout.contains(&format!(": pstree -alp {pid}\n")), "{done:?}");
    assert!(
        done.stdout.contains(&command) && done.stdout.contains("zoolock revoke nightly --token "),
        "{done:?}"
    );
    guard.release().await.expect("release succeeds");
    zl.close().await;
});

/// A token that no contender has.
const NO_TOKEN: &str = "00000000-7fffffffffffffff-00000000";

on_both_servers!(missing_root_is_named_by_every_command, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let zl = connect(&zookeeper).await;
    let guard = zl.mutex("nightly").lock().await.expect("lock granted");
    let missing = format!("the root /lokcs does not exist at {}: ", zookeeper.connect_string());
    let run = |root: &str, line: &[&str]| run_on(&sandbox, &zookeeper, &[&["--root", root], line].concat());
    for line in [
        &["ls"][..],
        &["ls", "night"],
        &["deadlocks"],
        &["show", "nightly"],
        &["why", "nightly"],
        &["history"],
        &["history", "nightly"],
        &["revoke", "nightly"],
        &["break", "nightly"],
        &["break", "nightly", "--token", NO_TOKEN],
    ] {
        let done = run("/lokcs", line);
        assert!(done.code == 66 && done.stderr.contains(&missing), "{line:?}: {done:?}");
        assert!(done.stderr.contains("did you mean --root /locks?"), "{line:?}: {done:?}");
    }
    let done = run("/lokcs", &["ls", "--json"]);
    assert!(done.code == 66 && done.stdout.contains("\"locks\": []"), "{done:?}");
    let done = run("/nothing/like/it", &["ls"]);
    assert!(done.code == 66 && !done.stderr.contains("did you mean"), "{done:?}");
    // A path elsewhere does not need the root.
    assert_eq!(run("/lokcs", &["show", "/locks/nightly"]).code, 0);
    assert_eq!(run("/lokcs", &["ls", "/locks"]).code, 0);
    guard.release().await.expect("release succeeds");
    zl.close().await;
});

on_both_servers!(directory_of_locks_is_no_lock, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let zl = connect(&zookeeper).await;
    let mut guards = Vec::new();
    for name in ["legacy/invoices", "legacy/orders"] {
        guards.push(zl.mutex(name).lock().await.expect("lock granted"));
    }
    let address = zookeeper.connect_string();
    let below = "; 2 locks are below it, such as legacy/invoices\n";
    for line in [&["show"][..], &["why"], &["revoke"], &["break"], &["break", "--token", NO_TOKEN]] {
        let done = run_on(&sandbox, &zookeeper, &[line, &["legacy"]].concat());
        let message =
            format!("no lock legacy at {address} below /locks: it has no holder, waiter or record{below}");
        assert!(done.code == 66 && done.stderr.contains(&message), "{line:?}: {done:?}");
    }
    let done = run_on(&sandbox, &zookeeper, &["history", "legacy"]);
    assert!(done.code == 0 && done.stderr.contains(below), "{done:?}");
    let done = run_on(&sandbox, &zookeeper, &["show", "invoices"]);
    assert!(done.code == 66 && done.stderr.contains("did you mean legacy/invoices?"), "{done:?}");
    for verb in ["revoke", "break"] {
        let done = run_on(&sandbox, &zookeeper, &[verb, "legacy/invocies", "--token", NO_TOKEN]);
        assert!(done.code == 66 && done.stderr.contains("did you mean legacy/invoices?"), "{done:?}");
        let done = run_on(&sandbox, &zookeeper, &[verb, "legacy/invoices", "--token", NO_TOKEN]);
        let message = format!(
            "lock legacy/invoices at {address} below /locks: no holder or waiter has the token {NO_TOKEN}"
        );
        assert!(done.code == 75 && done.stderr.contains(&message), "{done:?}");
    }
    // A lock may have locks below it.
    let lock = zl.mutex("legacy").lock().await.expect("lock granted");
    lock.release().await.expect("release succeeds");
    let done = run_on(&sandbox, &zookeeper, &["show", "legacy"]);
    assert!(done.code == 0 && done.stdout.contains("  free\n"), "{done:?}");
    drop(guards);
    zl.close().await;
});

on_both_servers!(first_waiters_are_named_and_counted, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let zl = connect(&zookeeper).await;
    let guard = zl.mutex("nightly").lock().await.expect("lock granted");
    let mut waiters = tokio::task::JoinSet::new();
    for count in 2..=6 {
        let mutex = zl.mutex("nightly");
        waiters.spawn(async move { mutex.lock().await.map(drop) });
        until_queued(&zl, "nightly", count).await;
    }
    let done = run_on(&sandbox, &zookeeper, &["why", "nightly"]);
    let line = done.stdout.lines().find(|line| line.starts_with("  5 wait: ")).expect("a line");
    assert_eq!(line.matches(" pid ").count(), 3, "{line}");
    assert!(line.ends_with("; and 2 more"), "{line}");
    guard.release().await.expect("release succeeds");
    while let Some(waiter) = waiters.join_next().await {
        waiter.expect("the task ends").expect("lock granted");
    }
    zl.close().await;
});

on_both_servers!(list_is_sorted_and_selected, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let zl = connect(&zookeeper).await;
    let mut guards = Vec::new();
    for name in ["job-10", "job-2", "job-1"] {
        guards.push(zl.mutex(name).lock().await.expect("lock granted"));
        // The next lock is granted at a later millisecond.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mutex = zl.mutex("job-2");
    let waiter = tokio::spawn(async move { mutex.lock().await.map(drop) });
    until_queued(&zl, "job-2", 2).await;
    let ls = |flags: &[&str]| run_on(&sandbox, &zookeeper, &[&["ls"], flags].concat());
    assert_eq!(listed(&ls(&[])), ["job-1", "job-2", "job-10"]);
    assert_eq!(listed(&ls(&["--sort", "held"])), ["job-10", "job-2", "job-1"]);
    assert_eq!(listed(&ls(&["--waiting"])), ["job-2"]);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!(listed(&ls(&["--held-by", &host])).len(), 3);
    let none = ls(&["--older", "10m"]);
    assert!(listed(&none).is_empty() && none.stderr.contains("none of the 3 locks is selected"), "{none:?}");
    drop(guards);
    waiter.await.expect("the task ends").expect("lock granted");
    zl.close().await;
});
