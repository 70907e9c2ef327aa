//! A snapshot of one lock's queue, for the terminal and as JSON.

pub(crate) mod entry;
mod grant_time;
mod holders;
mod poller;
#[cfg(test)]
mod tests;
mod walk;

pub use poller::{LockPoller, PolledSnapshot};
pub(crate) use walk::survey;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::time::SystemTime;

use futures_util::StreamExt;
use grant_time::GrantFacts;
use holders::ContenderRead;
use serde::Serialize;
use zoolock_core::acquisition::{Refusal, RequestFailure};
use zoolock_core::layout::Layout;
use zoolock_core::names::Name;
use zoolock_core::record::{HolderState, Marker, Record};
use zoolock_core::{Sequence, Zxid};

use crate::admin::kinds::{Family, OwnerKind, PreviousEnd, Role};
use crate::base::error::{Error, OVER_QUOTA};
use crate::base::naming;
use crate::base::path::LockPath;
use crate::base::ticket::Ticket;
use crate::base::unix_time::{self, time_at};
use crate::engine::gather::{Foreign, LockDirectory};
use crate::engine::reader::{MAX_IN_FLIGHT, QueueReader};
use crate::lock::acquire_errors::occupied_message;
use crate::lock::context::Context;
use crate::zk::session::{ZkError, ZnodeStat};

/// The holders and the waiters of one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Path of the lock directory.
    pub path: String,
    /// Set if the lock directory exists. If not, the lock is free: the name was never used, or ZooKeeper has removed the
    /// empty directory.
    pub exists: bool,
    /// The first holder in queue order, if there is one.
    pub holder: Option<Entry>,
    /// The other holders: readers, holders of permits, or the writer's znode of an upgraded reader.
    pub beside: Vec<Entry>,
    /// The waiters in queue order. If the snapshot has a limit, only the first waiters.
    pub waiters: Vec<Entry>,
    /// Number of all waiters, including those that `waiters` leaves out.
    pub waiting: usize,
    /// The way in which the last known holder left.
    pub previous: PreviousEnd,
    /// Sequence number of the holder that `previous` describes, from the end of its znode's name; `None` if
    /// `previous` is unknown.
    pub previous_number: Option<u32>,
    /// The semaphore of another client library at this path. Its holders and waiters are in none of the lists
    /// above; `waiting` counts its waiters.
    pub foreign_semaphore: Option<ForeignSemaphore>,
    /// Number of permits, if the lock is a semaphore that records its size. Curator's semaphores do not.
    pub permits: Option<u32>,
    /// Set if the data of the lock directory belongs to another program. Holders then write no release marker.
    pub foreign_record: bool,
    /// A message with a remedy. It is set if a contender ignores the znode of another contender, or
    /// if a lock and a semaphore of another client library have the same path. Two contenders may
    /// then hold at once.
    pub clash: Option<String>,
    /// A message with a remedy. It is set if no client can acquire the lock, because its sequence
    /// numbers have run out, and a child that is no contender keeps its directory.
    pub unusable: Option<String>,
    /// The directories that may contain more contenders, and that this client has no permission to
    /// read. A path below the lock directory is relative to the lock directory, any other path is
    /// absolute. In a list of locks, an unreadable lock has its own path here. Such a directory may
    /// not be a lock at all.
    pub unread: Vec<String>,
}

