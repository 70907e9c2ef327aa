//! Replays logged transactions. Each transaction is checked first, because [`commit()`] panics if a
//! transaction does not fit the state.

use zoolock_wire::path;

use crate::commit::commit;
use crate::ids::SessionId;
use crate::prepare::decide_session_end;
use crate::state::State;
use crate::tree::{Znode, ZnodeOwner};
use crate::txn::{Change, Create, Txn};

/// Commits a transaction if it fits the state.
///
/// # Errors
/// If the transaction does not fit. A part of the transaction is then possibly applied, so the
/// state must not be used.
pub fn replay(txn: Txn, state: &mut State) -> Result<(), String> {
    let Txn { zxid, session, time, change } = txn;
    if zxid <= state.zxid {
        return Err(format!("transaction {zxid} comes after {}", state.zxid));
    }
    let mut replay_change = |change| {
        let change = match change {
            // The log omits the ephemerals, because the state has them.
            Change::CloseSession { .. } => decide_session_end(state, session),
            change => change,
        };
        let txn = Txn { zxid, session, time, change };
        check_fits(&txn, state).map_err(|what| format!("transaction {zxid} does not fit: {what}"))?;
        commit(&txn, state);
        // Nothing waits for the replay, so memory need not be freed in parts.
        state.tree.free_discarded(usize::MAX);
        Ok(())
    };
    match change {
        // The changes are replayed one at a time, so that each one is checked against the result of
        // the previous ones.
        Change::Multi(changes) => {
            changes.into_iter().try_for_each(&mut replay_change)?;
            state.zxid = zxid;
            Ok(())
        }
        change => replay_change(change),
    }
}

/// Returns whether an owner is valid. If it is a session, it must be known.
pub(super) fn owner_fits(owner: i64, is_known: impl Fn(SessionId) -> bool) -> bool {
    match ZnodeOwner::from_number(owner) {
        ZnodeOwner::None | ZnodeOwner::Container => true,
        ZnodeOwner::Ttl(ms) => ms > 0,
        ZnodeOwner::Session(session) => is_session_id(owner) && is_known(session),
    }
}

/// Returns whether a session is alive, or has ended and still owns ephemerals.
fn is_known(session: SessionId, state: &State) -> bool {
    state.sessions.contains_key(&session) || state.ending.contains(&session)
}

pub(super) fn is_session_id(owner: i64) -> bool {
    owner > 0
}

fn check_fits(txn: &Txn, state: &State) -> Result<(), String> {
    let creates_session = matches!(txn.change, Change::CreateSession { .. });
    let known = match txn.change {
        Change::CreateSession { .. } | Change::CloseSession { .. } | Change::ClosePart { .. } => {
            is_known(txn.session, state)
        }
        _ => state.sessions.contains_key(&txn.session),
    };
    if txn.session != SessionId::NONE && creates_session == known {
        return Err(format!(
            "session {:#x} {}",
            txn.session,
            if creates_session { "began before" } else { "is unknown" }
        ));
    }
    match &txn.change {
        Change::Create(Create { path, data: _, acl: _, owner, parent_created: _, with_stat: _ }) => {
            if path::validate(path).is_err() || &**path == "/" {
                return Err(format!("{path:?} cannot be created"));
            }
            if !owner_fits(*owner, |session| state.sessions.contains_key(&session))
                || is_session_id(*owner) && *owner != txn.session.0
            {
                return Err(format!("{path:?} has the invalid owner {owner:#x}"));
            }
            if state.tree.get(path).is_some() {
                return Err(format!("{path:?} exists"));
            }
            let parent = state.tree.get(path::split(path).0);
            let parent = parent.ok_or_else(|| format!("{path:?} has no parent"))?;
            if is_session_id(parent.owner()) {
                Err(format!("{path:?} is below an ephemeral"))
            } else {
                Ok(())
            }
        }
        Change::Delete { path } => deletable(path, state).map(|_| ()),
        Change::SetData { path, data: _, version: _ } | Change::SetAcl { path, acl: _, version: _ } => {
            match state.tree.get(path) {
                Some(_) if !path.is_empty() => Ok(()),
                _ => Err(format!("{path:?} does not exist")),
            }
        }
        Change::Check => Ok(()),
        Change::CreateSession { timeout_ms: _, password: _ } => {
            if is_session_id(txn.session.0) {
                Ok(())
            } else {
                Err("invalid session id".to_owned())
            }
        }
        // `decide_session_end` has taken the paths from this state.
        Change::CloseSession { ephemerals } => {
            ephemerals.iter().try_for_each(|path| deletable(path, state).map(|_| ()))
        }
        Change::ClosePart { ephemerals } if !ephemerals.is_sorted_by(|a, b| a < b) => {
            Err("the ephemerals to delete are not in order".to_owned())
        }
        Change::ClosePart { ephemerals } => ephemerals.iter().try_for_each(|path| {
            if deletable(path, state)?.owner() == txn.session.0 {
                Ok(())
            } else {
                Err(format!("{path:?} does not belong to the session"))
            }
        }),
        Change::Multi(_) | Change::Refused(_) => Err("this kind of change is never logged".to_owned()),
    }
}

fn deletable<'s>(path: &str, state: &'s State) -> Result<Znode<'s>, String> {
    let node = state.tree.get(path).filter(|_| path.starts_with("/") && path != "/");
    let node = node.ok_or_else(|| format!("{path:?} cannot be deleted"))?;
    if node.child_count() == 0 { Ok(node) } else { Err(format!("{path:?} has children")) }
}
