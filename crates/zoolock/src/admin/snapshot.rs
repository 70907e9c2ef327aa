//! A snapshot of one lock's queue, for the terminal and as JSON.

pub(crate) mod entry;
mod glances;
mod holders;
#[cfg(test)]
mod tests;
mod walk;

pub use glances::{Glance, Glances};
pub(crate) use walk::walk;

use std::collections::{HashMap, HashSet};
use std::pin::pin;

use futures_util::StreamExt;
use serde::Serialize;
use zoolock_core::contender::Failure;
use zoolock_core::layout::Layout;
use zoolock_core::names::Name;
use zoolock_core::record::{Left, Marker, Record};
use zoolock_core::{Sequence, Zxid};

use crate::base::error::Error;
use crate::base::naming;
use crate::base::path::LockPath;
use crate::engine::gather::{Foreign, Gathered};
use crate::engine::reader::{MAX_IN_FLIGHT, Reader};
use crate::lock::context::Context;
use crate::zk::session::{Stat, ZkError};
use holders::{HoldersAndWaiters, Reading};

/// One lock: its holders and its waiters.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Path of the lock directory.
    pub path: String,
    /// The first holder in queue order, if there is one.
    pub holder: Option<Entry>,
    /// The other holders: readers, or holders of permits.
    pub beside: Vec<Entry>,
    /// The waiters in the order in which they get the lock; only the first of them if a limit was given.
    pub waiters: Vec<Entry>,
    /// Number of all waiters.
    pub waiting: usize,
    /// The way in which the last known holder left: `clean`, `panicked`, `crashed`, `broken`, or `unknown`.
    pub previous: &'static str,
    /// Sequence number of the holder that `previous` describes, from the end of its znode's name; `None` if
    /// `previous` is `unknown`.
    pub previous_number: Option<u32>,
    /// The semaphore of another client library at this path. Its holders and waiters are in none of the lists
    /// above; `waiting` counts its waiters.
    pub foreign_semaphore: Option<ForeignSemaphore>,
    /// Number of permits, if the lock is a semaphore that records its size. Curator's semaphores do not.
    pub permits: Option<u32>,
    /// Set if the data of the directory belongs to something else. Then holders write no release marker
    /// there.
    pub foreign_record: bool,
    /// The contenders that ignore each other's znodes, so that two may hold at once, and the remedy.
    pub clash: Option<String>,
    /// The directories that may contain more contenders but may not be read, named as znodes are. In a list
    /// of locks this is the path of the lock itself if nothing of it may be read. Such a directory may be no
    /// lock at all.
    pub unread: Vec<String>,
}

/// A semaphore of another client library, whose znodes are only counted.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ForeignSemaphore {
    /// The client library: `Curator` or `kazoo`.
    pub library: &'static str,
    /// Number of leases: the znodes for one permit each. The first waiter may have created its lease already.
    pub leases: usize,
    /// Path of the directory of the leases.
    pub lease_directory: String,
    /// Path of the lock directory in which its waiters queue.
    pub queue_directory: String,
}

impl std::fmt::Display for ForeignSemaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ForeignSemaphore { library, leases, .. } = self;
        let s = if *leases == 1 { "" } else { "s" };
        write!(f, "semaphore of {library}, {leases} lease{s}")
    }
}

impl Snapshot {
    /// Returns whether there is a holder, or a lease of a foreign semaphore.
    pub fn is_held(&self) -> bool {
        self.holder.is_some() || self.foreign_semaphore.as_ref().is_some_and(|foreign| foreign.leases > 0)
    }
}

/// One contender.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// Name of its znode. A part that may contain a session id is left out.
    pub node: String,
    /// Naming scheme of its znode; `unknown` if only the number at the end of its name is known.
    pub family: &'static str,
    /// Its role: `exclusive`, `shared`, `upgradable` or `permit`.
    pub role: &'static str,
    /// Number of permits that it asks for; 1 if it asks for no permit.
    pub weight: u32,
    /// The token that it has as a holder, with which it can be revoked and broken; `null` if it could not be
    /// read.
    pub token: Option<String>,
    /// Set if it was asked to release the lock.
    pub revoked: bool,
    /// Time at which it queued, in milliseconds of Unix time: by its own clock, or by the server's clock if
    /// its data has no time. `null` if it is not known, or before the year 2010: that clock was not set.
    pub since_ms: Option<u64>,
    /// Its host: the host name, or the address that Curator writes.
    pub host: Option<String>,
    /// Its process ID.
    pub pid: Option<u32>,
    /// Name of its program.
    pub program: Option<String>,
    /// Its note.
    pub note: Option<String>,
    /// The identifier that a contender of another client library writes, for example kazoo's. It is short and
    /// has no control characters. Data that is not text is shown as hexadecimal digits.
    pub identifier: Option<String>,
    /// Its owner: a text that is equal for all locks that an owner holds or waits for. `None` if it could not
    /// be read. Do not trust it: every client that may queue may write any owner.
    pub owner: Option<String>,
    /// The origin of `owner`.
    /// - `owner`: the program named it, see [`Owner`](crate::Owner) and
    ///   [`Builder::owner_id`](crate::Builder::owner_id).
    /// - `task`: the tokio task that acquired, or the thread outside of a task. This is wrong if several futures of
    ///   one task acquire, or if a guard moves to another task. If the tasks of a process
    ///   [share a queue position](crate::Mutex::batching), that position is an owner of its own. The lock then passes
    ///   from task to task without a request to the server, so deadlocks through such a lock are not seen.
    /// - `session`: a session of another client library, whose threads cannot be told apart. The text differs
    ///   between the processes that read it.
    /// - `unknown`: it could not be read.
    pub owner_kind: &'static str,
    /// Set if no session owns its znode: it goes only when its znode is deleted.
    pub persistent: bool,
    /// Identifier of the acquisition, from the data of its znodes, see
    /// [`Guard::acquisition_id`](crate::Guard::acquisition_id). `None` for other client libraries. Do not trust it: every
    /// client that may queue may write any identifier.
    #[serde(skip)]
    pub id: Option<String>,
    /// Identifier of the acquisition of the reader that upgrades with this znode.
    #[serde(skip)]
    pub(crate) reader_id: Option<String>,
}

