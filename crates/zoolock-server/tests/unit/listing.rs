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

/// Takes the only reply of a connection. Returns the number of listed children, or the error code.
fn listed(core: &mut Measured, conn: ConnId) -> Result<usize, i32> {
    let output = core.take(conn);
    assert_eq!(output.replies.len(), 1);
    match &output.replies[0] {
        (0, body) => Ok(Reader::new(body).count("children", 4).expect("a count")),
        (err, _) => Err(*err),
    }
}

#[test]
fn long_list_of_children_shows_one_state() {
    const CHILDREN: usize = 50_000;
    let mut core = Measured::new(small_turns());
    let (readers, writer) = ([core.connect(), core.connect()], core.connect());
    core.call(writer, &open("/d"));
    for number in 0..CHILDREN {
        core.call(writer, &open(format!("/d/{number}")));
    }
    for reader in readers {
        core.send(reader, &Request::GetChildren2 { path: "/d".into(), watch: true });
    }
    let mut model: BTreeSet<String> = (0..CHILDREN).map(|number| number.to_string()).collect();
    let mut models = vec![model.clone()];
    // While the lists are built, other clients delete listed and unlisted children, and create some again.
    let (mut at, mut lists, mut events) = (0, 0, 0);
    while lists < readers.len() {
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
        // The lists are complete at different times.
        for reader in &readers[..1 + at % 2] {
            core.core.advance(*reader);
            core.end_turn();
            let output = core.take(*reader);
            events += output.events.len();
            let Some((err, body)) = output.replies.first() else { continue };
            assert_eq!(*err, 0);
            let mut body = Reader::new(body);
            let count = body.count("children", 4).expect("a count");
            let names: BTreeSet<String> = (0..count).map(|_| body.string("name").expect("a name")).collect();
            assert_eq!(names.len(), count, "a name is listed twice");
            assert!(models.contains(&names), "the list shows a state that never existed");
            lists += 1;
        }
    }
    assert!(at > 2, "the list was built in one turn");
    assert!(events <= readers.len());
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
fn deletions_below_many_listings_cost_little() {
    const CHILDREN: usize = 20_000;
    let mut core = directory(CHILDREN);
    let writer = core.connect();
    let delete = |core: &mut Measured, part: usize| {
        let numbers = part * 1000..(part + 1) * 1000;
        let path = |number| format!("/d/{number}");
        let deletes = numbers.map(|number| Request::Delete { path: path(number), version: -1 }).collect();
        core.longest = 0;
        assert_eq!(core.call(writer, &Request::Multi(deletes)), 0);
        core.longest
    };
    let before = delete(&mut core, 0);
    let readers: Vec<ConnId> = (0..8).map(|_| core.connect()).collect();
    for reader in &readers {
        core.send(*reader, &Request::GetChildren { path: "/d".into(), watch: false });
    }
    // So many deletions are not recorded. The lists start over.
    for part in 1..18 {
        let steps = delete(&mut core, part);
        assert!(steps < before + 45_000, "{steps} steps with listings, {before} without");
    }
    for reader in readers {
        core.finish(reader);
        assert_eq!(listed(&mut core, reader), Ok(CHILDREN - 18_000));
    }
    core.check_turns();
}

#[test]
fn listing_of_a_znode_that_was_created_again_starts_over() {
    let mut core = directory(6000);
    let (reader, writer) = (core.connect(), core.connect());
    core.send(reader, &Request::GetChildren { path: "/d".into(), watch: false });
    for number in 0..6000 {
        core.call(writer, &Request::Delete { path: format!("/d/{number}"), version: -1 });
    }
    core.call(writer, &Request::Delete { path: "/d".into(), version: -1 });
    for path in ["/d", "/d/1", "/d/2"] {
        core.call(writer, &open(path));
    }
    core.finish(reader);
    assert_eq!(listed(&mut core, reader), Ok(2));
}

#[test]
fn the_longest_list_takes_no_long_turn() {
    const CHILDREN: usize = 4500;
    let quota = Err(Code::QuotaExceeded.number());
    // Lists of 6 MiB and of 15 MiB.
    for (len, expected) in [(1380, Ok(CHILDREN - 1)), (3360, quota)] {
        let mut core = Measured::new(small_turns());
        let (client, writer) = (core.connect(), core.connect());
        core.call(client, &open("/d"));
        let path = |number| format!("/d/{number:04}{}", "x".repeat(len));
        for number in 0..CHILDREN {
            core.call(client, &open(path(number)));
        }
        core.send(client, &Request::GetChildren { path: "/d".into(), watch: false });
        core.call(writer, &Request::Delete { path: path(0), version: -1 });
        core.finish(client);
        assert_eq!(listed(&mut core, client), expected);
        core.check_turns();
    }
}

#[test]
fn a_listing_waits_for_its_turn() {
    const CHILDREN: usize = 6000;
    let mut core = directory(CHILDREN);
    let list = Request::GetChildren { path: "/d".into(), watch: false };
    let readers: Vec<ConnId> = (0..8).map(|_| core.connect()).collect();
    for reader in &readers {
        core.send(*reader, &list);
    }
    let late = [core.connect(), core.connect()];
    for reader in late {
        core.send(reader, &list);
        assert_eq!(core.core.advance(reader), Readiness::Blocked);
    }
    core.core.take_woken();
    core.finish(readers[0]);
    assert_eq!(core.core.take_woken(), [late[0]]);
    assert_eq!(core.core.advance(late[1]), Readiness::Blocked);
    core.core.remove_connection(readers[1], core.now);
    assert_eq!(core.core.take_woken(), [late[1]]);
    for reader in [readers[0], late[0], late[1], readers[2]] {
        core.finish(reader);
        assert_eq!(listed(&mut core, reader), Ok(CHILDREN));
    }
}

#[test]
fn session_lives_while_its_list_waits_for_its_turn() {
    let mut core = directory(6000);
    let list = Request::GetChildren { path: "/d".into(), watch: false };
    for _ in 0..8 {
        let reader = core.connect();
        core.send(reader, &list);
    }
    let late = core.connect();
    core.send(late, &list);
    assert_eq!(core.core.stats().waiting, 1);
    core.now.mono_ms += 10_000;
    core.core.expire_due_sessions(core.now);
    core.work();
    assert_eq!(core.core.session_count(), 1);
    // The other lists have ended with their sessions.
    core.core.end_wait(late, core.now);
    core.finish(late);
    assert_eq!((listed(&mut core, late), core.core.stats().waiting), (Ok(6000), 0));
}

#[test]
fn clients_that_do_not_read_keep_no_other_listing_waiting() {
    const CHILDREN: usize = 6000;
    let mut core = directory(CHILDREN);
    let list = Request::GetChildren { path: "/d".into(), watch: false };
    let stalled: Vec<ConnId> = (0..8).map(|_| core.connect()).collect();
    for conn in &stalled {
        core.send(*conn, &list);
    }
    let waiting = core.connect();
    core.send(waiting, &list);
    assert_eq!(core.core.advance(waiting), Readiness::Blocked);
    for conn in &stalled {
        core.core.set_unwritten(*conn, 2 << 20);
    }
    // The connection that waits is not called again until it is woken.
    assert!(!core.core.take_woken().contains(&waiting));
    core.core.expire_due_sessions(core.now);
    assert!(core.core.take_woken().contains(&waiting));
    core.finish(waiting);
    assert_eq!(listed(&mut core, waiting), Ok(CHILDREN));
    for conn in stalled {
        assert_eq!(core.core.advance(conn), Readiness::Blocked);
        core.core.set_unwritten(conn, 0);
        core.finish(conn);
        assert_eq!(listed(&mut core, conn), Ok(CHILDREN));
    }
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
