//! The naming schemes of znodes, and the messages for contenders that ignore each other's znodes.

use std::fmt;
use std::str::FromStr;

use zoolock_core::census::{Clash, census};
use zoolock_core::contender::Kind;
use zoolock_core::layout::Layout;
use zoolock_core::names::{self, Family, Name, Names, Prefix, Role, Spelling};
use zoolock_core::{ContenderId, SessionId};

use crate::base::error::Error;

/// The naming scheme of this client's znodes, which determines the client libraries that can share a lock with it.
/// The combinations are in `docs/INTEROP.md`.
///
/// zoolock reads the names of all schemes, and counts any other name that ends in a sequence number as an exclusive
/// contender. The other libraries must read zoolock's names. If another contender in the queue would ignore this
/// client's znode, the acquisition fails with [`Error::Neighbour`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Naming {
    /// `lock-S`, `__READ__S`, `__WRIT__S`, `permit-W-S`: zoolock's own names. Mutexes are shared with
    /// Curator, go-zookeeper, `zookeeper-client` and Java's WriteLock. They are also shared with kazoo
    /// clients that look for `lock-` (see `kazoo_pattern`). Read/write locks are shared with Curator. The
    /// cost does not grow with the number of waiters.
    #[default]
    Native,
    /// `_c_<uuid>-lock-S`, `_c_<uuid>-__READ__S`, `_c_<uuid>-__WRIT__S`: Curator's names.
    Curator,
    /// `<hex32>__lock__S`, `<hex32>__rlock__S`: kazoo's Lock, ReadLock and WriteLock.
    Kazoo,
    /// `x-<session>-S`: the recipe WriteLock of ZooKeeper, in Java and C. Every client that may list the lock reads
    /// the session id there. On Apache ZooKeeper this id is enough to take the session over.
    WriteLock,
}

impl Naming {
    const ALL: [Naming; 4] = [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock];

    /// Returns its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Naming::Native => "native",
            Naming::Curator => "curator",
            Naming::Kazoo => "kazoo",
            Naming::WriteLock => "write-lock",
        }
    }

    /// Returns the names of a lock of this kind, if this naming has such a kind.
    pub(crate) fn of(self, kind: Kind, kazoo_pattern: bool) -> Result<Names, Error> {
        let naming = match self {
            Naming::Native => names::Naming::Native,
            Naming::Curator => names::Naming::Curator,
            Naming::Kazoo => names::Naming::Kazoo,
            Naming::WriteLock => names::Naming::WriteLock,
        };
        match Prefix::of(naming, kind, ContenderId(0), SessionId(0)) {
            Some(_) => Ok(Names { naming, kazoo_pattern }),
            None => Err(self.has_no(kind)),
        }
    }

    fn has_no(self, kind: Kind) -> Error {
        let (what, has) = match kind {
            Kind::Mutex => ("mutex", "native, curator, kazoo and write-lock have one"),
            Kind::Write | Kind::Read | Kind::Upgrade { .. } => {
                ("read/write lock", "native, curator and kazoo have one")
            }
            Kind::Upgradable => ("upgradable reader", "only native has one"),
            Kind::Permits { .. } => (
                "semaphore",
                "only native has one: zoolock cannot acquire permits of Curator's or kazoo's semaphores; use native with \
                 another name, or the other library",
            ),
        };
        Error::invalid(format!("naming {self}"), format!("has no {what}; {has}"))
    }
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Naming {
    type Err = Error;

    fn from_str(text: &str) -> Result<Naming, Error> {
        let found = Naming::ALL.into_iter().find(|naming| naming.as_str() == text);
        found.ok_or_else(|| {
            let all = Naming::ALL.map(Naming::as_str).join(", ");
            Error::invalid(format!("naming {text:?}"), format!("is none of {all}"))
        })
    }
}

/// Returns the message for a refused acquisition: the contenders and the remedy.
pub(crate) fn refusal(clash: &Clash) -> String {
    let Clash { blind, unseen, ours, remedy } = clash;
    if !ours {
        return format!(
            "{} and {} in this queue ignore each other's znodes, so both may hold the lock at once; {}",
            described(blind),
            described(unseen),
            remedy_for_others(blind, unseen)
        );
    }
    let what = match remedy {
        Some(spelling) => remedy_for_us(*spelling, blind.family(), unseen.role),
        None => "no naming scheme of zoolock is visible to all contenders: use another lock".to_owned(),
    };
    format!("{} in this queue would ignore this client's znode; {what}", described(blind))
}

