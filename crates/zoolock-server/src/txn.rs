//! Decided transactions: all that a log has to keep.

use std::sync::Arc;

use bytes::Bytes;
use zoolock_wire::Code;

use crate::acl::AclList;
use crate::ids::{SessionId, Zxid};

/// A change that was decided, with everything that [`crate::commit()`] needs to make it.
///
/// Nothing in it depends on the clock, on randomness or on who asks: committing the same transactions to the same
/// state gives the same state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Txn {
    /// Its number.
    pub zxid: Zxid,
    /// The session that asked, or [`SessionId::SERVER`].
    pub session: SessionId,
    /// The wall clock, in milliseconds since 1970.
    pub time: i64,
    /// The change.
    pub change: Change,
}

/// What a transaction changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A znode comes.
    Create(Create),
    /// A znode goes.
    Delete {
        /// Where.
        path: Arc<str>,
    },
    /// A znode's data changes.
    SetData {
        /// Where.
        path: Arc<str>,
        /// The new data.
        data: Option<Bytes>,
        /// The new version.
        version: i32,
    },
    /// A znode's access list changes.
    SetAcl {
        /// Where.
        path: Arc<str>,
        /// The new list.
        acl: AclList,
        /// The new version of the list.
        version: i32,
    },
    /// Nothing changes; a version was as expected.
    Check,
    /// All of these, in this order.
    Multi(Vec<Change>),
    /// A session begins.
    CreateSession {
        /// Its timeout in milliseconds.
        timeout_ms: u32,
        /// What re-attaches to it.
        password: Password,
    },
    /// A session ends, and these ephemerals go with it.
    CloseSession {
        /// Their paths.
        ephemerals: Vec<Arc<str>>,
    },
    /// Nothing changes; a write was refused, and took a number as ZooKeeper's do.
    Refused(Refusal),
}

/// A znode to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// Where; a sequence number is part of it by now.
    pub path: Arc<str>,
    /// The data.
    pub data: Option<Bytes>,
    /// The access list.
    pub acl: AclList,
    /// 0, [`crate::tree::CONTAINER`], or the session.
    pub owner: i64,
    /// What the parent's count of creations becomes.
    pub parent_created: i32,
    /// Whether the client wants the stat back.
    pub with_stat: bool,
}

/// Why a write was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// For this reason.
    One(Code),
    /// The operation at `at` of a multi of `of` failed, for this reason.
    InMulti {
        /// Which operation, from 0.
        at: usize,
        /// How many there were.
        of: usize,
        /// Its error.
        code: Code,
    },
}

/// The password of a session; never shown, compared in constant time.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub [u8; 16]);

impl Password {
    /// Tells whether these are the bytes, in a time that does not depend on how many are right.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        crate::secret::equal(&self.0, bytes)
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(..)")
    }
}
