//! Every kind of lock from the command line, and what operators do to them.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{Done, PATIENCE, Running, Sandbox, wait_until};
use rustix::process::Signal;

/// Holds with these arguments, and says what `hold --json` printed.
fn hold(sandbox: &Sandbox, args: &[&str]) -> (Running, serde_json::Value) {
    let mut holder = sandbox.converse(&[&["hold", "--json"], args].concat());
    let mut line = String::new();
    BufReader::new(holder.0.stdout.take().expect("caught")).read_line(&mut line).expect("it prints");
    (holder, serde_json::from_str(&line).expect("JSON"))
}

fn show(sandbox: &Sandbox, name: &str) -> serde_json::Value {
    serde_json::from_str(&sandbox.output(&["show", "--json", name]).stdout).expect("JSON")
}

#[test]
fn shared_runs_beside_shared_and_not_beside_alone() {
    let sandbox = Sandbox::new();
    let (mut reader, held) = hold(&sandbox, &["--shared", "db"]);
    assert_eq!(held["alone"], false);
    let script = "echo ${ZOOLOCK_TOKEN-none} $ZOOLOCK_TICKET";
    let beside = sandbox
        .zoolock(["run", "--try", "--shared", "db", "--", "sh", "-c", script])
        .env("ZOOLOCK_TOKEN", "of another lock")
        .output()
        .expect("it runs");
    let words = String::from_utf8(beside.stdout).expect("text");
    assert!(words.starts_with("none ") && words.trim().len() > 10, "{words}");
    for alone in
        [&["run", "--try", "db"][..], &["run", "--try", "--write", "db"], &["run", "--try", "db", "other"]]
    {
        let done = sandbox.output(&[alone, &["--", "true"]].concat());
        assert_eq!(done.code, 75, "{done:?}");
        assert!(done.stderr.contains("held by"), "{done:?}");
    }
    let (mut second, _) = hold(&sandbox, &["--shared", "db"]);
    let text = sandbox.output(&["show", "db"]).stdout;
    assert_eq!(text.matches("held by").count(), 2, "{text}");
    assert!(text.contains("reader"), "{text}");
    let text = sandbox.output(&["ls"]).stdout;
    assert!(text.contains("and 1 more"), "{text}");
    for holder in [&mut reader, &mut second] {
        holder.end_of_input();
        assert_eq!(holder.code(), 0);
    }
    let (mut writer, held) = hold(&sandbox, &["--write", "db"]);
    assert!(held["alone"] == true && held["node"].as_str().expect("text").contains("__WRIT__"), "{held}");
    assert_eq!(sandbox.output(&["run", "--try", "--shared", "db", "--", "true"]).code, 75);
    writer.end_of_input();
    assert_eq!(writer.code(), 0);
}

