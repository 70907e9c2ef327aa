//! `zoolock leader` and `check`, and what `/leader` and `/live` say of a process.

use std::time::{Duration, Instant};

use crate::common::{Sandbox, http_get, read_until, start_server, wait_until};
use crate::metrics::metrics_address;
use rustix::process::Signal;
use serde_json::{Value, json};
use zoolock::{TestServer, Zoolock};

/// Returns the status and the body of `/leader`.
fn leader_page(address: &str) -> (u16, Value) {
    let answer = http_get(address, "/leader");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let body = answer.rsplit("\r\n\r\n").next().expect("a body");
    (status, serde_json::from_str(body).unwrap_or_default())
}

#[test]
fn leader_is_the_holder_of_the_lock() {
    let sandbox = Sandbox::new();
    let nobody = sandbox.output(&["leader", "reports"]);
    assert!(nobody.code == 66 && nobody.stdout.is_empty(), "{nobody:?}");
    assert!(nobody.stderr.contains("no lock reports"), "{nobody:?}");
    let _leader = sandbox.start(&["run", "--note", "web1:8080", "reports", "--", "sleep", "1000"]);
    sandbox.wait_for_contenders("reports", 1);
    let _standby = sandbox.start(&["run", "--keep", "reports", "--", "sleep", "1000"]);
    sandbox.wait_for_contenders("reports", 2);
    let done = sandbox.output(&["leader", "reports"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let json = sandbox.json(&["leader", "reports"]);
    let token = json["leader"]["token"].as_str().expect("a token");
    for part in ["(run of sleep): web1:8080", &format!(", token {token}, leads for ")] {
        assert!(done.stdout.contains(part), "{part}: {done:?}");
    }
    assert_eq!((&json["path"], &json["waiting"]), (&"/locks/reports".into(), &1.into()));
    assert_eq!(json["leader"], sandbox.json(&["show", "reports"])["holder"]);
}

#[test]
fn lock_that_was_released_has_no_leader() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "--crash-detection", "reports", "--", "true"]).code, 0);
    let done = sandbox.output(&["leader", "reports"]);
    assert!(done.code == 66 && done.stderr.contains("reports has no leader"), "{done:?}");
    let json = sandbox.json_with_code(&["leader", "reports"], 66);
    assert_eq!((&json["leader"], &json["waiting"]), (&Value::Null, &0.into()));
}

#[test]
fn lock_with_several_holders_has_no_leader() {
    let sandbox = Sandbox::new();
    let _running = (
        sandbox.start(&["run", "--shared", "read", "--", "sleep", "1000"]),
        sandbox.start(&["run", "--permits", "2", "slots", "--", "sleep", "1000"]),
    );
    for name in ["read", "slots"] {
        sandbox.wait_for_contenders(name, 1);
        let done = sandbox.output(&["leader", name]);
        assert!(done.code == 64 && done.stderr.contains("several contenders can hold it"), "{done:?}");
        assert!(done.stderr.contains(&format!("zoolock show {name}")), "{done:?}");
    }
}

#[test]
fn second_leader_that_ignores_the_first_is_reported() {
    let sandbox = Sandbox::new();
    let _leader = sandbox.start(&["run", "x", "--", "sleep", "1000"]);
    sandbox.wait_for_contenders("x", 1);
    // This znode has a name in kazoo's own format.
    let _clashing = sandbox.start(&["hold", "--naming", "kazoo", "x"]);
    wait_until("the clash is seen", || !sandbox.json(&["leader", "x"])["clash"].is_null());
    let done = sandbox.output(&["leader", "x"]);
    assert!(done.code == 0 && done.stderr.contains("x may have several leaders now: "), "{done:?}");
    assert!(done.stderr.contains("of kazoo") && done.stdout.contains(", token "), "{done:?}");
}

