//! `hold`, `ls` and `show`.

use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::locks::{connect, until_queued};
use zoolock_tests::skip::Availability;
use zoolock_tests::{on_both_servers, tree};

use crate::common::{CommandOutput, Lines, Running, Sandbox, start_server};

#[test]
fn held_lock_is_listed_and_shown() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["ls"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    assert!(!done.stderr.is_empty(), "{done:?}");

    let mut holder = sandbox.start_piped(&["hold", "--json", "--note", "maintenance", "db/main"]);
    let line = Lines::of(holder.take_stdout()).next();
    let held: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(held["path"], "/locks/db/main");

    let waiter = sandbox.start(&["run", "db/main", "--", "true"]);
    sandbox.wait_for_contenders("db/main", 2);
    let shown: Value =
        serde_json::from_str(&sandbox.output(&["--json", "show", "db/main"]).stdout).expect("JSON");
    assert_eq!(shown["holder"]["token"], held["token"]);
    assert_eq!(shown["holder"]["note"], "maintenance");
    assert_eq!(shown["holder"]["pid"], holder.0.id());
    assert_eq!(shown["waiters"][0]["pid"], waiter.0.id());
    let programs =
        [&shown["holder"], &shown["waiters"][0]].map(|entry| (&entry["program"], &entry["runs_program"]));
    assert_eq!(programs, [(&"zoolock".into(), &false.into()), (&"true".into(), &true.into())]);
    let listed = sandbox.json(&["ls"]);
    assert_eq!(shown["schema"], "zoolock/1");
    let mut shown_in_list = shown.clone();
    for field in ["schema", "history", "slots"] {
        shown_in_list.as_object_mut().expect("an object").remove(field);
    }
    assert_eq!(listed["locks"][0], shown_in_list);
    assert_eq!(sandbox.json(&["ls", "db"]), listed);
    assert_eq!(sandbox.json(&["ls", "other"])["locks"], Value::Array(Vec::new()));

    let table = sandbox.output(&["ls"]).stdout;
    let row: Vec<_> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!((row[0], row[2]), ("db/main", "1"), "{table}");
    assert!(table.starts_with("LOCK     HELD") && table.contains("  LONGEST  HOLDER"), "{table}");
    assert!(table.contains("maintenance") && !table.contains('\x1b'), "{table}");
    let shown = sandbox.output(&["show", "db/main"]).stdout;
    assert!(shown.contains("maintenance") && shown.contains("lock-"), "{shown}");
    let (holds, waits) = (holder.0.id(), waiter.0.id());
    assert!(shown.contains(&format!(" pid {holds} (zoolock): maintenance")), "{shown}");
    assert!(shown.contains(&format!(" pid {waits} (run of true) (exclusive)")), "{shown}");

    holder.end_of_input();
    assert_eq!(holder.code(), 0);
    drop(waiter);
}

/// Returns the current time in milliseconds of Unix time.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970");
    u64::try_from(now.as_millis()).expect("a near year")
}