#[test]
fn permits_are_counted_and_the_size_is_agreed() {
    let sandbox = Sandbox::new();
    let (mut two, _) = hold(&sandbox, &["--permits", "3", "--take", "2", "workers"]);
    assert_eq!(sandbox.output(&["run", "--try", "--permits", "3", "workers", "--", "true"]).code, 0);
    let done = sandbox.output(&["run", "--try", "--permits", "3", "--take", "2", "workers", "--", "true"]);
    assert_eq!(done.code, 75, "{done:?}");
    let done = sandbox.output(&["run", "--try", "--permits", "4", "workers", "--", "true"]);
    assert_eq!(done.code, 64, "{done:?}");
    assert!(done.stderr.contains("3 permits"), "{done:?}");
    let text = sandbox.output(&["show", "workers"]).stdout;
    assert!(text.contains("2 of 3") && text.contains("2 permits"), "{text}");
    let done = sandbox.output(&["resize", "workers", "--permits", "4"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(
        sandbox.output(&["run", "--try", "--permits", "4", "--take", "2", "workers", "--", "true"]).code,
        0
    );
    assert_eq!(
        sandbox.output(&["run", "--try", "workers", "--", "true"]).code,
        64,
        "a semaphore is no mutex"
    );
    assert_eq!(sandbox.output(&["resize", "nothing", "--permits", "4"]).code, 64);
    two.end_of_input();
    assert_eq!(two.code(), 0);
}

#[test]
fn permits_are_refused_with_a_naming_of_another_library() {
    let sandbox = Sandbox::new();
    for naming in ["curator", "kazoo", "write-lock"] {
        let done = sandbox.output(&["run", "--naming", naming, "--permits", "3", "x", "--", "true"]);
        assert_eq!(done.code, 64, "{done:?}");
        assert!(done.stderr.contains(&format!("naming {naming}: has no semaphore")), "{done:?}");
        assert!(done.stderr.contains("use native with a name of its own, or the other library"), "{done:?}");
    }
    let done = sandbox.output(&["run", "--naming", "curator-semaphore", "--permits", "3", "x", "--", "true"]);
    assert!(done.code == 64 && done.stderr.contains("native, curator, kazoo, write-lock"), "{done:?}");
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn an_empty_naming_in_the_environment_is_none() {
    let sandbox = Sandbox::new();
    let run = |naming: &str, args: &[&str]| {
        let mut command = sandbox.zoolock(args);
        // Its input ends at once.
        command.env("ZOOLOCK_NAMING", naming).stdin(Stdio::piped());
        Done::from(command.output().expect("it starts"))
    };
    for (naming, prefix) in [("", "/lock-"), ("curator", "/_c_")] {
        let done = run(naming, &["hold", "--json", "x"]);
        assert_eq!(done.code, 0, "{done:?}");
        let held: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert!(held["node"].as_str().expect("text").contains(prefix), "{naming:?}: {held}");
    }
    let done = run("kazo", &["run", "x", "--", "true"]);
    assert!(done.code == 64 && done.stderr.contains("ZOOLOCK_NAMING"), "{done:?}");
    assert_eq!(run("", &["run", "--permits", "3", "s", "--", "true"]).code, 0);
    let done = run("", &["resize", "s", "--permits", "4"]);
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn a_neighbour_who_does_not_see_us_is_told_of_however_quiet() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.converse(&["hold", "--quiet", "x"]);
    let words = BufReader::new(holder.0.stderr.take().expect("caught"));
    let (heard, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || words.lines().map_while(Result::ok).try_for_each(|line| heard.send(line)));
    sandbox.wait_for_contenders("x", 1);
    // By its name it could be one of kazoo's own.
    let _neighbour = sandbox.start(&["hold", "--naming", "kazoo", "x"]);
    let told = hears.recv_timeout(PATIENCE).expect("it is told, and nothing else was");
    assert!(told.contains("of kazoo") && told.contains("two may hold"), "{told}");
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

#[test]
fn several_names_are_held_together() {
    let sandbox = Sandbox::new();
    let script = "echo $ZOOLOCK_NAME, $ZOOLOCK_PATH";
    let done = sandbox.output(&["run", "b", "a", "--", "sh", "-c", script]);
    assert_eq!(done.stdout, "b a, /locks/b /locks/a\n", "{done:?}");
    let (mut holder, _) = hold(&sandbox, &["a"]);
    let done = sandbox.output(&["run", "--timeout", "300ms", "b", "a", "--", "true"]);
    assert_eq!(done.code, 75, "{done:?}");
    assert!(done.stderr.contains("b and a"), "{done:?}");
    assert_eq!(sandbox.output(&["run", "--try", "b", "--", "true"]).code, 0, "none of them is kept");
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

#[test]
fn a_crash_is_told_to_the_next_command() {
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
    let _ = holder.0.wait();
    wait_until("its session is over", || show(&sandbox, "x")["holder"].is_null());
    assert_eq!(show(&sandbox, "x")["previous"], "crashed", "{held}");
    let began = std::time::Instant::now();
    assert_eq!(previous(&["--crash-detection", "--lock-delay", "1500ms"]), "crashed\n");
    assert!(began.elapsed() >= std::time::Duration::from_millis(1500));
    assert_eq!(previous(&[]), "clean\n");
}

#[test]
fn a_revoked_command_gets_term_and_a_revoked_hold_lets_go() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let mut job = sandbox.converse(&["run", "x", "--", "sh", "-c", script]);
    let mut lines = BufReader::new(job.0.stdout.take().expect("caught")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    let done = sandbox.output(&["revoke", "x"]);
    assert!(done.code == 0 && done.stderr.contains("asked"), "{done:?}");
    assert_eq!(lines.next().expect("a line").expect("text"), "asked");
    assert_eq!(job.code(), 3);
    let script = "echo ready; sleep 2; echo done";
    let mut job = sandbox.converse(&["run", "--on-revoke", "warn", "x", "--", "sh", "-c", script]);
    let mut lines = BufReader::new(job.0.stdout.take().expect("caught")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    assert_eq!(sandbox.output(&["revoke", "x"]).code, 0);
    assert_eq!(lines.next().expect("a line").expect("text"), "done");
    assert_eq!(job.code(), 0);
    let (mut holder, held) = hold(&sandbox, &["x"]);
    let token = held["token"].as_str().expect("text");
    assert_eq!(sandbox.output(&["revoke", "x", "--token", token]).code, 0);
    assert_eq!(holder.code(), 0);
    assert_eq!(sandbox.output(&["revoke", "x", "--token", token]).code, 75, "it is gone");
    let done = sandbox.output(&["revoke", "x"]);
    assert!(done.code == 0 && done.stderr.contains("free"), "{done:?}");
}

#[test]
fn a_broken_command_is_stopped_and_the_next_one_runs() {
    let sandbox = Sandbox::new();
    let mut job =
        sandbox.converse(&["run", "--grace", "1s", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN; cat"]);
    let mut token = String::new();
    BufReader::new(job.0.stdout.take().expect("caught")).read_line(&mut token).expect("a token");
    for wrong in
        [token.trim().replacen("00000000-", "00000001-", 1), token.trim().replace("-00000000", "-00000001")]
    {
        assert_eq!(sandbox.output(&["break", "x", "--token", &wrong]).code, 75, "{wrong}");
    }
    let done = sandbox.output(&["break", "x", "--token", token.trim(), "--note", "it hangs"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(job.code(), 70);
    assert_eq!(sandbox.output(&["break", "x", "--token", token.trim()]).code, 75, "it is gone");
    assert_eq!(sandbox.output(&["run", "--try", "x", "--", "true"]).code, 0);
    assert!(!sandbox.output(&["ls", "/"]).stdout.contains("audit"), "no lock");
}

#[test]
fn an_epoch_is_the_first_part_of_every_token() {
    let sandbox = Sandbox::new();
    let run = ["run", "--token-epoch", "7", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN"];
    let seventh = sandbox.output(&run).stdout;
    assert!(seventh.starts_with("00000007-"), "{seventh}");
    assert!(seventh > sandbox.output(&["run", "x", "--", "sh", "-c", "echo $ZOOLOCK_TOKEN"]).stdout);
    assert_eq!(sandbox.output(&["run", "--token-epoch", "-1", "x", "--", "true"]).code, 64);
}

#[test]
fn every_kind_is_in_the_help() {
    let sandbox = Sandbox::new();
    let help = sandbox.output(&["run", "--help"]).stdout;
    for flag in [
        "--shared",
        "--write",
        "--permits",
        "--take",
        "--crash-detection",
        "--lock-delay",
        "--token-epoch",
        "NAME [NAME]...",
    ] {
        assert!(help.contains(flag), "{flag} is missing in {help}");
    }
    let help = sandbox.output(&["--help"]).stdout;
    for command in ["revoke", "break", "resize"] {
        assert!(help.contains(command), "{help}");
    }
}

#[test]
fn a_hold_that_cannot_print_its_token_does_not_hold() {
    let sandbox = Sandbox::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let done = sandbox.zoolock(["hold", "x"]).stdout(full).output().expect("it runs");
    assert_eq!(done.status.code(), Some(74), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn the_token_of_a_waiter_is_shown_and_takes_its_place_away() {
    let sandbox = Sandbox::new();
    let (mut holder, _) = hold(&sandbox, &["x"]);
    let mut waiter = sandbox.start(&["run", "--timeout", "30s", "x", "--", "true"]);
    sandbox.wait_for_contenders("x", 2);
    let token = show(&sandbox, "x")["waiters"][0]["token"].as_str().expect("text").to_owned();
    assert!(sandbox.output(&["show", "x"]).stdout.contains(&token));
    assert_eq!(sandbox.output(&["break", "x", "--token", &token]).code, 0);
    assert!(show(&sandbox, "x")["waiters"].as_array().expect("a list").is_empty());
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
    // It is told when it would have had its turn, and queues again.
    assert_eq!(waiter.code(), 0);
}

#[test]
fn a_waiter_that_is_revoked_does_not_begin() {
    let sandbox = Sandbox::new();
    let (mut holder, _) = hold(&sandbox, &["x"]);
    let mut command = sandbox.zoolock(["run", "x", "--", "touch", "begun"]);
    let mut waiter = Running(command.spawn().expect("it starts"));
    sandbox.wait_for_contenders("x", 2);
    let token = show(&sandbox, "x")["waiters"][0]["token"].as_str().expect("text").to_owned();
    // Who has waited for less does not ask.
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert_eq!(sandbox.output(&["revoke", "x", "--token", &token]).code, 0);
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
    assert_eq!(waiter.code(), 75);
    assert!(!sandbox.path("begun").exists());
    assert_eq!(sandbox.contenders("x"), 0);
}

#[test]
fn a_waiter_that_nobody_asked_begins_at_once() {
    let sandbox = Sandbox::new();
    let (mut holder, _) = hold(&sandbox, &["x"]);
    let script = "date +%s%N >> begun";
    let mut waiters: Vec<_> =
        (0..8).map(|_| sandbox.start(&["run", "x", "--", "sh", "-c", script])).collect();
    sandbox.wait_for_contenders("x", 9);
    // Who has waited for less does not ask.
    std::thread::sleep(std::time::Duration::from_millis(400));
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
    assert!(waiters.iter_mut().all(|waiter| waiter.code() == 0));
    let begun = std::fs::read_to_string(sandbox.path("begun")).expect("they began");
    let begun: Vec<u64> = begun.lines().map(|at| at.parse().expect("a time")).collect();
    assert_eq!(begun.len(), 8);
    // On a busy machine one or the other is late, and not all of them.
    let quickest = begun.windows(2).map(|pair| pair[1] - pair[0]).min().map(std::time::Duration::from_nanos);
    assert!(quickest.is_some_and(|quickest| quickest < std::time::Duration::from_millis(90)), "{begun:?}");
}
