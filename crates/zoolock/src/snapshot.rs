//! One lock's queue, as everybody who looks at it sees it: the terminal, JSON, and later the browser.

pub(crate) mod entry;
pub(crate) mod gather;
mod glances;
pub(crate) mod reader;
#[cfg(test)]
mod tests;
mod turns;
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

use crate::error::Error;
use crate::keeper::{KeeperError, Stat};
use crate::naming;
use crate::path::LockPath;
use gather::{Foreign, Gathered};
use reader::{AT_ONCE, Reader};
use turns::{Reading, Turns};

/// One lock: who holds it, who waits.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The lock's directory.
    pub path: String,
    /// The first in the queue, if there is anybody.
    pub holder: Option<Entry>,
    /// Those who hold beside it: readers, or holders of permits.
    pub beside: Vec<Entry>,
    /// The others, in the order in which they will have their turn; only the first of them where so few were asked for.
    pub waiters: Vec<Entry>,
    /// How many wait, in all.
    pub waiting: usize,
    /// How the last holder that we know of left: `clean`, `panicked`, `crashed`, `broken`, or `unknown`.
    pub previous: &'static str,
    /// The number of the holder of whom `previous` tells, with which the name of its node ended; `None` where that is
    /// `unknown`.
    pub previous_number: Option<u32>,
    /// The semaphore of another client library that is at this path. Its holders and waiters are in none of the lists
    /// above; `waiting` counts its waiters.
    pub foreign_semaphore: Option<ForeignSemaphore>,
    /// How many permits there are, if it is a semaphore that says so; Curator's does not.
    pub permits: Option<u32>,
    /// Whether the data of the directory belongs to something else, in which case no marker is left there.
    pub foreign_record: bool,
    /// Which contenders do not see each other, so that both may hold, and what to do about it.
    pub clash: Option<String>,
    /// The directories, named as nodes are, in which there may be more contenders, and which may not be read. The path of
    /// the lock itself in a list of locks, where nothing of it may be read; then it may be no lock at all.
    pub unread: Vec<String>,
}

/// A semaphore of another client library, whose znodes are only counted.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ForeignSemaphore {
    /// The client library: `Curator` or `kazoo`.
    pub library: &'static str,
    /// The number of leases: the znodes that stand for one permit each. The first waiter may have created its lease
    /// already.
    pub leases: usize,
    /// The directory of the leases.
    pub lease_directory: String,
    /// The lock directory in which its waiters queue.
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
    /// The name of its node.
    pub node: String,
    /// Which implementation named it.
    pub family: &'static str,
    /// What it asks for.
    pub role: &'static str,
    /// How many permits it asks for; 1 for whatever is no permit.
    pub weight: u32,
    /// The token it has when it holds the lock, by which it can be revoked and broken; `null` where it could not be
    /// read.
    pub token: Option<String>,
    /// Whether it was asked to let go.
    pub revoked: bool,
    /// When it queued, in milliseconds of Unix time: by its own clock, or by that of the service where it does not say.
    pub since_ms: Option<u64>,
    /// Its host: the name, or the address that Curator writes.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// Its program.
    pub program: Option<String>,
    /// Its note.
    pub note: Option<String>,
    /// What a contender of another make says about itself: kazoo's identifier, say. Short, and without control
    /// characters; what is no text is in hexadecimal digits.
    pub identifier: Option<String>,
    /// To whom it belongs: the same text for all that one owner holds and waits for, whatever else it says. `None`
    /// where that could not be read. Not to be trusted: whoever may queue may write it.
    pub owner: Option<String>,
    /// How the owner is known. `owner`: somebody said so, see [`Owner`](crate::Owner) and
    /// [`Builder::owner_id`](crate::Builder::owner_id). `task`: it is the task of tokio that asked, or the thread where
    /// there was none; that is wrong where several futures of one task ask, or a guard went to another task. Where the
    /// tasks of a process [share a place](crate::Mutex::batching), the place is an owner of its own, since who has it
    /// changes without a word to the service; so a deadlock through such a lock is not seen. `session`: another make's
    /// client, whose threads cannot be told apart; a text that is another in each process which looks. `unknown`: it
    /// could not be read.
    pub owner_kind: &'static str,
    /// Of the acquisition, as it is in the data of its nodes.
    #[serde(skip)]
    pub(crate) id: Option<String>,
    /// The acquisition of the reader that wants to write with this node.
    #[serde(skip)]
    pub(crate) of: Option<String>,
}

