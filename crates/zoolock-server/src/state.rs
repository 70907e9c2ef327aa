//! The state that a restart restores.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{SessionId, Zxid};
use crate::tree::Tree;
use crate::txn::Password;

/// The state that transactions change: the tree and the sessions.
#[derive(Debug, Clone)]
pub struct State {
    /// The znodes.
    pub tree: Tree,
    /// The live sessions.
    pub sessions: BTreeMap<SessionId, StoredSession>,
    /// Sessions that have ended and still own ephemerals. The server deletes these ephemerals bit by bit.
    pub ending: BTreeSet<SessionId>,
    /// The last transaction.
    pub zxid: Zxid,
}

/// The persistent data of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// The timeout in milliseconds.
    pub timeout_ms: u32,
    /// The password for attaching to the session again.
    pub password: Password,
}

impl State {
    /// Creates the state of a fresh server. Its transaction numbers begin at the start of `epoch`.
    pub fn new(epoch: u32) -> Self {
        State {
            tree: Tree::new(),
            sessions: BTreeMap::new(),
            ending: BTreeSet::new(),
            zxid: Zxid::start_of(epoch),
        }
    }
}
