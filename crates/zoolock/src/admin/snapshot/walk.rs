//! Reads every lock in a tree, many at a time.

use std::collections::HashSet;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use zoolock_core::layout::KAZOO_GUARD;
use zoolock_core::names::Family;

use super::{Snapshot, SnapshotOptions, describe};
use crate::base::error::Error;
use crate::base::path::{AUDIT, LockPath, ONCE, SLOTS};
use crate::engine::gather::{LockDirectory, is_denied};
use crate::engine::reader::{MAX_IN_FLIGHT, QueueReader};
use crate::lock::context::Context;

/// The result of reading one path.
#[derive(Default)]
struct FoundLock {
    lock: Option<Snapshot>,
    below: Vec<LockPath>,
    /// The queue directory of a foreign semaphore at this path. It is a part of the semaphore and no lock of its own.
    foreign_queue: Option<LockPath>,
}

/// Reads every lock below the root of the client, or at and below `prefix`, in the order of their paths. Describes the
/// holders and the first `waiters` waiters of each lock.
pub(crate) async fn survey(
    context: &Context,
    prefix: Option<&str>,
    waiters: usize,
) -> Result<Vec<Snapshot>, Error> {
    let start = match prefix {
        None | Some("") => LockPath::from_server(context.root().to_owned()),
        Some("/") if context.chroot().is_empty() => LockPath::from_server("/".to_owned()),
        Some("/") => LockPath::from_server(context.chroot().to_owned()),
        Some(prefix) => context.path(prefix.trim_end_matches('/'))?,
    };
    let zk = context.zk().await?;
    walk(&QueueReader::new(&*zk), start, &SnapshotOptions { waiters, ..SnapshotOptions::of(context) }).await
}

/// Reads every lock at and below `start`. Returns the locks in the order of their paths. Each directory costs two
/// requests, and a third if the last holder seems to have crashed. Each contender that is read costs one more. The
/// memory grows with the result and with the number of paths still to visit.
async fn walk(
    reader: &QueueReader<'_>,
    start: LockPath,
    view: &SnapshotOptions<'_>,
) -> Result<Vec<Snapshot>, Error> {
    let mut locks = Vec::new();
    let mut unseen = vec![start.clone()];
    // `possible_parts`: directories that may be the queue of a kazoo semaphore beside them. They are visited only after
    // all other directories, when `parts` contains the queues of all such semaphores.
    let (mut possible_parts, mut parts) = (Vec::new(), HashSet::new());
    let mut visits = FuturesUnordered::new();
    loop {
        while visits.len() < MAX_IN_FLIGHT
            && let Some(path) = unseen.pop()
        {
            let is_start = path == start;
            visits.push(read_path(reader, path, is_start, view));
        }
        let Some(found) = visits.next().await else {
            unseen.extend(possible_parts.drain(..).filter(|path| !parts.contains(path)));
            if unseen.is_empty() {
                break;
            }
            continue;
        };
        let FoundLock { lock, below, foreign_queue } = found?;
        locks.extend(lock);
        parts.extend(foreign_queue);
        for path in below {
            if path.as_str().ends_with(KAZOO_GUARD) { possible_parts.push(path) } else { unseen.push(path) }
        }
    }
    // A lock comes first, then the locks below it, then the next lock in the same directory.
    locks.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
    Ok(locks)
}

async fn read_path(
    reader: &QueueReader<'_>,
    path: LockPath,
    is_start: bool,
    view: &SnapshotOptions<'_>,
) -> Result<FoundLock, Error> {
    let mut here = match LockDirectory::read(reader, path.clone()).await {
        Ok(Some(here)) => here,
        // The directory was deleted meanwhile.
        Ok(None) => return Ok(FoundLock::default()),
        // A list of locks includes the directories that this client has no permission to read, and
        // does not fail because of them. The list leaves out ephemeral znodes. They have no
        // children, so they cannot be lock directories.
        Err(error) if is_denied(&error) && !is_start => match reader.exists(path.as_str()).await {
            Ok(Some(stat)) if stat.owner.is_session() => return Ok(FoundLock::default()),
            _ => LockDirectory::hidden(path.clone()),
        },
        Err(error) => return Err(view.request_error(&path, error)),
    };
    let others = std::mem::take(&mut here.others);
    // A child whose name ends in a number may be a directory with further locks.
    let unknown = here.contenders.iter().filter(|it| it.name.family() == Family::Unknown).map(|it| &it.node);
    let below = others
        .iter()
        .filter(|name| ![AUDIT, ONCE, SLOTS].contains(&name.as_str()))
        .chain(unknown)
        .map(|name| path.child(name));
    let below = below.filter(|path| path != "/zookeeper").map(LockPath::from_server).collect();
    let foreign_queue = here.foreign.as_ref().map(|foreign| foreign.queue_directory.clone());
    let lock = match here.is_lock() {
        true => Some(describe(reader, here, view, None).await?.0),
        false => None,
    };
    Ok(FoundLock { lock, below, foreign_queue })
}