/// A semaphore of another client library, whose znodes are only counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForeignSemaphore {
    /// The client library: `Curator` or `kazoo`.
    pub library: &'static str,
    /// Number of leases. Each lease is the znode of one permit. The first waiter may already have a lease.
    pub leases: usize,
    /// Path of the directory that contains the leases.
    pub lease_directory: String,
    /// Path of the lock directory in which the waiters queue.
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
    /// Returns the snapshot of a lock that was never used.
    pub(crate) fn unused(path: String) -> Snapshot {
        Snapshot { path, ..Snapshot::default() }
    }

    /// Returns whether there is a holder, or a lease of a foreign semaphore.
    pub fn is_held(&self) -> bool {
        self.holder.is_some() || self.foreign_semaphore.as_ref().is_some_and(|foreign| foreign.leases > 0)
    }

    /// Returns the holders, in queue order.
    pub fn holders(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.holder.iter().chain(&self.beside)
    }

    /// Sets [`Entry::is_superseded`] of the contenders.
    pub(crate) fn mark_superseded(&mut self) {
        type Owner = (OwnerKind, String, Option<String>, u32);
        if self.queue().nth(1).is_none() {
            return;
        }
        let owner = |entry: &Entry| -> Option<Owner> {
            // A session of another client library is the owner itself.
            (entry.owner_kind != OwnerKind::Session).then_some(())?;
            Some((entry.owner_kind, entry.owner.clone()?, entry.host.clone(), entry.pid?))
        };
        let mut last_session: HashMap<Owner, u64> = HashMap::new();
        let later_first = self.holder.iter_mut().chain(&mut self.beside).chain(&mut self.waiters).rev();
        for entry in later_first {
            if let (Some(owner), Some(session)) = (owner(entry), entry.session) {
                entry.is_superseded = *last_session.entry(owner).or_insert(session) != session;
            }
        }
    }

    /// Returns the holders, then [`waiters`](Snapshot::waiters).
    pub fn queue(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.holders().chain(&self.waiters)
    }
}

/// A contender, as its znode describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// Name of the znode. A part that may be a session id is shown as `…`.
    pub node: String,
    /// Naming scheme of the znode.
    pub family: Family,
    /// The share that the contender asks for.
    pub role: Role,
    /// Number of permits that the contender asks for; 1 if the lock is no semaphore.
    pub weight: u32,
    /// The token that identifies the contender in a request to release or to break the lock. For an
    /// exclusive holder, this is also the fencing token. `None` if the znode could not be read.
    pub token: Option<Ticket>,
    /// Set if the contender was asked to release the lock.
    pub revoked: bool,
    /// Time at which the contender was asked to release, by the server's clock. `None` if it was not asked, or if a later
    /// write of its data hides the time.
    #[serde(rename = "asked_ms", serialize_with = "unix_time::serialize_option")]
    pub asked_at: Option<SystemTime>,
    /// Time at which the contender queued. The time is by the
    /// contender's own clock, or by the server's clock if the znode's data contains no time. A time
    /// before the year 2010 is ignored, because that clock was not set. `None` if no time is known.
    #[serde(rename = "since_ms", serialize_with = "unix_time::serialize_option")]
    pub since: Option<SystemTime>,
    /// Time of the grant, by the server's clock, for a holder. With a lock delay, the time
    /// at which the delay began. `None` for a waiter, and if nothing on the server tells the time. The holder has then
    /// held for at most the time since `since`. The server tells the time, except for some holders of permits, if the
    /// holder found no contender that it had to wait for; if the holder directly before it released cleanly or was broken; if the holder uses crash
    /// detection; and if it waited for permits.
    #[serde(rename = "held_since_ms", serialize_with = "unix_time::serialize_option")]
    pub held_since: Option<SystemTime>,
    /// Host of the contender: the host name, or the address that Curator writes.
    pub host: Option<String>,
    /// Process ID of the contender.
    pub pid: Option<u32>,
    /// Name of the contender's program.
    pub program: Option<String>,
    /// Set if the process `pid` is not `program` itself, but runs it, as `zoolock run` does.
    pub runs_program: bool,
    /// Note of the contender's client; see [`Builder::note`](crate::Builder::note).
    pub note: Option<String>,
    /// The identifier that a contender of another client library writes, for example kazoo's. It is short and
    /// has no control characters. Data that is not text is shown as hexadecimal digits.
    pub identifier: Option<String>,
    /// Owner of the contender, as a text. The text is the same at every lock that the owner holds
    /// or waits for. `None` if the owner could not be read. Do not trust the owner: every client
    /// with permission to queue can write any owner.
    pub owner: Option<String>,
    /// The origin of `owner`.
    pub owner_kind: OwnerKind,
    /// Set if no session owns the znode. The contender then stays in the queue until a client
    /// deletes the znode.
    pub persistent: bool,
    /// Identifier of the acquisition, from the data of the znode. `None` for other client libraries.
    /// Do not trust the identifier: every client with permission to queue can write any identifier.
    #[serde(skip)]
    pub id: Option<String>,
    /// The reason why the contender cannot be asked to release, such as `its client library is not known`. `None` if it
    /// can be asked, or if its data could not be read.
    #[serde(skip)]
    pub unrevocable: Option<&'static str>,
    /// Set if the same owner in the same process has a later contender in this queue, on another session. After an outage
    /// these are the positions of a session that the process has given up. They go when that session expires. But the
    /// session may also be alive, for example if the process has a second client.
    #[serde(skip)]
    pub is_superseded: bool,
    /// Pseudonym of the session that created the znode. Session ids themselves are not kept, because an [`Entry`] can be
    /// printed.
    #[serde(skip)]
    pub(crate) session: Option<u64>,
    /// Identifier of the reader's acquisition, if this contender is the writer's znode of an upgrade.
    #[serde(skip)]
    pub(crate) reader_id: Option<String>,
}

