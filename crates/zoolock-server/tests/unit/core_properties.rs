//! The pure core under random requests: what must hold whatever comes.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use zoolock_server::acl::{Acl, perms};
use zoolock_server::core::{ConnId, Core, Fresh, Now};
use zoolock_server::tree::Owner;
use zoolock_server::wire::{CreateRequest, Reader, ReplyHeader, Request, SetWatches, op};
use zoolock_server::{Asker, Hidden, SessionId, State, commit, prepare, txn};

use crate::core_client::{LOCALHOST, ask, config, connect, frame};

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
        (19, 4),
    ]);
    prop_oneof![
        4 => (path(), kinds).prop_map(|(path, (op, flags))| Request::Create(CreateRequest {
            op,
            path,
            data: Some(Bytes::from_static(b"x")),
            acl: vec![Acl::anyone(perms::ALL)],
            flags,
            ttl: -1,
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
    Pass(u64),
    Reap,
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
    let asked = prop_oneof![
        6 => write(),
        2 => watch,
        2 => vec(write(), 0..4).prop_map(Request::Multi),
        1 => Just(Request::Ping),
        1 => Just(Request::CloseSession),
    ];
    prop_oneof![
        20 => (0..3_usize, asked).prop_map(|(who, request)| Step::Ask(who, request)),
        2 => (0..3_usize).prop_map(Step::Reconnect),
        2 => (0..3000_u64).prop_map(Step::Pass),
        1 => Just(Step::Reap),
    ]
}

/// Opens a connection with a session that no connection had before.
fn next_connection(core: &mut Core, now: Now, seed: &mut u64) -> ConnId {
    *seed += 1;
    connect(core, *seed, now)
}

fn check_tree(state: &State) -> Result<(), TestCaseError> {
    let mut todo = vec!["/".to_owned()];
    let mut seen = 0;
    while let Some(path) = todo.pop() {
        let node = state.tree.get(&path).ok_or_else(|| TestCaseError::fail(format!("no {path}")))?;
        seen += 1;
        if let Owner::Session(session) = Owner::of(node.owner()) {
            prop_assert!(state.sessions.contains_key(&session), "{path} outlived {session}");
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
            prop_assert_eq!(state.tree.get(&path).map(|node| node.owner()), Some(session.get()));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_tree_stays_whole_and_zxids_rise(steps in vec(step(), 0..60)) {
        let mut core = Core::new(config(), 1);
        let (mut now, mut seed) = (Now { mono_ms: 0, wall_ms: 1 }, 0);
        let mut conns: Vec<ConnId> = (0..3).map(|_| next_connection(&mut core, now, &mut seed)).collect();
        let mut last = core.zxid();
        for step in steps {
            match step {
                Step::Ask(who, request) => {
                    ask(&mut core, conns[who], &request, now);
                }
                Step::Reconnect(who) => {
                    core.closed(conns[who], now);
                    conns[who] = next_connection(&mut core, now, &mut seed);
                }
                Step::Pass(ms) => {
                    now.mono_ms += ms;
                    core.tick(now);
                }
                Step::Reap => core.remove_empty_containers(now),
            }
            prop_assert!(core.zxid() >= last);
            last = core.zxid();
            check_tree(core.state())?;
        }
        // Whoever still has output has whole frames in it, with zxids in order.
        for conn in &conns {
            let mut out = BytesMut::new();
            core.take_output(*conn, &mut out);
            let (mut rest, mut last, mut first) = (&out[..], 0, true);
            while let Some((len, tail)) = rest.split_first_chunk() {
                let (frame, tail) = tail.split_at(u32::from_be_bytes(*len) as usize);
                rest = tail;
                if !std::mem::take(&mut first) {
                    let header = ReplyHeader::decode(&mut Reader::new(frame)).expect("a header");
                    if header.xid != op::XID_EVENT {
                        prop_assert!(header.zxid >= last);
                        last = header.zxid;
                    }
                }
            }
            prop_assert!(rest.is_empty());
        }
        // When everybody has gone, nothing of theirs is left.
        for conn in conns {
            core.closed(conn, now);
        }
        now.mono_ms += 60_000;
        core.tick(now);
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
        let (now, mut seed) = (Now { mono_ms: 0, wall_ms: 1 }, 0);
        let stranger = core.open(LOCALHOST);
        core.receive(stranger, &hello, now, || Fresh { id: 99, password: txn::Password([0; 16]) });
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
                core.closed(conn, now);
                conn = next_connection(&mut core, now, &mut seed);
            }
            check_tree(core.state())?;
        }
    }

    #[test]
    fn committing_the_same_transactions_again_gives_the_same_state(requests in vec(write(), 0..40), multi in vec(write(), 0..5)) {
        let session = SessionId::from_random(7);
        let begin = txn::Change::CreateSession { timeout_ms: 1, password: txn::Password([1; 16]) };
        let (mut first, mut log) = (State::new(3), Vec::new());
        let mut changes: Vec<_> = requests.into_iter().chain([Request::Multi(multi), Request::CloseSession]).map(Some).collect();
        changes.insert(0, None);
        for (time, request) in changes.into_iter().enumerate() {
            let asker = Asker { session, identities: &[], extended_types: true };
            let change = request.map_or(begin.clone(), |request| prepare(request, &first, asker));
            let zxid = first.zxid.next().expect("numbers are left");
            let txn = txn::Txn { zxid, session, time: time as i64, change };
            let outcome = commit(&txn, &mut first);
            log.push((txn, outcome));
        }
        let mut second = State::new(3);
        for (txn, outcome) in &log {
            prop_assert_eq!(&commit(txn, &mut second), outcome);
        }
        prop_assert_eq!(first.zxid, second.zxid);
        prop_assert_eq!(first.tree.len(), second.tree.len());
        prop_assert_eq!(first.tree.get("/").map(|root| root.stat()), second.tree.get("/").map(|root| root.stat()));
        prop_assert!(second.sessions.is_empty());
    }
}
