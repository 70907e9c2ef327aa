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
    assert!(why.stdout.contains(" again: a deadlock\n"), "{why:?}");
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
    let done = run_on(&sandbox, &zookeeper, &["why", "nightly"]);
    assert!(
        done.stdout.contains("it waits for no lock that zoolock sees: it is busy, stuck or dead\n"),
        "{done:?}"
    );
    assert!(done.stdout.contains(&format!("look at: process {} on ", std::process::id())), "{done:?}");
    assert!(
        done.stdout.contains(&command) && done.stdout.contains("zoolock revoke nightly --token "),
        "{done:?}"
    );
    let done = run_on(&sandbox, &zookeeper, &["--root", "/lokcs", "ls"]);
    assert!(done.code == 0 && done.stderr.contains("below /lokcs"), "{done:?}");
    guard.release().await.expect("release succeeds");
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