impl Entry {
    /// Returns the contender's sequence number: the ten digits at the end of its znode's name.
    pub fn number(&self) -> Option<u32> {
        let digits = self.node.get(self.node.len().checked_sub(10)?..)?;
        if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
    }

    /// Returns whether the znode has the data that zoolock writes, regardless of the name of the znode.
    pub fn has_zoolock_data(&self) -> bool {
        self.pid.is_some() || self.program.is_some()
    }

    /// Returns the client library, by the name of the znode.
    pub fn library(&self) -> &'static str {
        // go-zookeeper uses Curator's names, but with a UUID without dashes.
        let of_go = self.node.rsplit('/').next().and_then(|node| node.as_bytes().get(11)) != Some(&b'-');
        match self.family {
            Family::Curator if of_go => "go-zookeeper",
            Family::Curator => "Curator",
            Family::Kazoo => "kazoo",
            Family::WriteLock => "a WriteLock of ZooKeeper's recipes",
            Family::Ruby => "zk-ruby",
            Family::DotNet => ".NET",
            Family::Aiozk => "aiozk",
            Family::Unknown => "an unknown client library",
            // The client may be zoolock, if another client has overwritten the data of the znode.
            Family::Native => "an unknown client",
        }
    }
}

/// The options of a snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotOptions<'a> {
    /// The addresses of the servers, for errors.
    pub(crate) servers: &'a str,
    pub(crate) chroot: &'a str,
    /// Epoch of the tokens.
    pub(crate) epoch: u32,
    /// Maximum number of waiters to describe, per lock.
    pub(crate) waiters: usize,
}

impl SnapshotOptions<'_> {
    /// Returns the options of a snapshot with all waiters.
    pub(crate) fn of(context: &Context) -> SnapshotOptions<'_> {
        SnapshotOptions {
            servers: context.endpoints(),
            chroot: context.chroot(),
            epoch: context.epoch(),
            waiters: usize::MAX,
        }
    }

    /// Returns the error for a failed read of the lock at `path`.
    fn request_error(&self, path: &LockPath, error: ZkError) -> Error {
        request_error(self.servers, format!("lock {}", without_chroot(path, self.chroot)), error)
    }
}

/// Returns the snapshot of one lock. A lock without a directory is free.
pub(crate) async fn read(
    reader: &QueueReader<'_>,
    path: LockPath,
    view: &SnapshotOptions<'_>,
) -> Result<Snapshot, Error> {
    let here = gather(reader, path, view).await?;
    describe(reader, here, view, None).await.map(|described| described.0)
}

async fn gather(
    reader: &QueueReader<'_>,
    path: LockPath,
    view: &SnapshotOptions<'_>,
) -> Result<LockDirectory, Error> {
    match LockDirectory::read(reader, path.clone()).await {
        Ok(found) => Ok(found.unwrap_or_else(|| LockDirectory::unused_lock(path))),
        Err(error) => Err(view.request_error(&path, error)),
    }
}

