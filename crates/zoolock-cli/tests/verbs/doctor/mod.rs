//! `doctor` with this user's server, and with one that says little.

mod both_servers;
mod faults;
mod front;
mod patient;

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt;

use crate::common::{Sandbox, wait_until};
use serde_json::Value;

fn level(report: &Value, check: &str) -> Option<String> {
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["check"] == check)?;
    Some(found["level"].as_str().expect("a word").to_owned())
}

#[test]
fn this_users_server_lets_nobody_in_without_its_secret() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let done = sandbox.output(&["doctor", "--json", "--strict"]);
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(level(&report, "access").as_deref(), Some("ok"), "{done:?}");
    // It answers no words, and needs none: nothing is found that somebody in local mode could not mend.
    assert_eq!((&report["worst"], level(&report, "orphans")), (&"ok".into(), None), "{done:?}");
    for check in ["server", "ticks", "acl"] {
        assert_eq!(level(&report, check).as_deref(), Some("ok"), "{done:?}");
    }
    assert_eq!((done.code, &report["service"]), (0, &"local".into()), "{done:?}");
    let secret = std::fs::read_to_string(sandbox.state().join("secret")).expect("a secret");
    assert!(!done.stdout.contains(secret.trim()), "{done:?}");
}

#[test]
fn a_server_that_answers_no_words_is_looked_at_all_the_same() {
    let sandbox = Sandbox::new();
    let mut server = sandbox.converse(&["serve", "--listen", "127.0.0.1:0", "--words", "ruok"]);
    let mut line = String::new();
    BufReader::new(server.0.stderr.take().expect("caught")).read_line(&mut line).expect("it says where");
    let address = line.trim().rsplit(' ').next().expect("the address is last");
    let done = sandbox.output(&["doctor", "--json", "--connect", address]);
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!((done.code, level(&report, "server").as_deref()), (0, Some("note")), "{done:?}");
    assert_eq!(level(&report, "session").as_deref(), Some("ok"), "{done:?}");
}

#[test]
fn what_could_not_be_tried_is_no_good_news() {
    let sandbox = Sandbox::new();
    let credentials = sandbox.path("credentials");
    std::fs::write(&credentials, "jobs:x\n").expect("writable");
    std::fs::set_permissions(&credentials, PermissionsExt::from_mode(0o600)).expect("ours");
    // Our own session is the only one that there is room for.
    let mut server = sandbox.converse(&["serve", "--listen", "127.0.0.1:0", "--max-connections", "1"]);
    let mut line = String::new();
    BufReader::new(server.0.stderr.take().expect("caught")).read_line(&mut line).expect("it says where");
    let address = line.trim().rsplit(' ').next().expect("the address is last");
    let auth = format!("digest:@{}", credentials.display());
    let args = ["doctor", "--json", "--connect-timeout", "2s", "--connect", address, "--auth", &auth];
    let mut looked = None;
    wait_until("there is room for our own session", || {
        // A connection that has just ended may still be counted.
        let done = sandbox.output(&args);
        let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
        looked = level(&report, "access").map(|level| (level, done));
        looked.is_some()
    });
    let (level, done) = looked.expect("found just now");
    assert_eq!(level, "note", "{done:?}");
    assert!(done.stdout.contains("could not be tried"), "{done:?}");
}

/// On a terminal, which `script` of util-linux makes.
#[test]
fn the_table_fits_the_terminal() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let line = format!("stty cols 60; exec {} -q doctor --color never", env!("CARGO_BIN_EXE_zoolock"));
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env_remove("ZOOLOCK_CONNECT");
    script.env("ZOOLOCK_STATE_DIR", sandbox.state()).stdin(std::process::Stdio::null());
    let shown = match script.output() {
        Ok(done) => String::from_utf8_lossy(&done.stdout).into_owned(),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no `script`: {error}");
            eprintln!("skipped: no `script` here ({error})");
            return;
        }
    };
    assert!(shown.contains("LEVEL") && shown.contains("session"), "{shown}");
    for line in shown.lines() {
        assert!(line.chars().count() <= 60, "{line:?}\n{shown}");
    }
}

#[test]
fn findings_are_a_table_for_people_with_their_remedies() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["doctor"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.starts_with("LEVEL    CHECK"), "{done:?}");
    assert!(done.stdout.lines().any(|line| line.trim_start().starts_with("→ ")), "{done:?}");
    assert!(!done.stdout.contains('\x1b'), "{done:?}");
    // What it comes to is talk, not data.
    assert!(done.stderr.contains("note"), "{done:?}");
}