/// Returns a message if two contenders of a queue ignore each other's znodes: the contenders and the remedy.
/// `None` if there are no such contenders. For observers outside of the queue.
///
/// The names do not tell whether kazoo's clients look for `lock-`.
pub(crate) fn clash(queue: &[Name]) -> Option<String> {
    let clash_of = |others: &[Name], me, kazoo_pattern| {
        census(others.iter().copied(), me, Names { kazoo_pattern, ..Names::default() })
    };
    let (clash, unless) = match clash_of(queue, None, true) {
        Some(certain) => (certain, ""),
        None => (clash_of(queue, None, false)?, ", unless its clients pass extra_lock_patterns=[\"lock-\"]"),
    };
    let Clash { blind, unseen, .. } = clash;
    let others: Vec<Name> = queue.iter().filter(|name| name.family() != Family::Native).copied().collect();
    let ours = (unseen.family() == Family::Native).then(|| clash_of(&others, Some(unseen), false)).flatten();
    let what = match ours {
        Some(Clash { ours: true, remedy: Some(spelling), .. }) => {
            format!("for zoolock's clients: {}", remedy_for_us(spelling, blind.family(), unseen.role))
        }
        _ => "give one of them another lock, or move its users to zoolock".to_owned(),
    };
    let (blind, unseen) = (described(&blind), described(&unseen));
    Some(format!("{blind} ignores the znode of {unseen}{unless}, so both may hold the lock at once; {what}"))
}

/// Returns the message for a lock and a semaphore of another client library with the same name.
pub(crate) fn two_layouts(lock: &Name, semaphore: Layout) -> String {
    format!(
        "{} and a semaphore of {} have this name and ignore each other; give one of them another name",
        described(lock),
        semaphore.library()
    )
}

/// Returns the remedy for two contenders of which none belongs to this client.
fn remedy_for_others(blind: &Name, unseen: &Name) -> &'static str {
    let has_lock = matches!(unseen.spelling, Spelling::Lock | Spelling::CuratorLock | Spelling::UnknownLock);
    if blind.family() == Family::Kazoo && has_lock {
        return "if all contenders with kazoo's names pass extra_lock_patterns=[\"lock-\"] or are zoolock clients, set \
                kazoo_pattern (--kazoo-pattern); else no naming scheme helps: give one of them another lock";
    }
    "no naming scheme of zoolock changes that: give one of them another lock, or move its users to zoolock"
}

/// Returns a description of a contender.
pub(crate) fn described(name: &Name) -> String {
    let what = match (name.spelling, name.role) {
        (Spelling::Lock, _) => "a mutex of zoolock (or .NET)",
        (Spelling::Marked, Role::Shared) => "a reader of zoolock",
        (Spelling::Marked, _) => "a writer of zoolock",
        (Spelling::Upgradable, _) => "an upgradable reader of zoolock",
        (Spelling::Permit, _) => "a semaphore's user of zoolock",
        (Spelling::CuratorLock, _) => "a mutex of Curator",
        (Spelling::CuratorMarked, Role::Shared) => "a reader of Curator",
        (Spelling::CuratorMarked, _) => "a writer of Curator",
        (Spelling::CuratorLease, _) => "a semaphore's user of Curator",
        (Spelling::Kazoo, Role::Shared) => "a reader of kazoo",
        (Spelling::Kazoo, _) => "a lock of kazoo",
        (Spelling::WriteLock, _) => "a WriteLock of ZooKeeper's recipes",
        (Spelling::Ruby, _) => "a lock of zk-ruby",
        (Spelling::DotNet, _) => "a reader or writer of .NET",
        (Spelling::Aiozk, _) => "a lock of aiozk",
        (Spelling::AiozkMarked, _) => "a reader or writer of aiozk",
        (Spelling::UnknownLock | Spelling::UnknownDash | Spelling::Unknown, _) => {
            "a contender of an unknown client library"
        }
    };
    format!("{what} (number {})", name.sequence)
}