/// The data that earlier snapshots of the same lock have read.
#[derive(Default)]
struct SnapshotCache {
    /// The data and Stat of each znode, by its path. `None` if this client has no permission to
    /// read the znode.
    read: HashMap<String, Option<(Vec<u8>, ZnodeStat)>>,
    /// Paths of the znodes that this client's own sessions created in the lock directory.
    own: HashSet<String>,
    crashes: CrashFinder,
    /// The present holders, by the path of their znodes, with the time of the grant if it is known.
    holders: HashMap<String, Option<u64>>,
    rereads: Rereads,
}

/// The cached znodes that each snapshot reads again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Rereads {
    #[default]
    None,
    Holders,
    All,
}

impl SnapshotCache {
    /// Returns the data and Stat of a znode, unless it must be read again.
    fn get(&self, node: &str) -> Option<&Option<(Vec<u8>, ZnodeStat)>> {
        match self.rereads {
            Rereads::All => None,
            Rereads::Holders if self.holders.contains_key(node) => None,
            Rereads::Holders | Rereads::None => self.read.get(node),
        }
    }
}

/// Finds a crash whose only trace another holder has overwritten.
#[derive(Default)]
struct CrashFinder {
    /// The last marker, and the version of the record that contained it.
    marker: Option<(Marker, i32)>,
    /// A `held` marker that has replaced the `held` marker of another holder, and the number of that holder.
    crash: Option<(Marker, Sequence)>,
}

impl CrashFinder {
    /// Returns the number of the holder that crashed before the holder of `marker`. Each write of the record adds one to
    /// its version. So if only the `held` marker was written since the `held` marker of an earlier holder, that holder
    /// has written no release marker. `names`: the contenders that exist.
    fn find_crash(&mut self, marker: Option<(Marker, i32)>, names: &[Name]) -> Option<Sequence> {
        let before = std::mem::replace(&mut self.marker, marker);
        let (marker, version) = marker.filter(|(marker, _)| marker.state == HolderState::Held)?;
        if let Some((before, earlier)) = before
            && before.state == HolderState::Held
            && before.sequence != marker.sequence
            && earlier.wrapping_add(1) == version
            && names.iter().all(|name| name.sequence != before.sequence)
        {
            self.crash = Some((marker, before.sequence));
        }
        self.crash.filter(|(after, _)| *after == marker).map(|(_, crashed)| crashed)
    }
}