on_both_servers!(time_held_begins_with_the_grant, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let address = zookeeper.connect_string();
    let show = || sandbox.json(&["show", "x", "--connect", &address]);
    let first = connect(&zookeeper).await.mutex("x").lock().await.expect("lock granted");
    let client = connect(&zookeeper).await;
    let second = client.mutex("x");
    let waiter = tokio::spawn(async move { second.lock().await });
    until_queued(&client, "x", 2).await;
    let holder = &show()["holder"];
    assert!(holder["held_since_ms"].is_u64(), "the first contender holds since it joined: {holder}");
    // Another millisecond begins after the waiter has joined.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let before = now_ms();
    first.release().await.expect("release succeeds");
    let guard = waiter.await.expect("the task ends").expect("lock granted");
    let after = now_ms();
    let lock = show();
    let held_since = lock["holder"]["held_since_ms"].as_u64().expect("the release tells the time");
    assert!((before..=after).contains(&held_since), "{before} {after} {lock}");
    assert!(lock["holder"]["since_ms"].as_u64().expect("a time") < before, "{before} {lock}");
    guard.release().await.expect("release succeeds");

    // Nothing tells when a contender of another library was granted the lock, if others have left before it.
    let other = tree::connect(&zookeeper.addr()).await.expect("session created");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let path = |prefix: &str| format!("{}/locks/x/{prefix}", zookeeper.chroot());
    let gone = other.create(&path("lock-"), b"", &options).await.expect("znode created").1;
    other
        .create(&path("5f2b8c9a3d4e4f6a8b7c6d5e4f3a2b1c__lock__"), b"", &options)
        .await
        .expect("znode created");
    other.delete(&path(&format!("lock-{gone}")), None).await.expect("znode deleted");
    let lock = show();
    assert!(lock["holder"]["held_since_ms"].is_null() && lock["holder"]["since_ms"].is_u64(), "{lock}");
    let table = sandbox.output(&["ls", "--connect", &address]).stdout;
    assert!(table.lines().nth(1).is_some_and(|row| row.contains(" ≤")), "{table}");
    let shown = sandbox.output(&["show", "x", "--connect", &address]).stdout;
    assert!(shown.contains("held for  at most ") && shown.contains("is not recorded"), "{shown}");
    let why = sandbox.output(&["why", "x", "--connect", &address]).stdout;
    assert!(why.contains(", for ≤"), "{why}");
});

#[test]
fn free_lock_can_be_shown() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "nightly", "--", "true"]).code, 0);
    let done = sandbox.output(&["show", "nightly"]);
    assert!(done.code == 0 && done.stdout.contains("free"), "{done:?}");
    for verb in ["show", "why"] {
        let done = sandbox.output(&[verb, "nihgtly"]);
        assert!(done.code == 66 && done.stdout.is_empty(), "{done:?}");
        assert!(done.stderr.contains("no lock nihgtly at this user's server below /locks"), "{done:?}");
        assert!(done.stderr.contains("did you mean nightly?"), "{done:?}");
    }
    let done = sandbox.output(&["ls", "night"]);
    assert!(done.code == 0 && done.stderr.contains("did you mean nightly?"), "{done:?}");
    let done = sandbox.output(&["--root", "/lokcs", "ls"]);
    let missing = "the root /lokcs does not exist at this user's server";
    assert!(done.code == 66 && done.stderr.contains(missing), "{done:?}");
    assert!(done.stderr.contains("did you mean --root /locks?"), "{done:?}");
}

/// End of a message that the local server has nothing to report.
const ENSEMBLE_HINT: &str = "to ask an ensemble, give --connect or set ZOOLOCK_CONNECT";

#[test]
fn empty_answer_of_local_server_names_connect() {
    let sandbox = Sandbox::new();
    let hint = |args: &[&str]| sandbox.output(args).stderr.contains(ENSEMBLE_HINT);
    assert!(!hint(&["run", "nightly", "--", "true"]), "cron mails each line");
    assert!(hint(&["run", "-v", "nightly", "--", "true"]));
    for args in [&["ls", "--root", "/r"][..], &["ls", "other"], &["deadlocks"], &["show", "other"]] {
        assert!(hint(args), "{args:?}");
    }
    for verb in ["show", "why"] {
        assert!(hint(&[verb, "other"]) && hint(&[verb, "nightly"]), "{verb}");
        assert!(!hint(&[verb, "nihgtly"]), "a similar name is more likely");
        assert!(!hint(&[verb, "nightly", "--quiet"]) && !hint(&[verb, "nightly", "--json"]), "{verb}");
    }
    assert!(!hint(&["ls"]));

    let (_server, address) = start_server(&sandbox);
    for args in [&["ls"][..], &["deadlocks"], &["show", "other"], &["why", "other"]] {
        let done = sandbox.output(&[args, &["--connect", &address]].concat());
        assert!(done.stderr.contains(&address) && !done.stderr.contains(ENSEMBLE_HINT), "{done:?}");
    }
}

