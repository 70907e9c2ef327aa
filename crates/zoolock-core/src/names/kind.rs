//! The kinds of locks, the roles of their znodes, and the prefixes of the znodes' names.
//!
//! Each of these has a table here: `Kind::properties`, `Role::waits_for` and `Prefix::row`.

use std::fmt::{self, Write as _};

use super::{Name, Naming, Spelling};
use crate::ids::{ContenderId, Sequence, SessionId, Zxid};

/// A znode of an acquisition: its name, and the transaction that created it. The transaction
/// distinguishes the znode from later znodes of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// Prefix of the znode's name.
    pub prefix: Prefix,
    /// The znode's sequence number in the directory.
    pub sequence: Sequence,
    /// The transaction that created the znode.
    pub czxid: Zxid,
}

impl Node {
    /// Returns the znode's name in the directory.
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
    /// Read access that may become exclusive. Only one contender of this kind holds at a time.
    Upgradable,
    /// Exclusive access for a reader that holds already.
    Upgrade {
        /// The reader's znode.
        from: Node,
    },
    /// A number of permits of a semaphore, granted together or not at all.
    Permits {
        /// Number of permits to take.
        take: u32,
        /// Number of permits of the semaphore.
        size: u32,
    },
}

/// The properties of a kind of lock. Its conflicts follow from the role of its prefix ([`Role::waits_for`]).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Properties {
    name: &'static str,
    title: &'static str,
    /// The prefix in zoolock's own naming scheme.
    prefix: Prefix,
    /// Set if the marker of the predecessor grants the lock, without a listing.
    pub(crate) is_granted_by_marker: bool,
    /// Set if a holder is exclusive, and was the head of the queue when granted. Then its release leaves a marker.
    pub(crate) leaves_marker: bool,
    /// Set if a holder may become a reader.
    pub(crate) becomes_reader: bool,
}

impl Kind {
    /// One value of each kind, for tables and tests.
    pub const EACH: [Kind; 6] = [
        Kind::Mutex,
        Kind::Read,
        Kind::Write,
        Kind::Upgradable,
        Kind::Upgrade { from: Node { prefix: Prefix::Read, sequence: Sequence(0), czxid: Zxid(0) } },
        Kind::Permits { take: 1, size: 1 },
    ];

    /// Returns the properties of the kind: the table of kinds.
    pub(crate) fn properties(self) -> Properties {
        let (name, title, prefix, is_granted_by_marker, leaves_marker, becomes_reader) = match self {
            Kind::Mutex => ("mutex", "mutex", Prefix::Lock, true, true, false),
            Kind::Write => ("writer", "read/write lock", Prefix::Write, true, true, true),
            Kind::Read => ("reader", "read/write lock", Prefix::Read, true, false, false),
            Kind::Upgradable => ("upgradable", "upgradable reader", Prefix::Upgradable, true, false, false),
            Kind::Upgrade { .. } => ("upgrade", "read/write lock", Prefix::Write, false, false, false),
            Kind::Permits { take, .. } => ("permits", "semaphore", Prefix::Permit(take), false, false, false),
        };
        Properties { name, title, prefix, is_granted_by_marker, leaves_marker, becomes_reader }
    }

    /// Returns the name of the kind in metrics and in the data of znodes.
    pub fn name(self) -> &'static str {
        self.properties().name
    }

    /// Returns the name of this kind of lock in messages.
    pub fn title(self) -> &'static str {
        self.properties().title
    }

    /// Returns the role of the znodes of this kind.
    pub fn role(self) -> Role {
        self.properties().prefix.role()
    }

    pub(crate) fn is_permits(self) -> bool {
        matches!(self, Kind::Permits { .. })
    }

    /// Returns the number of permits of the semaphore; `None` for other kinds.
    pub fn size(self) -> Option<u32> {
        match self {
            Kind::Permits { size, .. } => Some(size),
            _ => None,
        }
    }

    /// Returns the znode of the reader that is upgraded; `None` for other kinds.
    pub(crate) fn reader(self) -> Option<Node> {
        match self {
            Kind::Upgrade { from } => Some(from),
            _ => None,
        }
    }
}