#[test]
fn page_follows_the_lock_of_run() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "reports"]);
    sandbox.wait_for_contenders("reports", 1);
    let line = ["run", "--keep", "--metrics", "127.0.0.1:0", "reports", "--", "sleep", "1000"];
    let mut standby = sandbox.start_piped(&line);
    let address = metrics_address(standby.take_stderr());
    sandbox.wait_for_contenders("reports", 2);
    let (status, body) = leader_page(&address);
    assert_eq!((status, &body["state"]), (503, &"waiting".into()));
    assert!(http_get(&address, "/live").starts_with("HTTP/1.1 200"));
    holder.end_of_input();
    wait_until("the standby leads", || leader_page(&address).0 == 200);
    let (_, body) = leader_page(&address);
    let holder = &sandbox.json(&["show", "reports"])["holder"];
    assert_eq!((&body["name"], &body["token"]), (&"reports".into(), &holder["token"]));
    assert!(body["valid_ms"].as_u64().is_some_and(|left| left > 0), "{body}");
    // The standby gives the lock back, and waits for it behind the next holder.
    let _next = sandbox.start(&["run", "reports", "--", "sleep", "1000"]);
    sandbox.wait_for_contenders("reports", 2);
    assert_eq!(sandbox.output(&["revoke", "reports"]).code, 0);
    wait_until("the standby waits", || leader_page(&address).0 == 503);
    standby.signal(Signal::TERM);
    standby.wait();
}

