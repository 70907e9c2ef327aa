//! Turns with the core, and connections that wait for their turns.

use bytes::{Bytes, BytesMut};
use zoolock_server::core::{ConnId, Core, CoreConfig, Now, Readiness};
use zoolock_wire::{Acl, CreateRequest, Request, SetWatches, op, perms};

use crate::work::{TestCore, open, small_parts};

fn set(path: &str) -> Request {
    Request::SetData { path: path.into(), data: None, version: -1 }
}

fn create_with_data(path: &str, len: usize) -> Request {
    let data = Some(Bytes::from(vec![7; len]));
    let (acl, path) = (vec![Acl::anyone(perms::ALL)], path.to_owned());
    Request::Create(CreateRequest { op: op::CREATE, path, data, acl, flags: 0, ttl: -1 })
}

/// The time at which a session that began at the start expires, unless its client is heard of.
fn after_timeout(core: &TestCore) -> Now {
    Now { mono_ms: core.now.mono_ms + 10_000, ..core.now }
}

#[test]
fn session_lives_while_the_server_does_not_read() {
    let mut core = TestCore::new(small_parts());
    let (holder, silent) = (core.connect(), core.connect());
    core.core.begin_wait(holder);
    core.now = after_timeout(&core);
    core.core.expire_due_sessions(core.now);
    core.work();
    assert_eq!(core.core.session_count(), 1);
    let mut is_closed = |conn| core.core.take_output(conn, &mut BytesMut::new());
    assert!(is_closed(silent) && !is_closed(holder));
    // The session has its whole timeout after the wait.
    core.core.end_wait(holder, core.now);
    core.now.mono_ms += 3000;
    core.core.expire_due_sessions(core.now);
    core.work();
    assert_eq!(core.core.session_count(), 1);
    core.now = after_timeout(&core);
    core.core.expire_due_sessions(core.now);
    core.work();
    assert_eq!(core.core.session_count(), 0);
}

#[test]
fn sessions_without_ephemerals_expire_in_parts() {
    let mut core = TestCore::new(small_parts());
    for _ in 0..5000 {
        let conn = core.connect();
        core.core.remove_connection(conn, core.now);
    }
    core.now = after_timeout(&core);
    core.core.expire_due_sessions(core.now);
    assert!(core.core.session_count() > 1000, "{} sessions left", core.core.session_count());
    assert!(core.work() > 1);
    assert_eq!(core.core.session_count(), 0);
}

/// A core in which 200 connections do not take their events, beside connections without watches.
fn core_with_slow_watchers(others: usize) -> (TestCore, Vec<ConnId>) {
    let mut core = TestCore::new(CoreConfig { max_undelivered: 1, ..small_parts() });
    let slow: Vec<ConnId> = (0..200).map(|_| core.connect()).collect();
    for watcher in &slow {
        core.call(*watcher, &Request::AddWatch { path: "/".into(), mode: 0 });
    }
    let mut writer = core.connect();
    (0..others).for_each(|_| writer = core.connect());
    core.send(writer, &Request::Multi(vec![set("/"); 10_000]));
    (core, slow)
}

/// The end of a connection takes as long as the ends of many sessions without one: its task runs, and its socket is freed.
#[test]
fn few_connections_end_in_one_part() {
    const MOST: usize = 16;
    let mut expired = TestCore::new(small_parts());
    let silent: Vec<ConnId> = (0..200).map(|_| expired.connect()).collect();
    expired.now = after_timeout(&expired);
    expired.core.expire_due_sessions(expired.now);
    // One part does not visit 3,000 connections.
    let (alone, among_many) = (core_with_slow_watchers(0), core_with_slow_watchers(3000));
    for (case, (mut core, conns)) in
        [("expired", (expired, silent)), ("slow", alone), ("slow among many", among_many)]
    {
        let count_left = |core: &Core| {
            let open = conns.iter().filter(|conn| !core.is_cut_off(**conn)).count();
            open.min(core.session_count())
        };
        let mut ended = vec![conns.len() - count_left(&core.core)];
        while core.core.has_work() {
            let before = count_left(&core.core);
            core.core.continue_work(core.now);
            ended.push(before - count_left(&core.core));
        }
        assert!(ended.iter().all(|&ended| ended <= MOST), "{case}: {ended:?}");
        assert_eq!(ended.iter().sum::<usize>(), conns.len(), "{case}");
        // Once the server begins to close connections, the memory of their events is free soon.
        let mut parts = ended.iter().skip_while(|&&ended| ended == 0).skip_while(|&&ended| ended > 0);
        assert!(parts.all(|&ended| ended == 0), "{case}: {ended:?}");
    }
}