/// Options of a snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) chroot: &'a str,
    /// Epoch of the tokens.
    pub(crate) epoch: u32,
    /// Maximum number of waiters to describe, per lock.
    pub(crate) waiters: usize,
}

impl View<'_> {
    /// Returns the options of a snapshot with all waiters.
    pub(crate) fn of(context: &Context) -> View<'_> {
        View { chroot: context.chroot(), epoch: context.epoch(), waiters: usize::MAX }
    }
}

/// Reads one lock. A missing directory is a free lock.
pub(crate) async fn read(reader: &Reader<'_>, path: LockPath, view: &View<'_>) -> Result<Snapshot, Error> {
    let here = gathered(reader, path, view).await?;
    describe(reader, here, view, None).await.map(|described| described.0)
}

async fn gathered(reader: &Reader<'_>, path: LockPath, view: &View<'_>) -> Result<Gathered, Error> {
    match Gathered::at(reader, path.clone()).await {
        Ok(found) => Ok(found.unwrap_or_else(|| Gathered::nothing(path))),
        Err(error) => Err(refusal(without_chroot(&path, view.chroot), error)),
    }
}

/// The cache of earlier snapshots of the same lock.
#[derive(Default)]
struct SnapshotCache {
    /// The data that was read, by the paths of the znodes; `None` if reading is not permitted.
    read: HashMap<String, Option<(Vec<u8>, Stat)>>,
    /// Paths of the observer's own znodes.
    own: HashSet<String>,
}

/// Describes what was gathered. With a cache, also returns the position of the first znode of this client among the
/// waiters. The cache keeps what is read even if the call fails or is dropped.
async fn describe(
    reader: &Reader<'_>,
    here: Gathered,
    view: &View<'_>,
    mut cache: Option<&mut SnapshotCache>,
) -> Result<(Snapshot, Option<usize>), Error> {
    let Gathered { path, made, record, foreign, contenders, unread, .. } = here;
    let chroot = view.chroot;
    let permits = match record {
        Record::Semaphore(size) => Some(size.permits),
        _ => None,
    };
    let mut readings: Vec<Reading> = contenders.into_iter().map(Reading::new).collect();
    if let Some(cache) = &cache {
        for reading in &mut readings {
            if let Some(read) = cache.read.get(&reading.contender.path(&path)) {
                (reading.read, reading.was_tried) = (read.clone(), true);
            }
        }
    }
    // Repeat if a contender has left meanwhile: then another one may hold.
    loop {
        let needed = holders::needed(&readings, permits, view.waiters);
        if needed.is_empty() {
            break;
        }
        let nodes: Vec<_> = needed.into_iter().map(|at| (at, readings[at].contender.path(&path))).collect();
        let reads = nodes.into_iter().map(|(at, node)| async move {
            let read = reader.read(&node).await;
            (at, node, read)
        });
        let mut reads = pin!(futures_util::stream::iter(reads).buffer_unordered(MAX_IN_FLIGHT));
        let mut gone = vec![false; readings.len()];
        while let Some((at, node, read)) = reads.next().await {
            let read = match read {
                Ok(read) => Some(read),
                Err(error) if error.failure == Failure::NoNode => {
                    gone[at] = true;
                    continue;
                }
                Err(error) if matches!(error.failure, Failure::Refused(_)) => None,
                Err(error) => return Err(refusal(without_chroot(&path, chroot), error)),
            };
            let reading = &mut readings[at];
            (reading.read, reading.was_tried) = (read, true);
            // Cache each answer at once, so that a dropped call loses none.
            if let Some(cache) = &mut cache {
                cache.read.insert(node, reading.read.clone());
            }
        }
        let mut gone = gone.into_iter();
        readings.retain(|_| gone.next() == Some(false));
    }
    let names = names_in(&readings);
    let deleted = cache.as_ref().map(|cache| deleted_nodes(cache, &readings, &path)).unwrap_or_default();
    let (previous, number) = previous(reader, &path, made, record, !deleted.is_empty(), &names).await;
    if let Some(cache) = &mut cache {
        deleted.iter().for_each(|node| drop(cache.read.remove(node)));
    }
    let clash = match (names.first(), &foreign) {
        (Some(first), Some(foreign)) => Some(naming::two_layouts(first, foreign.layout)),
        _ => naming::clash(&names),
    };
    let HoldersAndWaiters { holders, waiters } = holders::separate(readings, &names, permits);
    let entry = |reading: Reading| entry::of(&reading.contender, reading.read, view.epoch);
    let mut holders = holders.into_iter().map(entry);
    let position = cache.filter(|cache| !cache.own.is_empty()).and_then(|cache| {
        waiters.iter().position(|reading| cache.own.contains(&reading.contender.path(&path)))
    });
    let lock = Snapshot {
        path: without_chroot(&path, chroot).to_owned(),
        holder: holders.next(),
        beside: holders.collect(),
        waiting: waiters.len() + foreign.as_ref().map_or(0, |foreign| foreign.waiters),
        waiters: waiters.into_iter().take(view.waiters).map(entry).collect(),
        previous,
        previous_number: number.and_then(|sequence| u32::try_from(sequence.0).ok()),
        permits: match (record, &foreign) {
            (Record::Leases(size), Some(Foreign { layout: Layout::Kazoo, .. })) => Some(size),
            _ => permits,
        },
        foreign_record: matches!(record, Record::Foreign | Record::Leases(_)) && foreign.is_none(),
        foreign_semaphore: foreign.map(|foreign| ForeignSemaphore {
            library: foreign.layout.library(),
            leases: foreign.leases,
            lease_directory: without_chroot(&foreign.lease_directory, chroot).to_owned(),
            queue_directory: without_chroot(&foreign.queue_directory, chroot).to_owned(),
        }),
        clash,
        unread: unread.iter().map(|part| display_name(part.as_str(), &path, chroot)).collect(),
    };
    Ok((lock, position))
}

