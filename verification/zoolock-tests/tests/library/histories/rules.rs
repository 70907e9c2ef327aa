//! The rules that the holders of one lock name must obey.

use std::collections::BTreeMap;

use zoolock::FencingToken;
use zoolock_tests::judge::{Share, conflicting};

/// Role of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    Reader,
    Upgradable,
    Writer,
    Permits(u32),
    /// The release has started, but its result is not yet known.
    Releasing,
}

impl Role {
    /// Returns the share of the lock, or `None` while it is being released. `size` is the size of a semaphore.
    fn share(self, size: Option<u32>) -> Option<Share> {
        match self {
            Role::Reader => Some(Share::Shared),
            Role::Upgradable => Some(Share::Upgradable),
            Role::Writer => Some(Share::Exclusive),
            Role::Permits(count) => Some(Share::Permits { count, size: size.unwrap_or(0) }),
            Role::Releasing => None,
        }
    }

    pub(crate) fn weight(self) -> u32 {
        self.share(None).map_or(0, Share::permits)
    }
}

/// The end of the last exclusive hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Holding,
    Clean,
    /// Ended by a panic, or without a release.
    Crashed,
    /// Broken by an operator.
    NotClean,
    /// Unknown, for example because an operator broke the lock during the release.
    Unsure,
}

/// A lock name and its recorded events.
#[derive(Debug)]
pub(crate) struct LockRecord {
    pub(crate) name: &'static str,
    /// Number of permits of a semaphore. `None` for the other kinds of lock.
    pub(crate) size: Option<u32>,
    /// True if operators never break this lock through the library. Then it is always known how the
    /// previous hold ended.
    pub(crate) never_broken: bool,
    /// The last exclusive holder, and how its hold ended. At first, this is the id 0, for the
    /// acquisition that created the name.
    pub(crate) last: (u64, End),
    newest: BTreeMap<Role, FencingToken>,
    /// The highest token of an exclusive holder.
    highest: Option<(u64, FencingToken)>,
    /// For each grant of permits: the number of permits that it and the holders with lower tickets leave free.
    left: BTreeMap<FencingToken, i64>,
}

impl LockRecord {
    pub(crate) fn new(name: &'static str, size: Option<u32>, never_broken: bool) -> LockRecord {
        LockRecord {
            name,
            size,
            never_broken,
            last: (0, End::Clean),
            newest: BTreeMap::new(),
            highest: None,
            left: BTreeMap::new(),
        }
    }

    /// Returns the holders that conflict with the new grant. At least one of them must have lost its lock.
    pub(crate) fn conflicting<'a>(
        &self,
        role: Role,
        holders: impl Iterator<Item = (&'a u64, Role)>,
    ) -> Vec<u64> {
        let Some(share) = role.share(self.size) else { return Vec::new() };
        let shares = holders.filter_map(|(id, role)| Some((*id, role.share(self.size)?)));
        conflicting(share, shares).unwrap_or_default()
    }

    /// Checks that grants follow queue order. `ahead` is the number of permits that holders with lower tickets have.
    pub(crate) fn check_order(&mut self, role: Role, ticket: FencingToken, ahead: u32) -> Result<(), String> {
        if let Some(size) = self.size {
            let weight = i64::from(role.weight());
            for (later, left) in self.left.range_mut(ticket..) {
                if *left < weight {
                    return Err(format!(
                        "{ticket} has {weight} permits of {size} after the later {later}, which had left only {left}"
                    ));
                }
                *left -= weight;
            }
            self.left.insert(ticket, i64::from(size) - i64::from(ahead) - weight);
            return Ok(());
        }
        for (other_role, newest) in &self.newest {
            let shares = role.share(None).zip(other_role.share(None));
            if shares.is_some_and(|(share, other)| share.excludes(other)) && *newest > ticket {
                return Err(format!("{role:?} {ticket} is granted after the later {other_role:?} {newest}"));
            }
        }
        let newest = self.newest.entry(role).or_insert(ticket);
        *newest = ticket.max(*newest);
        Ok(())
    }

    /// Records the start of an exclusive hold.
    pub(crate) fn record_writer(&mut self, id: u64, token: FencingToken) -> Result<(), String> {
        if let Some((holder, highest)) = self.highest
            && (token < highest || (token == highest && holder != id))
        {
            return Err(format!("token {token} of #{id} after {highest} of #{holder}"));
        }
        self.highest = Some((id, token));
        self.last = (id, End::Holding);
        Ok(())
    }

    pub(crate) fn record_end(&mut self, id: u64, end: End) {
        if self.last.0 == id {
            self.last.1 = end;
        }
    }
}

/// Returns false if one of the previous holds is known to have ended without a clean release.
pub(crate) fn may_have_ended_cleanly(records: &[&LockRecord]) -> bool {
    records.iter().all(|record| matches!(record.last.1, End::Clean | End::Unsure | End::Holding))
}
