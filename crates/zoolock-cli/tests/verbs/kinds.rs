//! Every kind of lock from the command line, and the commands of operators: revoke, break, resize.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{CommandOutput, Lines, Running, Sandbox, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// Time to wait before a release, so that a waiter checks for a revocation when it acquires the
/// lock. zoolock checks only after a wait of more than 300 ms. The test sleeps, because no output
/// tells how long a waiter has waited.
const WAIT_BEFORE_REVOKE_CHECK: Duration = Duration::from_millis(400);

/// Starts `zoolock hold --json` with `args`, and returns the document that it prints when the lock is granted.
fn hold(sandbox: &Sandbox, args: &[&str]) -> (Running, Value) {
    let mut holder = sandbox.start_piped(&[&["hold", "--json"], args].concat());
    let line = Lines::of(holder.take_stdout()).next();
    (holder, serde_json::from_str(&line).expect("JSON"))
}

/// Ends the input of `zoolock hold`, which then releases the lock and exits with 0.
fn release(mut holder: Running) {
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

/// Returns the token of the first waiter.
fn first_waiter_token(sandbox: &Sandbox, name: &str) -> String {
    let lock = sandbox.json(&["show", name]);
    lock["waiters"][0]["token"].as_str().expect("a token").to_owned()
}

#[test]
fn readers_share_and_exclude_writers() {
    let sandbox = Sandbox::new();
    let (reader, held) = hold(&sandbox, &["--shared", "db"]);
    assert_eq!(held["alone"], false);
    let script = "echo ${ZOOLOCK_TOKEN-none} $ZOOLOCK_TICKET";
    let reading = sandbox
        .zoolock(["run", "--try", "--shared", "db", "--", "sh", "-c", script])
        .env("ZOOLOCK_TOKEN", "of another lock")
        .output()
        .expect("the command starts");
    let printed = String::from_utf8(reading.stdout).expect("UTF-8");
    assert!(printed.starts_with("none ") && printed.trim().len() > 10, "{printed}");
    for exclusive in [
        &["run", "--try", "db"][..],
        &["run", "--try", "--naming", "native,rw", "db"],
        &["run", "--try", "db", "other"],
    ] {
        let done = sandbox.output(&[exclusive, &["--", "true"]].concat());
        assert_eq!(done.code, 75, "{done:?}");
        assert!(done.stderr.contains("held by"), "{done:?}");
    }
    let mut writer = sandbox.start(&["run", "--note", "the writer", "db", "--", "true"]);
    sandbox.wait_for_contenders("db", 2);
    let behind = sandbox.output(&["run", "--try", "--shared", "db", "--", "true"]);
    assert!(behind.code == 75 && behind.stderr.contains("a writer waits: "), "{behind:?}");
    assert!(behind.stderr.contains("the writer"), "{behind:?}");
    writer.signal(rustix::process::Signal::TERM);
    assert_eq!(writer.code(), 143);
    let (second, _) = hold(&sandbox, &["--shared", "db"]);
    let text = sandbox.output(&["show", "db"]).stdout;
    assert_eq!(text.matches("held by").count(), 2, "{text}");
    assert!(text.contains("reader"), "{text}");
    let text = sandbox.output(&["ls"]).stdout;
    assert!(text.contains("and 1 more"), "{text}");
    let text = sandbox.output(&["why", "db"]).stdout;
    assert!(text.contains("\n  others:  zoolock show db\n"), "{text}");
    for holder in [reader, second] {
        release(holder);
    }
    let (writer, held) = hold(&sandbox, &["--naming", "native,rw", "db"]);
    assert!(held["alone"] == true && held["node"].as_str().expect("a string").contains("__WRIT__"), "{held}");
    assert_eq!(sandbox.output(&["run", "--try", "--shared", "db", "--", "true"]).code, 75);
    release(writer);
}

#[test]
fn permits_are_counted_up_to_the_size() {
    let sandbox = Sandbox::new();
    let (two, _) = hold(&sandbox, &["--permits", "2/3", "workers"]);
    assert_eq!(sandbox.output(&["run", "--try", "--permits", "3", "workers", "--", "true"]).code, 0);
    let done = sandbox.output(&["run", "--try", "--permits", "2/3", "workers", "--", "true"]);
    assert_eq!(done.code, 75, "{done:?}");
    let done = sandbox.output(&["run", "--try", "--permits", "4", "workers", "--", "true"]);
    assert_eq!(done.code, 64, "{done:?}");
    assert!(done.stderr.contains("3 permits"), "{done:?}");
    let text = sandbox.output(&["show", "workers"]).stdout;
    assert!(text.contains("2 of 3") && text.contains("2 permits"), "{text}");
    let done = sandbox.output(&["resize", "workers", "--permits", "4"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(sandbox.output(&["run", "--try", "--permits", "2/4", "workers", "--", "true"]).code, 0);
    assert_eq!(
        sandbox.output(&["run", "--try", "workers", "--", "true"]).code,
        64,
        "a semaphore cannot be acquired as a mutex"
    );
    assert_eq!(sandbox.output(&["resize", "nothing", "--permits", "4"]).code, 64);
    release(two);
}

#[test]
fn holders_of_permits_have_numbers() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; echo $ZOOLOCK_SLOT > first; while ! [ -e end ]; do sleep 0.02; done";
    let mut first = sandbox.start(&["run", "--permits", "3", "--slot", "gpus", "--", "sh", "-c", script]);
    assert_eq!(sandbox.wait_for_file("first"), "0");
    let number = "echo $ZOOLOCK_SLOT";
    let done = sandbox.output(&["run", "--permits", "3", "--slot", "gpus", "--", "sh", "-c", number]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "1\n"), "{done:?}");
    let done = sandbox.output(&["run", "--permits", "2/3", "--slot", "gpus", "--", "sh", "-c", number]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "1 2\n"), "{done:?}");
    assert_eq!(sandbox.json(&["show", "gpus"])["slots"], serde_json::json!([0]));
    assert!(sandbox.output(&["show", "gpus"]).stdout.contains("\n  slots     0\n"));
    assert!(!sandbox.output(&["ls"]).stdout.contains(".slots"));
    // The number of an outer command is not inherited.
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    let inner = format!("{zoolock} run --permits 3 gpus -- sh -c 'echo ${{ZOOLOCK_SLOT-none}}'");
    let done = sandbox.output(&["run", "--permits", "3", "--slot", "gpus", "--", "sh", "-c", &inner]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "none\n"), "{done:?}");
    assert!(!done.stderr.contains("not a setting"), "{done:?}");
    let broken = sandbox.json(&["show", "gpus"])["holder"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(sandbox.output(&["break", "gpus", "--token", &broken]).code, 0);
    // The broken holder works until its command has ended, so its number is not free.
    let all = ["run", "--try", "--on-busy-exit", "9", "--permits", "3/3", "--slot", "gpus", "--", "true"];
    let done = sandbox.output(&all);
    assert!(done.code == 9 && done.stderr.contains("has no free slot of 3"), "{done:?}");
    std::fs::write(sandbox.path("end"), "").expect("written");
    first.wait();
    assert_eq!(sandbox.output(&all).code, 0);
    let bad = sandbox.output(&["run", "--slot", "x", "--", "true"]);
    assert!(bad.code == 64 && bad.stderr.contains("--permits"), "{bad:?}");
}

