//! Work in parts: no part is larger than its share, and the parts have the same effects as the whole.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use zoolock_server::core::{ConnId, Core, CoreConfig, Now, Readiness, ReceivedRequest};
use zoolock_wire::{Acl, Code, CreateRequest, Reader, ReplyHeader, Request, SetWatches, op, perms};

use crate::core_client::{config, connect, frame};

const NOW: Now = Now { mono_ms: 0, wall_ms: 1_000_000 };
pub(crate) fn small_parts() -> CoreConfig {
    CoreConfig { max_part: 1000, max_output: 64 << 20, ..config() }
}

/// A core with its clients. Work is continued only when the test asks for it.
pub(crate) struct TestCore {
    pub(crate) core: Core,
    pub(crate) now: Now,
    sessions: u64,
}

impl TestCore {
    pub(crate) fn new(config: CoreConfig) -> Self {
        TestCore { core: Core::new(config, 1), now: NOW, sessions: 0 }
    }

    pub(crate) fn connect(&mut self) -> ConnId {
        self.sessions += 1;
        let conn = connect(&mut self.core, self.sessions, self.now);
        self.take(conn);
        conn
    }

    /// Sends a request and waits until the connection can send the next one. Returns the error code of the reply.
    pub(crate) fn call(&mut self, conn: ConnId, request: &Request) -> i32 {
        self.send(conn, request);
        self.finish(conn);
        self.take(conn).replies.last().map_or(0, |(err, _)| *err)
    }

    pub(crate) fn send(&mut self, conn: ConnId, request: &Request) {
        self.core.receive_decoded(conn, ReceivedRequest::decode(&frame(request)), self.now);
    }

    /// Advances a connection until it can send the next request, or until its output must be taken first.
    pub(crate) fn finish(&mut self, conn: ConnId) {
        loop {
            match self.core.advance(conn) {
                Readiness::Ready => return,
                Readiness::Busy => {}
                Readiness::Blocked if !self.core.has_work() || self.core.output_len(conn) >= 64 << 10 => {
                    return;
                }
                Readiness::Blocked => self.core.continue_work(self.now),
            }
        }
    }

    /// Continues the work of the core until nothing is left. Returns the number of parts.
    pub(crate) fn work(&mut self) -> usize {
        let mut parts = 0;
        while self.core.has_work() {
            self.core.continue_work(self.now);
            parts += 1;
        }
        parts
    }

    pub(crate) fn take(&mut self, conn: ConnId) -> Output {
        let mut bytes = BytesMut::new();
        self.core.take_output(conn, &mut bytes);
        self.core.set_unwritten(conn, 0);
        Output::of(&bytes)
    }
}

/// The output of a connection: its replies and the number of its events.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    /// The error code and the body of each reply.
    pub(crate) replies: Vec<(i32, Bytes)>,
    /// The bodies of the events, with the number of replies before them.
    pub(crate) events: Vec<(usize, Bytes)>,
}

impl Output {
    fn of(mut bytes: &[u8]) -> Self {
        let mut output = Output::default();
        while let Some((len, rest)) = bytes.split_first_chunk() {
            let (frame, rest) = rest.split_at(u32::from_be_bytes(*len) as usize);
            bytes = rest;
            let header = ReplyHeader::decode(&mut Reader::new(frame)).expect("a reply header");
            let body = Bytes::copy_from_slice(&frame[16..]);
            match header.xid {
                op::XID_EVENT => output.events.push((output.replies.len(), body)),
                _ => output.replies.push((header.err, body)),
            }
        }
        output
    }
}

fn create(path: String, acl: Vec<Acl>, flags: i32) -> Request {
    Request::Create(CreateRequest { op: op::CREATE, path, data: Some(Bytes::new()), acl, flags, ttl: -1 })
}

pub(crate) fn open(path: impl Into<String>) -> Request {
    create(path.into(), vec![Acl::anyone(perms::ALL)], 0)
}

fn ephemeral(path: String) -> Request {
    create(path, vec![Acl::anyone(perms::ALL)], 1)
}

