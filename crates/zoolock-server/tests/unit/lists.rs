//! Long access lists: a request whose lists are too long is refused early, and lists are freed in parts.

use bytes::Bytes;
use zoolock_server::core::ConnId;
use zoolock_wire::{Acl, Code, CreateRequest, Hidden, Identity, Request, op, perms};

use crate::work::{Measured, open, small_turns};

/// Number of steps in which the expansion of lists of 2 MiB is refused, with the steps of the frame.
const EXPANSION: usize = 6_000_000;

fn create(path: &str, acl: Vec<Acl>, flags: i32) -> Request {
    Request::Create(CreateRequest { op: op::CREATE, path: path.into(), data: None, acl, flags, ttl: -1 })
}

fn delete(path: &str) -> Request {
    Request::Delete { path: path.into(), version: -1 }
}

/// A list with an entry for every client, and this number of other entries.
fn list(name: &str, entries: usize, len: usize) -> Vec<Acl> {
    let digest = |number| Identity::new("digest", format!("{name}.{number}{}:x", "u".repeat(len)));
    let listed = (0..entries).map(|number| Acl { perms: perms::READ, identity: digest(number) });
    listed.chain([Acl::anyone(perms::ALL)]).collect()
}

/// A list with this number of different entries with the scheme `auth`.
fn auth_list(entries: i32) -> Vec<Acl> {
    let auth = |number| Acl { perms: perms::ALL + 32 * number, identity: Identity::new("auth", "") };
    (0..entries).map(auth).collect()
}

/// A connection with many identities.
fn connect(core: &mut Measured, identities: usize) -> ConnId {
    let client = core.connect();
    for number in 0..identities {
        let credentials = Hidden(format!(":{number}").into_bytes());
        assert_eq!(core.call(client, &Request::Auth { kind: 0, scheme: "digest".into(), credentials }), 0);
    }
    client
}

/// Sends a request. Returns the error code of the reply, or of a multi's failed operation, and the number of steps.
fn steps(core: &mut Measured, client: ConnId, request: &Request) -> (i32, usize) {
    core.core.take_steps();
    core.longest = 0;
    core.send(client, request);
    let steps = core.longest;
    let output = core.take(client);
    let (err, body) = output.replies.first().expect("a reply");
    let invalid = Code::InvalidAcl.number();
    let is_refused = body.windows(4).any(|number| number == invalid.to_be_bytes());
    (if is_refused { invalid } else { *err }, steps)
}

#[test]
fn expansion_of_auth_is_refused_early() {
    let mut core = Measured::new(small_turns());
    let client = connect(&mut core, 62);
    let invalid = Code::InvalidAcl.number();
    let creates = (0..5000).map(|number| create(&format!("/{number}"), auth_list(40), 0)).collect();
    for request in
        [Request::Multi(creates), Request::SetAcl { path: "/".into(), acl: auth_list(1000), version: -1 }]
    {
        let (err, steps) = steps(&mut core, client, &request);
        assert_eq!(err, invalid);
        assert!(steps < EXPANSION, "{steps}");
    }
    let (err, steps) = steps(&mut core, client, &create("/a", auth_list(40), 0));
    assert_eq!(err, 0);
    assert!(steps > 40 * 40 * 62, "an entry of the stored list costs as much as one that was sent: {steps}");
}

#[test]
fn long_list_can_be_stored_and_read() {
    let mut core = Measured::new(small_turns());
    let client = core.connect();
    for (path, entries, len) in [("/long", 1023, 950), ("/short", 1023, 1)] {
        let (err, steps) = steps(&mut core, client, &create(path, list(path, entries, len), 0));
        assert_eq!(err, 0);
        assert!(steps > entries * (40 + len / 16), "{steps}");
        assert_eq!(core.call(client, &Request::GetAcl { path: path.into() }), 0);
    }
}

#[test]
fn large_data_and_long_lists_are_freed_in_parts() {
    let mut core = Measured::new(small_turns());
    let client = core.connect();
    let paths: Vec<String> = (0..100).map(|number| format!("/{number}")).collect();
    let before = core.core.stats().znodes;
    for path in &paths {
        assert_eq!(core.call(client, &create(path, list(path, 1000, 1), 0)), 0);
        let data = Some(Bytes::from(vec![7; 100 << 10]));
        assert_eq!(core.call(client, &Request::SetData { path: path.clone(), data, version: -1 }), 0);
    }
    assert!(!core.core.has_work());
    let deletes = paths.iter().map(|path| delete(path)).collect();
    assert_eq!(core.call(client, &Request::Multi(deletes)), 0);
    assert_eq!(core.core.stats().znodes, before);
    assert!(core.work() > 5, "all is freed at once");
}

#[test]
fn a_thousand_creates_with_the_list_of_their_creator_are_not_too_much() {
    let mut core = Measured::new(small_turns());
    let client = core.connect();
    let credentials = Hidden(b"me:pw".to_vec());
    core.call(client, &Request::Auth { kind: 0, scheme: "digest".to_owned(), credentials });
    let mut path = String::new();
    for _ in 0..9 {
        path.push_str("/name");
        assert_eq!(core.call(client, &open(path.clone())), 0);
    }
    let before = core.core.stats().znodes;
    let creates = (0..1000).map(|number| {
        let acl = vec![Acl { perms: perms::ALL, identity: Identity::new("auth", "") }];
        create(&format!("{path}/{number}"), acl, 0)
    });
    core.call(client, &Request::Multi(creates.collect()));
    assert_eq!(core.core.stats().znodes - before, 1000);
    core.check_turns();
}
