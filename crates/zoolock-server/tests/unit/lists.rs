//! Long access lists: a request whose lists are too long is refused early, and lists are freed in parts.

use bytes::Bytes;
use zoolock_server::core::ConnId;
use zoolock_wire::{Acl, Code, CreateRequest, Hidden, Identity, Request, op, perms};

use crate::work::{TestCore, small_parts};

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
fn connect(core: &mut TestCore, identities: usize) -> ConnId {
    let client = core.connect();
    for number in 0..identities {
        let credentials = Hidden(format!(":{number}").into_bytes());
        assert_eq!(core.call(client, &Request::Auth { kind: 0, scheme: "digest".into(), credentials }), 0);
    }
    client
}

/// Sends a request. Returns the error code of the reply, or of a multi's failed operation.
fn code_of(core: &mut TestCore, client: ConnId, request: &Request) -> i32 {
    core.send(client, request);
    let output = core.take(client);
    let (err, body) = output.replies.first().expect("a reply");
    let invalid = Code::InvalidAcl.number();
    let is_refused = body.windows(4).any(|number| number == invalid.to_be_bytes());
    if is_refused { invalid } else { *err }
}

#[test]
fn expansion_of_auth_is_refused_early() {
    let mut core = TestCore::new(small_parts());
    let client = connect(&mut core, 62);
    let invalid = Code::InvalidAcl.number();
    let creates = (0..5000).map(|number| create(&format!("/{number}"), auth_list(40), 0)).collect();
    for request in
        [Request::Multi(creates), Request::SetAcl { path: "/".into(), acl: auth_list(1000), version: -1 }]
    {
        assert_eq!(code_of(&mut core, client, &request), invalid);
    }
    assert_eq!(code_of(&mut core, client, &create("/a", auth_list(40), 0)), 0);
}

#[test]
fn long_list_can_be_stored_and_read() {
    let mut core = TestCore::new(small_parts());
    let client = core.connect();
    for (path, entries, len) in [("/long", 1023, 950), ("/short", 1023, 1)] {
        assert_eq!(code_of(&mut core, client, &create(path, list(path, entries, len), 0)), 0);
        assert_eq!(core.call(client, &Request::GetAcl { path: path.into() }), 0);
    }
}

#[test]
fn large_data_and_long_lists_are_freed_in_parts() {
    let mut core = TestCore::new(small_parts());
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
