//! Properties of the core under random requests.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use zoolock_server::core::{ConnId, Core, CoreConfig, Now, Readiness, SessionSeed};
use zoolock_server::log::{codec, replay};
use zoolock_server::tree::ZnodeOwner;
use zoolock_server::{State, Zxid, txn};
use zoolock_wire::{
    Acl, CreateRequest, Hidden, Identity, Reader, ReplyHeader, Request, SetWatches, op, perms,
};

use crate::core_client::{LOCALHOST, config, connect, frame, send_request};
use crate::log::server::visible_state;

const START: Now = Now { mono_ms: 0, wall_ms: 1_000_000 };

fn path() -> impl Strategy<Value = String> {
    prop_oneof!["(/[ab]){1,3}", "(/[ab]){0,2}/n-", Just("/".to_owned()), "[/a.]{0,4}"]
}

fn write() -> impl Strategy<Value = Request> {
    let version = || prop_oneof![3 => Just(-1), 1 => 0..3];
    let kinds = proptest::sample::select(vec![
        (op::CREATE, 0),
        (op::CREATE, 1),
        (op::CREATE2, 2),
        (op::CREATE, 3),
        (op::CREATE_CONTAINER, 4),
        (op::CREATE_TTL, 5),
        (op::CREATE_TTL, 6),
    ]);
    prop_oneof![
        4 => (path(), kinds).prop_map(|(path, (op, flags))| Request::Create(CreateRequest {
            op,
            path,
            data: Some(Bytes::from_static(b"x")),
            acl: vec![Acl::anyone(perms::ALL)],
            flags,
            ttl: 2000,
        })),
        3 => (path(), version()).prop_map(|(path, version)| Request::Delete { path, version }),
        1 => (path(), version()).prop_map(|(path, version)| Request::SetData { path, data: None, version }),
        1 => (path(), version()).prop_map(|(path, version)| Request::Check { path, version }),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Ask(usize, Request),
    Reconnect(usize),
    /// An advance of both clocks. The wall clock may go back.
    Pass {
        mono_ms: u64,
        wall_ms: i64,
    },
    RemoveExpired,
    /// A part of the work that the core has put off.
    Work,
}

fn request() -> impl Strategy<Value = Request> {
    let paths = || vec(path(), 0..3);
    prop_oneof![
        4 => write(),
        1 => vec(write(), 0..4).prop_map(Request::Multi),
        1 => path().prop_map(|path| Request::MultiRead(vec![Request::GetData { path, watch: true }])),
        1 => path().prop_map(|path| Request::SetAcl { path, acl: vec![Acl::anyone(perms::ALL)], version: -1 }),
        1 => path().prop_map(|path| Request::GetAcl { path }),
        1 => path().prop_map(|path| Request::GetAllChildrenNumber { path }),
        1 => path().prop_map(|path| Request::RemoveWatches { path, kind: 3 }),
        1 => path().prop_map(|prefix| Request::GetEphemerals { prefix }),
        1 => (paths(), paths(), paths()).prop_map(|(data, exist, child)| {
            Request::SetWatches(SetWatches { relative_zxid: 5, data, exist, child, persistent: None, recursive: None })
        }),
        1 => vec(any::<u8>(), 0..9).prop_map(|bytes| {
            Request::Auth { kind: 0, scheme: "digest".into(), credentials: Hidden(bytes) }
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let watch = (path(), 0..4).prop_map(|(path, kind)| match kind {
        0 => Request::Exists { path, watch: true },
        1 => Request::GetData { path, watch: true },
        2 => Request::GetChildren { path, watch: true },
        _ => Request::AddWatch { path, mode: 1 },
    });
    let set_acl = (path(), any::<bool>()).prop_map(|(path, own)| {
        let mut acl = vec![Acl::anyone(perms::ALL)];
        if own {
            acl.push(Acl { perms: perms::ALL, identity: Identity::new("auth", "") });
        }
        Request::SetAcl { path, acl, version: -1 }
    });
    let asked = prop_oneof![
        6 => write(),
        2 => watch,
        1 => set_acl,
        2 => vec(write(), 0..4).prop_map(Request::Multi),
        1 => Just(Request::Ping),
        1 => Just(Request::CloseSession),
    ];
    prop_oneof![
        20 => (0..3_usize, asked).prop_map(|(client, request)| Step::Ask(client, request)),
        2 => (0..3_usize).prop_map(Step::Reconnect),
        2 => (0..3000_u64, -3000..6000_i64).prop_map(|(mono_ms, wall_ms)| Step::Pass { mono_ms, wall_ms }),
        1 => Just(Step::RemoveExpired),
        4 => Just(Step::Work),
    ]
}

/// Opens an authenticated connection with a new session and takes the replies so far.
fn next_connection(core: &mut Core, now: Now, seed: &mut u64) -> ConnId {
    *seed += 1;
    let conn = connect(core, *seed, now);
    let credentials = Hidden(b"me:pw".to_vec());
    send_request(core, conn, &Request::Auth { kind: 0, scheme: "digest".into(), credentials }, now);
    core.take_output(conn, &mut BytesMut::new());
    conn
}

/// Replays the decided transactions as a log does and compares the result with the state of the core.
fn check_replay(core: &mut Core, replayed: &mut State) -> Result<(), TestCaseError> {
    for txn in std::mem::take(core.decided_mut()) {
        let mut bytes = BytesMut::new();
        codec::encode_txn(&txn, &mut bytes).expect("a decided transaction can be logged");
        let decoded = codec::decode_txn(&bytes).expect("a logged transaction can be read");
        replay(decoded, replayed).map_err(TestCaseError::fail)?;
    }
    let mut expected = core.state().clone();
    // A refused request takes a zxid and changes nothing else.
    expected.zxid = core.last_change();
    prop_assert_eq!(visible_state(replayed), visible_state(&expected));
    Ok(())
}

fn check_tree(state: &State) -> Result<(), TestCaseError> {
    let mut todo = vec!["/".to_owned()];
    let mut seen = 0;
    while let Some(path) = todo.pop() {
        let node = state.tree.get(&path).ok_or_else(|| TestCaseError::fail(format!("no {path}")))?;
        seen += 1;
        if let ZnodeOwner::Session(session) = ZnodeOwner::from_number(node.owner()) {
            let known = state.sessions.contains_key(&session) || state.ending.contains(&session);
            prop_assert!(known, "{path} outlived {session:#x}");
            prop_assert!(state.tree.ephemerals(session).iter().any(|known| **known == *path));
            prop_assert_eq!(node.child_count(), 0);
        }
        prop_assert!(node.czxid() <= node.mzxid().max(node.pzxid()) && node.pzxid() <= state.zxid);
        let base = if path == "/" { "" } else { &path };
        todo.extend(node.children().map(|name| format!("{base}/{name}")));
    }
    prop_assert_eq!(seen, state.tree.len());
    for session in state.sessions.keys() {
        for path in state.tree.ephemerals(*session) {
            prop_assert_eq!(state.tree.get(&path).map(|node| node.owner()), Some(session.0));
        }
    }
    Ok(())
}

fn read() -> impl Strategy<Value = Request> {
    (path(), 0..10).prop_map(|(path, kind)| {
        let check = Request::Check { path: path.clone(), version: 0 };
        match kind {
            0 => Request::Exists { path, watch: false },
            1 => Request::GetData { path, watch: false },
            2 => Request::GetChildren { path, watch: false },
            3 => Request::GetChildren2 { path, watch: false },
            4 => Request::GetAcl { path },
            5 => Request::GetAllChildrenNumber { path },
            6 => check,
            7 => Request::Multi(vec![check, Request::Check { path: "/a".into(), version: -1 }]),
            8 => Request::MultiRead(vec![Request::GetData { path, watch: false }]),
            _ => Request::Sync { path },
        }
    })
}

/// Sends a read. Returns its error code with its body, and the last transaction whose effects it may show.
fn ask(core: &mut Core, conn: ConnId, read: &Request) -> (i32, Vec<u8>, Zxid) {
    send_request(core, conn, read, START);
    let shown = core.last_shown(conn);
    let mut out = BytesMut::new();
    core.take_output(conn, &mut out);
    let mut reader = Reader::new(&out[4..]);
    let header = ReplyHeader::decode(&mut reader).expect("a reply header");
    (header.err, out[20..].to_vec(), shown)
}

proptest! {
    /// A reply that needs the log up to a transaction is the same in each state from that transaction on. So a crash that
    /// undoes later transactions does not take back what the client has seen.
    #[test]
    fn replies_show_only_transactions_that_they_wait_for(
        steps in vec((step(), read()), 1..40),
        is_full in any::<bool>(),
    ) {
        let mut core = Core::new(CoreConfig { journal: true, ..config() }, 1);
        let mut seed = 0;
        let reader = next_connection(&mut core, START, &mut seed);
        let writer = next_connection(&mut core, START, &mut seed);
        let acl = vec![Acl::anyone(perms::ALL)];
        let create = CreateRequest { op: op::CREATE, path: "/a".into(), data: None, acl, flags: 0, ttl: 0 };
        send_request(&mut core, writer, &Request::Create(create), START);
        // At the end of the sequence numbers, creates do not change the parent znode.
        prop_assert!(!is_full || core.set_child_counter("/a", i32::MAX));
        let mut states = vec![core.state().clone()];
        for (step, read) in steps {
            if let Step::Ask(_, request) = step
                && core.advance(writer) == Readiness::Ready
                && request != Request::CloseSession
            {
                let before = core.last_change();
                send_request(&mut core, writer, &request, START);
                if core.last_change() != before {
                    states.push(core.state().clone());
                }
            }
            let (err, body, shown) = ask(&mut core, reader, &read);
            for state in states.iter().rev().take_while(|state| state.zxid >= shown) {
                let mut earlier = Core::restore(config(), state.clone(), 2, START);
                let conn = next_connection(&mut earlier, START, &mut seed);
                let (known_err, known_body, _) = ask(&mut earlier, conn, &read);
                prop_assert_eq!((err, &body), (known_err, &known_body), "{:?} at {}", read, state.zxid);
            }
        }
    }

    #[test]
    fn tree_stays_consistent_and_replay_restores_it(
        steps in vec(step(), 0..60),
        max_part in proptest::sample::select(vec![1, 3, usize::MAX]),
    ) {
        let mut core = Core::new(CoreConfig { journal: true, max_part, ..config() }, 1);
        let (mut now, mut seed) = (START, 0);
        let mut replayed = State::new(0);
        let mut conns: Vec<ConnId> = (0..3).map(|_| next_connection(&mut core, now, &mut seed)).collect();
        let mut last = core.zxid();
        for step in steps {
            match step {
                Step::Ask(client, request) => {
                    // A client may send its next request before the core has finished the last one. The request waits.
                    if core.advance(conns[client]) == Readiness::Ready {
                        send_request(&mut core, conns[client], &request, now);
                    }
                }
                Step::Reconnect(client) => {
                    core.remove_connection(conns[client], now);
                    conns[client] = next_connection(&mut core, now, &mut seed);
                }
                Step::Pass { mono_ms, wall_ms } => {
                    now.mono_ms += mono_ms;
                    now.wall_ms += wall_ms;
                    core.expire_due_sessions(now);
                }
                Step::RemoveExpired => core.remove_empty_containers(now),
                Step::Work => core.continue_work(now),
            }
            prop_assert!(core.zxid() >= last);
            last = core.zxid();
            check_tree(core.state())?;
            check_replay(&mut core, &mut replayed)?;
        }
        // The output of a connection consists of whole frames with rising zxids.
        for conn in &conns {
            let mut out = BytesMut::new();
            core.take_output(*conn, &mut out);
            let (mut rest, mut last) = (&out[..], 0);
            while let Some((len, tail)) = rest.split_first_chunk() {
                let (frame, tail) = tail.split_at(u32::from_be_bytes(*len) as usize);
                rest = tail;
                let header = ReplyHeader::decode(&mut Reader::new(frame)).expect("a reply header");
                if header.xid != op::XID_EVENT {
                    prop_assert!(header.zxid >= last);
                    last = header.zxid;
                }
            }
            prop_assert!(rest.is_empty());
        }
        // After every session has expired, the core has no session, watch or connection.
        for conn in conns {
            core.remove_connection(conn, now);
        }
        now.mono_ms += 60_000;
        core.expire_due_sessions(now);
        while core.has_work() {
            core.continue_work(now);
        }
        check_replay(&mut core, &mut replayed)?;
        let stats = core.stats();
        prop_assert_eq!((stats.sessions, stats.watches, stats.connections), (0, 0, 0));
        prop_assert_eq!(core.next_expiry(), None);
    }

    #[test]
    fn damaged_frames_never_make_the_core_panic(
        requests in vec((request(), vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3), any::<bool>()), 0..30),
        hello in vec(any::<u8>(), 0..60),
    ) {
        let mut core = Core::new(config(), 1);
        let (now, mut seed) = (START, 0);
        let unconnected = core.add_connection(LOCALHOST);
        core.receive(unconnected, &hello, now, || SessionSeed { id: 99, password: txn::Password([0; 16]) });
        let mut conn = next_connection(&mut core, now, &mut seed);
        for (request, damage, cut) in requests {
            let mut bytes = frame(&request);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                if cut {
                    bytes.truncate(at);
                    break;
                }
            }
            core.receive(conn, &bytes, now, || unreachable!("the session exists"));
            if core.take_output(conn, &mut BytesMut::new()) {
                core.remove_connection(conn, now);
                conn = next_connection(&mut core, now, &mut seed);
            }
            check_tree(core.state())?;
        }
    }
}
