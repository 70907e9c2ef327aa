//! Naming schemes for each kind of lock, and the messages for contenders that ignore each other's znodes.

use zoolock_core::acquisition::Kind;
use zoolock_core::census::{Clash, census};
use zoolock_core::layout::Layout;
pub(crate) use zoolock_core::names::Naming;
use zoolock_core::names::{Family, Name, Names, Prefix, Role, Spelling};
use zoolock_core::{ContenderId, SessionId};

use crate::base::error::Error;

/// Returns the naming of a lock of this kind. Fails if the naming scheme has no such kind.
pub(crate) fn names_of(naming: Naming, kind: Kind, kazoo_pattern: bool) -> Result<Names, Error> {
    if has_kind(naming, kind) { Ok(Names { naming, kazoo_pattern }) } else { Err(missing_kind(naming, kind)) }
}

fn has_kind(naming: Naming, kind: Kind) -> bool {
    Prefix::of(naming, kind, ContenderId(0), SessionId::NONE).is_some()
}

/// The end of the error message if a naming scheme has no semaphore.
const NO_FOREIGN_PERMITS: &str = "\
: zoolock cannot acquire permits of Curator's or kazoo's semaphores; use native with another name, or the other library";

/// Returns the error for a naming without this kind of lock.
fn missing_kind(naming: Naming, kind: Kind) -> Error {
    let others = Naming::ALL.into_iter().filter(|naming| has_kind(*naming, kind)).map(Naming::as_str);
    let others = match others.collect::<Vec<_>>().as_slice() {
        [others @ .., last] if !others.is_empty() => format!("{} and {last} have one", others.join(", ")),
        others => format!("only {} has one", others.concat()),
    };
    let remedy = if matches!(kind, Kind::Permits { .. }) { NO_FOREIGN_PERMITS } else { "" };
    Error::invalid(format!("naming {naming}"), format!("has no {}; {others}{remedy}", kind.title()))
}

/// Returns the message for an acquisition that is refused because of other contenders. The message
/// names the contenders and the remedy.
pub(crate) fn clash_error_message(clash: &Clash) -> String {
    let Clash { viewer, ignored, ours, remedy } = clash;
    if !ours {
        return format!(
            "{} and {} in this queue ignore each other's znodes, so both may hold the lock at once; {}",
            describe(viewer),
            describe(ignored),
            remedy_for_others(viewer, ignored)
        );
    }
    let what = match remedy {
        Some(spelling) => remedy_for_us(*spelling, viewer.family(), ignored.role),
        None => "no naming scheme of zoolock is visible to all contenders: use another lock".to_owned(),
    };
    format!("{} in this queue would ignore this client's znode; {what}", describe(viewer))
}

/// Returns a message if a contender of the queue ignores the znode of another contender, or `None`
/// if no contender does. The message names the contenders and the remedy. It is for observers
/// outside of the queue.
///
/// The names of kazoo's znodes do not show whether kazoo's clients also wait for znodes with
/// `lock-` in their names. If the clash depends on this, the message says so.
pub(crate) fn find_clash_message(queue: &[Name]) -> Option<String> {
    let clash_of = |others: &[Name], me, kazoo_pattern| {
        census(others.iter().copied(), me, Names { kazoo_pattern, ..Names::default() })
    };
    let (clash, unless) = match clash_of(queue, None, true) {
        Some(certain) => (certain, ""),
        None => (clash_of(queue, None, false)?, ", unless its clients pass extra_lock_patterns=[\"lock-\"]"),
    };
    let Clash { viewer, ignored, .. } = clash;
    let others: Vec<Name> = queue.iter().filter(|name| name.family() != Family::Native).copied().collect();
    let ours =
        (ignored.family() == Family::Native).then(|| clash_of(&others, Some(ignored), false)).flatten();
    let what = match ours {
        Some(Clash { ours: true, remedy: Some(spelling), .. }) => {
            format!("for zoolock's clients: {}", remedy_for_us(spelling, viewer.family(), ignored.role))
        }
        _ => "give one of them another lock, or move its users to zoolock".to_owned(),
    };
    let (viewer, ignored) = (describe(&viewer), describe(&ignored));
    Some(format!(
        "{viewer} ignores the znode of {ignored}{unless}, so both may hold the lock at once; {what}"
    ))
}