#[test]
fn events_are_dropped_when_their_last_watcher_ends() {
    let mut core = TestCore::new(small_parts());
    let (writer, slow) = (core.connect(), core.connect());
    core.call(slow, &Request::AddWatch { path: "/".into(), mode: 0 });
    core.send(writer, &Request::Multi(vec![set("/"); 10_000]));
    core.work();
    assert!(core.core.stats().undelivered > 0, "the watcher took its events");
    core.core.remove_connection(slow, core.now);
    core.work();
    assert_eq!(core.core.stats().undelivered, 0);
}

#[test]
fn each_kind_of_work_ends_a_turn() {
    let mut core = TestCore::new(CoreConfig { max_part: 1, ..small_parts() });
    let writer = core.connect();
    let ttl = CreateRequest {
        op: op::CREATE_TTL,
        path: "/ttl".to_owned(),
        data: None,
        acl: vec![Acl::anyone(perms::ALL)],
        flags: 5,
        ttl: 1,
    };
    core.call(writer, &Request::Create(ttl));
    core.core.remove_connection(writer, core.now);
    core.now = Now { wall_ms: core.now.wall_ms + 10_000, ..after_timeout(&core) };
    let left = |core: &Core| core.session_count() + core.state().tree.len();
    let before = left(&core.core);
    core.core.remove_empty_containers(core.now);
    core.core.expire_due_sessions(core.now);
    let mut now_left = left(&core.core);
    assert!(before - now_left <= 2, "{now_left} of {before}");
    while core.core.has_work() {
        core.core.continue_work(core.now);
        assert!(now_left - left(&core.core) <= 1, "one turn ended a session and removed a znode");
        now_left = left(&core.core);
    }
    assert_eq!(before - now_left, 2);
}

#[test]
fn events_of_deep_znodes_are_delivered_in_parts() {
    const DEPTH: usize = 1000;
    const EVENTS: usize = 130;
    let mut core = TestCore::new(small_parts());
    let (writer, watcher) = (core.connect(), core.connect());
    let mut path = String::new();
    for _ in 0..DEPTH {
        path.push_str("/a");
        core.call(writer, &open(path.clone()));
    }
    core.call(watcher, &Request::AddWatch { path: "/".into(), mode: 1 });
    core.send(writer, &Request::Multi(vec![set(&path); EVENTS]));
    let mut events = core.take(watcher).events.len();
    while core.core.is_lagging(watcher) {
        core.core.continue_work(core.now);
        let taken = core.take(watcher).events.len();
        assert!(taken <= 20, "one part delivered {taken} events");
        events += taken;
    }
    assert_eq!(events, EVENTS);
}

/// If each turn took more events, thousands of connections that miss many would keep all others waiting.
#[test]
fn connection_takes_few_events_in_its_own_turns() {
    const EVENTS: usize = 10_000;
    let mut core = TestCore::new(small_parts());
    let (writer, watcher) = (core.connect(), core.connect());
    core.call(writer, &open("/a"));
    core.call(watcher, &Request::AddWatch { path: "/a".into(), mode: 0 });
    core.send(writer, &Request::Multi(vec![set("/a"); EVENTS]));
    let mut events = core.take(watcher).events.len();
    for turn in 0..100 {
        assert_eq!(core.core.advance(watcher), Readiness::Blocked);
        let taken = core.take(watcher).events.len();
        assert!(taken <= if turn == 0 { 128 } else { 0 }, "turn {turn} took {taken} events");
        events += taken;
    }
    while core.core.advance(watcher) == Readiness::Blocked {
        core.core.continue_work(core.now);
        events += core.take(watcher).events.len();
    }
    assert_eq!(events, EVENTS);
}

