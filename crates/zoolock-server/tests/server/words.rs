//! Four-letter words: their answers are those of Apache ZooKeeper 3.8, and only allowed words are
//! executed.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use zoolock_server::{FourLetterWord, Secret};
use zoolock_tests::four_letter::send_four_letter_word;
use zoolock_tests::{Apache, ServerOptions, apache};
use zoolock_wire::Request;

use crate::common::{RawClient, builder, children, create, exists, get};

/// The words of ZooKeeper that the embedded server does not support.
const UNSUPPORTED: [&str; 10] =
    ["cons", "crst", "dirs", "dump", "gtmk", "hash", "srst", "stmk", "wchc", "wchp"];

/// Returns the answer to a word that is not in the whitelist.
fn refused(word: &str) -> String {
    format!("{word} is not executed because it is not in the whitelist.\n")
}

/// Replaces numbers and versions, which differ between two servers.
fn normal(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line.split_once("version: ").map_or(line, |(before, _)| before);
    while let Some(c) = rest.chars().next() {
        let hex =
            rest.strip_prefix("0x").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
        if let Some(after) = hex {
            out.push_str("0xN");
            rest = after;
        } else if c.is_ascii_digit() || c == '-' && rest[1..].starts_with(|c: char| c.is_ascii_digit()) {
            out.push('N');
            rest = rest[1..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

fn lines(text: &str) -> Vec<String> {
    text.split('\n').map(normal).collect()
}

fn sorted(text: &str) -> BTreeSet<String> {
    lines(text).into_iter().collect()
}

/// Returns the value of `key` in lines of the form `key<separator>value`.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let line =
        text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{key} in {text}"));
    line.trim_start_matches(['\t', '=', ' ', ':'])
}

fn keys(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.split(['\t', '=']).next()).collect()
}

/// Opens two sessions with ephemerals and watches of all kinds.
async fn play(addr: SocketAddr) -> (RawClient, RawClient) {
    let (mut a, mut b) = (RawClient::connect(addr).await, RawClient::connect(addr).await);
    for (path, flags) in [("/e", 1), ("/e2", 1), ("/p", 0)] {
        a.call_ok(create(path, flags)).await;
    }
    assert_eq!(a.call_error(exists("/none", true)).await, -101);
    b.call_ok(get("/p", true)).await;
    b.call_ok(children("/", true)).await;
    a.call_ok(get("/p", true)).await;
    a.call_ok(Request::AddWatch { path: "/p".into(), mode: 1 }).await;
    a.call_ok(Request::AddWatch { path: "/rec".into(), mode: 0 }).await;
    (a, b)
}

#[tokio::test]
async fn words_are_answered_as_by_apache_zookeeper() {
    if !apache::availability().or_skip("words_are_answered_as_by_apache_zookeeper") {
        return;
    }
    let theirs = Apache::start(ServerOptions::default()).await.expect("it starts");
    let dir = tempfile::TempDir::new().expect("a directory");
    let ours = builder().words(FourLetterWord::ALL).data_dir(dir.path()).start().await.expect("it starts");
    let sessions = (play(theirs.socket_addr()).await, play(ours.local_addr()).await);
    let ask = async |word: &str| {
        let theirs = send_four_letter_word(theirs.socket_addr(), word).await.expect("an answer");
        (theirs, send_four_letter_word(ours.local_addr(), word).await.expect("an answer"))
    };
    for word in ["ruok", "isro", "srvr", "wchs"] {
        let (theirs, ours) = ask(word).await;
        assert_eq!(lines(&theirs), lines(&ours), "{word}");
    }
    let (theirs, ours) = ask("stat").await;
    assert_eq!(sorted(&theirs), sorted(&ours), "{theirs}\n{ours}");
    let (theirs, ours) = ask("wchs").await;
    assert_eq!(theirs, ours);
    let (theirs, ours) = ask("conf").await;
    assert_eq!(keys(&theirs), keys(&ours));
    let (theirs, ours) = ask("envi").await;
    for key in keys(&ours).into_iter().filter(|key| *key != "zookeeper.version") {
        assert!(keys(&theirs).contains(&key), "{key}");
    }
    let (theirs, ours) = ask("mntr").await;
    for key in keys(&ours).into_iter().filter(|key| !key.starts_with("zk_budget_")) {
        assert!(keys(&theirs).contains(&key), "Apache ZooKeeper has no {key}");
    }
    for key in [
        "zk_server_state",
        "zk_ephemerals_count",
        "zk_num_alive_connections",
        "zk_znode_count",
        "zk_global_sessions",
        "zk_watch_count",
        "zk_outstanding_requests",
        "zk_auth_failed_count",
        "zk_approximate_data_size",
    ] {
        assert_eq!(value(&theirs, key), value(&ours, key), "{key}");
    }
    // Words count as received and sent frames.
    for key in ["Received", "Sent"] {
        let counts = async || {
            let (theirs, ours) = ask("srvr").await;
            [theirs, ours].map(|text| value(&text, key).parse::<u64>().expect("a count"))
        };
        let before = counts().await;
        ask("ruok").await;
        let after = counts().await;
        assert_eq!([after[0] - before[0], after[1] - before[1]], [2, 2], "{key}");
    }
    drop(sessions);
}

#[tokio::test]
async fn unsupported_words_are_refused_as_by_apache_zookeeper() {
    if !apache::availability().or_skip("unsupported_words_are_refused_as_by_apache_zookeeper") {
        return;
    }
    let options = ServerOptions { words: "conf,ruok".to_owned(), ..ServerOptions::default() };
    let theirs = Apache::start(options).await.expect("it starts");
    let ours = builder().words(FourLetterWord::ALL).start().await.expect("it starts");
    for word in UNSUPPORTED {
        let theirs = send_four_letter_word(theirs.socket_addr(), word).await.expect("an answer");
        let ours = send_four_letter_word(ours.local_addr(), word).await.expect("an answer");
        assert_eq!((theirs, ours), (refused(word), refused(word)));
    }
    ours.shutdown().await;
}

#[tokio::test]
async fn only_allowed_words_are_executed() {
    let server = builder().start().await.expect("it starts");
    for word in UNSUPPORTED.into_iter().chain(["conf", "stat"]) {
        assert_eq!(send_four_letter_word(server.local_addr(), word).await.expect("an answer"), refused(word));
    }
    for word in FourLetterWord::DEFAULT {
        let answer = send_four_letter_word(server.local_addr(), word.name()).await.expect("an answer");
        assert_ne!(answer, refused(word.name()));
    }
    server.shutdown().await;
    let guarded = builder().secret(Secret::new("s3cret"));
    let server = guarded.clone().start().await.expect("it starts");
    assert_eq!(send_four_letter_word(server.local_addr(), "ruok").await.expect("an answer"), "imok");
    assert_eq!(send_four_letter_word(server.local_addr(), "mntr").await.expect("an answer"), refused("mntr"));
    server.shutdown().await;
    let server = guarded.words([FourLetterWord::Isro]).start().await.expect("it starts");
    assert_eq!(send_four_letter_word(server.local_addr(), "ruok").await.expect("an answer"), refused("ruok"));
    assert_eq!(send_four_letter_word(server.local_addr(), "isro").await.expect("an answer"), "rw");
    server.shutdown().await;
}
