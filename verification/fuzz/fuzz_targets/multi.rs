//! Multi: all operations are applied or none, and a log restores the same state.
#![no_main]

use std::sync::LazyLock;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use zoolock_fuzz::{Input, records};
use zoolock_server::acl;
use zoolock_server::log::{codec, replay};
use zoolock_server::tree::Tree;
use zoolock_server::{Client, Requester, SessionId, State, commit, prepare, txn};
use zoolock_wire::{Acl, Code, CreateRequest, Identity, OpResult, Reader, Reply, Request, Writer, op, perms};

fn me() -> SessionId {
    SessionId(5)
}

thread_local! {
    static CLIENT: &'static Client = Box::leak(Box::new(Client::new(vec![
        Identity::new("ip", "127.0.0.1"),
        acl::digest_identity(b"me:pw"),
    ])));
}

/// A tree with znodes that conflict with the requests.
static STATE: LazyLock<State> = LazyLock::new(|| {
    let mut state = State::new(1);
    let session = txn::Change::CreateSession { timeout_ms: 1000, password: txn::Password([1; 16]) };
    let _ = run(&mut state, session);
    let znodes = [("/a", 0), ("/a/b", 0), ("/a/e", 1), ("/c", 0), ("/c/s-", 2), ("/b", 4)];
    for (path, flags) in znodes {
        let create = CreateRequest {
            op: if flags == 4 { op::CREATE_CONTAINER } else { op::CREATE },
            path: path.to_owned(),
            data: Some("x".into()),
            acl: vec![Acl::anyone(perms::ALL)],
            flags,
            ttl: -1,
        };
        let change = prepare(Request::Create(create), &state, asker(true));
        run(&mut state, change).expect("each znode can be created");
    }
    state
});

fn asker(extended_types: bool) -> Requester<'static> {
    Requester { session: me(), client: CLIENT.with(|client| *client), extended_types }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let kind = input.byte();
    let asker = asker(kind & 8 == 0);
    let op = if kind & 1 == 0 { op::MULTI } else { op::MULTI_READ };
    let request = match kind & 3 {
        0 | 1 => match Request::decode(op, &mut Reader::new(input.rest())) {
            Ok(request) => request,
            Err(_) => return,
        },
        _ => {
            let mut ops = Vec::new();
            while !input.is_empty() && ops.len() < 64 {
                ops.push(input.write());
            }
            Request::Multi(ops)
        }
    };
    if let Request::MultiRead(reads) = &request {
        if let Ok(reply) = zoolock_server::query(&request, &STATE, asker) {
            let Reply::Multi(results) = &reply else { panic!("the reply to a multi is of another kind") };
            assert_eq!(results.len(), reads.len());
            round_trip(&reply, op::MULTI_READ);
        }
        return;
    }
    let Request::Multi(ops) = &request else { unreachable!("a multiRead has returned above") };
    let count = ops.len();
    let (mut state, mut again) = (STATE.clone(), STATE.clone());
    let change = prepare(request, &STATE, asker);
    let reply = run(&mut state, change.clone());
    if let Ok(reply) = &reply {
        let Reply::Multi(results) = reply else { panic!("the reply to a multi is of another kind") };
        assert_eq!(results.len(), count);
        round_trip(reply, op::MULTI);
    }
    let Ok(Reply::Multi(results)) = reply else {
        assert_eq!(records(&state.tree), records(&STATE.tree), "a failed multi changed the tree");
        return;
    };
    if matches!(change, txn::Change::Refused(_)) {
        assert!(results.iter().all(|result| matches!(result, OpResult::Error(_))));
        assert_eq!(records(&state.tree), records(&STATE.tree), "a failed multi changed the tree");
        return;
    }
    assert!(!results.iter().any(|result| matches!(result, OpResult::Error(_))));
    Tree::from_records(state.tree.records()).expect("the tree is consistent");
    let txn = txn::Txn { zxid: state.zxid, session: me(), time: 1, change };
    let mut bytes = BytesMut::new();
    codec::encode_txn(&txn, &mut bytes).expect("a decided transaction can be logged");
    replay(codec::decode_txn(&bytes).expect("txn is decoded"), &mut again).expect("txn is replayed");
    assert_eq!((records(&again.tree), again.zxid), (records(&state.tree), state.zxid));
    // The end of a session deletes all its ephemerals, also those from the multi.
    let end = prepare(Request::CloseSession, &state, asker);
    run(&mut state, end).expect("a session can end");
    assert_eq!(state.tree.ephemerals_count(), 0);
});

fn run(state: &mut State, change: txn::Change) -> Result<Reply, Code> {
    let zxid = state.zxid.next().expect("zxids suffice");
    commit(&txn::Txn { zxid, session: me(), time: 1, change }, state).reply
}

fn round_trip(reply: &Reply, op: i32) {
    let mut out = BytesMut::new();
    reply.encode(&mut Writer::new(&mut out));
    assert_eq!(Reply::decode(op, &mut Reader::new(&out)).as_ref(), Ok(reply));
}
