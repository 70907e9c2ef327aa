//! The order of contenders, and the predecessor of each.
//!
//! [`decide`] takes one listing of the directory, and answers for one contender. It ignores children without a
//! sequence number. Contenders of other client libraries count according to their names; a contender with an
//! unknown name is exclusive.

use crate::census::{Clash, census};
use crate::ids::Sequence;
use crate::names::{Name, Names, Prefix, Role, Roles};

/// The kind of lock that a contender requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Claim {
    /// An exclusive lock, or a read lock.
    Lock,
    /// Permits of a semaphore of this size.
    Permits {
        /// Number of permits of the semaphore.
        size: u32,
    },
    /// The write lock of a reader that upgrades. The reader already holds, and keeps its own znode
    /// in the queue.
    Upgrade {
        /// Prefix of the reader's own znode.
        prefix: Prefix,
        /// Sequence number of the reader's own znode.
        sequence: Sequence,
    },
}

/// The result of a listing for one contender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueDecision {
    /// The contender holds the lock.
    Held,
    /// The contender waits for this child.
    WaitFor(String),
    /// Too few permits are left, and every predecessor holds its permits. Any predecessor may free
    /// the missing permits, so the contender watches all children.
    WatchChildren,
    /// Our znode is not in the list. Or we upgrade a reader, and the reader's znode is not in the
    /// list.
    NotQueued,
    /// The upgrade of a reader fails: another reader goes first, or readers are queued behind a
    /// writer that waits for our reader.
    Outranked,
    /// This directory contains locks of another kind.
    OtherKind,
    /// Contenders of different client libraries ignore each other's znodes, or ours.
    Clash(Clash),
}

/// Decides whether one contender among `children` holds the lock, or which child it waits for.
///
/// * An exclusive contender waits for the nearest predecessor of any client library and any role.
/// * A reader waits for the nearest exclusive predecessor. An upgradable reader also waits for upgradable
///   predecessors.
/// * Permits are granted, all or none, if those of the contender and of all its predecessors fit
///   into the semaphore.
/// * An upgrading reader waits for the other readers that hold. It goes before writers that wait
///   for it.
/// * An upgrading reader is outranked in two cases, because a wait could last for ever. In the
///   first case it is a plain reader, and an older reader or an upgradable reader also holds: that
///   reader may upgrade, too. In the second case other readers are queued behind a writer that
///   waits for the upgrading reader.
/// * The answer is [`QueueDecision::Clash`] if a contender in the queue ignores our znode, or that
///   of another contender.
pub fn decide<S: AsRef<str>>(
    children: &[S],
    prefix: Prefix,
    me: Sequence,
    claim: Claim,
    names: Names,
) -> QueueDecision {
    let mine = prefix.name(me);
    let ours = prefix.to_name(me).role;
    let position = position(me);
    let mut found = false;
    let mut others: Vec<(Name, &str)> = Vec::with_capacity(children.len());
    for child in children {
        let child = child.as_ref();
        if child == mine {
            found = true;
        } else if let Some(name) = Name::parse(child).filter(|name| name.counts_below(position)) {
            if !ours.may_queue_with(name.role) {
                return QueueDecision::OtherKind;
            }
            others.push((name, child));
        }
    }
    if !found {
        return QueueDecision::NotQueued;
    }
    if let Some(clash) = census(others.iter().map(|(name, _)| *name), Some(prefix.to_name(me)), names) {
        return QueueDecision::Clash(clash);
    }
    // Another child with our own sequence number counts as a predecessor. For example, a Curator
    // reader under its own write lock repeats the writer's number. Such a znode existed before we
    // could be granted, so we wait for it.
    let before = others.into_iter().filter(|(name, _)| name.position() <= position);
    match (claim, prefix) {
        (Claim::Upgrade { prefix, sequence }, _) => decide_upgrade(before, prefix, sequence),
        (Claim::Permits { size }, Prefix::Permit(take)) => decide_permits(before.collect(), take, size),
        _ => wait_for_nearest(before.filter(|(name, _)| ours.waits_for(name.role))),
    }
}

