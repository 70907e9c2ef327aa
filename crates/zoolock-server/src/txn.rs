//! Decided transactions: the contents of the log.

use std::sync::Arc;

use bytes::Bytes;
use zoolock_wire::Code;

use crate::acl::AclList;
use crate::ids::{SessionId, Zxid};

/// A decided change, with everything that [`crate::commit()`] needs to apply it.
///
/// A transaction does not depend on the clock, on randomness or on the client. The same transactions on the same state
/// give the same state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Txn {
    /// The number of the transaction.
    pub zxid: Zxid,
    /// The session that sent the request, or [`SessionId::NONE`].
    pub session: SessionId,
    /// The wall-clock time of the decision, in milliseconds since 1970.
    pub time: i64,
    /// The change.
    pub change: Change,
}

/// The change of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The creation of a znode.
    Create(Create),
    /// The deletion of a znode.
    Delete {
        /// The path of the znode.
        path: Arc<str>,
    },
    /// A write of a znode's data.
    SetData {
        /// The path of the znode.
        path: Arc<str>,
        /// The new data.
        data: Option<Bytes>,
        /// The new version.
        version: i32,
    },
    /// A write of a znode's access list.
    SetAcl {
        /// The path of the znode.
        path: Arc<str>,
        /// The new list.
        acl: AclList,
        /// The new version of the list.
        version: i32,
    },
    /// No change: a version check that succeeded.
    Check,
    /// Several changes, in this order.
    Multi(Vec<Change>),
    /// The start of a session.
    CreateSession {
        /// The timeout in milliseconds.
        timeout_ms: u32,
        /// The password for attaching to the session again.
        password: Password,
    },
    /// The end of a session. It deletes the session's ephemerals, or those that [`Change::ClosePart`] has left.
    CloseSession {
        /// The paths of the ephemerals.
        ephemerals: Vec<Arc<str>>,
    },
    /// The end of a session with many ephemerals. It deletes some of them. [`Change::CloseSession`] follows later.
    ClosePart {
        /// The paths of the ephemerals to delete.
        ephemerals: Vec<Arc<str>>,
    },
    /// No change: a write that was refused. It takes a zxid, as in ZooKeeper.
    Refused(WriteRefusal),
}

/// A znode to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// The path. For a sequential znode, it includes the sequence number.
    pub path: Arc<str>,
    /// The data.
    pub data: Option<Bytes>,
    /// The access list.
    pub acl: AclList,
    /// 0 for no owner, [`crate::tree::CONTAINER`], a result of [`crate::tree::ttl_owner`], or a session id.
    pub owner: i64,
    /// The parent's new count of created children, or -1 to increment the count.
    pub parent_created: i32,
    /// Set if the reply contains the stat.
    pub with_stat: bool,
}

/// The reason why a write was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteRefusal {
    /// The error of the whole request.
    One(Code),
    /// The error of one operation of a multi.
    InMulti {
        /// The index of the operation, from 0.
        at: usize,
        /// The number of operations.
        of: usize,
        /// The error.
        code: Code,
    },
}

/// The password of a session. It is never shown. It is compared in constant time.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub [u8; 16]);

impl Password {
    /// Returns whether `bytes` are the password. The time that this takes does not depend on the
    /// number of correct bytes.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        crate::secret::equal_in_constant_time(&self.0, bytes)
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(..)")
    }
}
