//! `zoolock doctor`. `both_servers` examines healthy servers. `faults` creates faults that `zoolock
//! doctor` must report.

mod both_servers;
mod deadlocks;
mod diagnosis;
mod faults;

use rustix::process::Signal;

use crate::common::process_tree::signal;
use crate::common::{Sandbox, server_with};
use crate::terminal::Terminal;

use self::diagnosis::{Diagnosis, examine, examine_with};

/// Words that fit Apache ZooKeeper only.
const APACHE_WORDS: [&str; 6] =
    ["zoo.cfg", "4lw.", "maxClientCnxns", "SessionTimeout", "secureClientPort", "ensemble"];

/// Asserts that the findings are for `zoolock serve`: no text has a word that fits Apache ZooKeeper only.
fn assert_no_apache_words(diagnosis: &Diagnosis) {
    for word in APACHE_WORDS {
        assert!(!diagnosis.stdout.contains(word), "{word}: {diagnosis:?}");
    }
}

#[test]
fn fresh_local_server_has_no_findings() {
    let sandbox = Sandbox::new();
    let diagnosis = Diagnosis::of(&sandbox, &[]);
    assert_eq!((diagnosis.code, &diagnosis.report["worst"]), (0, &"ok".into()), "{diagnosis:?}");
    assert!(diagnosis.stderr.contains("nothing is wrong"), "{diagnosis:?}");
    assert_no_apache_words(&diagnosis);
    // With another root, a root that does not exist may be misspelled.
    let diagnosis = Diagnosis::of(&sandbox, &["--root", "/elsewhere"]);
    assert_eq!((diagnosis.code, diagnosis.level("root")), (0, Some("note")), "{diagnosis:?}");
}

#[test]
fn used_loopback_server_has_no_warnings() {
    let sandbox = Sandbox::new();
    let (_server, address) = server_with(&sandbox, &[]);
    assert_eq!(sandbox.output(&["run", "--connect", &address, "x", "--", "true"]).code, 0);
    let diagnosis = examine_with(&address, &[]);
    assert_eq!((diagnosis.code, &diagnosis.report["worst"]), (0, &"ok".into()), "{diagnosis:?}");
    assert_eq!(diagnosis.level("ticks"), Some("ok"), "{diagnosis:?}");
    assert_no_apache_words(&diagnosis);
}

#[test]
fn remedies_for_our_server_name_its_options() {
    let sandbox = Sandbox::new();
    let flags =
        ["--max-session-timeout", "16s", "--max-connections-per-address", "2", "--words", "srvr,conf"];
    let (_server, address) = server_with(&sandbox, &flags);
    let diagnosis = examine(&address);
    assert_eq!(diagnosis.level("session"), Some("warning"), "{diagnosis:?}");
    assert!(diagnosis.remedies("session").contains("`zoolock serve --max-session-timeout`"), "{diagnosis:?}");
    let remedies = diagnosis.remedies("connections");
    assert!(remedies.is_empty() || remedies.contains("--max-connections-per-address"), "{diagnosis:?}");
    assert_no_apache_words(&diagnosis);
}

#[test]
fn doctor_finds_local_server_protected() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let diagnosis = Diagnosis::of(&sandbox, &[]);
    for (check, level) in [("server", "ok"), ("ticks", "ok")] {
        assert_eq!(diagnosis.level(check), Some(level), "{diagnosis:?}");
    }
    assert_eq!(diagnosis.report["worst"], "ok", "{diagnosis:?}");
    assert_eq!((diagnosis.code, &diagnosis.report["service"]), (0, &"local".into()), "{diagnosis:?}");
}

#[test]
fn hanging_local_server_is_an_error() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let status = sandbox.output(&["serve", "--status", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let server = status["pid"].to_string();
    signal(&server, Signal::STOP);
    let diagnosis = Diagnosis::of(&sandbox, &["ZOOLOCK_CONNECT_TIMEOUT=1s"]);
    signal(&server, Signal::CONT);
    assert_eq!((diagnosis.code, diagnosis.level("service")), (69, Some("error")), "{diagnosis:?}");
    let report = &diagnosis.report;
    assert_eq!((&report["worst"], &report["complete"]), (&"error".into(), &false.into()), "{diagnosis:?}");
    assert!(diagnosis.remedies("service").contains("`zoolock serve --stop`"), "{diagnosis:?}");
    assert!(!diagnosis.stderr.contains("nothing is wrong"), "{diagnosis:?}");
}

#[test]
fn server_behind_unix_socket_is_examined() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let address = format!("unix:{}", sandbox.state().join("socket").display());
    let diagnosis = Diagnosis::of(&sandbox, &["--connect", &address]);
    // The server answers four-letter words, so it is known as the server of local mode.
    assert_eq!((diagnosis.code, &diagnosis.report["worst"]), (0, &"ok".into()), "{diagnosis:?}");
    for check in ["server", "session"] {
        assert_eq!(diagnosis.level(check), Some("ok"), "{check}: {diagnosis:?}");
    }
    assert_no_apache_words(&diagnosis);
    // The path of the socket is no chroot.
    assert_eq!(diagnosis.level("chroot"), None, "{diagnosis:?}");
    assert_ne!(diagnosis.report["directories"], 0, "{diagnosis:?}");
}

#[test]
fn server_without_four_letter_words_is_examined() {
    let sandbox = Sandbox::new();
    let (_server, address) = server_with(&sandbox, &["--words", "ruok"]);
    let diagnosis = examine(&address);
    assert_eq!((diagnosis.code, diagnosis.level("server")), (0, Some("note")), "{diagnosis:?}");
    assert_eq!(diagnosis.level("session"), Some("ok"), "{diagnosis:?}");
}

#[test]
fn table_fits_the_terminal() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["run", "x", "--", "true"]).code, 0);
    let line = format!("stty cols 60; exec {} -q doctor --color never", env!("CARGO_BIN_EXE_zoolock"));
    let mut terminal = Terminal::start(&sandbox, &line);
    let shown = terminal.rest();
    assert!(shown.contains("LEVEL") && shown.contains("session"), "{shown}");
    for line in shown.lines() {
        assert!(line.chars().count() <= 60, "{line:?}\n{shown}");
    }
}

#[test]
fn findings_are_printed_with_remedies() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["doctor", "--root", "/elsewhere"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.starts_with("LEVEL    CHECK"), "{done:?}");
    assert!(done.stdout.lines().any(|line| line.trim_start().starts_with("→ ")), "{done:?}");
    assert!(!done.stdout.contains('\x1b'), "{done:?}");
    // The summary is a message, and so goes to standard error.
    assert!(done.stderr.contains("note"), "{done:?}");
}