/// Makes a snapshot of a gathered directory. If the cache contains paths of this client's own
/// znodes, also returns the index of the first of them among the waiters. The cache keeps the data
/// that was read even if the call fails or is dropped.
async fn describe(
    reader: &QueueReader<'_>,
    here: LockDirectory,
    view: &SnapshotOptions<'_>,
    mut cache: Option<&mut SnapshotCache>,
) -> Result<(Snapshot, Option<usize>), Error> {
    let LockDirectory { path, made, record, record_ms, last_change, foreign, contenders, unread, .. } = here;
    let record_version = here.record_version;
    let child = here.lasting_child.map(|child| path.child(&child));
    let unusable = child.map(|child| occupied_message(child.strip_prefix(view.chroot).unwrap_or(&child)));
    let marker = made.and_then(|made| record.marker_of(made));
    let chroot = view.chroot;
    let permits = match record {
        Record::Semaphore(size) => Some(size.permits),
        _ => None,
    };
    let mut readings: Vec<ContenderRead> = contenders.into_iter().map(ContenderRead::new).collect();
    if let Some(cache) = &cache {
        for reading in &mut readings {
            if let Some(read) = cache.get(&reading.contender.path(&path)) {
                (reading.read, reading.was_tried) = (read.clone(), true);
            }
        }
    }
    // Repeats if a contender has left meanwhile, because another contender may then hold, and must be read.
    loop {
        let needed = holders::indexes_to_read(&readings, permits, view.waiters);
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
                Err(error) if error.failure == RequestFailure::NoNode => {
                    gone[at] = true;
                    continue;
                }
                Err(error) if matches!(error.failure, RequestFailure::Refused(_)) => None,
                Err(error) => return Err(view.request_error(&path, error)),
            };
            let reading = &mut readings[at];
            (reading.read, reading.was_tried) = (read, true);
            // Caches each answer at once, so that a dropped call loses no answer.
            if let Some(cache) = &mut cache {
                cache.read.insert(node, reading.read.clone());
            }
        }
        let mut gone = gone.into_iter();
        readings.retain(|_| gone.next() == Some(false));
    }
    let names = names_in(&readings);
    let deleted = cache.as_ref().map(|cache| deleted_nodes(cache, &readings, &path)).unwrap_or_default();
    let mut crashes = CrashFinder::default();
    let crashes = cache.as_deref_mut().map_or(&mut crashes, |cache| &mut cache.crashes);
    let versioned = (record, record_version);
    let (previous, number) =
        read_previous(reader, &path, made, versioned, !deleted.is_empty(), &names, crashes).await;
    if let Some(cache) = &mut cache {
        deleted.iter().for_each(|node| drop(cache.read.remove(node)));
    }
    let clash = match (names.first(), &foreign) {
        (Some(first), Some(foreign)) => Some(naming::layout_conflict_message(first, foreign.layout)),
        _ => naming::find_clash_message(&names),
    };
    let (holders, waiters) = holders::separate_holders(readings, &names, permits);
    let entry =
        |reading: ContenderRead| entry::describe_contender(&reading.contender, reading.read, view.epoch);
    let facts = GrantFacts::new(marker, record_ms, last_change, &holders);
    let mut grants: Vec<Option<u64>> = holders.iter().map(|reading| facts.grant_time(reading)).collect();
    if let Some(cache) = &mut cache {
        // Later changes of the queue hide the time of a grant, so the cache keeps it.
        let earlier = std::mem::take(&mut cache.holders);
        for (reading, grant) in holders.iter().zip(&mut grants) {
            let node = reading.contender.path(&path);
            *grant = grant.or(earlier.get(&node).copied().flatten());
            cache.holders.insert(node, *grant);
        }
    }
    let mut holders = holders
        .into_iter()
        .zip(grants)
        .map(|(reading, grant)| Entry { held_since: grant.map(time_at), ..entry(reading) });
    let position = cache.filter(|cache| !cache.own.is_empty()).and_then(|cache| {
        waiters.iter().position(|reading| cache.own.contains(&reading.contender.path(&path)))
    });
    let mut lock = Snapshot {
        path: without_chroot(&path, chroot).to_owned(),
        exists: made.is_some() || !unread.is_empty(),
        holder: holders.next(),
        beside: holders.collect(),
        waiting: waiters.len() + foreign.as_ref().map_or(0, |foreign| foreign.waiters),
        waiters: waiters.into_iter().take(view.waiters).map(entry).collect(),
        previous,
        previous_number: number.and_then(|sequence| u32::try_from(sequence.0).ok()),
        permits: match (record, &foreign) {
            (Record::KazooSize(size), Some(Foreign { layout: Layout::Kazoo, .. })) => Some(size),
            _ => permits,
        },
        foreign_record: matches!(record, Record::Foreign | Record::KazooSize(_)) && foreign.is_none(),
        foreign_semaphore: foreign.map(|foreign| ForeignSemaphore {
            library: foreign.layout.library(),
            leases: foreign.leases,
            lease_directory: without_chroot(&foreign.lease_directory, chroot).to_owned(),
            queue_directory: without_chroot(&foreign.queue_directory, chroot).to_owned(),
        }),
        clash,
        unusable,
        unread: unread.iter().map(|part| display_name(part.as_str(), &path, chroot)).collect(),
    };
    lock.mark_superseded();
    Ok((lock, position))
}

/// Returns the paths of cached znodes that were deleted.
fn deleted_nodes(cache: &SnapshotCache, readings: &[ContenderRead], path: &LockPath) -> Vec<String> {
    let here: HashSet<String> = readings.iter().map(|reading| reading.contender.path(path)).collect();
    cache.read.keys().filter(|node| !here.contains(*node)).cloned().collect()
}