/// The kind of lock that a contender asks for, as its name shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Exclusive access.
    Exclusive,
    /// Read access, together with other readers.
    Shared,
    /// Read access that may become write access.
    Upgradable,
    /// Some permits of a semaphore.
    Permit,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Exclusive, Role::Shared, Role::Upgradable, Role::Permit];

    /// Returns whether a contender of this role waits for an older contender of the role `older`:
    /// the table of conflicts. A contender for permits waits only if they do not fit. An upgrade
    /// has rules of its own ([`crate::queue`]).
    pub fn waits_for(self, older: Role) -> bool {
        match self {
            Role::Exclusive | Role::Permit => true,
            Role::Shared => matches!(older, Role::Exclusive),
            Role::Upgradable => matches!(older, Role::Exclusive | Role::Upgradable),
        }
    }

    /// Returns whether one queue may have contenders of both roles. A semaphore has a queue of its own.
    pub fn may_queue_with(self, other: Role) -> bool {
        (self == Role::Permit) == (other == Role::Permit)
    }

    /// Returns the name of the role in snapshots.
    pub fn as_str(self) -> &'static str {
        self.names().0
    }

    /// Returns a noun with its article for a contender of this role.
    pub fn noun(self) -> &'static str {
        self.names().1
    }

    /// Returns the role with this name in snapshots.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == name)
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Role::Exclusive => ("exclusive", "a writer"),
            Role::Shared => ("shared", "a reader"),
            Role::Upgradable => ("upgradable", "an upgradable reader"),
            Role::Permit => ("permit", "a semaphore's user"),
        }
    }
}

/// A set of roles: those of the older contenders in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u8);

impl Roles {
    /// Adds a role.
    pub fn insert(&mut self, role: Role) {
        self.0 |= 1 << role as u8;
    }

    /// Returns whether the set contains the role.
    pub fn contains(self, role: Role) -> bool {
        self.0 & (1 << role as u8) != 0
    }

    /// Returns whether a later contender of this role waits for a contender with one of the roles
    /// in the set.
    pub fn exclude(self, role: Role) -> bool {
        Role::ALL.into_iter().any(|older| self.contains(older) && role.waits_for(older))
    }
}