#[test]
fn end_of_a_large_session_is_done_in_parts() {
    const EPHEMERALS: usize = 20_000;
    const WATCHERS: usize = 100;
    let mut core = TestCore::new(CoreConfig { max_undelivered: 128 << 20, ..small_parts() });
    let owner = core.connect();
    core.call(owner, &open("/locks"));
    for number in 0..EPHEMERALS {
        core.call(owner, &ephemeral(format!("/locks/{number}")));
    }
    let watchers: Vec<ConnId> = (0..WATCHERS).map(|_| core.connect()).collect();
    for watcher in &watchers {
        core.call(*watcher, &Request::AddWatch { path: "/locks".into(), mode: 1 });
    }
    let witness = core.connect();
    core.call(witness, &Request::GetData { path: format!("/locks/{}", EPHEMERALS - 1), watch: true });
    core.send(owner, &Request::CloseSession);
    assert!(core.core.state().tree.ephemerals_count() >= EPHEMERALS - 1000, "one part deletes more");
    assert!(core.take(owner).replies.is_empty(), "the session is closed before its ephemerals are deleted");
    assert_eq!(core.core.advance(owner), Readiness::Blocked);
    // Other sessions are served at once. A connection with watches gets the events that it watches before its reply.
    assert_eq!(core.call(witness, &Request::Ping), 0);
    let mut got = vec![0; WATCHERS];
    loop {
        core.core.continue_work(core.now);
        let mut taken = 0;
        for (watcher, got) in watchers.iter().zip(&mut got) {
            core.core.advance(*watcher);
            let events = core.take(*watcher).events.len();
            *got += events;
            taken += events;
        }
        if taken == 0 && !core.core.has_work() {
            break;
        }
    }
    assert_eq!(got, vec![EPHEMERALS; WATCHERS], "each watcher gets an event for each ephemeral");
    assert_eq!(core.take(owner).replies.len(), 1, "the reply follows the last deletion");
    assert_eq!(core.take(witness).events.len(), 1);
    assert_eq!(core.core.state().tree.ephemerals_count(), 0);
}

#[test]
fn slow_watcher_is_closed_and_others_get_all_events() {
    let mut core = TestCore::new(CoreConfig { max_undelivered: 4 << 20, ..small_parts() });
    let (writer, slow, quick) = (core.connect(), core.connect(), core.connect());
    core.call(writer, &open("/a"));
    for conn in [slow, quick] {
        core.call(conn, &Request::AddWatch { path: "/".into(), mode: 1 });
    }
    let mut events = 0;
    let sets =
        || (0..2500).map(|_| Request::SetData { path: "/a".into(), data: None, version: -1 }).collect();
    for _ in 0..40 {
        core.call(writer, &Request::Multi(sets()));
        loop {
            core.finish(quick);
            let taken = core.take(quick).events.len();
            events += taken;
            if taken == 0 && !core.core.has_work() {
                break;
            }
            core.core.continue_work(core.now);
        }
    }
    assert_eq!(events, 100_000);
    assert!(core.core.is_cut_off(slow) && !core.core.is_cut_off(quick));
}

#[test]
fn path_of_a_znode_has_4096_names() {
    let mut core = TestCore::new(small_parts());
    let client = core.connect();
    let mut path = String::new();
    for _ in 0..4096 {
        path.push_str("/a");
        assert_eq!(core.call(client, &open(path.clone())), 0);
    }
    assert_eq!(core.call(client, &open(format!("{path}/a"))), Code::QuotaExceeded.number());
    assert_eq!(core.call(client, &Request::Delete { path, version: -1 }), 0);
}