/// Returns the paths of cached znodes that were deleted.
fn deleted_nodes(cache: &SnapshotCache, readings: &[Reading], path: &LockPath) -> Vec<String> {
    let here: HashSet<String> = readings.iter().map(|reading| reading.contender.path(path)).collect();
    cache.read.keys().filter(|node| !here.contains(*node)).cloned().collect()
}

/// Returns how the last holder that the record names has left, and its sequence number. `stale`: a contender
/// that may have written the record since is known to have left.
async fn previous(
    reader: &Reader<'_>,
    path: &LockPath,
    made: Option<Zxid>,
    record: Record,
    stale: bool,
    names: &[Name],
) -> (&'static str, Option<Sequence>) {
    let Some(made) = made else { return ("unknown", None) };
    let outcome_of = |marker: Marker| match marker.left {
        Left::Released | Left::Downgraded => ("clean", Some(marker.sequence)),
        Left::Panicked => ("panicked", Some(marker.sequence)),
        Left::Broken => ("broken", Some(marker.sequence)),
        // A holder that has begun has overwritten how its predecessor left.
        Left::Held => ("unknown", None),
    };
    // A marker of another directory describes another holder with the same number.
    let before = record.marker_of(made);
    let is_gone = |marker: Marker| {
        marker.left == Left::Held && names.iter().all(|name| name.sequence != marker.sequence)
    };
    if !stale && !before.is_some_and(is_gone) {
        return before.map_or(("unknown", None), outcome_of);
    }
    // The record was read before the queue. A holder that left in between may have written the marker in the
    // transaction that deleted its znode. Only a read after the queue can tell that from a crash.
    let Ok((data, stat)) = reader.read(path.as_str()).await else { return ("unknown", None) };
    match Record::parse(&data).marker_of(made).filter(|_| stat.czxid == made) {
        Some(now) if Some(now) == before && is_gone(now) => ("crashed", Some(now.sequence)),
        // The writer may have queued after the queue was read.
        Some(now) => outcome_of(now),
        None => ("unknown", None),
    }
}

/// Returns the display name of a znode of the lock at `path`.
pub(crate) fn display_name(node: &str, path: &LockPath, chroot: &str) -> String {
    match node.strip_prefix(path.as_str()) {
        Some(below) if below.starts_with('/') => below.trim_start_matches('/').to_owned(),
        _ => node.strip_prefix(chroot).unwrap_or(node).to_owned(),
    }
}

fn names_in(readings: &[Reading]) -> Vec<Name> {
    readings.iter().map(|reading| reading.contender.name).collect()
}

fn without_chroot<'a>(path: &'a LockPath, chroot: &str) -> &'a str {
    path.as_str().strip_prefix(chroot).unwrap_or(path.as_str())
}

/// Returns the error of a snapshot that the server refused.
pub(crate) fn refusal(path: &str, error: ZkError) -> Error {
    match error.failure {
        Failure::Refused(_) => Error::Denied {
            subject: format!("lock {path}"),
            message: format!("{}; use credentials with that permission", error.message),
        },
        _ => Error::unavailable(format!("lock {path}"), format!("{}; try again", error.message)),
    }
}
