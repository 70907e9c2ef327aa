//! A lock and its contenders, as the screen shows them.

use zoolock::{Entry, ForeignSemaphore, Snapshot};

use crate::render::status::describe;
use crate::render::text::role;

/// One lock.
#[derive(Debug, Clone, Default)]
pub(super) struct Lock {
    pub(super) path: String,
    /// Name below the root, or the path if the lock is elsewhere.
    pub(super) name: String,
    pub(super) holders: Vec<Contender>,
    /// Waiters that were read, in queue order.
    pub(super) waiters: Vec<Contender>,
    /// Number of all waiters.
    pub(super) waiting: usize,
    pub(super) previous: &'static str,
    pub(super) permits: Option<u32>,
    pub(super) foreign: Option<ForeignSemaphore>,
    pub(super) clash: Option<String>,
    pub(super) unread: Vec<String>,
    /// Hand-overs per second.
    pub(super) rate: Option<f64>,
}

/// A holder or waiter.
#[derive(Debug, Clone, Default)]
pub(super) struct Contender {
    pub(super) node: String,
    pub(super) token: Option<String>,
    pub(super) revoked: bool,
    pub(super) since_ms: Option<u64>,
    /// Description of its role: exclusive, reader, or the number of permits.
    pub(super) role: String,
    /// Short description of the client.
    pub(super) description: String,
    pub(super) host: Option<String>,
    pub(super) pid: Option<u32>,
    pub(super) program: Option<String>,
    pub(super) note: Option<String>,
}

impl Lock {
    /// Converts a snapshot.
    pub(super) fn of(lock: Snapshot, root: &str) -> Self {
        Self {
            name: name(&lock.path, root).to_owned(),
            waiting: lock.waiting,
            foreign: lock.foreign_semaphore,
            holders: lock.holder.into_iter().chain(lock.beside).map(Contender::of).collect(),
            waiters: lock.waiters.into_iter().map(Contender::of).collect(),
            path: lock.path,
            previous: lock.previous,
            permits: lock.permits,
            clash: lock.clash,
            unread: lock.unread,
            rate: None,
        }
    }

    /// Returns whether there is a holder, or a lease of a foreign semaphore.
    pub(super) fn is_held(&self) -> bool {
        !self.holders.is_empty() || self.foreign.as_ref().is_some_and(|foreign| foreign.leases > 0)
    }

    /// Returns the arrival time of the longest waiter.
    pub(super) fn longest_since(&self) -> Option<u64> {
        self.waiters.iter().filter_map(|waiter| waiter.since_ms).min()
    }

    /// Returns the holders, then the waiters in queue order.
    pub(super) fn queue(&self) -> impl Iterator<Item = &Contender> {
        self.holders.iter().chain(&self.waiters)
    }

    /// Returns the contender at this index of [`Lock::queue`].
    pub(super) fn at(&self, index: usize) -> Option<&Contender> {
        match index.checked_sub(self.holders.len()) {
            None => self.holders.get(index),
            Some(index) => self.waiters.get(index),
        }
    }
}

impl Contender {
    fn of(entry: Entry) -> Self {
        Self {
            description: describe(&entry),
            role: role(&entry),
            revoked: entry.revoked,
            node: entry.node,
            token: entry.token,
            since_ms: entry.since_ms,
            host: entry.host,
            pid: entry.pid,
            program: entry.program,
            note: entry.note.or(entry.identifier),
        }
    }
}

fn name<'a>(path: &'a str, root: &str) -> &'a str {
    let below = match root {
        "/" => None,
        root => path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')),
    };
    below.unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_called_by_its_name_below_the_root() {
        assert_eq!(name("/locks/db/main", "/locks"), "db/main");
        assert_eq!(name("/lockstep", "/locks"), "/lockstep");
        assert_eq!(name("/locks", "/locks"), "/locks");
        assert_eq!(name("/x", "/"), "/x");
    }
}