/// Returns whether the contender `child`, for which another contender waits, waits itself.
pub fn is_waiting<S: AsRef<str>>(children: &[S], child: &str) -> bool {
    let Some(name) = Name::parse(child) else { return false };
    let is_ahead = |other: Name| other.position() < name.position() && name.role.waits_for(other.role);
    // Of permits, a contender waits for the last one ahead of it only if that one waits, too.
    name.role == Role::Permit || children.iter().filter_map(|other| Name::parse(other.as_ref())).any(is_ahead)
}

/// Returns which contenders hold the lock, for observers, which see only the names in the queue.
///
/// `queue` is sorted by [`Name::sort_key`]. `permits` is the size of the semaphore; if it is `None`,
/// all permits count as granted. `upgrades` returns whether the writer at an index of the queue
/// belongs to an upgrading reader. Such a writer holds if exactly one contender before it holds,
/// because that is its own reader. A Curator reader with the number of a holding writer belongs to
/// that writer, and holds, too.
///
/// The result can be wrong in two cases that the names do not show: a contender got its permits
/// while the semaphore had more of them, or a contender has not yet learned that it is granted.
pub fn which_hold(queue: &[Name], upgrades: impl Fn(usize) -> bool, permits: Option<u32>) -> Vec<bool> {
    let mut weight = 0u64;
    let mut older = Roles::default();
    let (mut writer, mut holding) = (None, 0usize);
    queue
        .iter()
        .enumerate()
        .map(|(before, name)| {
            weight += u64::from(name.weight);
            let holds = match name.role {
                Role::Permit => {
                    let fits = permits.is_none_or(|permits| weight <= permits.into());
                    !older.contains(Role::Exclusive) && fits
                }
                Role::Exclusive => {
                    // An upgrade goes before the writers between it and its reader, because they
                    // wait for that reader.
                    let holds = before == 0 || (holding == 1 && upgrades(before));
                    writer = writer.or(holds.then_some(name.sequence));
                    holds
                }
                Role::Shared if writer == Some(name.sequence) => true,
                role => !older.exclude(role),
            };
            older.insert(name.role);
            holding += usize::from(holds);
            holds
        })
        .collect()
}

fn position(sequence: Sequence) -> u32 {
    sequence.0 as u32
}

fn wait_for_nearest<'a>(before: impl Iterator<Item = (Name, &'a str)>) -> QueueDecision {
    // Of several predecessors with the same number, take the first one.
    match before.reduce(|a, b| if b.0.position() > a.0.position() { b } else { a }) {
        None => QueueDecision::Held,
        Some((_, name)) => QueueDecision::WaitFor(name.to_owned()),
    }
}

fn decide_permits(mut before: Vec<(Name, &str)>, take: u32, size: u32) -> QueueDecision {
    before.sort_by_key(|(name, _)| name.position());
    let weights = |of: &[(Name, &str)]| of.iter().map(|(name, _)| u64::from(name.weight)).sum::<u64>();
    let ahead = weights(&before);
    if ahead + u64::from(take) <= size.into() {
        return QueueDecision::Held;
    }
    match before.last() {
        Some((_, last)) if ahead > size.into() => QueueDecision::WaitFor((*last).to_owned()),
        _ => QueueDecision::WatchChildren,
    }
}

