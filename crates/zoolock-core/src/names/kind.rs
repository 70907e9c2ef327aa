//! The kinds of locks, and the znode of an acquisition.

use super::prefix::{Naming, Prefix};
use crate::ids::{ContenderId, Sequence, SessionId, Zxid};

/// A znode of this acquisition: its name, and the transaction that created it. The transaction distinguishes
/// it from later znodes of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// Prefix of its name.
    pub prefix: Prefix,
    /// Its sequence number in the directory.
    pub sequence: Sequence,
    /// The transaction that created it.
    pub czxid: Zxid,
}

impl Node {
    /// Returns its name in the directory.
    pub fn name(&self) -> String {
        self.prefix.name(self.sequence)
    }
}

/// The kind of lock that is acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Exclusive access.
    Mutex,
    /// Exclusive access that may become read access.
    Write,
    /// Read access, together with other readers.
    Read,
    /// Read access that may become exclusive: one holder of this kind at a time.
    Upgradable,
    /// Exclusive access for a reader that holds already.
    Upgrade {
        /// The reader's znode.
        from: Node,
    },
    /// Some permits of a semaphore, all or none.
    Permits {
        /// Number of permits to take.
        take: u32,
        /// Number of permits of the semaphore.
        size: u32,
    },
}

impl Kind {
    pub(crate) fn is_permits(self) -> bool {
        matches!(self, Kind::Permits { .. })
    }

    /// Returns the number of permits of the semaphore; `None` for other kinds.
    pub(crate) fn size(self) -> Option<u32> {
        match self {
            Kind::Permits { size, .. } => Some(size),
            _ => None,
        }
    }

    /// Returns whether a holder is exclusive, and was the head of the queue when granted.
    pub(crate) fn leaves_marker(self) -> bool {
        matches!(self, Kind::Mutex | Kind::Write)
    }
}

impl Prefix {
    /// Returns the prefix for this kind of contender; `None` if the naming scheme has no such kind.
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
}
