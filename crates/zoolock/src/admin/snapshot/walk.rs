//! Reads every lock in a tree, many at a time.

use std::collections::HashSet;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use zoolock_core::layout::KAZOO_GUARD;
use zoolock_core::names::Family;

use super::{Snapshot, View, describe, entry, refusal, without_chroot};
use crate::base::error::Error;
use crate::base::path::{AUDIT, LockPath};
use crate::engine::gather::{Gathered, is_denied};
use crate::engine::reader::{MAX_IN_FLIGHT, Reader};

/// The result for one path.
#[derive(Default)]
struct Found {
    lock: Option<Snapshot>,
    below: Vec<LockPath>,
    /// The queue of a foreign semaphore, which is a part of that semaphore.
    foreign_queue: Option<LockPath>,
}

/// Reads every lock at and below `start`, in the order of their paths. Each directory costs two requests, and
/// a third if the last holder crashed. Each contender that is read costs one. Memory holds the result, and
/// the paths still to visit.
pub(crate) async fn walk(
    reader: &Reader<'_>,
    start: LockPath,
    view: &View<'_>,
) -> Result<Vec<Snapshot>, Error> {
    let mut locks = Vec::new();
    let mut unseen = vec![start.clone()];
    // Directories that may be a part of the lock beside them. This is known after that lock was read.
    let (mut possible_parts, mut parts) = (Vec::new(), HashSet::new());
    let mut visits = FuturesUnordered::new();
    loop {
        while visits.len() < MAX_IN_FLIGHT
            && let Some(path) = unseen.pop()
        {
            let is_start = path == start;
            visits.push(visit(reader, path, is_start, view));
        }
        let Some(found) = visits.next().await else {
            unseen.extend(possible_parts.drain(..).filter(|path| !parts.contains(path)));
            if unseen.is_empty() {
                break;
            }
            continue;
        };
        let Found { lock, below, foreign_queue } = found?;
        locks.extend(lock);
        parts.extend(foreign_queue);
        for path in below {
            if path.as_str().ends_with(KAZOO_GUARD) { possible_parts.push(path) } else { unseen.push(path) }
        }
    }
    // A lock comes before the locks below it, and these come before its siblings.
    locks.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
    Ok(locks)
}

async fn visit(reader: &Reader<'_>, path: LockPath, is_start: bool, view: &View<'_>) -> Result<Found, Error> {
    let mut here = match Gathered::at(reader, path.clone()).await {
        Ok(Some(here)) => here,
        // It was deleted meanwhile.
        Ok(None) => return Ok(Found::default()),
        // A list of locks includes the directories that may not be read, and does not fail because of them. The
        // znode of a session has no children, so it is no directory.
        Err(error) if is_denied(&error) && !is_start => match reader.exists(path.as_str()).await {
            Ok(Some(stat)) if entry::is_session(stat.owner) => return Ok(Found::default()),
            _ => Gathered::hidden(path.clone()),
        },
        Err(error) => return Err(refusal(without_chroot(&path, view.chroot), error)),
    };
    let others = std::mem::take(&mut here.others);
    // A directory may have a name that ends in a number.
    let unknown = here.contenders.iter().filter(|it| it.name.family() == Family::Unknown).map(|it| &it.node);
    let below = others.iter().filter(|name| *name != AUDIT).chain(unknown).map(|name| path.child(name));
    let below = below.filter(|path| path != "/zookeeper").map(LockPath::from_server).collect();
    let foreign_queue = here.foreign.as_ref().map(|foreign| foreign.queue_directory.clone());
    let lock = match here.is_lock() {
        true => Some(describe(reader, here, view, None).await?.0),
        false => None,
    };
    Ok(Found { lock, below, foreign_queue })
}