#[test]
fn connection_with_its_events_takes_the_next_few_itself() {
    // 1,000 are delivered in the turn of the writer, and 128 more to a connection that misses no earlier ones.
    const EVENTS: usize = 1200;
    let mut core = TestCore::new(small_parts());
    let (writer, watcher) = (core.connect(), core.connect());
    core.call(writer, &open("/a"));
    core.call(watcher, &Request::AddWatch { path: "/a".into(), mode: 0 });
    core.send(writer, &Request::Multi(vec![set("/a"); 10_000]));
    assert_eq!(core.core.advance(watcher), Readiness::Blocked);
    while core.core.is_lagging(watcher) {
        core.take(watcher);
        core.core.continue_work(core.now);
    }
    core.take(watcher);
    core.work();
    core.send(writer, &Request::Multi(vec![set("/a"); EVENTS]));
    assert!(core.core.is_lagging(watcher));
    assert_eq!(core.core.advance(watcher), Readiness::Ready);
    assert_eq!(core.take(watcher).events.len(), EVENTS);
}

/// A part of the work can end between the visit to a connection whose output is full and the end of the round.
#[test]
fn connection_whose_task_runs_when_woken_gets_all_events() {
    const EVENTS: usize = 4000;
    for others in (100..400).step_by(30) {
        let mut core = TestCore::new(small_parts());
        let mut conns: Vec<ConnId> = (0..others).map(|_| core.connect()).collect();
        let (watcher, writer) = (conns[others / 2], conns.remove(0));
        let path = format!("/{}", "a".repeat(150));
        core.call(writer, &open(path.clone()));
        core.call(watcher, &Request::AddWatch { path: path.clone(), mode: 0 });
        core.send(writer, &Request::Multi(vec![set(&path); EVENTS]));
        let mut events = core.take(watcher).events.len();
        core.core.take_woken();
        while core.core.has_work() {
            core.core.continue_work(core.now);
            for conn in core.core.take_woken() {
                // One turn takes the output, and one follows when the output is written.
                for _ in 0..2 {
                    core.core.advance(conn);
                    events += core.take(conn).events.len();
                }
            }
        }
        assert_eq!(events, EVENTS, "{others} other connections");
    }
}

#[test]
fn delivered_events_are_dropped_in_parts() {
    let mut core = TestCore::new(CoreConfig { max_part: 1, ..small_parts() });
    let (writer, watcher) = (core.connect(), core.connect());
    core.call(writer, &open("/a"));
    core.call(watcher, &Request::AddWatch { path: "/a".into(), mode: 0 });
    core.send(writer, &Request::Multi(vec![set("/a"); 5000]));
    core.take(writer);
    let mut before = core.core.stats().undelivered;
    let part = before / 4;
    while core.core.has_work() || core.core.is_lagging(watcher) {
        core.take(watcher);
        core.core.advance(watcher);
        core.core.continue_work(core.now);
        let now = core.core.stats().undelivered;
        assert!(before - now <= part, "one turn dropped {} bytes of events", before - now);
        before = now;
    }
    assert_eq!(before, 0);
}

#[test]
fn reply_is_not_sent_before_its_events_when_the_server_stops() {
    for changes in [1, 100, 4000] {
        let mut core = TestCore::new(small_parts());
        let client = core.connect();
        core.call(client, &open("/a"));
        core.call(client, &Request::AddWatch { path: "/a".into(), mode: 0 });
        core.send(client, &Request::Multi(vec![set("/a"); changes]));
        core.core.stop_input(client);
        let output = core.take(client);
        match output.replies.len() {
            0 => assert!(changes > 100, "the reply to {changes} changes is missing"),
            _ => assert_eq!(output.events.len(), changes),
        }
    }
}

