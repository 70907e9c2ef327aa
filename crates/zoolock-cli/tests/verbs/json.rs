//! What is printed as JSON is what `docs/JSON.md` says, field by field.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::watching::Watch;
use crate::common::{Running, Sandbox, wait_until};
use serde_json::Value;
use zookeeper_client::{Acls, CreateMode};
use zoolock::TestServer;

type Fields = BTreeMap<String, BTreeSet<String>>;

/// The fields that the first columns of its tables name, by heading.
fn documented() -> (Fields, String) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/JSON.md");
    let text = std::fs::read_to_string(path).expect("it is there");
    let (mut fields, mut heading) = (Fields::new(), String::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title.to_owned();
        }
        if let Some(field) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`')) {
            let new = fields.entry(heading.clone()).or_default().insert(field.0.to_owned());
            assert!(new, "{} is there twice below {heading:?}", field.0);
        }
    }
    (fields, text)
}

/// What stands in a field of what, if that is an object or a list of them.
fn within(what: &str, field: &str) -> Option<&'static str> {
    Some(match (what, field) {
        ("ls", "locks") => "A lock",
        ("A lock" | "show", "holder" | "beside" | "waiters") => "A contender",
        ("A lock" | "show", "foreign_semaphore") => "A foreign semaphore",
        ("watch", "contender") => "A contender",
        ("why", "chain") => "A link",
        ("A link" | "An edge", "holds" | "waits_for") => "A place",
        ("deadlocks", "deadlocks") => "A deadlock",
        ("A deadlock", "edges") => "An edge",
        ("A deadlock", "to_break") => "What to break",
        _ => return None,
    })
}

/// Notes the fields of all objects in it; those that have several values to choose from, with these.
fn note(what: &str, value: &Value, fields: &mut Fields, words: &mut BTreeSet<String>) {
    match value {
        Value::Array(all) => all.iter().for_each(|one| note(what, one, fields, words)),
        Value::Object(object) => {
            for (field, value) in object {
                fields.entry(what.to_owned()).or_default().insert(field.clone());
                if let Some(inner) = within(what, field) {
                    note(inner, value, fields, words);
                } else {
                    assert!(!value.is_object(), "{field} of {what} is an object that is not followed");
                }
                if ["family", "role", "owner_kind", "previous", "end", "schema", "event"]
                    .contains(&field.as_str())
                {
                    words.insert(value.as_str().expect("a word").to_owned());
                }
            }
        }
        _ => {}
    }
}

fn nested(sandbox: &Sandbox, outer: &str, inner: &str) -> Running {
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    let script =
        format!("touch {outer}; while ! [ -e {inner} ]; do sleep 0.02; done; {zoolock} run {inner} -- true");
    sandbox.start(&["run", outer, "--", "sh", "-c", &script])
}

/// What is told of a lock that one holds while another comes, up to that.
fn events(sandbox: &Sandbox) -> Vec<Value> {
    let watch = Watch::start(sandbox, &["watched", "--json"]);
    let _holder = sandbox.start(&["run", "watched", "--", "sleep", "1000"]);
    let granted = watch.event("granted");
    let _waiter = sandbox.start(&["run", "watched", "--", "true"]);
    vec![granted, watch.event("queued")]
}

/// Returns the `show` document of a semaphore in Curator's layout, on a server of its own.
fn foreign_semaphore(sandbox: &Sandbox) -> Value {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(async {
        let server = TestServer::start().await.expect("it works");
        let client = zookeeper_client::Client::connect(&server.address()).await.expect("a session");
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        for part in ["locks", "leases"] {
            client.mkdir(&format!("/locks/encoders/{part}"), &options).await.expect("directory created");
        }
        server
    });
    let done = sandbox.output(&["show", "encoders", "--json", "--connect", &server.address()]);
    assert_eq!(done.code, 0, "{done:?}");
    serde_json::from_str(&done.stdout).expect("JSON")
}

#[test]
fn every_field_is_documented_and_every_documented_one_is_printed() {
    let sandbox = Sandbox::new();
    let _running = (
        nested(&sandbox, "a", "b"),
        nested(&sandbox, "b", "a"),
        sandbox.start(&["run", "--shared", "read", "--", "sleep", "1000"]),
        sandbox.start(&["run", "--shared", "read", "--", "sleep", "1000"]),
        sandbox.start(&["run", "--permits", "2", "slots", "--", "sleep", "1000"]),
    );
    wait_until("all stand where they should", || {
        let beside = |name: &str| {
            let shown = sandbox.output(&["show", name, "--json"]).stdout;
            serde_json::from_str::<Value>(&shown).expect("JSON")["beside"].as_array().expect("a list").len()
        };
        let two = |name| sandbox.contenders(name) == 2;
        two("a") && two("b") && beside("read") == 1 && sandbox.contenders("slots") == 1
    });
    let (mut printed, mut words) = (Fields::new(), BTreeSet::new());
    for (what, rest) in [
        ("ls", &[][..]),
        ("show", &["a"]),
        ("show", &["slots"]),
        ("why", &["a"]),
        ("why", &["read"]),
        ("why", &["unused"]),
        ("deadlocks", &[]),
    ] {
        let done = sandbox.output(&[&[what], rest, &["--json"]].concat());
        assert_eq!(done.code, 0, "{done:?}");
        note(what, &serde_json::from_str(&done.stdout).expect("JSON"), &mut printed, &mut words);
    }
    note("show", &foreign_semaphore(&sandbox), &mut printed, &mut words);
    for event in events(&sandbox) {
        note("watch", &event, &mut printed, &mut words);
    }
    let (documented, text) = documented();
    // What has all fields of something else says so in a sentence.
    let mut expected = documented.clone();
    for (what, of) in [("show", "A lock"), ("A place", "A contender")] {
        let more = documented.get(of).expect("documented").clone();
        expected.entry(what.to_owned()).or_default().extend(more);
    }
    assert_eq!(printed, expected, "left: printed, right: docs/JSON.md");
    for word in words {
        assert!(text.contains(&format!("`{word}`")), "{word} is not in docs/JSON.md");
    }
}