/// What is wanted of the locks, and how they are called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) chroot: &'a str,
    /// Of the tokens.
    pub(crate) epoch: u32,
    /// How many of those who wait are wanted, of each lock.
    pub(crate) waiters: usize,
}

/// Reads one lock. A directory that does not exist is a free lock.
pub(crate) async fn read(reader: &Reader<'_>, path: LockPath, view: &View<'_>) -> Result<Snapshot, Error> {
    let here = gathered(reader, path, view).await?;
    describe(reader, here, view, None).await.map(|described| described.0)
}

async fn gathered(reader: &Reader<'_>, path: LockPath, view: &View<'_>) -> Result<Gathered, Error> {
    match Gathered::at(reader, path.clone()).await {
        Ok(found) => Ok(found.unwrap_or_else(|| Gathered::nothing(path))),
        Err(error) => Err(refusal(shown(&path, view.chroot), error)),
    }
}

/// What is known before a look, and after it.
#[derive(Default)]
struct Known {
    /// The contenders that were read, by the paths of their nodes; none where that is not allowed.
    read: HashMap<String, Option<(Vec<u8>, Stat)>>,
    /// The paths of nodes that are the looker's own.
    own: HashSet<String>,
}

/// Describes what was gathered; with what is known of it from earlier looks, also the place of the first of our own among
/// those who wait. What is read stays known, whether the look comes to its end or not.
async fn describe(
    reader: &Reader<'_>,
    here: Gathered,
    view: &View<'_>,
    mut known: Option<&mut Known>,
) -> Result<(Snapshot, Option<usize>), Error> {
    let Gathered { path, made, record, foreign, contenders, unread, .. } = here;
    let chroot = view.chroot;
    let permits = match record {
        Record::Semaphore(size) => Some(size.permits),
        _ => None,
    };
    let mut readings: Vec<Reading> = contenders.into_iter().map(Reading::new).collect();
    if let Some(known) = &known {
        for reading in &mut readings {
            if let Some(read) = known.read.get(&reading.contender.path(&path)) {
                (reading.read, reading.asked) = (read.clone(), true);
            }
        }
    }
    // Again where somebody has gone meanwhile: another one holds then.
    loop {
        let needed = turns::needed(&readings, permits, view.waiters);
        if needed.is_empty() {
            break;
        }
        let nodes: Vec<_> = needed.into_iter().map(|at| (at, readings[at].contender.path(&path))).collect();
        let reads = nodes.into_iter().map(|(at, node)| async move {
            let read = reader.read(&node).await;
            (at, node, read)
        });
        let mut reads = pin!(futures_util::stream::iter(reads).buffer_unordered(AT_ONCE));
        let mut gone = vec![false; readings.len()];
        while let Some((at, node, read)) = reads.next().await {
            let read = match read {
                Ok(read) => Some(read),
                Err(error) if error.failure == Failure::NoNode => {
                    gone[at] = true;
                    continue;
                }
                Err(error) if matches!(error.failure, Failure::Refused(_)) => None,
                Err(error) => return Err(refusal(shown(&path, chroot), error)),
            };
            let reading = &mut readings[at];
            (reading.read, reading.asked) = (read, true);
            // As it comes: a look that is given up has not been in vain.
            if let Some(known) = &mut known {
                known.read.insert(node, reading.read.clone());
            }
        }
        let mut gone = gone.into_iter();
        readings.retain(|_| gone.next() == Some(false));
    }
    let names = names_in(&readings);
    let left = known.as_ref().map(|known| left(known, &readings, &path)).unwrap_or_default();
    let (previous, of) = previous(reader, &path, made, record, !left.is_empty(), &names).await;
    if let Some(known) = &mut known {
        left.iter().for_each(|node| drop(known.read.remove(node)));
    }
    let clash = match (names.first(), &foreign) {
        (Some(first), Some(foreign)) => Some(naming::two_layouts(first, foreign.layout)),
        _ => naming::clash(&names),
    };
    let Turns { holders, waiters } = turns::of(readings, &names, permits);
    let entry = |reading: Reading| entry::of(&reading.contender, reading.read, view.epoch);
    let mut holders = holders.into_iter().map(entry);
    let place = known.filter(|known| !known.own.is_empty()).and_then(|known| {
        waiters.iter().position(|reading| known.own.contains(&reading.contender.path(&path)))
    });
    let lock = Snapshot {
        path: shown(&path, chroot).to_owned(),
        holder: holders.next(),
        beside: holders.collect(),
        waiting: waiters.len() + foreign.as_ref().map_or(0, |foreign| foreign.waiters),
        waiters: waiters.into_iter().take(view.waiters).map(entry).collect(),
        previous,
        previous_number: of.and_then(|sequence| u32::try_from(sequence.0).ok()),
        permits: match (record, &foreign) {
            (Record::Leases(size), Some(Foreign { layout: Layout::Kazoo, .. })) => Some(size),
            _ => permits,
        },
        foreign_record: matches!(record, Record::Foreign | Record::Leases(_)) && foreign.is_none(),
        foreign_semaphore: foreign.map(|foreign| ForeignSemaphore {
            library: foreign.layout.library(),
            leases: foreign.leases,
            lease_directory: shown(&foreign.lease_directory, chroot).to_owned(),
            queue_directory: shown(&foreign.queue_directory, chroot).to_owned(),
        }),
        clash,
        unread: unread.iter().map(|part| called(part.as_str(), &path, chroot)).collect(),
    };
    Ok((lock, place))
}