/// Returns how the last known holder left, and its sequence number. `record` comes with its version. `stale`: set if a
/// contender has left since an earlier snapshot, and may have written its release marker after `record` was read.
async fn read_previous(
    reader: &QueueReader<'_>,
    path: &LockPath,
    made: Option<Zxid>,
    (record, version): (Record, i32),
    stale: bool,
    names: &[Name],
    crashes: &mut CrashFinder,
) -> (PreviousEnd, Option<Sequence>) {
    let Some(made) = made else { return (PreviousEnd::Unknown, None) };
    let outcome_of = |marker: Marker, crashed: Option<Sequence>| match marker.state {
        HolderState::Released | HolderState::Downgraded => (PreviousEnd::Clean, Some(marker.sequence)),
        HolderState::Panicked => (PreviousEnd::Panicked, Some(marker.sequence)),
        HolderState::Broken => (PreviousEnd::Broken, Some(marker.sequence)),
        // A new holder has begun to hold. Its marker has overwritten the marker of the previous holder.
        HolderState::Held => {
            crashed.map_or((PreviousEnd::Unknown, None), |crashed| (PreviousEnd::Crashed, Some(crashed)))
        }
    };
    // A marker of an earlier directory at this path is ignored, because sequence numbers repeat in a new directory.
    let before = record.marker_of(made);
    let crashed = crashes.find_crash(before.map(|marker| (marker, version)), names);
    let is_gone = |marker: Marker| {
        marker.state == HolderState::Held && names.iter().all(|name| name.sequence != marker.sequence)
    };
    if !stale && !before.is_some_and(is_gone) {
        return before.map_or((PreviousEnd::Unknown, None), |before| outcome_of(before, crashed));
    }
    // The record was read before the queue. A holder that left in between may have written the marker in the
    // transaction that deleted its znode. A crash leaves the marker unchanged. So the record is read again after the
    // queue.
    let Ok((data, stat)) = reader.read(path.as_str()).await else { return (PreviousEnd::Unknown, None) };
    let Some(now) = Record::parse(&data).marker_of(made).filter(|_| stat.czxid == made) else {
        return (PreviousEnd::Unknown, None);
    };
    if Some(now) == before && is_gone(now) {
        return (PreviousEnd::Crashed, Some(now.sequence));
    }
    // This marker may belong to a holder that queued after the queue was read.
    outcome_of(now, crashes.find_crash(Some((now, stat.version)), names))
}

/// Returns the name of a znode for display: relative to the lock at `path`, or else the znode's
/// path without the chroot.
pub(crate) fn display_name(node: &str, path: &LockPath, chroot: &str) -> String {
    match node.strip_prefix(path.as_str()) {
        Some(below) if below.starts_with('/') => below.trim_start_matches('/').to_owned(),
        _ => node.strip_prefix(chroot).unwrap_or(node).to_owned(),
    }
}

fn names_in(readings: &[ContenderRead]) -> Vec<Name> {
    readings.iter().map(|reading| reading.contender.name).collect()
}

fn without_chroot<'a>(path: &'a LockPath, chroot: &str) -> &'a str {
    path.as_str().strip_prefix(chroot).unwrap_or(path.as_str())
}

/// Returns the error for a failed request about `subject`, such as `lock /locks/x`. `servers`: the addresses of the servers.
pub(crate) fn request_error(servers: &str, subject: String, error: ZkError) -> Error {
    let ZkError { failure, message } = error;
    let denied = |message| Error::Denied { subject: subject.clone(), message };
    match failure {
        RequestFailure::Refused(Refusal::Denied) => {
            denied(format!("the server answered {message}; use credentials with that permission"))
        }
        RequestFailure::Refused(Refusal::Quota) => denied(OVER_QUOTA.to_owned()),
        RequestFailure::Refused(Refusal::Other) => {
            Error::Protocol { subject, message: format!("the server answered {message}") }
        }
        _ => Error::unavailable(servers, format!("{subject}: {message}; try again")),
    }
}