#[test]
fn page_says_503_from_one_grace_before_the_end_of_the_lease() {
    let sandbox = Sandbox::new();
    let (server, connect) = start_server(&sandbox);
    let script = "trap 'echo 1 > term; sleep 1000' TERM; echo 1 > ready; while :; do sleep 0.02; done";
    let line = [
        "run",
        "--connect",
        &connect,
        "--session-timeout",
        "24s",
        "--grace",
        "4s",
        "--metrics",
        "127.0.0.1:0",
        "x",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut holder = sandbox.start_piped(&line);
    // The shell writes there when its `sleep` is ended.
    let mut stderr = holder.take_stderr();
    let address = metrics_address(&mut stderr);
    sandbox.wait_for_file("ready");
    wait_until("it leads", || leader_page(&address).0 == 200);
    server.signal(Signal::STOP);
    sandbox.wait_for_file("term");
    // The command has the grace now, and the lease has not ended. A late renewal prolongs it, but not the work.
    server.signal(Signal::CONT);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        let (status, body) = leader_page(&address);
        assert_eq!((status, &body["state"]), (503, &"ending".into()), "{body}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(holder.code(), 70);
    // A lease that was not renewed would have been lost meanwhile.
    read_until(&mut stderr, &mut String::new(), "x could not be renewed in time while");
}

#[test]
fn page_of_hold_keeps_a_grace() {
    let sandbox = Sandbox::new();
    let (server, connect) = start_server(&sandbox);
    let line = ["hold", "--connect", &connect, "--session-timeout", "24s", "--metrics", "127.0.0.1:0", "x"];
    let mut holder = sandbox.start_piped(&line);
    let address = metrics_address(holder.take_stderr());
    wait_until("it leads", || leader_page(&address).0 == 200);
    server.signal(Signal::STOP);
    wait_until("the page says that the lease ends", || {
        let (status, body) = leader_page(&address);
        // A sixth of the session timeout.
        assert!(status == 503 || body["valid_ms"].as_u64().is_some_and(|left| left > 3_900), "{body}");
        (status, &body["state"]) == (503, &"ending".into())
    });
    assert_eq!(holder.code(), 70);
    server.signal(Signal::CONT);
}

#[test]
fn command_that_was_asked_to_end_does_not_lead() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo 1 > term' TERM; echo 1 > ready; while ! [ -e end ]; do sleep 0.02; done; exit 1";
    let start = |name: &str| {
        let line = ["run", "--keep", "--metrics", "127.0.0.1:0", name, "--", "sh", "-c", script];
        let mut running = sandbox.start_piped(&line);
        let mut stderr = running.take_stderr();
        let address = metrics_address(&mut stderr);
        sandbox.wait_for_file("ready");
        wait_until("it leads", || leader_page(&address).0 == 200);
        (running, address, stderr)
    };
    let assert_ending = |address: &str| {
        sandbox.wait_for_file("term");
        let (status, body) = leader_page(address);
        assert_eq!((status, &body["state"]), (503, &"ending".into()), "{body}");
        for file in ["term", "ready"] {
            std::fs::remove_file(sandbox.path(file)).expect("the file exists");
        }
    };
    let (mut asked, address, _stderr) = start("revoked");
    assert_eq!(sandbox.output(&["revoke", "revoked"]).code, 0);
    assert_ending(&address);
    asked.signal(Signal::KILL);
    asked.wait();

    let (mut asked, address, _stderr) = start("asked");
    asked.signal(Signal::TERM);
    assert_ending(&address);
    asked.signal(Signal::KILL);
    asked.wait();

    // A command that has ended does not lead until --keep has started it again.
    let (mut restarts, address, _stderr) = start("restarts");
    std::fs::write(sandbox.path("end"), "").expect("written");
    wait_until("the command has ended", || leader_page(&address) == (503, json!({ "state": "ending" })));
    restarts.signal(Signal::TERM);
    restarts.wait();
}

#[test]
fn holder_without_a_command_has_a_page() {
    let sandbox = Sandbox::new();
    let (_server, connect) = start_server(&sandbox);
    let line = ["hold", "--connect", &connect, "--metrics", "127.0.0.1:0", "x"];
    let mut holder = sandbox.start_piped(&line);
    let address = metrics_address(holder.take_stderr());
    wait_until("the holder leads", || leader_page(&address).0 == 200);
    // The end of the input releases the lock.
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

#[test]
fn reader_has_no_page() {
    let sandbox = Sandbox::new();
    let mut reader = sandbox.start_piped(&["hold", "--shared", "--metrics", "127.0.0.1:0", "x"]);
    let address = metrics_address(reader.take_stderr());
    sandbox.wait_for_contenders("x", 1);
    assert!(http_get(&address, "/leader").starts_with("HTTP/1.1 404"));
    assert!(http_get(&address, "/live").starts_with("HTTP/1.1 200"));
    reader.end_of_input();
    assert_eq!(reader.code(), 0);
}

/// A program of the library and the command stand in one election.
#[tokio::test(flavor = "multi_thread")]
async fn command_names_the_leader_of_a_program() {
    let server = TestServer::start().await.expect("server started");
    let zl = Zoolock::connect(server.address()).await.expect("connected");
    let election = zl.election("reports").candidate("web2:8080");
    let stands = election.clone();
    let work = tokio::spawn(async move { stands.run(|term| async move { term.stopping().await }).await });
    let sandbox = Sandbox::new();
    let read = || sandbox.output(&["leader", "reports", "--connect", &server.address()]);
    while !election.is_leader() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let done = tokio::task::block_in_place(read);
    // The time of the grant is known, because an election has crash detection.
    assert!(done.code == 0 && done.stdout.contains(": web2:8080, token "), "{done:?}");
    assert!(done.stdout.contains(", leads for ") && !done.stdout.contains('≤'), "{done:?}");
    election.resign();
    work.await.expect("the task ends").expect("resigned");
    let done = tokio::task::block_in_place(read);
    assert!(done.code == 66 && done.stderr.contains("reports has no leader"), "{done:?}");
    zl.close().await;
}

#[test]
fn token_of_the_holder_is_current() {
    let sandbox = Sandbox::new();
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    let script = format!("echo $ZOOLOCK_TOKEN > token; {zoolock} check x $ZOOLOCK_TOKEN; echo $? > code");
    assert_eq!(sandbox.output(&["run", "x", "--", "sh", "-c", &script]).code, 0);
    let line = |name: &str| std::fs::read_to_string(sandbox.path(name)).expect("a file").trim().to_owned();
    assert_eq!(line("code"), "0");
    let old = line("token");
    let free = sandbox.output(&["check", "x", &old]);
    assert!(free.code == 75 && free.stdout.is_empty(), "{free:?}");
    assert!(free.stderr.contains(&format!("x: no holder has the token {old}; it is free")), "{free:?}");
    let _next = sandbox.start(&["run", "--note", "night", "x", "--", "sleep", "1000"]);
    sandbox.wait_for_contenders("x", 1);
    let held = sandbox.output(&["check", "x", &old]);
    assert!(held.code == 75 && held.stderr.contains("(run of sleep): night"), "{held:?}");
    let json = sandbox.json_with_code(&["check", "x", &old], 75);
    assert_eq!((&json["current"], &json["holder"]["note"]), (&false.into(), &"night".into()));
    let token = json["holder"]["token"].as_str().expect("a token");
    let json = sandbox.json(&["check", "x", token]);
    assert_eq!((&json["current"], &json["holder"]), (&true.into(), &Value::Null));
    let bad = sandbox.output(&["check", "x", "17"]);
    assert!(bad.code == 64 && bad.stderr.contains("17"), "{bad:?}");
    let other_epoch = sandbox.output(&["ZOOLOCK_TOKEN_EPOCH=1", "check", "x", token]);
    assert_eq!(other_epoch.code, 75, "{other_epoch:?}");
}