#[test]
fn closing_connections_are_cut_off_before_others() {
    let mut core = TestCore::new(CoreConfig { max_queued: 1_000_000, ..small_parts() });
    let writer = core.connect();
    core.call(writer, &create_with_data("/large", 99_880));
    core.call(writer, &create_with_data("/small", 900));
    let read = |path: &str| Request::GetData { path: path.into(), watch: false };
    let closing: Vec<ConnId> = (0..10)
        .map(|_| {
            let conn = core.connect();
            core.send(conn, &read("/large"));
            core.send(conn, &Request::CloseSession);
            assert!(core.core.take_output(conn, &mut BytesMut::new()));
            conn
        })
        .collect();
    for _ in 0..20 {
        let conn = core.connect();
        core.send(conn, &read("/small"));
        assert!(!core.core.is_cut_off(conn));
        core.take(conn);
        core.core.set_unwritten(conn, 0);
    }
    assert!(closing.iter().any(|conn| core.core.is_cut_off(*conn)));
    for conn in closing.into_iter().chain([writer]) {
        core.core.remove_connection(conn, core.now);
    }
    assert_eq!(core.core.stats().queued, 0);
}

#[test]
fn watches_that_are_not_set_yet_count_as_queued() {
    let mut core = TestCore::new(CoreConfig { max_queued: 1_500_000, ..small_parts() });
    let paths: Vec<String> = (0..20_000).map(|number| format!("/{number:05}")).collect();
    let set = Request::SetWatches(SetWatches {
        relative_zxid: 1,
        data: paths,
        exist: vec![],
        child: vec![],
        persistent: None,
        recursive: None,
    });
    // This client has a short reply that is not written yet.
    let innocent = core.connect();
    core.call(innocent, &open("/a"));
    core.send(innocent, &Request::Ping);
    core.core.take_output(innocent, &mut BytesMut::new());
    let conns: Vec<ConnId> = (0..8)
        .map(|_| {
            let conn = core.connect();
            core.send(conn, &set);
            conn
        })
        .collect();
    assert!(core.core.stats().queued <= 1_500_000);
    assert!(conns.iter().any(|conn| core.core.is_cut_off(*conn)));
    assert!(!core.core.is_cut_off(innocent));
    // A connection that reads gets all its events and the reply.
    let reader = *conns.iter().find(|conn| !core.core.is_cut_off(**conn)).expect("an open connection");
    let (mut events, mut replies) = (0, 0);
    while replies == 0 {
        core.core.advance(reader);
        let output = core.take(reader);
        events += output.events.len();
        replies += output.replies.len();
    }
    assert_eq!(events, 20_000);
    for conn in conns.into_iter().chain([innocent]) {
        core.core.set_unwritten(conn, 0);
        core.core.remove_connection(conn, core.now);
    }
    assert_eq!(core.core.stats().queued, 0);
}

#[test]
fn events_of_a_long_transaction_are_delivered_later() {
    const DEPTH: usize = 1800;
    let mut core = TestCore::new(small_parts());
    let clients: Vec<ConnId> = (0..4).map(|_| core.connect()).collect();
    let mut parent = String::new();
    for _ in 0..DEPTH {
        parent.push_str("/a");
        core.call(clients[0], &open(parent.as_str()));
    }
    for client in &clients {
        core.call(*client, &Request::AddWatch { path: "/".into(), mode: 1 });
        core.call(*client, &Request::AddWatch { path: parent.clone(), mode: 0 });
    }
    let creates = (0..4).map(|number| open(format!("{parent}/{number}"))).collect();
    core.send(clients[0], &Request::Multi(creates));
    core.finish(clients[0]);
    core.work();
    for client in &clients {
        let output = core.take(*client);
        assert!(output.events.len() >= 4, "{} events", output.events.len());
        assert_eq!(output.replies.len(), usize::from(client == &clients[0]));
        assert!(output.replies.iter().all(|(error, _)| *error == 0));
        assert!(output.events.iter().all(|(replies, _)| *replies == 0), "the reply came before its events");
    }
}
