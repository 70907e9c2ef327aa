//! The prefixes of zoolock's znode names, in its own naming scheme and in those of other client libraries.

use std::fmt::{self, Write as _};

use super::{Name, Role, Spelling};
use crate::ids::{ContenderId, Sequence, SessionId};

/// A naming scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Naming {
    /// zoolock's own names. The predecessor's name can be computed.
    #[default]
    Native,
    /// The names of Curator, go-zookeeper, and the Rust crate `zookeeper-client`.
    Curator,
    /// The names of kazoo.
    Kazoo,
    /// The names of ZooKeeper's WriteLock recipe, in Java and in C.
    WriteLock,
}

/// The naming scheme of this client's contenders, and the other client libraries that read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Names {
    /// The naming scheme.
    pub naming: Naming,
    /// Set if the kazoo clients here look for `lock-`, too.
    pub kazoo_pattern: bool,
}

/// The prefix of a znode's name. In zoolock's own naming scheme it has no UUID, so that the predecessor's
/// name can be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prefix {
    /// `lock-`: the mutex.
    Lock,
    /// `__WRIT__`: a writer.
    Write,
    /// `__READ__`: a reader.
    Read,
    /// `upgr-`: a reader that may become a writer.
    Upgradable,
    /// `permit-W-`: this many permits of a semaphore.
    Permit(u32),
    /// `_c_<uuid>-lock-`: Curator's mutex.
    CuratorLock(ContenderId),
    /// `_c_<uuid>-__WRIT__`: Curator's writer.
    CuratorWrite(ContenderId),
    /// `_c_<uuid>-__READ__`: Curator's reader.
    CuratorRead(ContenderId),
    /// `<hex32>__lock__`: kazoo's lock and writer.
    KazooLock(ContenderId),
    /// `<hex32>__rlock__`: kazoo's reader.
    KazooRead(ContenderId),
    /// `x-<session>-`: ZooKeeper's WriteLock recipe.
    WriteLock(SessionId),
}

impl Prefix {
    /// Returns the name with this sequence number.
    pub fn name(self, sequence: Sequence) -> String {
        // One allocation: every request asks for a name.
        let mut name = String::with_capacity(64);
        write!(name, "{self}{sequence}").expect("writing to a string succeeds");
        name
    }

    /// Returns the name with this sequence number in parsed form.
    pub fn parsed(self, sequence: Sequence) -> Name {
        let (spelling, role) = match self {
            Prefix::Lock => (Spelling::Lock, Role::Exclusive),
            Prefix::Write => (Spelling::Marked, Role::Exclusive),
            Prefix::Read => (Spelling::Marked, Role::Shared),
            Prefix::Upgradable => (Spelling::Upgradable, Role::Upgradable),
            Prefix::Permit(_) => (Spelling::Permit, Role::Permit),
            Prefix::CuratorLock(_) => (Spelling::CuratorLock, Role::Exclusive),
            Prefix::CuratorWrite(_) => (Spelling::CuratorMarked, Role::Exclusive),
            Prefix::CuratorRead(_) => (Spelling::CuratorMarked, Role::Shared),
            Prefix::KazooLock(_) => (Spelling::Kazoo, Role::Exclusive),
            Prefix::KazooRead(_) => (Spelling::Kazoo, Role::Shared),
            Prefix::WriteLock(_) => (Spelling::WriteLock, Role::Exclusive),
        };
        let weight = if let Prefix::Permit(weight) = self { weight } else { 1 };
        Name { spelling, role, weight, sequence }
    }

    /// Returns the sequence number of a name with this prefix.
    pub fn number(self, name: &str) -> Option<Sequence> {
        Sequence::parse(name.strip_prefix(&self.to_string())?)
    }

    /// Returns whether the prefix identifies the acquisition.
    pub fn has_id(self) -> bool {
        match self {
            Prefix::Lock | Prefix::Write | Prefix::Read | Prefix::Upgradable | Prefix::Permit(_) => false,
            Prefix::WriteLock(_) => false,
            Prefix::CuratorLock(_) | Prefix::CuratorWrite(_) | Prefix::CuratorRead(_) => true,
            Prefix::KazooLock(_) | Prefix::KazooRead(_) => true,
        }
    }

    /// Returns whether the contender is exclusive.
    pub fn is_exclusive(self) -> bool {
        !self.reads() && !matches!(self, Prefix::Permit(_))
    }

    /// Returns whether the contender is a reader.
    pub fn reads(self) -> bool {
        matches!(self, Prefix::Read | Prefix::Upgradable | Prefix::CuratorRead(_) | Prefix::KazooRead(_))
    }

    /// Returns whether the predecessor's name can be computed from this one, if it is of the same kind.
    pub fn is_computable(self) -> bool {
        self == Prefix::Lock
    }

    /// Returns the prefix of a writer that becomes a reader.
    pub fn as_reader(self) -> Option<Prefix> {
        match self {
            Prefix::Write => Some(Prefix::Read),
            Prefix::CuratorWrite(id) => Some(Prefix::CuratorRead(id)),
            Prefix::KazooLock(id) => Some(Prefix::KazooRead(id)),
            _ => None,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let curator = |f: &mut fmt::Formatter<'_>, id: &ContenderId, word: &str| {
            let hex = id.to_string();
            let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
            let (a, b, c, d, e) = (part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32));
            write!(f, "_c_{a}-{b}-{c}-{d}-{e}-{word}")
        };
        match self {
            Prefix::Lock => f.write_str("lock-"),
            Prefix::Write => f.write_str("__WRIT__"),
            Prefix::Read => f.write_str("__READ__"),
            Prefix::Upgradable => f.write_str("upgr-"),
            Prefix::Permit(weight) => write!(f, "permit-{weight}-"),
            Prefix::CuratorLock(id) => curator(f, id, "lock-"),
            Prefix::CuratorWrite(id) => curator(f, id, "__WRIT__"),
            Prefix::CuratorRead(id) => curator(f, id, "__READ__"),
            Prefix::KazooLock(id) => write!(f, "{id}__lock__"),
            Prefix::KazooRead(id) => write!(f, "{id}__rlock__"),
            // A session id is enough to take the session over, but other users of the recipe look for this
            // name.
            Prefix::WriteLock(session) => write!(f, "x-{}-", session.0),
        }
    }
}
