//! `zoolock doctor`. `both_servers` finds nothing wrong on either server, `faults` plants what is wrong.

mod both_servers;
mod faults;
mod front;
mod patient;

use std::os::unix::fs::PermissionsExt;

use crate::common::{Sandbox, server_with, wait_until};
use crate::terminal::Terminal;

use self::patient::{Patient, examine};

#[test]
fn doctor_finds_local_server_protected() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let patient = Patient::of(&sandbox, &["--strict"]);
    // The server answers no four-letter words, and local mode needs none.
    for (check, level) in [("access", "ok"), ("server", "ok"), ("ticks", "ok"), ("acl", "ok")] {
        assert_eq!(patient.level(check), Some(level), "{patient:?}");
    }
    assert_eq!((&patient.report["worst"], patient.level("orphans")), (&"ok".into(), None), "{patient:?}");
    assert_eq!((patient.code, &patient.report["service"]), (0, &"local".into()), "{patient:?}");
    let secret = std::fs::read_to_string(sandbox.state().join("secret")).expect("a secret");
    assert!(!patient.stdout.contains(secret.trim()), "{patient:?}");
}

#[test]
fn server_without_four_letter_words_is_examined() {
    let sandbox = Sandbox::new();
    let (_server, address) = server_with(&sandbox, &["--words", "ruok"]);
    let patient = examine(&address);
    assert_eq!((patient.code, patient.level("server")), (0, Some("note")), "{patient:?}");
    assert_eq!(patient.level("session"), Some("ok"), "{patient:?}");
}

#[test]
fn untried_check_is_reported_as_note() {
    let sandbox = Sandbox::new();
    let credentials = sandbox.path("credentials");
    std::fs::write(&credentials, "jobs:x\n").expect("writable");
    std::fs::set_permissions(&credentials, PermissionsExt::from_mode(0o600)).expect("ours");
    // There is room for one session only: the doctor's own.
    let (_server, address) = server_with(&sandbox, &["--max-connections", "1"]);
    let auth = format!("digest:@{}", credentials.display());
    let args = ["--connect-timeout", "2s", "--connect", &address, "--auth", &auth];
    let mut looked = None;
    wait_until("there is room for our own session", || {
        // A connection that has just ended may still be counted.
        let patient = Patient::of(&sandbox, &args);
        let has_looked = patient.level("access").is_some();
        looked = Some(patient);
        has_looked
    });
    let patient = looked.expect("found just now");
    assert_eq!(patient.level("access"), Some("note"), "{patient:?}");
    assert!(patient.stdout.contains("could not be tried"), "{patient:?}");
}

#[test]
fn table_fits_the_terminal() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let line = format!("stty cols 60; exec {} -q doctor --color never", env!("CARGO_BIN_EXE_zoolock"));
    let Some(mut terminal) = Terminal::start(&sandbox, &line) else { return };
    let shown = terminal.rest();
    assert!(shown.contains("LEVEL") && shown.contains("session"), "{shown}");
    for line in shown.lines() {
        assert!(line.chars().count() <= 60, "{line:?}\n{shown}");
    }
}

#[test]
fn findings_are_printed_with_remedies() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["doctor"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.starts_with("LEVEL    CHECK"), "{done:?}");
    assert!(done.stdout.lines().any(|line| line.trim_start().starts_with("→ ")), "{done:?}");
    assert!(!done.stdout.contains('\x1b'), "{done:?}");
    // What it comes to is talk, not data.
    assert!(done.stderr.contains("note"), "{done:?}");
}
