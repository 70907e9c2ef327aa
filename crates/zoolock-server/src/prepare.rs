//! Decides writes: computes the [`Change`] or the error of a request, without changing the state.
//!
//! The checks come in the order of Apache ZooKeeper, because the order decides which error a client
//! gets.

use std::sync::Arc;

use zoolock_wire::{Code, CreateRequest, Request, op, path, perms};

use crate::caps::MAX_PATH_NAMES;
use crate::client::Client;
use crate::ids::SessionId;
use crate::pending::{PendingState, PendingZnode};
use crate::sent_acl::{self, MAX_MULTI_BYTES};
use crate::state::State;
use crate::tree::{CONTAINER, ZnodeOwner, ttl_owner};
use crate::txn::{Change, Create, WriteRefusal};

/// The client that sent a request.
#[derive(Debug, Clone, Copy)]
pub struct Requester<'a> {
    /// The session.
    pub session: SessionId,
    /// Identities of the connection, and the size of the reply so far.
    pub client: &'a Client,
    /// Set if znodes may have a time to live.
    pub extended_types: bool,
}

/// Decides a write. A refused write is a [`Change::Refused`], because it also takes a zxid.
pub fn prepare(request: Request, state: &State, asker: Requester<'_>) -> Change {
    let decided = match request {
        _ if !state.sessions.contains_key(&asker.session) => Err(Code::SessionExpired),
        Request::Multi(ops) => return prepare_multi(ops, state, asker),
        Request::CloseSession => Ok(decide_session_end(state, asker.session)),
        request => decide(request, &mut PendingState::for_single(state), asker),
    };
    decided.unwrap_or_else(|code| Change::Refused(WriteRefusal::One(code)))
}

/// Decides the end of a session that was closed or has expired.
pub(crate) fn decide_session_end(state: &State, session: SessionId) -> Change {
    Change::CloseSession { ephemerals: state.tree.ephemerals(session) }
}

/// Decides the removal of a container, or of a znode with a time to live. The caller has checked
/// that the removal is due. Returns `None` if the znode has children or is gone.
pub(crate) fn decide_removal(state: &State, path: &Arc<str>) -> Option<Change> {
    let node = state.tree.get(path)?;
    let removable =
        matches!(ZnodeOwner::from_number(node.owner()), ZnodeOwner::Container | ZnodeOwner::Ttl(_));
    (removable && node.child_count() == 0).then(|| Change::Delete { path: Arc::clone(path) })
}

fn prepare_multi(ops: Vec<Request>, state: &State, asker: Requester<'_>) -> Change {
    let of = ops.len();
    let mut pending = PendingState::for_multi(state);
    let mut changes = Vec::with_capacity(of);
    let mut acl_bytes = 0;
    for (at, request) in ops.into_iter().enumerate() {
        let decided = match request {
            Request::Create(create) => match as_in_multi(create) {
                Some(create) => decide_create(create, &mut pending, asker),
                None => return Change::Refused(WriteRefusal::One(Code::MarshallingError)),
            },
            request => decide(request, &mut pending, asker),
        };
        if let Ok(Change::Create(Create { acl, .. })) = &decided {
            acl_bytes += acl.bytes();
        }
        match decided {
            Ok(_) if acl_bytes > MAX_MULTI_BYTES => {
                return Change::Refused(WriteRefusal::InMulti { at, of, code: Code::InvalidAcl });
            }
            Ok(change) => changes.push(change),
            Err(code) => return Change::Refused(WriteRefusal::InMulti { at, of, code }),
        }
    }
    Change::Multi(changes)
}

/// Replaces the operation of a create by the operation that its flags stand for. Within a multi,
/// the flags alone decide the kind of the znode and of the reply. Returns `None` for the flags of a
/// time to live without `createTTL`. Such a create fails the whole multi, as in Apache ZooKeeper.
fn as_in_multi(create: CreateRequest) -> Option<CreateRequest> {
    let op = match create.flags {
        4 => op::CREATE_CONTAINER,
        5 | 6 if create.op != op::CREATE_TTL => return None,
        5 | 6 => op::CREATE_TTL,
        _ => op::CREATE,
    };
    Some(CreateRequest { op, ..create })
}

fn decide(request: Request, pending: &mut PendingState<'_>, asker: Requester<'_>) -> Result<Change, Code> {
    match request {
        Request::Create(create) => decide_create(create, pending, asker),
        Request::Delete { path, version } => {
            let parent_path = path::parent(&path)?;
            check_not_quota(&path)?;
            if matches!(path.as_str(), "/" | "/zookeeper" | "/zookeeper/quota" | "/zookeeper/config") {
                return Err(Code::BadArguments);
            }
            let mut parent = pending.get(parent_path)?;
            asker.client.check_permission(&parent.acl, perms::DELETE)?;
            let node = pending.get(&path)?;
            check_version(node.version, version)?;
            if node.children > 0 {
                return Err(Code::NotEmpty);
            }
            parent.children = parent.children.saturating_sub(1);
            pending.record_change(parent_path, || Some(parent));
            pending.record_change(&path, || None);
            Ok(Change::Delete { path: path.into() })
        }
        Request::SetData { path, data, version } => {
            path::validate(&path)?;
            check_not_quota(&path)?;
            let mut node = pending.get(&path)?;
            asker.client.check_permission(&node.acl, perms::WRITE)?;
            let version = check_version(node.version, version)?;
            node.version = version;
            pending.record_change(&path, || Some(node));
            Ok(Change::SetData { path: path.into(), data, version })
        }
        Request::SetAcl { path, acl, version } => {
            path::validate(&path)?;
            let acl = sent_acl::resolve(acl, asker.client)?;
            let mut node = pending.get(&path)?;
            asker.client.check_permission(&node.acl, perms::ADMIN)?;
            let version = check_version(node.aversion, version)?;
            (node.aversion, node.acl) = (version, acl.clone());
            pending.record_change(&path, || Some(node));
            Ok(Change::SetAcl { path: path.into(), acl, version })
        }
        Request::Check { path, version } => {
            path::validate(&path)?;
            let node = pending.get(&path)?;
            asker.client.check_permission(&node.acl, perms::READ)?;
            check_version(node.version, version)?;
            Ok(Change::Check)
        }
        // Apache ZooKeeper takes the header of a `deleteContainer` request for its path, so every
        // such request fails.
        Request::DeleteContainer => Err(Code::BadArguments),
        Request::Reconfig => Err(Code::ReconfigDisabled),
        _ => Err(Code::Unimplemented),
    }
}