#[test]
fn watches_are_set_and_forgotten_in_parts() {
    const WATCHES: usize = 20_000;
    let mut core = TestCore::new(small_parts());
    let (client, witness) = (core.connect(), core.connect());
    let exist = (0..WATCHES).map(|number| format!("/{number}")).collect();
    core.send(client, &Request::SetWatches(SetWatches { exist, ..SetWatches::default() }));
    let mut set = core.core.stats().watches;
    while core.core.advance(client) == Readiness::Busy {
        let before = std::mem::replace(&mut set, core.core.stats().watches);
        assert!(set - before <= 1024, "one turn set {} watches", set - before);
    }
    assert_eq!((core.core.stats().watches, core.take(client).replies.len()), (WATCHES, 1));
    core.core.remove_connection(client, core.now);
    assert_eq!(core.call(witness, &open("/0")), 0);
    assert!(core.work() >= WATCHES / 1000, "the watches were forgotten in fewer parts");
    assert_eq!(core.core.stats().watch_sides, 0);
}

#[test]
fn watches_of_all_connections_have_a_limit() {
    let mut core = TestCore::new(CoreConfig { max_total_watches: 1000, ..small_parts() });
    let small = core.connect();
    core.call(small, &Request::Exists { path: "/mine".into(), watch: true });
    let greedy = core.connect();
    for number in 0..1100 {
        core.send(greedy, &Request::Exists { path: format!("/{number}"), watch: true });
    }
    assert!(core.core.is_cut_off(greedy) && !core.core.is_cut_off(small));
    let writer = core.connect();
    core.call(writer, &open("/mine"));
    assert_eq!(core.take(small).events.len(), 1);
}

#[test]
fn expiry_of_many_sessions_and_znodes_is_done_in_parts() {
    let mut core = TestCore::new(small_parts());
    let first = core.connect();
    core.call(first, &open("/locks"));
    for number in 0..2000 {
        let conn = core.connect();
        for part in 0..10 {
            core.call(conn, &ephemeral(format!("/locks/{number}.{part}")));
        }
        core.core.remove_connection(conn, core.now);
        let ttl = CreateRequest {
            op: op::CREATE_TTL,
            path: format!("/locks/ttl{number}"),
            data: None,
            acl: vec![Acl::anyone(perms::ALL)],
            flags: 5,
            ttl: 1,
        };
        core.call(first, &Request::Create(ttl));
    }
    core.now = Now { mono_ms: 3000, wall_ms: NOW.wall_ms + 60_000 };
    core.call(first, &Request::Ping);
    core.now.mono_ms = 6000;
    core.core.expire_due_sessions(core.now);
    core.core.remove_empty_containers(core.now);
    assert!(core.core.session_count() > 1, "all sessions expired in one part");
    let mut parts = 0;
    while core.core.has_work() {
        let ephemerals = core.core.state().tree.ephemerals_count();
        assert_eq!(ephemerals % 10, 0, "a small session ends in one transaction");
        core.core.continue_work(core.now);
        parts += 1;
    }
    assert!(parts > 1);
    assert_eq!(
        (core.core.session_count(), core.core.state().tree.get("/locks").map(|node| node.child_count())),
        (1, Some(0))
    );
}

#[test]
fn ended_session_is_deleted_after_a_restart() {
    let mut core = TestCore::new(small_parts());
    let (owner, other) = (core.connect(), core.connect());
    core.call(owner, &open("/locks"));
    for number in 0..2500 {
        core.call(owner, &ephemeral(format!("/locks/{number}")));
    }
    core.send(owner, &Request::CloseSession);
    let state = core.core.state().clone();
    assert_eq!((state.sessions.len(), state.ending.len()), (1, 1), "the session has ended at once");
    assert!(state.tree.ephemerals_count() > 0);
    let mut restarted = Core::restore(small_parts(), state, 2, NOW);
    while restarted.has_work() {
        restarted.continue_work(NOW);
    }
    assert_eq!((restarted.state().tree.ephemerals_count(), restarted.state().ending.len()), (0, 0));
    assert_eq!(core.call(other, &Request::Ping), 0);
}