#[test]
fn permits_with_foreign_naming_are_refused() {
    let sandbox = Sandbox::new();
    for naming in ["curator", "kazoo", "write-lock"] {
        let done = sandbox.output(&["run", "--naming", naming, "--permits", "3", "x", "--", "true"]);
        assert_eq!(done.code, 64, "{done:?}");
        assert!(done.stderr.contains(&format!("naming {naming}: has no semaphore")), "{done:?}");
        assert!(done.stderr.contains("use native with another name, or the other library"), "{done:?}");
    }
    let done = sandbox.output(&["run", "--naming", "curator-semaphore", "--permits", "3", "x", "--", "true"]);
    assert!(done.code == 64 && done.stderr.contains("native, curator, kazoo, write-lock"), "{done:?}");
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn empty_naming_variable_is_ignored() {
    let sandbox = Sandbox::new();
    let run = |naming: &str, args: &[&str]| {
        let mut command = sandbox.zoolock(args);
        // The piped input ends at once.
        command.env("ZOOLOCK_NAMING", naming).stdin(Stdio::piped());
        CommandOutput::from(command.output().expect("the command starts"))
    };
    for (naming, prefix) in [("", "/lock-"), ("curator", "/_c_")] {
        let done = run(naming, &["hold", "--json", "x"]);
        assert_eq!(done.code, 0, "{done:?}");
        let held: Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert!(held["node"].as_str().expect("a string").contains(prefix), "{naming:?}: {held}");
    }
    let done = run("kazo", &["run", "x", "--", "true"]);
    assert!(done.code == 64 && done.stderr.contains("ZOOLOCK_NAMING"), "{done:?}");
    assert_eq!(run("", &["run", "--permits", "3", "s", "--", "true"]).code, 0);
    let done = run("", &["resize", "s", "--permits", "4"]);
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn quiet_hold_reports_clash() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "--quiet", "x"]);
    let stderr = Lines::of(holder.take_stderr());
    sandbox.wait_for_contenders("x", 1);
    // This znode has a name in kazoo's own format.
    let _clashing = sandbox.start(&["hold", "--naming", "kazoo", "x"]);
    // With `--quiet`, the message about the clash is the first line.
    let clash = stderr.next();
    assert!(clash.contains("of kazoo") && clash.contains("two may hold"), "{clash}");
    release(holder);
}

