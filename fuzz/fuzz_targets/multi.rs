//! Multi: all of it happens or nothing.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zoolock_server::acl::{Acl, perms};
use zoolock_server::wire::{CreateRequest, OpResult, Reader, Reply, Request, op};
use zoolock_server::{Asker, SessionId, State, commit, prepare, txn};

const ME: SessionId = SessionId::SERVER;

/// A tree with something to collide with.
static STATE: LazyLock<State> = LazyLock::new(|| {
    let mut state = State::new(1);
    let session = txn::Change::CreateSession { timeout_ms: 1000, password: txn::Password([1; 16]) };
    let _ = run(&mut state, session);
    for (path, flags) in [("/a", 0), ("/a/b", 0), ("/a/e", 1), ("/c", 0), ("/c/s-", 2)] {
        let create = CreateRequest {
            op: op::CREATE,
            path: path.to_owned(),
            data: None,
            acl: vec![Acl::anyone(perms::ALL)],
            flags,
            ttl: -1,
        };
        let change = prepare(Request::Create(create), &state, ASKER);
        let _ = run(&mut state, change);
    }
    state
});

const ASKER: Asker<'_> = Asker { session: ME, identities: &[] };

fuzz_target!(|data: &[u8]| {
    let Some((&kind, body)) = data.split_first() else { return };
    let op = if kind & 1 == 0 { op::MULTI } else { op::MULTI_READ };
    let Ok(request) = Request::decode(op, &mut Reader::new(body)) else { return };
    if op == op::MULTI_READ {
        let _ = zoolock_server::query(&request, &STATE, ASKER);
        return;
    }
    let Request::Multi(ops) = &request else { unreachable!("decoded as a multi") };
    let count = ops.len();
    let mut state = STATE.clone();
    let reply = run(&mut state, prepare(request, &STATE, ASKER));
    let Ok(Reply::Multi(results)) = reply else { panic!("a multi is answered by a multi") };
    assert_eq!(results.len(), count);
    if results.iter().any(|result| matches!(result, OpResult::Error(_))) {
        assert!(results.iter().all(|result| matches!(result, OpResult::Error(_))));
        assert_eq!(records(&state), records(&STATE), "a multi that failed left something behind");
    }
    zoolock_server::tree::Tree::from_records(state.tree.records()).expect("the tree is whole");
});

fn run(state: &mut State, change: txn::Change) -> Result<Reply, zoolock_server::Code> {
    let zxid = state.zxid.next().expect("there are numbers");
    commit(&txn::Txn { zxid, session: ME, time: 1, change }, state).reply
}

fn records(state: &State) -> Vec<zoolock_server::tree::NodeRecord> {
    let mut records: Vec<_> = state.tree.records().collect();
    records.sort_by(|a, b| a.path.cmp(&b.path));
    records
}
