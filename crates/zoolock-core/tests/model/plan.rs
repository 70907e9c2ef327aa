//! What each client wants.

use zoolock_core::contender::Node;
use zoolock_core::names::{Names, Naming, Prefix};
use zoolock_core::{ContenderId, Kind, SessionId};

use crate::bugs::Bug;
use crate::scenario::{Budget, Scenario};

/// What a client wants, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Plan {
    Mutex,
    Write,
    /// To write, and then perhaps to read on.
    WriteThenRead,
    Read,
    Upgradable,
    /// To write while that client, on the same session, reads: begins when it is granted, or has become a reader.
    Upgrade(u8),
    Permits {
        take: u32,
        size: u32,
    },
}

impl Plan {
    /// `from`: the reader's node of one that upgrades.
    pub(crate) fn kind(self, from: Option<Node>) -> Kind {
        match self {
            Plan::Mutex => Kind::Mutex,
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

    fn letter(self) -> String {
        match self {
            Plan::Mutex => "mutex".into(),
            Plan::Write => "write".into(),
            Plan::WriteThenRead => "downgrade".into(),
            Plan::Read => "read".into(),
            Plan::Upgradable => "upgradable".into(),
            Plan::Upgrade(of) => format!("upgrade of {of}"),
            Plan::Permits { take, size } => format!("{take} of {size}"),
        }
    }
}

impl Scenario {
    /// With these clients instead.
    pub(crate) fn kinds(self, clients: &[Plan]) -> Scenario {
        let letters: Vec<String> = clients.iter().map(|plan| plan.letter()).collect();
        let name = format!("[{}]{}", letters.join(", "), self.name.trim_start_matches(|c: char| c != ','));
        Scenario { clients: clients.to_vec(), name, ..self }
    }

    /// With these namings, one for each client.
    pub(crate) fn named(self, namings: &[Naming]) -> Scenario {
        let name = format!("{} as {namings:?}", self.name);
        Scenario { namings: namings.to_vec(), name, ..self }
    }

    pub(crate) fn names(&self, i: usize) -> Names {
        Names { naming: self.namings.get(i).copied().unwrap_or_default(), kazoo_pattern: false }
    }

    /// What the names of a client begin with.
    pub(crate) fn prefix(&self, i: usize) -> Prefix {
        let kind = match self.clients[i] {
            // Whatever it comes from.
            Plan::Upgrade(_) => Kind::Write,
            plan => plan.kind(None),
        };
        let prefix =
            Prefix::of(self.names(i).naming, kind, Scenario::id(i), SessionId(self.session(i) as i64));
        prefix.expect("a kind that the naming has")
    }

    pub(crate) fn id(i: usize) -> ContenderId {
        ContenderId(i as u128)
    }

    /// Whether two names in this directory belong to families that do not see each other.
    pub(crate) fn may_clash(&self) -> bool {
        // Curator's own mutex and its read/write lock do not see each other.
        let mixed =
            self.clients.iter().any(|plan| (*plan == Plan::Mutex) != (self.clients[0] == Plan::Mutex));
        let differ = self.namings.iter().any(|naming| *naming != self.namings[0]);
        differ || (mixed && self.namings.contains(&Naming::Curator))
    }

    /// Whose session a client is on.
    pub(crate) fn session(&self, i: usize) -> usize {
        match self.clients[i] {
            Plan::Upgrade(of) => of.into(),
            _ if self.has(Bug::OneNodeForASession) => 0,
            _ => i,
        }
    }

    /// All clients on the session of one.
    pub(crate) fn mates(&self, i: usize) -> impl Iterator<Item = usize> {
        let session = self.session(i);
        (0..self.clients.len()).filter(move |&j| self.session(j) == session)
    }

    /// The client that upgrades this one.
    pub(crate) fn upgrade_of(&self, i: usize) -> Option<usize> {
        self.clients.iter().position(|plan| *plan == Plan::Upgrade(i as u8))
    }

    /// Whether two clients differ in nothing but their number.
    pub(crate) fn are_alike(&self, i: usize, j: usize) -> bool {
        let numbered = self.names(i).naming != Naming::Native || self.names(j).naming != Naming::Native;
        !numbered
            && self.clients[i] == self.clients[j]
            && self.upgrade_of(i).is_some() == self.upgrade_of(j).is_some()
    }

    /// Whether permits and other locks are wanted in one directory.
    pub(crate) fn mixes_kinds(&self) -> bool {
        let permits = self.clients.iter().filter(|plan| plan.is_permits()).count();
        permits > 0 && permits < self.clients.len()
    }

    /// Whether every holder says that it has begun, and nobody else touches the directory.
    pub(crate) fn keeps_its_records(&self) -> bool {
        let meddling = |b: &Budget| b.removals + b.reaps + b.copies + b.scribbles + b.negatives;
        self.tracks && meddling(&self.budget) == 0 && self.last == 99
    }
}