#[test]
fn several_locks_are_all_acquired_or_none() {
    let sandbox = Sandbox::new();
    let script = "echo $ZOOLOCK_NAME, $ZOOLOCK_PATH";
    let done = sandbox.output(&["run", "b", "a", "--", "sh", "-c", script]);
    assert_eq!(done.stdout, "b a, /locks/b /locks/a\n", "{done:?}");
    let (holder, _) = hold(&sandbox, &["a"]);
    let done = sandbox.output(&["run", "--timeout", "300ms", "b", "a", "--", "true"]);
    assert_eq!(done.code, 75, "{done:?}");
    assert!(done.stderr.contains("b and a"), "{done:?}");
    assert_eq!(sandbox.output(&["run", "--try", "b", "--", "true"]).code, 0, "lock b is not kept");
    release(holder);
}

#[test]
fn next_command_learns_of_crash() {
    let sandbox = Sandbox::new();
    let previous = |flags: &[&str]| {
        let run = ["run"].iter().chain(flags).copied();
        let line: Vec<&str> = run.chain(["x", "--", "sh", "-c", "echo $ZOOLOCK_PREVIOUS"]).collect();
        sandbox.output(&line).stdout
    };
    assert_eq!(previous(&["--crash-detection"]), "unknown\n");
    assert_eq!(previous(&["--crash-detection"]), "clean\n");
    let (mut holder, held) = hold(&sandbox, &["--session-timeout", "6s", "--crash-detection", "x"]);
    holder.signal(Signal::KILL);
    holder.wait();
    wait_until("the session of the holder expires", || sandbox.contenders("x") == 0);
    assert_eq!(sandbox.json(&["show", "x"])["previous"], "crashed", "{held}");
    let begun = Instant::now();
    assert_eq!(previous(&["--crash-detection", "--lock-delay", "1500ms"]), "crashed\n");
    assert!(begun.elapsed() >= Duration::from_millis(1500));
    assert_eq!(previous(&[]), "clean\n");
}

#[test]
fn revoke_stops_command_warns_or_ends_hold() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let mut job = sandbox.start_piped(&["run", "x", "--", "sh", "-c", script]);
    let stdout = Lines::of(job.take_stdout());
    assert_eq!(stdout.next(), "ready\n");
    let done = sandbox.output(&["revoke", "x"]);
    assert!(done.code == 0 && done.stderr.contains("asked"), "{done:?}");
    assert_eq!(stdout.next(), "asked\n");
    assert_eq!(job.code(), 3);
    let (mut holder, held) = hold(&sandbox, &["x"]);
    let token = held["token"].as_str().expect("a string");
    assert_eq!(sandbox.output(&["revoke", "x", "--token", token]).code, 0);
    assert_eq!(holder.code(), 0);
    assert_eq!(
        sandbox.output(&["revoke", "x", "--token", token]).code,
        75,
        "the token has no contender any more"
    );
    let done = sandbox.output(&["revoke", "x"]);
    assert!(done.code == 0 && done.stderr.contains("free"), "{done:?}");
}