/// The prefix of a znode's name. In zoolock's own naming scheme it has no UUID, so a mutex can
/// compute its predecessor's name.
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
    /// zoolock's own prefixes that are one fixed word.
    pub(super) const WORDS: [Prefix; 4] = [Prefix::Lock, Prefix::Read, Prefix::Write, Prefix::Upgradable];

    /// Returns the prefix for this kind of contender; `None` if the naming scheme has no such kind.
    pub fn of(naming: Naming, kind: Kind, id: ContenderId, session: SessionId) -> Option<Prefix> {
        let own = kind.properties().prefix;
        match (naming, own) {
            (Naming::Native, _) => Some(own),
            (Naming::Curator, Prefix::Lock) => Some(Prefix::CuratorLock(id)),
            (Naming::Curator, Prefix::Write) => Some(Prefix::CuratorWrite(id)),
            (Naming::Curator, Prefix::Read) => Some(Prefix::CuratorRead(id)),
            (Naming::Kazoo, Prefix::Lock | Prefix::Write) => Some(Prefix::KazooLock(id)),
            (Naming::Kazoo, Prefix::Read) => Some(Prefix::KazooRead(id)),
            (Naming::WriteLock, Prefix::Lock) => Some(Prefix::WriteLock(session)),
            (Naming::Curator | Naming::Kazoo | Naming::WriteLock, _) => None,
        }
    }

    /// Returns the fixed word, the format and the role of names with this prefix: the table of
    /// prefixes.
    fn row(self) -> (&'static str, Spelling, Role) {
        match self {
            Prefix::Lock => ("lock-", Spelling::Lock, Role::Exclusive),
            Prefix::Write => ("__WRIT__", Spelling::Marked, Role::Exclusive),
            Prefix::Read => ("__READ__", Spelling::Marked, Role::Shared),
            Prefix::Upgradable => ("upgr-", Spelling::Own, Role::Upgradable),
            Prefix::Permit(_) => ("permit-", Spelling::Own, Role::Permit),
            Prefix::CuratorLock(_) => ("lock-", Spelling::CuratorLock, Role::Exclusive),
            Prefix::CuratorWrite(_) => ("__WRIT__", Spelling::CuratorMarked, Role::Exclusive),
            Prefix::CuratorRead(_) => ("__READ__", Spelling::CuratorMarked, Role::Shared),
            Prefix::KazooLock(_) => ("__lock__", Spelling::Kazoo, Role::Exclusive),
            Prefix::KazooRead(_) => ("__rlock__", Spelling::Kazoo, Role::Shared),
            Prefix::WriteLock(_) => ("x-", Spelling::WriteLock, Role::Exclusive),
        }
    }

    /// Returns the name with this sequence number.
    pub fn name(self, sequence: Sequence) -> String {
        // Many requests contain a name, so this function runs often. With room for the whole name,
        // the string is allocated only once.
        let mut name = String::with_capacity(64);
        write!(name, "{self}{sequence}").expect("writing to a string succeeds");
        name
    }

    /// Returns the name with this sequence number in parsed form.
    pub fn to_name(self, sequence: Sequence) -> Name {
        let (_, spelling, role) = self.row();
        let weight = if let Prefix::Permit(weight) = self { weight } else { 1 };
        Name { spelling, role, weight, sequence }
    }

    /// Returns the sequence number of a name with this prefix.
    pub fn parse_sequence(self, name: &str) -> Option<Sequence> {
        Sequence::parse(name.strip_prefix(&self.to_string())?)
    }

    /// Returns the fixed word in names with this prefix. A prefix in [`Prefix::WORDS`] is this
    /// word.
    pub(super) fn word(self) -> &'static str {
        self.row().0
    }

    /// Returns the role of names with this prefix.
    pub fn role(self) -> Role {
        self.row().2
    }

    /// Returns whether the prefix contains the UUID of the acquisition.
    pub fn has_id(self) -> bool {
        let is_curator =
            matches!(self, Prefix::CuratorLock(_) | Prefix::CuratorWrite(_) | Prefix::CuratorRead(_));
        is_curator || matches!(self, Prefix::KazooLock(_) | Prefix::KazooRead(_))
    }

    /// Returns whether a contender with this prefix is exclusive.
    pub fn is_exclusive(self) -> bool {
        self.role() == Role::Exclusive
    }

    /// Returns whether a contender with this prefix is a reader.
    pub fn reads(self) -> bool {
        matches!(self.role(), Role::Shared | Role::Upgradable)
    }

    /// Returns whether a contender with this prefix can compute its predecessor's name, if the
    /// predecessor has this prefix, too.
    pub fn is_computable(self) -> bool {
        self == Prefix::Lock
    }

    /// Returns the prefix that a writer with this prefix gets when it becomes a reader; `None` if
    /// it cannot become one.
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
        let word = self.word();
        match self {
            Prefix::Permit(weight) => write!(f, "{word}{weight}-"),
            Prefix::CuratorLock(id) | Prefix::CuratorWrite(id) | Prefix::CuratorRead(id) => {
                let hex = id.to_string();
                let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
                let (a, b, c, d, e) = (part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32));
                write!(f, "_c_{a}-{b}-{c}-{d}-{e}-{word}")
            }
            Prefix::KazooLock(id) | Prefix::KazooRead(id) => write!(f, "{id}{word}"),
            // This name shows the session id, which is enough to take the session over. But other
            // users of the recipe look for such a name.
            Prefix::WriteLock(session) => write!(f, "{word}{}-", session.0),
            _ => f.write_str(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_block_those_that_wait_for_them() {
        for older in Role::ALL {
            let mut roles = Roles::default();
            roles.insert(older);
            assert_eq!(Role::from_name(older.as_str()), Some(older));
            for role in Role::ALL {
                assert_eq!(roles.contains(role), role == older);
                assert_eq!(roles.exclude(role), role.waits_for(older));
                assert!(!Roles::default().exclude(role));
            }
        }
        assert_eq!(Role::from_name("reader"), None);
    }

    #[test]
    fn conflicts_have_no_direction() {
        for one in Role::ALL {
            for other in Role::ALL.into_iter().filter(|other| one.may_queue_with(*other)) {
                assert_eq!(one.waits_for(other), other.waits_for(one), "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn each_kind_has_a_name_and_a_role() {
        let mut names = Kind::EACH.map(Kind::name);
        names.sort_unstable();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        for kind in Kind::EACH {
            let prefix = Prefix::of(Naming::Native, kind, ContenderId(1), SessionId(1));
            let prefix = prefix.expect("zoolock's own naming scheme has every kind");
            let name = Name::parse(&prefix.name(Sequence(7))).expect("own name is parsed");
            assert_eq!((name, name.role), (prefix.to_name(Sequence(7)), kind.role()));
        }
    }
}
