//! The lock that each client acquires.

use zoolock_core::acquisition::Node;
use zoolock_core::names::{Names, Naming, Prefix};
use zoolock_core::{ContenderId, Kind, SessionId};

use super::bugs::Bug;
use super::scenario::Scenario;

/// The lock that a client acquires in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Plan {
    Mutex,
    /// A mutex on the session of the client with this index. Begins when that client releases or gives up.
    Next(u8),
    /// A mutex inside the lock of the client with this index. Begins when that lock is granted, and
    /// ends before that lock is released.
    Inside(u8),
    Write,
    /// A write lock that may be downgraded.
    WriteThenRead,
    Read,
    Upgradable,
    /// The upgrade of the client with this index, on that client's session. Begins when that client
    /// is granted a read lock, or downgrades to one.
    Upgrade(u8),
    Permits {
        take: u32,
        size: u32,
    },
}

impl Plan {
    /// Returns the kind of lock. `from`: the reader's znode, for an upgrade.
    pub(crate) fn kind(self, from: Option<Node>) -> Kind {
        match self {
            Plan::Mutex | Plan::Next(_) | Plan::Inside(_) => Kind::Mutex,
            Plan::Write | Plan::WriteThenRead => Kind::Write,
            Plan::Read => Kind::Read,
            Plan::Upgradable => Kind::Upgradable,
            Plan::Upgrade(_) => Kind::Upgrade { from: from.expect("the reader holds") },
            Plan::Permits { take, size } => Kind::Permits { take, size },
        }
    }

    pub(crate) fn is_permits(self) -> bool {
        matches!(self, Plan::Permits { .. })
    }

    pub(crate) fn is_upgrade(self) -> bool {
        matches!(self, Plan::Upgrade(_))
    }

    /// Returns whether this acquisition begins by itself. The others begin at a step of another
    /// client.
    pub(crate) fn begins_by_itself(self) -> bool {
        self.outer().is_none() && !matches!(self, Plan::Next(_))
    }

    /// Returns the client that must be granted its lock before this acquisition begins.
    pub(crate) fn outer(self) -> Option<usize> {
        match self {
            Plan::Inside(outer) | Plan::Upgrade(outer) => Some(outer.into()),
            _ => None,
        }
    }
}

impl Scenario {
    pub(crate) fn names(&self, i: usize) -> Names {
        Names { naming: self.namings.get(i).copied().unwrap_or_default(), kazoo_pattern: false }
    }

    /// Returns the prefix of a client's znodes.
    pub(crate) fn prefix(&self, i: usize) -> Prefix {
        let kind = match self.plans[i] {
            Plan::Upgrade(_) => Kind::Write,
            plan => plan.kind(None),
        };
        let prefix =
            Prefix::of(self.names(i).naming, kind, Scenario::id(i), SessionId(self.session(i) as i64));
        prefix.expect("the naming scheme has this kind")
    }

    pub(crate) fn id(i: usize) -> ContenderId {
        ContenderId(i as u128)
    }

    /// Returns whether two clients of the scenario use naming schemes that ignore each other's
    /// znodes. Then both may hold the lock at once.
    pub(crate) fn may_clash(&self) -> bool {
        // Curator's mutexes and Curator's read/write locks do not see each other's znodes.
        let is_mutex = |plan: &Plan| matches!(plan, Plan::Mutex | Plan::Next(_));
        let mixed = self.plans.iter().any(|plan| is_mutex(plan) != is_mutex(&self.plans[0]));
        let differ = self.namings.iter().any(|naming| *naming != self.namings[0]);
        differ || (mixed && self.namings.contains(&Naming::Curator))
    }

    /// Returns the client whose session a client uses.
    pub(crate) fn session(&self, i: usize) -> usize {
        match self.plans[i] {
            Plan::Upgrade(of) | Plan::Next(of) => of.into(),
            _ if self.has(Bug::OneNodeForASession) => 0,
            _ => i,
        }
    }

    /// Returns the clients that share the session of a client.
    pub(crate) fn same_session(&self, i: usize) -> impl Iterator<Item = usize> {
        let session = self.session(i);
        (0..self.plans.len()).filter(move |&j| self.session(j) == session)
    }

    /// Returns the client that upgrades this reader.
    pub(crate) fn upgrade_of(&self, i: usize) -> Option<usize> {
        self.plans.iter().position(|plan| *plan == Plan::Upgrade(i as u8))
    }

    /// Returns the client that begins when this client releases or gives up.
    pub(crate) fn next_of(&self, i: usize) -> Option<usize> {
        self.plans.iter().position(|plan| *plan == Plan::Next(i as u8))
    }

    /// Returns whether two clients differ only in their indices. With several directories all
    /// clients count as different.
    pub(crate) fn are_alike(&self, i: usize, j: usize) -> bool {
        let numbered = self.names(i).naming != Naming::Native || self.names(j).naming != Naming::Native;
        self.directories.len() == 1
            && !numbered
            && self.plans[i] == self.plans[j]
            && self.upgrade_of(i).is_some() == self.upgrade_of(j).is_some()
            && self.next_of(i).is_some() == self.next_of(j).is_some()
    }

    /// Returns whether there are permits and other locks in one directory.
    pub(crate) fn mixes_kinds(&self) -> bool {
        let permits = self.plans.iter().filter(|plan| plan.is_permits()).count();
        permits > 0 && permits < self.plans.len()
    }

    /// Returns whether this client uses look-ahead.
    pub(crate) fn looks_ahead(&self, i: usize) -> bool {
        self.looks_ahead && !(self.one_reads && i + 1 == self.plans.len())
    }

    /// Returns whether this client tracks crashes.
    pub(crate) fn tracks(&self, i: usize) -> bool {
        self.tracks || (self.one_tracks && i == 0)
    }

    /// Returns whether a directory can come near its last sequence number.
    pub(crate) fn ends(&self) -> bool {
        self.retire_from != Scenario::RETIRE_FROM
    }

    /// Returns whether every holder tracks crashes, and no fault touches the record.
    pub(crate) fn keeps_its_records(&self) -> bool {
        let b = &self.budget;
        let meddling = b.removals + b.reaps + b.copies + b.scribbles + b.negatives;
        self.tracks && meddling == 0 && !self.ends()
    }
}