/// Returns the message for a lock and a semaphore of another client library with the same name.
pub(crate) fn layout_conflict_message(lock: &Name, semaphore: Layout) -> String {
    format!(
        "{} and a semaphore of {} have this name and ignore each other; give one of them another name",
        describe(lock),
        semaphore.library()
    )
}

/// Returns the remedy for two contenders that both belong to other clients.
fn remedy_for_others(viewer: &Name, ignored: &Name) -> &'static str {
    let has_lock = matches!(ignored.spelling, Spelling::Lock | Spelling::CuratorLock | Spelling::UnknownLock);
    if viewer.family() == Family::Kazoo && has_lock {
        return "if all contenders with kazoo's names pass extra_lock_patterns=[\"lock-\"] or are zoolock clients, set \
                kazoo_pattern (kazoo-pattern in --naming); else no naming scheme helps: give one of them another lock";
    }
    "no naming scheme of zoolock changes that: give one of them another lock, or move its users to zoolock"
}

/// Returns a description of a contender for messages.
pub(crate) fn describe(name: &Name) -> String {
    let what = match (name.spelling, name.role) {
        (Spelling::Lock, _) => "a mutex of zoolock (or .NET)",
        (Spelling::Marked | Spelling::Own, role) => {
            return format!("{} of zoolock (number {})", role.noun(), name.sequence);
        }
        (Spelling::CuratorLock, _) => "a mutex of Curator",
        (Spelling::CuratorMarked, Role::Shared) => "a reader of Curator",
        (Spelling::CuratorMarked, _) => "a writer of Curator",
        (Spelling::CuratorLease, _) => "a semaphore's user of Curator",
        (Spelling::CuratorLatch, _) => "a LeaderLatch of Curator",
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
            "take it as the writer of a read/write lock (--naming native,rw)".to_owned()
        }
        Spelling::Marked => "take it as a read/write lock, under the naming native".to_owned(),
        Spelling::CuratorLock | Spelling::CuratorMarked => "use the naming curator".to_owned(),
        Spelling::Kazoo if theirs == Family::Kazoo => {
            "use the naming kazoo; or give every kazoo client here extra_lock_patterns=[\"lock-\"], and set \
             kazoo_pattern (kazoo-pattern in --naming)"
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
    fn clash_message_names_contenders_and_remedy() {
        const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";
        let (kazoo, curator) = (format!("{HEX}__lock__0000000003"), format!("_c_{HEX}-lock-0000000004"));
        let message = |names: &[&str]| {
            find_clash_message(
                &names.iter().map(|name| Name::parse(name).expect("contender's name")).collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            message(&[&kazoo, "lock-0000000005"]).as_deref(),
            Some(
                "a lock of kazoo (number 0000000003) ignores the znode of a mutex of zoolock (or .NET) (number \
                 0000000005), unless its clients pass extra_lock_patterns=[\"lock-\"], so both may hold the lock at once; \
                 for zoolock's clients: use the naming kazoo; or give every kazoo client here \
                 extra_lock_patterns=[\"lock-\"], and set kazoo_pattern (kazoo-pattern in --naming)"
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
        let mixed = message(&[&writer, "lock-0000000005"]).expect("contenders ignore each other");
        assert!(
            mixed.ends_with("clients: take it as the writer of a read/write lock (--naming native,rw)"),
            "{mixed}"
        );
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
        let wrong = |naming, kind| names_of(naming, kind, false).expect_err("no such kind").to_string();
        assert_eq!(
            wrong(Naming::WriteLock, Kind::Read),
            "naming write-lock: has no read/write lock; native, curator and kazoo have one"
        );
        assert_eq!(
            wrong(Naming::Curator, Kind::Upgradable),
            "naming curator: has no upgradable reader; only native has one"
        );
        assert!(names_of(Naming::Kazoo, Kind::Read, false).is_ok());
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
