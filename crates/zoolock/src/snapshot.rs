//! One lock's queue, as everybody who looks at it sees it: the terminal, JSON, and later the browser.

mod entry;
pub(crate) mod gather;
mod turns;

use std::collections::HashSet;

use futures_util::StreamExt;
use serde::Serialize;
use zoolock_core::contender::Failure;
use zoolock_core::names::Name;
use zoolock_core::record::{Left, Record};

use crate::error::Error;
use crate::keeper::{Keeper, KeeperError, Stat};
use crate::naming;
use crate::path::{AUDIT, LockPath, SESSIONS};
use gather::{Contender, Gathered, Part, is_denied};
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
    /// The others, in the order in which they will have their turn.
    pub waiters: Vec<Entry>,
    /// How the last holder that we know of left: `clean`, `panicked`, `crashed`, `broken`, or `unknown`.
    pub previous: &'static str,
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

/// One contender.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// The name of its node, as seen from the lock's directory; a path where it lies elsewhere.
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
}

/// How many nodes are read at once.
const AT_ONCE: usize = 64;

/// Reads one lock. A directory that does not exist is a free lock.
pub(crate) async fn read(
    keeper: &dyn Keeper,
    path: LockPath,
    chroot: &str,
    epoch: u32,
) -> Result<Snapshot, Error> {
    match Gathered::at(keeper, path.clone()).await {
        Ok(found) => describe(keeper, found.unwrap_or_else(|| Gathered::nothing(path)), chroot, epoch).await,
        Err(error) => Err(refusal(shown(&path, chroot), error)),
    }
}

/// Reads every lock at and below `start`.
pub(crate) async fn walk(
    keeper: &dyn Keeper,
    start: LockPath,
    chroot: &str,
    epoch: u32,
) -> Result<Vec<Snapshot>, Error> {
    let mut found = Vec::new();
    let mut unseen = vec![start.clone()];
    // Part of what was seen: its name begins with that of the lock, and so it comes later.
    let mut seen = HashSet::new();
    while let Some(path) = unseen.pop() {
        if seen.remove(&path) {
            continue;
        }
        let mut here = match Gathered::at(keeper, path.clone()).await {
            Ok(Some(here)) => here,
            // It went while we were looking.
            Ok(None) => continue,
            // Whoever lists locks is to hear of what he may not read, and of the others all the same.
            Err(error) if is_denied(&error) && path != start => Gathered::hidden(path.clone()),
            Err(error) => return Err(refusal(shown(&path, chroot), error)),
        };
        let mut others = std::mem::take(&mut here.others);
        others.sort_unstable();
        for other in others.into_iter().rev().filter(|name| name != SESSIONS && name != AUDIT) {
            let path = path.child(&other);
            if path != "/zookeeper" {
                unseen.push(LockPath::from_server(path));
            }
        }
        seen.extend(here.beside.clone());
        seen.extend(here.unread.clone());
        if here.is_lock() {
            found.push(describe(keeper, here, chroot, epoch).await?);
        }
    }
    Ok(found)
}

async fn describe(keeper: &dyn Keeper, here: Gathered, chroot: &str, epoch: u32) -> Result<Snapshot, Error> {
    let Gathered { path, record, size, contenders, unread, .. } = here;
    let reads = contenders.into_iter().map(|contender| {
        let read = keeper.read(&contender.path());
        async move { (contender, read.await) }
    });
    let mut readings = Vec::new();
    let mut reads = futures_util::stream::iter(reads).buffered(AT_ONCE);
    while let Some((contender, read)) = reads.next().await {
        match read {
            Ok(read) => readings.push(Reading { contender, read: Some(read) }),
            Err(error) if error.failure == Failure::NoNode => {}
            Err(error) if matches!(error.failure, Failure::Refused(_)) => {
                readings.push(Reading { contender, read: None });
            }
            Err(error) => return Err(refusal(shown(&path, chroot), error)),
        }
    }
    let permits = match record {
        Record::Semaphore(size) => Some(size.permits),
        _ => None,
    };
    let names: Vec<Name> = names_in(&readings, Part::Queue).collect();
    let clash = clash(&readings, &names);
    let Turns { holders, waiters } = turns::of(readings, &names, permits, size);
    let entry = |reading: Reading| entry(&reading.contender, &path, reading.read, chroot, epoch);
    let mut holders = holders.into_iter().map(entry);
    let present = |sequence| names.iter().any(|name| name.sequence == sequence);
    Ok(Snapshot {
        path: shown(&path, chroot).to_owned(),
        holder: holders.next(),
        beside: holders.collect(),
        waiters: waiters.into_iter().map(entry).collect(),
        previous: match record {
            Record::Marker(marker) => match marker.left {
                Left::Released | Left::Downgraded => "clean",
                Left::Panicked => "panicked",
                Left::Broken => "broken",
                // It has begun; how the one before it left is written over.
                Left::Held if present(marker.sequence) => "unknown",
                Left::Held => "crashed",
            },
            _ => "unknown",
        },
        permits: permits.or(size),
        foreign_record: matches!(record, Record::Foreign | Record::Leases(_)) && size.is_none(),
        clash,
        unread: unread.iter().map(|part| called(part.as_str(), &path, chroot)).collect(),
    })
}

/// Describes a contender of the lock at `path`. `read`: its node, where that may be read.
pub(crate) fn entry(
    contender: &Contender,
    path: &LockPath,
    read: Option<(Vec<u8>, Stat)>,
    chroot: &str,
    epoch: u32,
) -> Entry {
    entry::of(contender, called(&contender.path(), path, chroot), read, epoch)
}

/// What a node of the lock at `path` is called.
pub(crate) fn called(node: &str, path: &LockPath, chroot: &str) -> String {
    match node.strip_prefix(path.as_str()) {
        Some(below) if below.starts_with('/') => below.trim_start_matches('/').to_owned(),
        _ => node.strip_prefix(chroot).unwrap_or(node).to_owned(),
    }
}

fn names_in(readings: &[Reading], part: Part) -> impl Iterator<Item = Name> {
    readings.iter().filter(move |r| r.contender.part == part).filter_map(|r| r.contender.name)
}

fn clash(readings: &[Reading], queue: &[Name]) -> Option<String> {
    let elsewhere = readings.iter().find(|reading| reading.contender.part != Part::Queue);
    match (queue.first(), elsewhere) {
        (Some(first), Some(other)) => Some(naming::two_layouts(first, other.contender.family())),
        _ => naming::clash(queue),
    }
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