fn decide_upgrade<'a>(
    before: impl Iterator<Item = (Name, &'a str)>,
    prefix: Prefix,
    from: Sequence,
) -> QueueDecision {
    let mine = prefix.name(from);
    let all: Vec<_> = before.collect();
    if all.iter().all(|(_, child)| *child != mine) {
        return QueueDecision::NotQueued;
    }
    // The position of the first writer. Readers behind it do not hold yet.
    let writer = all.iter().filter(|(name, _)| name.role == Role::Exclusive).map(|(name, _)| name.position());
    let writer = writer.min().unwrap_or(u32::MAX);
    if writer < position(from) {
        // A writer before our reader holds, or assumes that it holds. So our reader does not hold
        // the lock. Only another client library can cause that.
        return wait_for_nearest(all.into_iter().filter(|(name, _)| name.position() == writer));
    }
    // A later contender that excludes our reader waits for us while our reader's znode exists.
    let waits_for_us = |name: &Name| name.role.waits_for(prefix.role()) && name.position() >= position(from);
    // By role: the position of the first contender that waits for us.
    let first_waiter = Role::ALL.map(|role| {
        let others = all.iter().filter(|(name, child)| name.role == role && *child != mine);
        let waiters = others.filter(|(name, _)| waits_for_us(name)).map(|(name, _)| name.position());
        waiters.min().unwrap_or(u32::MAX)
    });
    let waits_for_waiter = |name: &Name| {
        let is_waiter_before = |role: &Role| first_waiter[*role as usize] < name.position();
        Role::ALL.iter().filter(|role| name.role.waits_for(**role)).any(is_waiter_before)
    };
    let readers = all
        .into_iter()
        .filter(|(name, child)| name.role != Role::Exclusive && *child != mine && !waits_for_us(name));
    let readers: Vec<_> = readers.collect();
    if readers.iter().any(|(name, _)| waits_for_waiter(name)) {
        // One of these readers waits for a contender that waits for us. If that contender gives up,
        // the reader holds at once, because our writer's znode is behind the reader's. We cannot
        // wait for the reader: it waits, through that contender, for us.
        return QueueDecision::Outranked;
    }
    let ranks_before_us = |name: &Name| {
        prefix != Prefix::Upgradable && (name.role == Role::Upgradable || name.position() < position(from))
    };
    if readers.iter().any(|(name, _)| ranks_before_us(name)) {
        return QueueDecision::Outranked;
    }
    wait_for_nearest(readers.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

    fn mutex(children: &[&str], me: i32) -> QueueDecision {
        decide(children, Prefix::Lock, Sequence(me), Claim::Lock, Names::default())
    }

    fn wait(name: &str) -> QueueDecision {
        QueueDecision::WaitFor(name.to_owned())
    }

    #[test]
    fn mutex_waits_for_nearest_predecessor_of_any_library() {
        let curator = format!("_c_{HEX}-lock-0000000004");
        let children = ["lock-0000000009", "config", "lock-0000000002", curator.as_str(), "lock-0000000005"];
        assert_eq!(mutex(&children, 9), wait("lock-0000000005"));
        assert_eq!(mutex(&children, 5), wait(&curator));
        assert_eq!(mutex(&children, 2), QueueDecision::Held);
        assert_eq!(mutex(&children, 3), QueueDecision::NotQueued);
    }

    #[test]
    fn mutex_waits_for_contender_with_unknown_name() {
        for unknown in
            ["job-0000000004", "0000000004", "somelock-0000000004", &format!("lock-{HEX}-0000000004")]
        {
            let children = ["lock-0000000002", "backup-2024010101", unknown, "lock-0000000005"];
            assert_eq!(mutex(&children, 5), wait(unknown));
            assert_eq!(mutex(&children, 2), QueueDecision::Held);
        }
    }

    #[test]
    fn contender_with_unknown_name_is_exclusive() {
        let children = ["__READ__0000000001", "job-0000000002", "__READ__0000000003"];
        let read = |me| decide(&children, Prefix::Read, Sequence(me), Claim::Lock, Names::default());
        assert_eq!((read(1), read(3)), (QueueDecision::Held, wait("job-0000000002")));
        let children = ["permit-1-0000000001", "job-0000000002", "permit-1-0000000003"];
        let permit = |me| {
            let claim = Claim::Permits { size: 5 };
            decide(&children, Prefix::Permit(1), Sequence(me), claim, Names::default())
        };
        assert_eq!((permit(1), permit(3)), (QueueDecision::Held, QueueDecision::OtherKind));
    }

    #[test]
    fn unknown_name_with_later_number_is_ignored() {
        let curator = format!("_c_{HEX}-lock-0000000004");
        let children = [curator.as_str(), "lock-0000000005", "backup-2024010101", "job--2147483648"];
        assert_eq!(mutex(&children, 5), wait(&curator));
        let children = [curator.as_str(), "lock-0000000005", "job-0000000003"];
        assert!(matches!(mutex(&children, 5), QueueDecision::Clash(_)));
    }

    #[test]
    fn wrapped_sequence_numbers_come_last() {
        let children = ["lock-2147483647", "lock--2147483648", "x-1-0000000001"];
        assert_eq!(mutex(&children, i32::MIN), wait("lock-2147483647"));
        assert_eq!(mutex(&children, i32::MAX), wait("x-1-0000000001"));
    }

    #[test]
    fn mutex_and_semaphore_recognise_each_other() {
        let children = ["lock-0000000002", "permit-1-0000000001"];
        assert_eq!(mutex(&children, 2), QueueDecision::OtherKind);
        let permits = Claim::Permits { size: 5 };
        assert_eq!(
            decide(&children, Prefix::Permit(1), Sequence(1), permits, Names::default()),
            QueueDecision::OtherKind
        );
    }

    #[test]
    fn readers_wait_only_for_exclusive_predecessors() {
        let children = [
            "__READ__0000000001",
            "upgr-0000000002",
            "__READ__0000000003",
            "lock-0000000004",
            "__READ__0000000005",
            "upgr-0000000006",
            "__WRIT__0000000007",
            "upgr-0000000008",
        ];
        let asks = |prefix, me| decide(&children, prefix, Sequence(me), Claim::Lock, Names::default());
        assert_eq!(asks(Prefix::Read, 1), QueueDecision::Held);
        assert_eq!(asks(Prefix::Upgradable, 2), QueueDecision::Held);
        assert_eq!(asks(Prefix::Read, 3), QueueDecision::Held);
        assert_eq!(asks(Prefix::Lock, 4), wait("__READ__0000000003"));
        assert_eq!(asks(Prefix::Read, 5), wait("lock-0000000004"));
        assert_eq!(asks(Prefix::Upgradable, 6), wait("lock-0000000004"));
        assert_eq!(asks(Prefix::Write, 7), wait("upgr-0000000006"));
        assert_eq!(asks(Prefix::Upgradable, 8), wait("__WRIT__0000000007"));
    }

    #[test]
    fn downgraded_writer_keeps_its_queue_position() {
        let children = ["__READ__0000000001", "__WRIT__0000000002", "__READ__0000000003"];
        assert_eq!(
            decide(&children, Prefix::Write, Sequence(2), Claim::Lock, Names::default()),
            wait("__READ__0000000001")
        );
    }

    #[test]
    fn permits_are_granted_all_or_none_in_order() {
        let children =
            ["permit-2-0000000001", "permit-1-0000000002", "permit-3-0000000003", "permit-1-0000000004"];
        let asks = |size, take, me| {
            decide(&children, Prefix::Permit(take), Sequence(me), Claim::Permits { size }, Names::default())
        };
        assert_eq!(asks(5, 1, 2), QueueDecision::Held);
        assert_eq!(asks(5, 3, 3), QueueDecision::WatchChildren);
        // Two permits are left, but contender 3 needs three and goes before contender 4.
        assert_eq!(asks(5, 1, 4), wait("permit-3-0000000003"));
        assert_eq!(asks(6, 1, 4), QueueDecision::WatchChildren);
        assert_eq!(asks(7, 1, 4), QueueDecision::Held);
        assert_eq!(asks(1, 2, 1), QueueDecision::WatchChildren);
        assert_eq!(asks(u32::MAX, 9, 9), QueueDecision::NotQueued);
    }

    #[test]
    fn one_of_two_upgrading_readers_is_outranked() {
        let children = [
            "__READ__0000000001",
            "__READ__0000000002",
            "__WRIT__0000000003",
            "__WRIT__0000000004",
            "__READ__0000000005",
        ];
        let upgrade = |children: &[&str], prefix, from, me| {
            let claim = Claim::Upgrade { prefix, sequence: Sequence(from) };
            decide(children, Prefix::Write, Sequence(me), claim, Names::default())
        };
        assert_eq!(upgrade(&children, Prefix::Read, 1, 3), wait("__READ__0000000002"));
        assert_eq!(upgrade(&children, Prefix::Read, 2, 4), QueueDecision::Outranked);
        assert_eq!(upgrade(&children[1..], Prefix::Read, 2, 4), QueueDecision::Held);
        assert_eq!(upgrade(&children[1..], Prefix::Read, 1, 4), QueueDecision::NotQueued);
        // An upgradable reader goes before older plain readers.
        let children = ["__READ__0000000001", "upgr-0000000002", "__WRIT__0000000003", "__WRIT__0000000004"];
        assert_eq!(upgrade(&children, Prefix::Upgradable, 2, 4), wait("__READ__0000000001"));
        assert_eq!(upgrade(&children, Prefix::Read, 1, 3), QueueDecision::Outranked);
    }

    #[test]
    fn reader_behind_writer_waits_to_upgrade() {
        let children =
            ["__READ__0000000001", "__WRIT__0000000002", "__READ__0000000003", "__WRIT__0000000004"];
        let claim = Claim::Upgrade { prefix: Prefix::Read, sequence: Sequence(3) };
        let decision = decide(&children, Prefix::Write, Sequence(4), claim, Names::default());
        assert_eq!(decision, wait("__WRIT__0000000002"));
    }

    #[test]
    fn holders_follow_from_names() {
        let names = |names: &[&str]| -> Vec<Name> {
            names.iter().map(|name| Name::parse(name).expect("name is a contender")).collect()
        };
        let readers =
            names(&["__READ__0000000001", "upgr-0000000002", "upgr-0000000003", "__READ__0000000004"]);
        assert_eq!(which_hold(&readers, |_| false, None), [true, true, false, true]);
        let mixed = names(&["__READ__0000000001", "__WRIT__0000000002", "__READ__0000000003"]);
        assert_eq!(which_hold(&mixed, |_| false, None), [true, false, false]);
        assert_eq!(which_hold(&mixed, |at| at == 1, None), [true, true, false]);
        assert_eq!(
            which_hold(&names(&["lock-0000000001", "lock-0000000002"]), |_| false, None),
            [true, false]
        );
        // A Curator writer that also reads: its own reader has the writer's number. No other reader
        // holds.
        let own = names(&["__WRIT__0000000002", "__READ__0000000002", "__READ__0000000003"]);
        assert_eq!(which_hold(&own, |_| false, None), [true, true, false]);
        let queued = names(&["lock-0000000001", "__WRIT__0000000002", "__READ__0000000002"]);
        assert_eq!(which_hold(&queued, |_| false, None), [true, false, false]);
        let between = names(&["__READ__0000000001", "__WRIT__0000000002", "__WRIT__0000000004"]);
        assert_eq!(which_hold(&between, |at| at == 2, None), [true, false, true]);
        assert_eq!(which_hold(&between, |_| false, None), [true, false, false]);
        let others = names(&["__READ__0000000001", "__READ__0000000002", "__WRIT__0000000004"]);
        assert_eq!(which_hold(&others, |at| at == 2, None), [true, true, false]);
        let permits = names(&["permit-2-0000000001", "permit-2-0000000002", "permit-1-0000000003"]);
        assert_eq!(which_hold(&permits, |_| false, Some(3)), [true, false, false]);
        assert_eq!(which_hold(&permits, |_| false, Some(5)), [true, true, true]);
    }

    #[test]
    fn reader_upgrades_before_a_queued_writer() {
        let children =
            ["__READ__0000000001", "__WRIT__0000000002", "__READ__0000000003", "__WRIT__0000000004"];
        let claim = Claim::Upgrade { prefix: Prefix::Read, sequence: Sequence(1) };
        // Reader 3 would hold as soon as writer 2 gives up.
        assert_eq!(
            decide(&children, Prefix::Write, Sequence(4), claim, Names::default()),
            QueueDecision::Outranked
        );
        let children = [children[0], children[1], children[3]];
        assert_eq!(
            decide(&children, Prefix::Write, Sequence(4), claim, Names::default()),
            QueueDecision::Held
        );
    }

    #[test]
    fn upgrade_ignores_waiting_upgradable_readers() {
        let children = ["upgr-0000000001", "upgr-0000000002", "__WRIT__0000000003"];
        let claim = Claim::Upgrade { prefix: Prefix::Upgradable, sequence: Sequence(1) };
        assert_eq!(
            decide(&children, Prefix::Write, Sequence(3), claim, Names::default()),
            QueueDecision::Held
        );
        let children = ["upgr-0000000001", "__READ__0000000002", "upgr-0000000002", "__WRIT__0000000003"];
        assert_eq!(
            decide(&children, Prefix::Write, Sequence(3), claim, Names::default()),
            wait("__READ__0000000002")
        );
    }
}
