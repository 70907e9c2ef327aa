//! The JSON output has exactly the fields that `docs/JSON.md` documents.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::watching::Watch;
use crate::common::{Lines, Running, Sandbox, wait_until};
use serde_json::Value;
use zookeeper_client::{Acls, CreateMode};
use zoolock::TestServer;

/// Field names by the kind of object, which is a heading of `docs/JSON.md`.
type Fields = BTreeMap<String, BTreeSet<String>>;

/// Returns the fields in the tables of `docs/JSON.md` by heading, and the text of the page.
fn documented() -> (Fields, String) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/JSON.md");
    let text = std::fs::read_to_string(path).expect("docs/JSON.md is readable");
    let (mut fields, mut heading) = (Fields::new(), String::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title.to_owned();
        }
        if let Some(field) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`')) {
            let new = fields.entry(heading.clone()).or_default().insert(field.0.to_owned());
            assert!(new, "{} is documented twice below {heading:?}", field.0);
        }
    }
    (fields, text)
}

/// Returns the kind of the objects in `field` of an object of kind `kind`. Returns `None` if the field has no objects.
fn object_kind(kind: &str, field: &str) -> Option<&'static str> {
    Some(match (kind, field) {
        ("ls", "locks") => "A lock",
        ("A lock" | "show", "holder" | "beside" | "waiters") => "A contender",
        ("A lock" | "show", "foreign_semaphore") => "A foreign semaphore",
        ("leader", "leader") | ("check", "holder") => "A contender",
        ("watch", "contender") => "A contender",
        ("watch", "by") | ("An event", "contender" | "by") => "A party",
        ("show" | "history", "history") => "An event",
        ("why", "chain") => "A link",
        ("why", "waiters") => "A contender",
        ("why", "to_break") => "What to break",
        ("A link" | "An edge", "holds" | "waits_for") => "A place",
        ("deadlocks", "deadlocks") => "A deadlock",
        ("A deadlock", "edges") => "An edge",
        ("A deadlock", "to_break") => "What to break",
        _ => return None,
    })
}

/// Adds the fields of an object of kind `kind`, and of all objects in it, to `fields`. Adds the values of enumerated fields
/// to `words`.
fn record(kind: &str, value: &Value, fields: &mut Fields, words: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| record(kind, item, fields, words)),
        Value::Object(object) => {
            for (field, value) in object {
                fields.entry(kind.to_owned()).or_default().insert(field.clone());
                if let Some(inner) = object_kind(kind, field) {
                    record(inner, value, fields, words);
                } else {
                    assert!(!value.is_object(), "{field} of {kind} is an object without a known kind");
                }
                if ["family", "role", "owner_kind", "previous", "end", "schema", "event"]
                    .contains(&field.as_str())
                {
                    words.insert(value.as_str().expect("a string").to_owned());
                }
            }
        }
        _ => {}
    }
}

/// Starts a command that holds the lock `outer`. Once the file `inner` exists, it waits for the lock `inner`.
fn nested(sandbox: &Sandbox, outer: &str, inner: &str) -> Running {
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    let script =
        format!("touch {outer}; while ! [ -e {inner} ]; do sleep 0.02; done; {zoolock} run {inner} -- true");
    sandbox.start(&["run", outer, "--", "sh", "-c", &script])
}

/// Returns the `watch` events of a lock that is granted and then gets a waiter.
fn events(sandbox: &Sandbox) -> Vec<Value> {
    let watch = Watch::start(sandbox, &["watched", "--json"]);
    let _holder = sandbox.start(&["run", "watched", "--", "sleep", "1000"]);
    let granted = watch.event("granted");
    let _waiter = sandbox.start(&["run", "watched", "--", "true"]);
    vec![granted, watch.event("queued")]
}

/// Returns the `show` document of a semaphore in Curator's layout, on a server of its own.
fn foreign_semaphore(sandbox: &Sandbox) -> Value {
    let runtime = tokio::runtime::Runtime::new().expect("runtime created");
    let server = runtime.block_on(async {
        let server = TestServer::start().await.expect("server started");
        let client = zookeeper_client::Client::connect(&server.address()).await.expect("session created");
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        for part in ["locks", "leases"] {
            client.mkdir(&format!("/locks/encoders/{part}"), &options).await.expect("directory created");
        }
        server
    });
    sandbox.json(&["show", "encoders", "--connect", &server.address()])
}

#[test]
fn printed_fields_match_documentation() {
    let sandbox = Sandbox::new();
    let _running = (
        nested(&sandbox, "a", "b"),
        nested(&sandbox, "b", "a"),
        sandbox.start(&["run", "--shared", "read", "--", "sleep", "1000"]),
        sandbox.start(&["run", "--shared", "read", "--", "sleep", "1000"]),
        sandbox.start(&["run", "--permits", "2", "slots", "--", "sleep", "1000"]),
    );
    wait_until("all commands hold or wait", || {
        let two = |name| sandbox.contenders(name) == 2;
        // Each reader is a holder; `contenders` counts only the first holder.
        let readers = || sandbox.json(&["show", "read"])["beside"].as_array().expect("a list").len() + 1;
        two("a")
            && two("b")
            && sandbox.contenders("read") == 1
            && readers() == 2
            && sandbox.contenders("slots") == 1
    });
    let (mut printed, mut words) = (Fields::new(), BTreeSet::new());
    let token = sandbox.json(&["show", "slots"])["holder"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(sandbox.output(&["revoke", "slots", "--token", &token]).code, 0);
    for (command, rest, code) in [
        ("ls", &[][..], 0),
        ("show", &["a"], 0),
        ("show", &["slots"], 0),
        ("check", &["a", "00000000-0000000000000001-00000000"], 75),
        ("leader", &["a"], 0),
        ("leader", &["unused"], 66),
        ("why", &["a"], 0),
        ("why", &["read"], 0),
        ("why", &["unused"], 66),
        ("deadlocks", &[], 1),
        ("history", &[], 0),
        ("serve", &["--status"], 0),
    ] {
        let document = sandbox.json_with_code(&[&[command], rest].concat(), code);
        record(command, &document, &mut printed, &mut words);
    }
    let mut holder = sandbox.start_piped(&["hold", "--json", "--", "free"]);
    let held = Lines::of(holder.take_stdout()).next();
    record("hold", &serde_json::from_str(&held).expect("JSON"), &mut printed, &mut words);
    holder.end_of_input();
    record("show", &foreign_semaphore(&sandbox), &mut printed, &mut words);
    for event in events(&sandbox) {
        record("watch", &event, &mut printed, &mut words);
    }
    let (documented, text) = documented();
    // The page says in its text that these kinds also have all fields of another kind.
    let mut expected = documented.clone();
    for (kind, other) in [("show", "A lock"), ("A place", "A contender")] {
        let more = documented.get(other).expect("documented").clone();
        expected.entry(kind.to_owned()).or_default().extend(more);
    }
    assert_eq!(printed, expected, "left: printed, right: docs/JSON.md");
    for word in words {
        assert!(text.contains(&format!("`{word}`")), "{word} is not in docs/JSON.md");
    }
}