/// The paths of those that were read once and are not there any more.
fn left(known: &Known, readings: &[Reading], path: &LockPath) -> Vec<String> {
    let here: HashSet<String> = readings.iter().map(|reading| reading.contender.path(path)).collect();
    known.read.keys().filter(|node| !here.contains(*node)).cloned().collect()
}

/// How the last holder left that the record tells of, and which one that was. `stale`: whether somebody is known to have
/// left who may have written it since.
async fn previous(
    reader: &Reader<'_>,
    path: &LockPath,
    made: Option<Zxid>,
    record: Record,
    stale: bool,
    names: &[Name],
) -> (&'static str, Option<Sequence>) {
    let Some(made) = made else { return ("unknown", None) };
    let told = |marker: Marker| match marker.left {
        Left::Released | Left::Downgraded => ("clean", Some(marker.sequence)),
        Left::Panicked => ("panicked", Some(marker.sequence)),
        Left::Broken => ("broken", Some(marker.sequence)),
        // It has begun; how the one before it left is written over.
        Left::Held => ("unknown", None),
    };
    // Of another directory than this one, it tells of somebody else with the same number.
    let before = record.marker_of(made);
    let gone = |marker: Marker| {
        marker.left == Left::Held && names.iter().all(|name| name.sequence != marker.sequence)
    };
    if !stale && !before.is_some_and(gone) {
        return before.map_or(("unknown", None), told);
    }
    // The record was read before the queue. Whoever went in between may have said so in the transaction that took its
    // node, and only what is read after the queue can tell that from a crash.
    let Ok((data, stat)) = reader.read(path.as_str()).await else { return ("unknown", None) };
    match Record::parse(&data).marker_of(made).filter(|_| stat.czxid == made) {
        Some(now) if Some(now) == before && gone(now) => ("crashed", Some(now.sequence)),
        // Perhaps by one who came after the queue was read.
        Some(now) => told(now),
        None => ("unknown", None),
    }
}

/// What a node of the lock at `path` is called.
pub(crate) fn called(node: &str, path: &LockPath, chroot: &str) -> String {
    match node.strip_prefix(path.as_str()) {
        Some(below) if below.starts_with('/') => below.trim_start_matches('/').to_owned(),
        _ => node.strip_prefix(chroot).unwrap_or(node).to_owned(),
    }
}

fn names_in(readings: &[Reading]) -> Vec<Name> {
    readings.iter().map(|reading| reading.contender.name).collect()
}

fn shown<'a>(path: &'a LockPath, chroot: &str) -> &'a str {
    path.as_str().strip_prefix(chroot).unwrap_or(path.as_str())
}

/// What the service's refusal means to somebody who looks.
pub(crate) fn refusal(path: &str, error: KeeperError) -> Error {
    match error.failure {
        Failure::Refused(_) => Error::Denied {
            subject: format!("lock {path}"),
            message: format!("{}; give credentials that may do that there", error.message),
        },
        _ => Error::unavailable(format!("lock {path}"), format!("{}; try again", error.message)),
    }
}
