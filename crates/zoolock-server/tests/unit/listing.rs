//! Lists of children that are built in parts, and the limits of memory and sessions.

use std::collections::BTreeSet;

use zoolock_server::core::{ConnId, CoreConfig, Readiness};
use zoolock_wire::{Acl, Code, Hidden, Identity, Reader, Request, perms};

use crate::work::{Measured, open, small_turns};

/// Returns a core with turns of a few children, and with a znode `/d` that has many.
fn directory(children: usize) -> Measured {
    let mut core = Measured::new(CoreConfig { slice_steps: 10_000, ..small_turns() });
    let writer = core.connect();
    core.call(writer, &open("/d"));
    let numbers: Vec<usize> = (0..children).collect();
    for part in numbers.chunks(1000) {
        let creates = part.iter().map(|number| open(format!("/d/{number}"))).collect();
        assert_eq!(core.call(writer, &Request::Multi(creates)), 0);
    }
    core
}

#[test]
fn long_list_of_children_shows_one_state() {
    const CHILDREN: usize = 50_000;
    let mut core = Measured::new(small_turns());
    let (reader, writer) = (core.connect(), core.connect());
    core.call(writer, &open("/d"));
    for number in 0..CHILDREN {
        core.call(writer, &open(format!("/d/{number}")));
    }
    core.send(reader, &Request::GetChildren2 { path: "/d".into(), watch: true });
    let mut model: BTreeSet<String> = (0..CHILDREN).map(|number| number.to_string()).collect();
    let mut models = vec![model.clone()];
    let mut at = 0;
    // While the list is built, other clients delete listed and unlisted children, and create some again.
    let mut events = 0;
    while core.take(reader).replies.is_empty() {
        for name in [at, CHILDREN - 1 - at].map(|number| number.to_string()) {
            core.call(writer, &Request::Delete { path: format!("/d/{name}"), version: -1 });
            model.remove(&name);
            if at % 2 == 0 {
                core.call(writer, &open(format!("/d/{name}")));
                model.insert(name);
            }
        }
        core.call(writer, &open(format!("/d/new{at}")));
        model.insert(format!("new{at}"));
        models.push(model.clone());
        at += 1;
        if core.core.advance(reader) != Readiness::Busy {
            let output = core.take(reader);
            events = output.events.len();
            let (err, body) = output.replies.first().expect("the list is complete");
            assert_eq!(*err, 0);
            let mut body = Reader::new(body);
            let count = body.count("children", 4).expect("a count");
            let names: BTreeSet<String> = (0..count).map(|_| body.string("name").expect("a name")).collect();
            assert_eq!(names.len(), count, "a name is listed twice");
            assert!(models.contains(&names), "the list shows a state that never existed");
            break;
        }
        core.end_turn();
    }
    assert!(at > 2, "the list was built in one turn");
    assert!(events <= 1);
    core.check_turns();
}

#[test]
fn long_names_are_not_listed_without_limit() {
    let mut core = Measured::new(CoreConfig { max_output: usize::MAX, ..small_turns() });
    let client = core.connect();
    core.call(client, &open("/d"));
    for number in 0..30 {
        core.call(client, &open(format!("/d/{number}{}", "x".repeat(900_000))));
    }
    let quota = Code::QuotaExceeded.number();
    assert_eq!(core.call(client, &Request::GetChildren { path: "/d".into(), watch: false }), quota);
    let list = Request::GetChildren { path: "/d".into(), watch: false };
    assert_eq!(core.call(client, &Request::MultiRead(vec![list; 100])), quota);
    core.check_turns();
}

#[test]
fn listing_of_a_deleted_znode_reads_no_other_znode() {
    let mut core = Measured::new(CoreConfig { slice_steps: 10_000, ..small_turns() });
    let (first, second, writer) = (core.connect(), core.connect(), core.connect());
    for directory in ["/x", "/locks"] {
        core.call(writer, &open(directory));
        for number in 0..6000 {
            core.call(writer, &open(format!("{directory}/{number}")));
        }
    }
    core.send(first, &Request::GetChildren { path: "/x".into(), watch: false });
    for number in 0..6000 {
        core.call(writer, &Request::Delete { path: format!("/x/{number}"), version: -1 });
    }
    core.call(writer, &Request::Delete { path: "/x".into(), version: -1 });
    core.send(second, &Request::GetChildren { path: "/locks".into(), watch: false });
    core.finish(first);
    assert_eq!(core.take(first).replies.first().map(|(err, _)| *err), Some(Code::NoNode.number()));
    core.finish(second);
    let output = core.take(second);
    let (err, body) = output.replies.first().expect("a list");
    assert_eq!((*err, Reader::new(body).count("children", 4)), (0, Ok(6000)));
}

#[test]
fn listing_ends_when_the_client_may_no_longer_read_the_znode() {
    let mut core = directory(10_000);
    let (reader, writer) = (core.connect(), core.connect());
    let list = Request::GetChildren { path: "/d".into(), watch: true };
    core.send(reader, &list);
    let credentials = Hidden(b"a:b".to_vec());
    core.call(writer, &Request::Auth { kind: 0, scheme: "digest".into(), credentials });
    let acl = vec![Acl { perms: perms::ALL, identity: Identity::new("auth", "") }];
    assert_eq!(core.call(writer, &Request::SetAcl { path: "/d".into(), acl, version: -1 }), 0);
    assert_eq!(core.call(writer, &open("/d/secret")), 0);
    core.finish(reader);
    let output = core.take(reader);
    let no_auth = Code::NoAuth.number();
    assert_eq!(output.replies.iter().map(|(err, _)| *err).collect::<Vec<_>>(), [no_auth]);
    assert!(output.events.is_empty());
    assert_eq!(core.call(reader, &list), no_auth);
    assert_eq!(core.core.stats().watches, 0);
}

#[test]
fn znodes_have_a_memory_limit() {
    let mut core = Measured::new(CoreConfig { max_znode_memory: 1 << 20, ..small_turns() });
    let client = core.connect();
    let quota = Code::QuotaExceeded.number();
    core.call(client, &open("/a"));
    let created =
        (0..10_000).take_while(|number| core.call(client, &open(format!("/a/{number}"))) == 0).count();
    assert!((1000..10_000).contains(&created), "{created}");
    let set = |len| Request::SetData { path: "/a".into(), data: Some(vec![7; len].into()), version: -1 };
    assert_eq!((core.call(client, &set(100)), core.call(client, &set(100_000))), (0, quota));
    let delete = |number: usize| Request::Delete { path: format!("/a/{number}"), version: -1 };
    // A release writes a small record, and a hand-over may replace a znode.
    assert_eq!(core.call(client, &Request::Multi(vec![set(100), delete(0), open("/a/0")])), 0);
    assert_eq!(core.call(client, &Request::Multi(vec![open("/a/x")])), quota);
    for number in 0..100 {
        assert_eq!(core.call(client, &delete(number)), 0);
    }
    assert_eq!(core.call(client, &open("/a/x")), 0);
}

#[test]
fn sessions_have_a_limit() {
    let mut core = Measured::new(CoreConfig { max_sessions: 3, ..small_turns() });
    let conns: Vec<ConnId> = (0..4).map(|_| core.connect()).collect();
    assert_eq!(core.core.session_count(), 3);
    assert!(!core.core.is_admitted(conns[3]));
    core.call(conns[0], &Request::CloseSession);
    core.connect();
    assert_eq!(core.core.session_count(), 3);
}
