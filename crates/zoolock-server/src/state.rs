//! All that a restart has to bring back.

use std::collections::BTreeMap;

use crate::ids::{SessionId, Zxid};
use crate::tree::Tree;
use crate::txn::Password;

/// The state that transactions change: the tree and the sessions.
#[derive(Debug, Clone)]
pub struct State {
    /// The znodes.
    pub tree: Tree,
    /// The sessions that live.
    pub sessions: BTreeMap<SessionId, Session>,
    /// The last transaction.
    pub zxid: Zxid,
}

/// What is kept of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its timeout in milliseconds.
    pub timeout_ms: u32,
    /// What re-attaches to it.
    pub password: Password,
}

impl State {
    /// Starts empty, numbering from the start of `epoch`.
    pub fn new(epoch: u32) -> Self {
        State { tree: Tree::new(), sessions: BTreeMap::new(), zxid: Zxid::start_of(epoch) }
    }
}
