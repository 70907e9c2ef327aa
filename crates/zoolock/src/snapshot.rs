//! One lock's queue, as everybody who looks at it sees it: the terminal, JSON, and later the browser.

use futures_util::StreamExt;
use serde::Serialize;
use zoolock_core::contender::Failure;
use zoolock_core::names::{Family, Name, Role};
use zoolock_core::record::{Left, Record};
use zoolock_core::{FencingToken, Zxid};

use crate::data::{self, NodeData};
use crate::error::Error;
use crate::keeper::{Keeper, KeeperError, Stat};
use crate::path::{AUDIT, LockPath, SESSIONS};

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
    /// How many permits there are, if it is a semaphore.
    pub permits: Option<u32>,
    /// Whether the data of the directory belongs to something else, in which case no marker is left there.
    pub foreign_record: bool,
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
    /// When it queued, in milliseconds of Unix time, by its own clock.
    pub since_ms: Option<u64>,
    /// Its host.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// Its program.
    pub program: Option<String>,
    /// Its note.
    pub note: Option<String>,
    /// It is the writer of somebody who reads already.
    #[serde(skip)]
    pub(crate) upgrades: bool,
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
    let (record, children) = match look(keeper, &path).await {
        Ok(Some(found)) => found,
        Ok(None) => (Record::Empty, Vec::new()),
        Err(error) => return Err(refusal(shown(&path, chroot), error)),
    };
    describe(keeper, path, record, children, chroot, epoch).await
}

/// Reads every lock at and below `start`.
pub(crate) async fn walk(
    keeper: &dyn Keeper,
    start: LockPath,
    chroot: &str,
    epoch: u32,
) -> Result<Vec<Snapshot>, Error> {
    let mut found = Vec::new();
    let mut unseen = vec![start];
    while let Some(path) = unseen.pop() {
        let (record, mut children) = match look(keeper, &path).await {
            Ok(Some(found)) => found,
            // It went while we were looking.
            Ok(None) => continue,
            Err(error) => return Err(refusal(shown(&path, chroot), error)),
        };
        children.sort_unstable();
        let (contenders, others): (Vec<_>, Vec<_>) =
            children.into_iter().partition(|c| Name::parse(c).is_some());
        let is_lock = !contenders.is_empty() || matches!(record, Record::Marker(_) | Record::Semaphore(_));
        for other in others.into_iter().rev().filter(|name| name != SESSIONS && name != AUDIT) {
            let path = if path.as_str() == "/" { format!("/{other}") } else { path.child(&other) };
            if path != "/zookeeper" {
                unseen.push(LockPath::from_server(path));
            }
        }
        if is_lock {
            found.push(describe(keeper, path, record, contenders, chroot, epoch).await?);
        }
    }
    Ok(found)
}

async fn look(keeper: &dyn Keeper, path: &LockPath) -> Result<Option<(Record, Vec<String>)>, KeeperError> {
    let data = keeper.read(path.as_str());
    let children = keeper.children(path.as_str());
    match (data.await, children.await) {
        (Ok((data, _)), Ok((children, _))) => Ok(Some((Record::parse(&data), children))),
        (Err(error), _) | (_, Err(error)) if error.failure == Failure::NoNode => Ok(None),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

async fn describe(
    keeper: &dyn Keeper,
    path: LockPath,
    record: Record,
    children: Vec<String>,
    chroot: &str,
    epoch: u32,
) -> Result<Snapshot, Error> {
    let mut names: Vec<(Name, String)> =
        children.into_iter().filter_map(|child| Some((Name::parse(&child)?, child))).collect();
    names.sort_by_key(|(name, _)| name.position());
    let reads = names.into_iter().map(|(name, child)| {
        let read = keeper.read(&path.child(&child));
        async move { (name, child, read.await) }
    });
    let mut queue = Vec::new();
    let mut reads = futures_util::stream::iter(reads).buffered(AT_ONCE);
    while let Some((name, child, read)) = reads.next().await {
        match read {
            Ok((data, stat)) => queue.push((name, entry(name, child, Some((data, stat)), epoch))),
            Err(error) if error.failure == Failure::NoNode => {}
            // It stands in the queue, readable or not.
            Err(error) if matches!(error.failure, Failure::Refused(_)) => {
                queue.push((name, entry(name, child, None, epoch)))
            }
            Err(error) => return Err(refusal(shown(&path, chroot), error)),
        }
    }
    let permits = match record {
        Record::Semaphore(size) => Some(size.permits),
        _ => None,
    };
    let names: Vec<Name> = queue.iter().map(|(name, _)| *name).collect();
    let upgrades = |at: usize| queue.get(at).is_some_and(|(_, entry): &(Name, Entry)| entry.upgrades);
    let holds = zoolock_core::queue::holders(&names, upgrades, permits);
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for ((_, entry), holds) in queue.into_iter().zip(holds) {
        if holds { holders.push(entry) } else { waiters.push(entry) }
    }
    let mut holders = holders.into_iter();
    let present = |sequence| names.iter().any(|name| name.sequence == sequence);
    Ok(Snapshot {
        path: shown(&path, chroot).to_owned(),
        holder: holders.next(),
        beside: holders.collect(),
        waiters,
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
        permits,
        foreign_record: matches!(record, Record::Foreign | Record::Leases(_)),
    })
}

fn entry(name: Name, node: String, read: Option<(Vec<u8>, Stat)>, epoch: u32) -> Entry {
    let data = read.as_ref().and_then(|(data, _)| NodeData::parse(data));
    let token = |czxid: Zxid| FencingToken::new(epoch, czxid, 0).to_string();
    Entry {
        node,
        family: match name.family() {
            Family::Native => "native",
            Family::DotNet => "dotnet",
            Family::Curator => "curator",
            Family::Kazoo => "kazoo",
            Family::WriteLock => "write-lock",
            Family::Ruby => "zk-ruby",
        },
        role: match name.role {
            Role::Exclusive => "exclusive",
            Role::Shared => "shared",
            Role::Upgradable => "upgradable",
            Role::Permit => "permit",
        },
        weight: name.weight,
        token: read.as_ref().map(|(_, stat)| token(stat.czxid)),
        revoked: read.as_ref().is_some_and(|(data, _)| data::says(data).revoked),
        upgrades: data.as_ref().is_some_and(|d| d.kind == "upgrade"),
        since_ms: data.as_ref().and_then(|d| d.since_ms),
        host: data.as_ref().and_then(|d| d.host.clone()),
        pid: data.as_ref().and_then(|d| d.pid),
        program: data.as_ref().and_then(|d| d.program.clone()),
        note: data.as_ref().and_then(|d| d.note.clone()),
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