fn decide_create(
    create: CreateRequest,
    pending: &mut PendingState<'_>,
    asker: Requester<'_>,
) -> Result<Change, Code> {
    let CreateRequest { op, mut path, data, acl, flags, ttl } = create;
    let mode = CreateMode::from_flags(flags)?;
    let ttl_owner_number = match (op, mode.ttl) {
        (_, true) if !asker.extended_types => return Err(Code::Unimplemented),
        (op::CREATE_TTL, true) => ttl_owner(ttl).ok_or(Code::BadArguments)?,
        // Either the flags of a time to live came without `createTTL`, or `createTTL` came without
        // these flags. In the second case Apache ZooKeeper sometimes exits.
        (_, true) | (op::CREATE_TTL, false) => return Err(Code::BadArguments),
        _ => 0,
    };
    path::parent(&path)?;
    check_not_quota(&path)?;
    let acl = sent_acl::resolve(acl, asker.client)?;
    let mut parent = pending.get(path::parent(&path)?)?;
    asker.client.check_permission(&parent.acl, perms::CREATE)?;
    if mode.sequential {
        path = sequential_name(&path, parent.created);
    }
    path::validate(&path)?;
    let names = path.bytes().filter(|byte| *byte == b'/').count();
    if names > MAX_PATH_NAMES {
        tracing::info!(
            names,
            budget_path_names_limit = MAX_PATH_NAMES,
            "a path has too many names; refusing to create the znode"
        );
        return Err(Code::QuotaExceeded);
    }
    match pending.get(&path) {
        Err(Code::NoNode) => {}
        _ => return Err(Code::NodeExists),
    }
    if matches!(ZnodeOwner::from_number(parent.owner), ZnodeOwner::Session(_)) {
        return Err(Code::NoChildrenForEphemerals);
    }
    let owner = match op {
        op::CREATE_CONTAINER => CONTAINER,
        _ if mode.ephemeral => asker.session.0,
        _ => ttl_owner_number,
    };
    let parent_created = parent.created.wrapping_add(1);
    parent.created = parent_created;
    parent.children += 1;
    pending.record_change(path::parent(&path)?, || Some(parent));
    let znode = PendingZnode { version: 0, created: 0, aversion: 0, owner, children: 0, acl: acl.clone() };
    pending.record_change(&path, || Some(znode));
    let with_stat = op != op::CREATE;
    Ok(Change::Create(Create { path: path.into(), data, acl, owner, parent_created, with_stat }))
}

/// Appends the number as Java's `%010d` does. The sign counts as one of the ten characters.
fn sequential_name(path: &str, number: i32) -> String {
    format!("{path}{number:010}")
}

/// Refuses writes below `/zookeeper/quota`, by which clients set quotas. This server does not support quotas.
fn check_not_quota(path: &str) -> Result<(), Code> {
    if path.starts_with("/zookeeper/quota/") { Err(Code::Unimplemented) } else { Ok(()) }
}

struct CreateMode {
    ephemeral: bool,
    sequential: bool,
    ttl: bool,
}

impl CreateMode {
    fn from_flags(flags: i32) -> Result<Self, Code> {
        let (ephemeral, sequential, ttl) = match flags {
            0 | 4 => (false, false, false),
            1 => (true, false, false),
            2 => (false, true, false),
            3 => (true, true, false),
            5 => (false, false, true),
            6 => (false, true, true),
            _ => return Err(Code::BadArguments),
        };
        Ok(CreateMode { ephemeral, sequential, ttl })
    }
}

/// Returns the version after `current`. An `expected` version of -1 fits any version.
///
/// # Errors
/// If `expected` is neither -1 nor `current`.
fn check_version(current: i32, expected: i32) -> Result<i32, Code> {
    if expected == -1 || expected == current { Ok(current.wrapping_add(1)) } else { Err(Code::BadVersion) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_are_formatted_like_java() {
        assert_eq!(sequential_name("/a-", 7), "/a-0000000007");
        assert_eq!(sequential_name("/a-", i32::MAX), "/a-2147483647");
        assert_eq!(sequential_name("/a-", -5), "/a--000000005");
        assert_eq!(sequential_name("/a-", i32::MIN), "/a--2147483648");
    }
}