/// A request of one of three clients in the comparison of parts.
fn request() -> impl Strategy<Value = Request> {
    let path = || prop_oneof!["(/[ab]){1,3}", Just("/".to_owned())];
    let paths = move || vec(path(), 0..4);
    prop_oneof![
        5 => (path(), 0..2).prop_map(|(path, flags)| create(path, vec![Acl::anyone(perms::ALL)], flags)),
        3 => path().prop_map(|path| Request::Delete { path, version: -1 }),
        2 => path().prop_map(|path| Request::SetData { path, data: None, version: -1 }),
        2 => path().prop_map(|path| Request::Exists { path, watch: true }),
        2 => path().prop_map(|path| Request::GetChildren2 { path, watch: true }),
        2 => (path(), 0..2).prop_map(|(path, mode)| Request::AddWatch { path, mode }),
        1 => path().prop_map(|path| Request::RemoveWatches { path, kind: 2 }),
        1 => (paths(), paths(), paths()).prop_map(|(data, exist, child)| {
            Request::SetWatches(SetWatches { relative_zxid: 5, data, exist, child, persistent: None, recursive: None })
        }),
    ]
}

proptest! {
    /// A core with the smallest parts sends the same replies and events in the same order as one without limits.
    #[test]
    fn small_parts_change_no_output(steps in vec((0..3_usize, request()), 0..80)) {
        let mut cores = [1, usize::MAX].map(|max_part| TestCore::new(CoreConfig { max_part, ..config() }));
        let conns = cores.each_mut().map(|core| [core.connect(), core.connect(), core.connect()]);
        for (client, request) in steps {
            for (core, conns) in cores.iter_mut().zip(&conns) {
                core.finish(conns[client]);
                core.send(conns[client], &request);
                core.finish(conns[client]);
            }
            let [small, whole] = &mut cores;
            let (small, whole) = (small.take(conns[0][client]), whole.take(conns[1][client]));
            prop_assert_eq!(small, whole);
        }
        cores.iter_mut().for_each(|core| _ = core.work());
        for (small_conn, whole_conn) in conns[0].iter().zip(&conns[1]) {
            let [small, whole] = &mut cores;
            let (small, whole) = (small.take(*small_conn), whole.take(*whole_conn));
            prop_assert_eq!(small, whole);
        }
    }
}

/// Returns a multi of creates below a znode of this depth, which exists.
fn creates(core: &mut TestCore, client: ConnId, count: usize, depth: usize) -> Request {
    let mut path = String::new();
    for level in 1..depth {
        path.push_str("/a");
        core.call(client, &open(path.clone()));
        assert!(core.core.state().tree.get(&path).is_some(), "level {level} exists");
    }
    Request::Multi((0..count).map(|number| open(format!("{path}/{number}"))).collect())
}

#[test]
fn multi_is_limited_by_its_operations_alone() {
    for (count, depth, accepted) in [
        (16_384, 1, true),
        (16_385, 1, false),
        // Curator's tests send as many.
        (10_001, 4, true),
        (6000, 60, true),
        (500, 1000, true),
    ] {
        let mut core = TestCore::new(small_parts());
        let client = core.connect();
        let request = creates(&mut core, client, count, depth);
        let before = core.core.stats().znodes;
        let err = core.call(client, &request);
        let created = core.core.stats().znodes - before;
        let expected = if accepted { (0, count) } else { (Code::QuotaExceeded.number(), 0) };
        assert_eq!((err, created), expected, "{count} creates at depth {depth}");
    }
}

#[test]
fn reads_are_limited_by_operations_and_size_of_reply() {
    let mut core = TestCore::new(small_parts());
    let client = core.connect();
    for (path, len) in [("/small", 10), ("/large", 400 << 10)] {
        core.call(client, &open(path));
        let data = Some(Bytes::from(vec![7; len]));
        assert_eq!(core.call(client, &Request::SetData { path: path.into(), data, version: -1 }), 0);
    }
    let read = |path: &str| Request::GetData { path: path.into(), watch: false };
    let too_much = Code::QuotaExceeded.number();
    for (path, count, err) in
        [("/small", 16_384, 0), ("/small", 16_385, too_much), ("/large", 15, 0), ("/large", 16, too_much)]
    {
        let request = Request::MultiRead(vec![read(path); count]);
        assert_eq!(core.call(client, &request), err, "{count} reads of {path}");
    }
}

