//! A lock and its contenders, as the screen shows them.

use zoolock::{Entry, ForeignSemaphore, Snapshot};

use crate::render::status::{describe_contender, describe_program};
use crate::render::text::{describe_role, lock_name};

/// A lock, as the list and the queue show it.
#[derive(Debug, Clone, Default)]
pub(super) struct LockRow {
    pub(super) path: String,
    /// Name below the root, or the path if the lock is not below the root.
    pub(super) name: String,
    pub(super) holders: Vec<ContenderRow>,
    /// Waiters that were read, in queue order.
    pub(super) waiters: Vec<ContenderRow>,
    /// Number of all waiters.
    pub(super) waiting: usize,
    pub(super) previous: &'static str,
    pub(super) permits: Option<u32>,
    pub(super) foreign: Option<ForeignSemaphore>,
    pub(super) clash: Option<String>,
    pub(super) unread: Vec<String>,
    /// Hand-overs per second.
    pub(super) rate: Option<f64>,
    /// The last event in the history of the lock, if the screen shows its queue.
    pub(super) last_event: Option<String>,
}

/// A holder or waiter.
#[derive(Debug, Clone, Default)]
pub(super) struct ContenderRow {
    pub(super) node: String,
    pub(super) token: Option<String>,
    pub(super) revoked: bool,
    /// Time of the request to release; `None` if it is unknown.
    pub(super) asked_ms: Option<u64>,
    pub(super) since_ms: Option<u64>,
    /// Time of the grant; `None` for a waiter, and if the time is unknown.
    pub(super) held_since_ms: Option<u64>,
    /// Role: exclusive, reader, or the number of permits.
    pub(super) role: String,
    /// Short description of the client, without its note.
    pub(super) description: String,
    pub(super) host: Option<String>,
    pub(super) pid: Option<u32>,
    /// Name of the program, as [`describe_program`] says it.
    pub(super) program: Option<String>,
    /// The reason why the contender cannot be asked to release; `None` if it can be asked.
    pub(super) unrevocable: Option<&'static str>,
    pub(super) note: Option<String>,
}

impl LockRow {
    /// Converts a snapshot.
    pub(super) fn of(lock: Snapshot, root: &str) -> Self {
        Self {
            name: lock_name(&lock.path, root).to_owned(),
            waiting: lock.waiting,
            foreign: lock.foreign_semaphore,
            holders: lock.holder.into_iter().chain(lock.beside).map(ContenderRow::of).collect(),
            waiters: lock.waiters.into_iter().map(ContenderRow::of).collect(),
            path: lock.path,
            previous: lock.previous,
            permits: lock.permits,
            clash: lock.clash.or(lock.unusable),
            unread: lock.unread,
            rate: None,
            last_event: None,
        }
    }

    /// Returns whether there is a holder, or a lease of another client library's semaphore.
    pub(super) fn is_held(&self) -> bool {
        !self.holders.is_empty() || self.foreign.as_ref().is_some_and(|foreign| foreign.leases > 0)
    }

    /// Returns the time at which the longest waiter joined the queue, in Unix milliseconds.
    pub(super) fn longest_since(&self) -> Option<u64> {
        self.waiters.iter().filter_map(|waiter| waiter.since_ms).min()
    }

    /// Returns the holder that has held the lock longest. An unknown time counts as its maximum.
    pub(super) fn longest_holder(&self) -> Option<&ContenderRow> {
        self.holders.iter().min_by_key(|holder| holder.earliest_grant().unwrap_or(u64::MAX))
    }

    /// Returns the time since which the lock is held, or the earliest possible time if the time is unknown.
    pub(super) fn held_since(&self) -> Option<u64> {
        self.longest_holder()?.earliest_grant()
    }

    /// Returns the holders, then the waiters in queue order.
    pub(super) fn queue(&self) -> impl Iterator<Item = &ContenderRow> {
        self.holders.iter().chain(&self.waiters)
    }

    /// Returns the contender at this index of [`LockRow::queue`].
    pub(super) fn at(&self, index: usize) -> Option<&ContenderRow> {
        match index.checked_sub(self.holders.len()) {
            None => self.holders.get(index),
            Some(index) => self.waiters.get(index),
        }
    }
}

impl ContenderRow {
    fn of(mut entry: Entry) -> Self {
        // The description of an entry without a note is the description without the note.
        let identifier = entry.identifier.take();
        let note = entry.note.take().or(identifier);
        Self {
            description: describe_contender(&entry),
            role: describe_role(&entry),
            revoked: entry.revoked,
            asked_ms: entry.asked_ms,
            node: entry.node,
            token: entry.token,
            since_ms: entry.since_ms,
            held_since_ms: entry.held_since_ms,
            host: entry.host,
            pid: entry.pid,
            program: entry.program.map(|program| describe_program(&program, entry.runs_program)),
            unrevocable: entry.unrevocable,
            note,
        }
    }

    /// Returns the description with the note.
    pub(super) fn full_description(&self) -> String {
        match &self.note {
            Some(note) => format!("{}: {note}", self.description),
            None => self.description.clone(),
        }
    }

    /// Returns the time of the grant of a holder. If it is unknown, returns the time at which the holder joined the
    /// queue, which is the earliest possible time.
    pub(super) fn earliest_grant(&self) -> Option<u64> {
        self.held_since_ms.or(self.since_ms)
    }
}