fn remedy_for_us(spelling: Spelling, theirs: Family, role: Role) -> String {
    match spelling {
        Spelling::Lock => "take it as a mutex, under the naming native".to_owned(),
        Spelling::Marked if role == Role::Exclusive => {
            "take it as the writer of a read/write lock (--write)".to_owned()
        }
        Spelling::Marked => "take it as a read/write lock, under the naming native".to_owned(),
        Spelling::CuratorLock | Spelling::CuratorMarked => "use the naming curator".to_owned(),
        Spelling::Kazoo if theirs == Family::Kazoo => {
            "use the naming kazoo; or give every kazoo client here extra_lock_patterns=[\"lock-\"], and set \
             kazoo_pattern (--kazoo-pattern)"
                .to_owned()
        }
        Spelling::Kazoo => "use the naming kazoo".to_owned(),
        _ => "use the naming write-lock".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for naming in Naming::ALL {
            assert_eq!(naming.to_string().parse::<Naming>().expect("one of ours"), naming);
        }
        let wrong = "kazo".parse::<Naming>().expect_err("no such naming").to_string();
        assert_eq!(wrong, "naming \"kazo\": is none of native, curator, kazoo, write-lock");
    }

    #[test]
    fn clash_message_names_contenders_and_remedy() {
        const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";
        let (kazoo, curator) = (format!("{HEX}__lock__0000000003"), format!("_c_{HEX}-lock-0000000004"));
        let message = |names: &[&str]| {
            clash(&names.iter().map(|name| Name::parse(name).expect("a contender")).collect::<Vec<_>>())
        };
        assert_eq!(
            message(&[&kazoo, "lock-0000000005"]).as_deref(),
            Some(
                "a lock of kazoo (number 0000000003) ignores the znode of a mutex of zoolock (or .NET) (number \
                 0000000005), unless its clients pass extra_lock_patterns=[\"lock-\"], so both may hold the lock at once; \
                 for zoolock's clients: use the naming kazoo; or give every kazoo client here \
                 extra_lock_patterns=[\"lock-\"], and set kazoo_pattern (--kazoo-pattern)"
            )
        );
        assert_eq!(
            message(&[&kazoo, &curator]).as_deref(),
            Some(
                "a mutex of Curator (number 0000000004) ignores the znode of a lock of kazoo (number 0000000003), so \
                 both may hold the lock at once; give one of them another lock, or move its users to zoolock"
            )
        );
        assert_eq!(
            message(&["job-0000000003", &curator]).as_deref(),
            Some(
                "a mutex of Curator (number 0000000004) ignores the znode of a contender of an unknown client \
                 library (number 0000000003), so both may hold the lock at once; give one of them another lock, or move \
                 its users to zoolock"
            )
        );
        let writer = format!("_c_{HEX}-__WRIT__0000000004");
        let mixed = message(&[&writer, "lock-0000000005"]).expect("it would not wait");
        assert!(mixed.ends_with("clients: take it as the writer of a read/write lock (--write)"), "{mixed}");
        for friends in
            [&[curator.as_str(), "lock-0000000005"][..], &[&kazoo], &["x-1-0000000001", &curator], &[]]
        {
            assert_eq!(
                message(friends).is_some(),
                friends.len() == 2 && friends[0].starts_with('x'),
                "{friends:?}"
            );
        }
    }

    #[test]
    fn missing_kind_error_names_other_schemes() {
        let wrong = |naming: Naming, kind| naming.of(kind, false).expect_err("not there").to_string();
        assert_eq!(
            wrong(Naming::WriteLock, Kind::Read),
            "naming write-lock: has no read/write lock; native, curator and kazoo have one"
        );
        assert_eq!(
            wrong(Naming::Curator, Kind::Upgradable),
            "naming curator: has no upgradable reader; only native has one"
        );
        assert!(Naming::Kazoo.of(Kind::Read, false).is_ok());
        for naming in [Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
            let wrong = wrong(naming, Kind::Permits { take: 1, size: 2 });
            assert_eq!(
                wrong,
                format!(
                    "naming {naming}: has no semaphore; only native has one: zoolock cannot acquire permits of \
                     Curator's or kazoo's semaphores; use native with another name, or the other library"
                )
            );
        }
    }
}