#[test]
fn list_of_ephemerals_is_limited_by_its_size() {
    let mut core = TestCore::new(small_parts());
    let client = core.connect();
    let long = format!("/{}", "n".repeat(100_000));
    for parent in ["/locks", &long] {
        core.call(client, &open(parent));
    }
    let list = |prefix: &str| Request::GetEphemerals { prefix: prefix.into() };
    for number in 0..40_000 {
        core.call(client, &ephemeral(format!("/locks/lock-{number:010}")));
    }
    for (prefix, len) in [("/", 40_000), ("/locks/lock-000003", 10_000)] {
        core.send(client, &list(prefix));
        let output = core.take(client);
        let (err, body) = &output.replies[0];
        let listed = body.first_chunk().map(|len| u32::from_be_bytes(*len));
        assert_eq!((*err, listed), (0, Some(len)), "{prefix}");
    }
    for number in 0..60 {
        core.call(client, &ephemeral(format!("{long}/{number}")));
    }
    // Paths that do not match cost as much as others.
    assert_eq!(core.call(client, &list("/locks")), Code::QuotaExceeded.number());
}

#[test]
fn watch_that_begins_during_a_round_misses_no_event() {
    let mut core = TestCore::new(small_parts());
    let (early, writer) = (core.connect(), core.connect());
    let watchers: Vec<ConnId> = (0..3).map(|_| core.connect()).collect();
    core.call(writer, &open("/a"));
    for watcher in &watchers {
        core.call(*watcher, &Request::AddWatch { path: "/".into(), mode: 1 });
    }
    let sets = || Request::Multi(vec![Request::SetData { path: "/a".into(), data: None, version: -1 }; 2500]);
    core.call(writer, &sets());
    core.call(writer, &sets());
    // The round has visited the first connections, which watch nothing yet.
    core.core.continue_work(core.now);
    assert!(core.core.has_work(), "one part delivers everything");
    core.call(early, &Request::AddWatch { path: "/".into(), mode: 1 });
    core.call(writer, &Request::SetData { path: "/a".into(), data: None, version: -1 });
    loop {
        let taken: usize = watchers
            .iter()
            .map(|watcher| {
                core.finish(*watcher);
                core.take(*watcher).events.len()
            })
            .sum();
        if taken == 0 && !core.core.has_work() {
            break;
        }
        core.core.continue_work(core.now);
    }
    assert_eq!(core.take(early).events.len(), 1);
}

#[test]
fn events_reach_a_watcher_behind_many_idle_connections() {
    let mut core = TestCore::new(CoreConfig { max_part: 10, ..small_parts() });
    let writer = core.connect();
    core.call(writer, &open("/a"));
    for _ in 0..3000 {
        core.connect();
    }
    let watcher = core.connect();
    core.call(watcher, &Request::AddWatch { path: "/".into(), mode: 1 });
    let sets = vec![Request::SetData { path: "/a".into(), data: None, version: -1 }; 200];
    core.call(writer, &Request::Multi(sets));
    for _ in 0..1000 {
        core.core.continue_work(core.now);
    }
    assert!(!core.core.has_work(), "the work does not end");
    assert_eq!(core.take(watcher).events.len(), 200);
}

#[test]
fn watcher_of_many_paths_catches_up_in_few_turns() {
    let mut core = TestCore::new(small_parts());
    let (holder, owner) = (core.connect(), core.connect());
    core.call(owner, &open("/d"));
    for number in 0..900 {
        core.call(holder, &Request::Exists { path: format!("/d/{number}"), watch: true });
    }
    for number in 0..5000 {
        core.call(owner, &ephemeral(format!("/d/{number}")));
    }
    for number in 0..900 {
        core.call(holder, &Request::Exists { path: format!("/d/{number}"), watch: true });
    }
    core.take(holder);
    core.send(owner, &Request::CloseSession);
    let mut turns = 0;
    let mut events = 0;
    while events < 900 {
        turns += 1;
        assert!(turns < 200, "{events} events after {turns} turns");
        core.core.continue_work(core.now);
        core.core.advance(holder);
        events += core.take(holder).events.len();
    }
}
