//! Applies decided changes. Recovery calls [`commit()`] with the transactions of the log.

use std::sync::Arc;

use zoolock_wire::{Code, EventKind, OpResult, Reply, path};

use crate::acl::AclList;
use crate::state::{State, StoredSession};
use crate::tree::NewNode;
use crate::txn::{Change, Create, Txn, WriteRefusal};

/// Result of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Reply to the client that sent the request.
    pub reply: Result<Reply, Code>,
    /// Events for watches, in order.
    pub events: Vec<PathChange>,
}

/// A change of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathChange {
    /// Kind of change.
    pub kind: EventKind,
    /// Path of the znode.
    pub path: Arc<str>,
    /// Access list of the znode. A client without the permission to read the znode gets no event
    /// (CVE-2024-23944).
    pub acl: AclList,
}

/// Applies the change of a transaction, and advances the state's zxid.
///
/// # Panics
/// If the transaction does not fit the state, which is a bug. Recovery checks each transaction of
/// the log before it calls this function.
pub fn commit(txn: &Txn, state: &mut State) -> Committed {
    let mut events = Vec::new();
    let reply = match &txn.change {
        Change::Multi(changes) => {
            let results =
                changes.iter().map(|change| to_op_result(change, &apply(change, txn, state, &mut events)));
            Ok(Reply::Multi(results.collect()))
        }
        Change::Refused(WriteRefusal::One(code)) => Err(*code),
        Change::Refused(WriteRefusal::InMulti { at, of, code }) => {
            Ok(Reply::Multi(failed_multi_results(*at, *of, *code)))
        }
        change => Ok(apply(change, txn, state, &mut events)),
    };
    state.zxid = state.zxid.max(txn.zxid);
    Committed { reply, events }
}

fn apply(change: &Change, txn: &Txn, state: &mut State, events: &mut Vec<PathChange>) -> Reply {
    match change {
        Change::Create(create) => apply_create(create, txn, state, events),
        Change::Delete { path } => {
            apply_delete(path, txn, state, events);
            Reply::Empty
        }
        Change::SetData { path, data, version } => {
            let node = state.tree.get(path).expect("znode was checked by prepare");
            let acl = node.acl().clone();
            let stat = state.tree.set_data(path, data.as_deref(), *version, txn.zxid, txn.time);
            events.push(PathChange { kind: EventKind::DataChanged, path: Arc::clone(path), acl });
            Reply::Stat(stat)
        }
        Change::SetAcl { path, acl, version } => Reply::Stat(state.tree.set_acl(path, acl, *version)),
        Change::CreateSession { timeout_ms, password } => {
            let session = StoredSession { timeout_ms: *timeout_ms, password: password.clone() };
            state.sessions.insert(txn.session, session);
            Reply::Empty
        }
        Change::CloseSession { ephemerals } => {
            for path in ephemerals {
                apply_delete(path, txn, state, events);
            }
            state.sessions.remove(&txn.session);
            state.ending.remove(&txn.session);
            Reply::Empty
        }
        Change::ClosePart { ephemerals } => {
            for path in ephemerals {
                apply_delete(path, txn, state, events);
            }
            state.sessions.remove(&txn.session);
            state.ending.insert(txn.session);
            Reply::Empty
        }
        Change::Check | Change::Multi(_) | Change::Refused(_) => Reply::Empty,
    }
}

fn apply_create(create: &Create, txn: &Txn, state: &mut State, events: &mut Vec<PathChange>) -> Reply {
    let stat = state.tree.create(NewNode {
        path: Arc::clone(&create.path),
        data: create.data.clone(),
        acl: create.acl.clone(),
        owner: create.owner,
        parent_created: create.parent_created,
        zxid: txn.zxid,
        time: txn.time,
    });
    events.push(PathChange {
        kind: EventKind::Created,
        path: Arc::clone(&create.path),
        acl: create.acl.clone(),
    });
    events.push(children_changed_event(&create.path, state));
    let path = create.path.as_ref().to_owned();
    if create.with_stat { Reply::PathStat { path, stat } } else { Reply::Path(path) }
}

fn apply_delete(path: &Arc<str>, txn: &Txn, state: &mut State, events: &mut Vec<PathChange>) {
    let node = state.tree.get(path).expect("znode was checked by prepare");
    let acl = node.acl().clone();
    state.tree.delete(path, txn.zxid);
    events.push(PathChange { kind: EventKind::Deleted, path: Arc::clone(path), acl });
    events.push(children_changed_event(path, state));
}

fn children_changed_event(path: &str, state: &State) -> PathChange {
    let parent = path::split(path).0;
    let acl = state.tree.get(parent).expect("a znode that exists has a parent").acl().clone();
    PathChange { kind: EventKind::ChildrenChanged, path: parent.into(), acl }
}

fn to_op_result(change: &Change, reply: &Reply) -> OpResult {
    match (change, reply) {
        (_, Reply::Path(path)) => OpResult::Create { path: path.clone() },
        (_, Reply::PathStat { path, stat }) => OpResult::Create2 { path: path.clone(), stat: *stat },
        (Change::SetData { .. }, Reply::Stat(stat)) => OpResult::SetData(*stat),
        (Change::Delete { .. }, _) => OpResult::Delete,
        _ => OpResult::Check,
    }
}

/// Returns the results of a failed multi, with the error codes that ZooKeeper returns. The
/// operations before the failed one get 0. The operations after it get "runtime inconsistency".
fn failed_multi_results(at: usize, of: usize, code: Code) -> Vec<OpResult> {
    let result = |i: usize| match i.cmp(&at) {
        std::cmp::Ordering::Less => OpResult::Error(0),
        std::cmp::Ordering::Equal => OpResult::Error(code.number()),
        std::cmp::Ordering::Greater => OpResult::Error(Code::RuntimeInconsistency.number()),
    };
    (0..of).map(result).collect()
}