#[test]
fn closed_stdout_is_not_an_error() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    for args in [&["ls"][..], &["show", "x", "--json"], &["serve", "--status"], &["--help"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = sandbox.zoolock(args);
        let mut running =
            Running(command.stdout(writer).stderr(Stdio::piped()).spawn().expect("zoolock starts"));
        assert_eq!(running.code(), 0, "{args:?}");
    }
}

#[test]
fn hostile_note_cannot_write_to_the_terminal() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "--note", "\x1b[2J\x07gone\nfake\u{202e}", "x"]);
    sandbox.wait_for_contenders("x", 1);
    for args in [&["ls"][..], &["show", "x"]] {
        let done = sandbox.output(args);
        assert!(!done.stdout.contains(['\x1b', '\x07', '\u{202e}']), "{done:?}");
        assert!(!done.stdout.contains("\nfake"), "{done:?}");
    }
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

#[test]
fn unwritable_stdout_exits_74() {
    let sandbox = Sandbox::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has /dev/full");
    let done = sandbox.zoolock(["ls", "--json"]).stdout(full).output().expect("zoolock starts");
    assert_eq!(done.status.code(), Some(74), "{done:?}");
}

/// Runs zoolock on a machine whose clock is wrong by this time, such as `+3h`.
fn with_wrong_clock(sandbox: &Sandbox, wrong: &str, args: &[&str]) -> CommandOutput {
    let mut command = sandbox.command("faketime");
    command.args(["-f", wrong, env!("CARGO_BIN_EXE_zoolock")]).args(args);
    // Only the time of the day is wrong.
    command.envs(["FAKETIME_DONT_FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC"].map(|name| (name, "1")));
    CommandOutput::from(command.output().expect("faketime starts"))
}

#[test]
fn times_of_locks_are_by_the_clock_of_the_server() {
    let sandbox = Sandbox::new();
    let found = sandbox.command("sh").args(["-c", "command -v faketime"]).output().expect("sh starts");
    let availability = match found.status.success() {
        true => Availability::Available,
        false => Availability::Missing("no faketime here".to_owned()),
    };
    if !availability.or_skip("times of locks on a machine whose clock is wrong") {
        return;
    }
    let (_server, address) = start_server(&sandbox);
    let service = ["--connect", address.as_str()];
    let mut holder = sandbox.start_piped(&[&["hold", "x"], &service[..]].concat());
    Lines::of(holder.take_stdout()).next();
    for wrong in ["+30h", "-30h"] {
        for (args, expected) in [
            (&["ls"][..], "x"),
            (&["show", "x"], "held for"),
            (&["why", "x"], "x is held by"),
            (&["ls", "--json"], "held_since_ms"),
        ] {
            let done = with_wrong_clock(&sandbox, wrong, &[args, &service[..]].concat());
            assert!(done.code == 0 && done.stdout.contains(expected), "{wrong} {args:?}: {done:?}");
            let has_days = done.stdout.split([' ', '\n', ';']).any(|word| word.starts_with("1d0"));
            assert!(!has_days, "{wrong} {args:?}: {done:?}");
        }
        let old = with_wrong_clock(&sandbox, wrong, &[&["ls", "--older", "1d"], &service[..]].concat());
        assert!(old.code == 0 && old.stderr.contains("none of the 1 locks is selected"), "{wrong}: {old:?}");
        let young = with_wrong_clock(&sandbox, wrong, &[&["ls", "--older", "0s"], &service[..]].concat());
        assert!(young.stdout.contains("\nx "), "{wrong}: {young:?}");
    }
    let all = sandbox.output(&[&["ls", "/"], &service[..]].concat());
    assert!(!all.stdout.contains("clock"), "the znode that shows the clock is left: {all:?}");
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}
