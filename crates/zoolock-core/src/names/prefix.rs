//! What our own names begin with, in our own naming and in those of others.

use std::fmt::{self, Write as _};

use super::{Name, Role, Spelling};
use crate::contender::Kind;
use crate::ids::{ContenderId, Sequence, SessionId};

/// Whose names we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Naming {
    /// Our own: the name before ours can be computed.
    #[default]
    Native,
    /// Curator's, go-zookeeper's, and those of the Rust crate `zookeeper-client`.
    Curator,
    /// kazoo's.
    Kazoo,
    /// Those of the recipe that comes with ZooKeeper, in Java and in C.
    WriteLock,
}

/// How our contenders are called, and who else reads their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Names {
    /// Whose names we use.
    pub naming: Naming,
    /// The kazoo clients here were told to look for `lock-`, too.
    pub kazoo_pattern: bool,
}

/// What our own names begin with. In our own naming there is no UUID in them, so that the name before ours can be
/// computed.
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
    /// `permit-W-`: so many permits of a semaphore.
    Permit(u32),
    /// `_c_<uuid>-lock-`: the mutex as Curator has it.
    CuratorLock(ContenderId),
    /// `_c_<uuid>-__WRIT__`: a writer as Curator has it.
    CuratorWrite(ContenderId),
    /// `_c_<uuid>-__READ__`: a reader as Curator has it.
    CuratorRead(ContenderId),
    /// `<hex32>__lock__`: kazoo's lock, and its writer.
    KazooLock(ContenderId),
    /// `<hex32>__rlock__`: kazoo's reader.
    KazooRead(ContenderId),
    /// `x-<session>-`: the recipe that comes with ZooKeeper.
    WriteLock(SessionId),
}

impl Prefix {
    /// What a contender of this kind is called; `None` where a naming has no such kind.
    pub fn of(naming: Naming, kind: Kind, id: ContenderId, session: SessionId) -> Option<Prefix> {
        Some(match (naming, kind) {
            (Naming::Native, Kind::Mutex) => Prefix::Lock,
            (Naming::Native, Kind::Write | Kind::Upgrade { .. }) => Prefix::Write,
            (Naming::Native, Kind::Read) => Prefix::Read,
            (Naming::Native, Kind::Upgradable) => Prefix::Upgradable,
            (Naming::Native, Kind::Permits { take, .. }) => Prefix::Permit(take),
            (Naming::Curator, Kind::Mutex) => Prefix::CuratorLock(id),
            (Naming::Curator, Kind::Write | Kind::Upgrade { .. }) => Prefix::CuratorWrite(id),
            (Naming::Curator, Kind::Read) => Prefix::CuratorRead(id),
            (Naming::Kazoo, Kind::Mutex | Kind::Write | Kind::Upgrade { .. }) => Prefix::KazooLock(id),
            (Naming::Kazoo, Kind::Read) => Prefix::KazooRead(id),
            (Naming::WriteLock, Kind::Mutex) => Prefix::WriteLock(session),
            (Naming::Curator | Naming::Kazoo, Kind::Upgradable | Kind::Permits { .. }) => return None,
            (Naming::WriteLock, _) => return None,
        })
    }

    /// The name with this number.
    pub fn name(self, sequence: Sequence) -> String {
        // In one allocation: it is asked for with every request.
        let mut name = String::with_capacity(64);
        write!(name, "{self}{sequence}").expect("a string takes whatever there is");
        name
    }

    /// The name with this number as it is parsed.
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

    /// The number of a name that begins like this.
    pub fn number(self, name: &str) -> Option<Sequence> {
        Sequence::parse(name.strip_prefix(&self.to_string())?)
    }

    /// Whether it tells of which acquisition it is.
    pub fn has_id(self) -> bool {
        match self {
            Prefix::Lock | Prefix::Write | Prefix::Read | Prefix::Upgradable | Prefix::Permit(_) => false,
            Prefix::WriteLock(_) => false,
            Prefix::CuratorLock(_) | Prefix::CuratorWrite(_) | Prefix::CuratorRead(_) => true,
            Prefix::KazooLock(_) | Prefix::KazooRead(_) => true,
        }
    }

    /// Whether it stands for somebody who wants to be alone.
    pub fn is_exclusive(self) -> bool {
        !self.reads() && !matches!(self, Prefix::Permit(_))
    }

    /// Whether it stands for a reader.
    pub fn reads(self) -> bool {
        matches!(self, Prefix::Read | Prefix::Upgradable | Prefix::CuratorRead(_) | Prefix::KazooRead(_))
    }

    /// Whether the name before ours follows from our own, if one of our own kind has it.
    pub fn is_computable(self) -> bool {
        self == Prefix::Lock
    }

    /// What a writer is called once it reads.
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
            // The id of a session is enough to take it over, but this is what the recipe's other users look for.
            Prefix::WriteLock(session) => write!(f, "x-{}-", session.0),
        }
    }
}
