//! The limits of lists of children, of memory and of sessions.

use zoolock_server::core::{ConnId, CoreConfig};
use zoolock_wire::{Code, Reader, Request};

use crate::core_client::frame;
use crate::work::{TestCore, open, small_parts};

/// Takes the only reply of a connection. Returns the number of listed children, or the error code.
fn listed(core: &mut TestCore, conn: ConnId) -> Result<usize, i32> {
    let output = core.take(conn);
    assert_eq!(output.replies.len(), 1);
    match &output.replies[0] {
        (0, body) => Ok(Reader::new(body).count("children", 4).expect("a count")),
        (err, _) => Err(*err),
    }
}

#[test]
fn the_longest_list_of_children_has_6_mib() {
    const CHILDREN: usize = 4096;
    let quota = Err(Code::QuotaExceeded.number());
    // Each name counts 16 bytes more than its length.
    for (len, expected) in [(1520, Ok(CHILDREN)), (1521, quota)] {
        let mut core = TestCore::new(small_parts());
        let client = core.connect();
        core.call(client, &open("/d"));
        for number in 0..CHILDREN {
            core.call(client, &open(format!("/d/{number:04}{}", "x".repeat(len - 4))));
        }
        core.send(client, &Request::GetChildren { path: "/d".into(), watch: false });
        assert_eq!(listed(&mut core, client), expected);
    }
}

#[test]
fn long_names_are_not_listed_without_limit() {
    let mut core = TestCore::new(CoreConfig { max_output: usize::MAX, ..small_parts() });
    let client = core.connect();
    core.call(client, &open("/d"));
    for number in 0..30 {
        core.call(client, &open(format!("/d/{number}{}", "x".repeat(900_000))));
    }
    let quota = Code::QuotaExceeded.number();
    assert_eq!(core.call(client, &Request::GetChildren { path: "/d".into(), watch: false }), quota);
    let list = Request::GetChildren { path: "/d".into(), watch: false };
    assert_eq!(core.call(client, &Request::MultiRead(vec![list; 100])), quota);
}

#[test]
fn znodes_have_a_memory_limit() {
    let mut core = TestCore::new(CoreConfig { max_znode_memory: 1 << 20, ..small_parts() });
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
    let mut core = TestCore::new(CoreConfig { max_sessions: 3, ..small_parts() });
    let conns: Vec<ConnId> = (0..4).map(|_| core.connect()).collect();
    assert_eq!(core.core.session_count(), 3);
    assert!(!core.core.is_admitted(conns[3]));
    core.call(conns[0], &Request::CloseSession);
    core.connect();
    assert_eq!(core.core.session_count(), 3);
}

#[test]
fn long_lists_are_known_before_they_are_read() {
    let mut core = TestCore::new(small_parts());
    let client = core.connect();
    core.call(client, &open("/short"));
    core.call(client, &open("/long"));
    for number in 0..16_385 {
        core.call(client, &open(format!("/long/{number}")));
    }
    let asks = |path: &str| {
        let request = Request::GetChildren2 { path: path.to_owned(), watch: false };
        core.core.asks_for_long_list(client, &frame(&request))
    };
    assert_eq!(["/long", "/short", "/missing"].map(asks), [true, false, false]);
    let ephemerals = frame(&Request::GetEphemerals { prefix: String::new() });
    assert!(!core.core.asks_for_long_list(client, &ephemerals), "the session has none");
}