#[test]
fn break_stops_command_and_frees_lock() {
    let sandbox = Sandbox::new();
    let mut job =
        sandbox.start_piped(&["run", "--grace", "1s", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN; cat"]);
    let line = Lines::of(job.take_stdout()).next();
    let token = line.trim();
    let done = sandbox.output(&["break", "x"]);
    let command = format!("zoolock break x --token {token}\n");
    assert!(done.code == 64 && done.stderr.contains("held by") && done.stderr.contains(&command), "{done:?}");
    for wrong in [token.replacen("00000000-", "00000001-", 1), token.replace("-00000000", "-00000001")] {
        assert_eq!(sandbox.output(&["break", "x", "--token", &wrong]).code, 75, "{wrong}");
    }
    let done = sandbox.output(&["break", "x", "--token", token, "--note", "it hangs"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(job.code(), 70);
    assert_eq!(
        sandbox.output(&["break", "x", "--token", token]).code,
        75,
        "the token has no contender any more"
    );
    assert_eq!(sandbox.output(&["run", "--try", "x", "--", "true"]).code, 0);
    assert!(!sandbox.output(&["ls", "/"]).stdout.contains("audit"), "the audit log is not a lock");
}

#[test]
fn token_begins_with_epoch() {
    let sandbox = Sandbox::new();
    let run = ["ZOOLOCK_TOKEN_EPOCH=7", "run", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN"];
    let seventh = sandbox.output(&run).stdout;
    assert!(seventh.starts_with("00000007-"), "{seventh}");
    assert!(seventh > sandbox.output(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN"]).stdout);
    assert_eq!(sandbox.output(&["ZOOLOCK_TOKEN_EPOCH=-1", "run", "x", "--", "true"]).code, 64);
}

#[test]
fn help_lists_every_kind() {
    let sandbox = Sandbox::new();
    let help = sandbox.output(&["run", "--help"]).stdout;
    for flag in ["--shared", "curator,rw", "[K/]N", "--crash-detection", "--lock-delay", "NAME [NAME]..."] {
        assert!(help.contains(flag), "{flag} is missing in {help}");
    }
    let help = sandbox.output(&["--help"]).stdout;
    for command in ["revoke", "break", "resize"] {
        assert!(help.contains(command), "{help}");
    }
}

#[test]
fn hold_without_output_releases() {
    let sandbox = Sandbox::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has /dev/full");
    let done = sandbox.zoolock(["hold", "x"]).stdout(full).output().expect("the command starts");
    assert_eq!(done.status.code(), Some(74), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn broken_waiter_queues_again() {
    let sandbox = Sandbox::new();
    let (holder, _) = hold(&sandbox, &["x"]);
    let mut waiter = sandbox.start(&["run", "--timeout", "30s", "x", "--", "true"]);
    sandbox.wait_for_contenders("x", 2);
    let token = first_waiter_token(&sandbox, "x");
    assert!(sandbox.output(&["show", "x"]).stdout.contains(&token));
    assert_eq!(sandbox.output(&["break", "x", "--token", &token]).code, 0);
    assert_eq!(sandbox.contenders("x"), 1);
    release(holder);
    // The waiter finds after the release that its znode was deleted, and queues again.
    assert_eq!(waiter.code(), 0);
}

#[test]
fn revoked_waiter_does_not_start_command() {
    let sandbox = Sandbox::new();
    let (holder, _) = hold(&sandbox, &["x"]);
    let mut waiter = sandbox.start(&["run", "x", "--", "touch", "begun"]);
    sandbox.wait_for_contenders("x", 2);
    let token = first_waiter_token(&sandbox, "x");
    std::thread::sleep(WAIT_BEFORE_REVOKE_CHECK);
    assert_eq!(sandbox.output(&["revoke", "x", "--token", &token]).code, 0);
    release(holder);
    assert_eq!(waiter.code(), 75);
    assert!(!sandbox.path("begun").exists());
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn revoke_check_does_not_delay_waiters() {
    let sandbox = Sandbox::new();
    let (holder, _) = hold(&sandbox, &["x"]);
    let script = "date +%s%N >> begun";
    let mut waiters: Vec<_> =
        (0..8).map(|_| sandbox.start(&["run", "x", "--", "sh", "-c", script])).collect();
    sandbox.wait_for_contenders("x", 9);
    std::thread::sleep(WAIT_BEFORE_REVOKE_CHECK);
    release(holder);
    assert!(waiters.iter_mut().all(|waiter| waiter.code() == 0));
    let begun = std::fs::read_to_string(sandbox.path("begun")).expect("the commands ran");
    let begun: Vec<u64> = begun.lines().map(|at| at.parse().expect("a time stamp")).collect();
    assert_eq!(begun.len(), 8);
    // On a busy machine some commands start late, but not all of them. So only the shortest pause is checked.
    let shortest = begun.windows(2).map(|pair| pair[1] - pair[0]).min().map(Duration::from_nanos);
    assert!(shortest.is_some_and(|shortest| shortest < Duration::from_millis(90)), "{begun:?}");
}
