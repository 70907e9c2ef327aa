//! The judge: finds holders of a lock that must exclude each other, and fencing tokens that do not rise.
//!
//! A [`Judge`] is told of the grants of one lock while they happen. Its mutex puts the events of all tasks in one order. A
//! holder enters after its grant and exits before its release, so the recorded holds are shorter than the real ones. A
//! violation in the record is therefore a real violation.
//!
//! Where a holder can lose its lock without noticing it at once, a conflict is no violation yet. Such tests and drills
//! keep their own records, and call [`conflicting`].

use std::fmt::{self, Debug, Display};
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use zoolock::FencingToken;

use crate::lock;

/// The share of a lock that a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Share {
    /// The whole lock.
    Exclusive,
    /// A read lock.
    Shared,
    /// A read lock that can be upgraded.
    Upgradable,
    /// A number of permits of a semaphore of this size.
    Permits {
        /// The number of permits.
        count: u32,
        /// The number of permits of the semaphore.
        size: u32,
    },
}

impl Share {
    /// Returns whether no two holders may have these shares at the same time. Permits do not exclude each other, but
    /// there may be too many of them in total ([`conflicting`]).
    pub fn excludes(self, other: Share) -> bool {
        let is_compatible = matches!(
            (self, other),
            (Share::Shared, Share::Shared | Share::Upgradable)
                | (Share::Upgradable, Share::Shared)
                | (Share::Permits { .. }, Share::Permits { .. })
        );
        !is_compatible
    }

    /// Returns the number of permits.
    pub fn permits(self) -> u32 {
        match self {
            Share::Permits { count, .. } => count,
            Share::Exclusive | Share::Shared | Share::Upgradable => 0,
        }
    }
}

/// Returns the holders that must not hold the lock beside a new share, or `None` if the share is compatible with all
/// holders. If there are too many permits, all holders of permits are returned. There may be none of them, if the new share
/// alone is larger than its semaphore.
pub fn conflicting<H>(new: Share, holders: impl IntoIterator<Item = (H, Share)>) -> Option<Vec<H>> {
    let holders: Vec<_> = holders.into_iter().collect();
    let taken = new.permits() + holders.iter().map(|(_, share)| share.permits()).sum::<u32>();
    let is_full = matches!(new, Share::Permits { size, .. } if taken > size);
    let conflict = |share: Share| new.excludes(share) || is_full && share.permits() > 0;
    let found: Vec<_> =
        holders.into_iter().filter(|(_, share)| conflict(*share)).map(|(holder, _)| holder).collect();
    (is_full || !found.is_empty()).then_some(found)
}

/// The judge of one lock, shared as `Arc<Judge<_>>`. `W` names a holder, and `T` is a fencing token.
#[derive(Debug)]
pub struct Judge<W, T = FencingToken>(Mutex<LockHistory<W, T>>);

#[derive(Debug)]
struct LockHistory<W, T> {
    holders: Vec<(W, Share)>,
    most_holders: usize,
    /// The holders in the order of their grants.
    grants: Vec<W>,
    /// The last token, and its holder.
    newest: Option<(W, T)>,
    violation: Option<Violation>,
}

/// A description of the first event that violates a rule.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation(String);

impl<W, T> Default for Judge<W, T> {
    fn default() -> Self {
        let history = LockHistory {
            holders: Vec::new(),
            most_holders: 0,
            grants: Vec::new(),
            newest: None,
            violation: None,
        };
        Self(Mutex::new(history))
    }
}

impl<W: Clone + PartialEq + Debug, T: Ord + Debug> Judge<W, T> {
    /// Creates a judge of a lock that has no holder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that `who` was granted the whole lock with this fencing token.
    pub fn enter(&self, who: W, token: T) {
        self.enter_with(who, Share::Exclusive, Some(token));
    }

    /// Records that `who` was granted this share of the lock. Returns the number of grants before this one.
    pub fn enter_with(&self, who: W, share: Share, token: Option<T>) -> usize {
        let history = &mut *self.history();
        let at = history.grants.len();
        if conflicting(share, history.holders.iter().map(|(_, held)| ((), *held))).is_some() {
            let holders = &history.holders;
            history.violation.get_or_insert(Violation(format!(
                "grant {at}: {who:?} entered with the share {share:?} beside {holders:?}"
            )));
        }
        if let Some(token) = token {
            if let Some((earlier, low)) = history.newest.as_ref().filter(|(_, newest)| *newest >= token) {
                history.violation.get_or_insert(Violation(format!(
                    "grant {at}: {who:?} entered with the token {token:?}, after {earlier:?} had entered with {low:?}"
                )));
            }
            history.newest = Some((who.clone(), token));
        }
        history.holders.push((who.clone(), share));
        history.most_holders = history.most_holders.max(history.holders.len());
        history.grants.push(who);
        at
    }

    /// Records that `who` is about to release the lock, or has lost it.
    pub fn exit(&self, who: &W) {
        let history = &mut *self.history();
        match history.holders.iter().position(|(holder, _)| holder == who) {
            Some(at) => drop(history.holders.remove(at)),
            None => {
                let LockHistory { holders, violation, grants, .. } = history;
                violation.get_or_insert(Violation(format!(
                    "after {} grants: {who:?} exited without having entered; the holders were {holders:?}",
                    grants.len()
                )));
            }
        }
    }

    /// Checks the record so far.
    ///
    /// # Errors
    /// Returns the first violation.
    pub fn check(&self) -> Result<(), Violation> {
        self.history().violation.clone().map_or(Ok(()), Err)
    }

    /// Checks the record so far. Returns the holders in the order of their grants.
    ///
    /// # Panics
    /// Panics if the record has a violation.
    pub fn checked_grants(&self) -> Vec<W> {
        if let Err(violation) = self.check() {
            panic!("{violation}");
        }
        self.grants()
    }

    /// Returns the holders in the order of their grants.
    pub fn grants(&self) -> Vec<W> {
        self.history().grants.clone()
    }

    /// Returns the number of grants so far.
    pub fn grant_count(&self) -> usize {
        self.history().grants.len()
    }

    /// Returns the largest number of holders at the same time.
    pub fn most_holders(&self) -> usize {
        self.history().most_holders
    }

    /// Returns whether the holders have all permits of their semaphore.
    pub fn is_full(&self) -> bool {
        let history = self.history();
        let taken: u32 = history.holders.iter().map(|(_, share)| share.permits()).sum();
        history
            .holders
            .iter()
            .any(|(_, share)| matches!(share, Share::Permits { size, .. } if *size == taken))
    }

    fn history(&self) -> MutexGuard<'_, LockHistory<W, T>> {
        lock(&self.0)
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}
