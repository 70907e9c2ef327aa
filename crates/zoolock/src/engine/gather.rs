//! Reads one directory: the contenders of a lock, and whether the directory is a semaphore of
//! another client library.

use zoolock_core::acquisition::{Refusal, RequestFailure};
use zoolock_core::layout::{CURATOR_GUARD, CURATOR_LEASES, KAZOO_GUARD, Layout, is_kazoo_lease};
use zoolock_core::names::{Name, Spelling};
use zoolock_core::record::Record;
use zoolock_core::{Sequence, SessionId, Zxid};

use super::reader::QueueReader;
use crate::base::path::LockPath;
use crate::zk::session::{ZkError, ZnodeStat};

/// The content of one lock directory.
pub(crate) struct LockDirectory {
    pub(crate) path: LockPath,
    /// The czxid of the directory; `None` if there is no directory.
    pub(crate) made: Option<Zxid>,
    pub(crate) record: Record,
    /// The time at which the record was written, in milliseconds of Unix time, by the server's clock.
    pub(crate) record_ms: i64,
    /// A child, if the sequence numbers have run out and no child is a contender.
    pub(crate) lasting_child: Option<String>,
    /// The version of the record. Each write of the record adds one.
    pub(crate) record_version: i32,
    /// The last transaction that created or deleted a child, as of the listing; `None` if there is no directory.
    pub(crate) last_change: Option<Zxid>,
    /// The semaphore of another client library at this path.
    pub(crate) foreign: Option<Foreign>,
    pub(crate) contenders: Vec<FoundContender>,
    /// Children that are neither contenders nor a part of the lock. A child whose name has an
    /// unknown format is also in this list, if the number at the end of the name is higher than all
    /// numbers that the server has given in this directory.
    pub(crate) others: Vec<String>,
    /// Directories that may be a part of the lock, and that this client has no permission to read.
    pub(crate) unread: Vec<LockPath>,
}

/// The znode of one contender.
pub(crate) struct FoundContender {
    pub(crate) node: String,
    pub(crate) name: Name,
}

/// A semaphore in the layout of another client library. Its znodes are counted, not read.
pub(crate) struct Foreign {
    pub(crate) layout: Layout,
    pub(crate) leases: usize,
    pub(crate) waiters: usize,
    pub(crate) lease_directory: LockPath,
    pub(crate) queue_directory: LockPath,
}

impl FoundContender {
    pub(crate) fn path(&self, directory: &LockPath) -> String {
        directory.child(&self.node)
    }
}

impl LockDirectory {
    /// Returns the content of a lock that was never used.
    pub(crate) fn unused_lock(path: LockPath) -> LockDirectory {
        LockDirectory {
            path,
            made: None,
            record: Record::Empty,
            record_ms: 0,
            lasting_child: None,
            record_version: 0,
            last_change: None,
            foreign: None,
            contenders: Vec::new(),
            others: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// Returns the content of a directory that this client has no permission to read.
    pub(crate) fn hidden(path: LockPath) -> LockDirectory {
        LockDirectory { unread: vec![path.clone()], ..LockDirectory::unused_lock(path) }
    }

    /// Reads the directory at `path`; `None` if there is none.
    pub(crate) async fn read(
        reader: &QueueReader<'_>,
        path: LockPath,
    ) -> Result<Option<LockDirectory>, ZkError> {
        let Some((data, stat, children, listed)) = read_directory(reader, path.as_str()).await? else {
            return Ok(None);
        };
        let mut here = LockDirectory {
            made: Some(stat.czxid),
            record: Record::parse(&data),
            record_ms: stat.modified_ms,
            record_version: stat.version,
            last_change: Some(listed.pzxid),
            ..LockDirectory::unused_lock(path)
        };
        for node in children {
            match Name::parse(&node).filter(|name| name.counts_below(listed.created_children)) {
                Some(name) => here.contenders.push(FoundContender { node, name }),
                None => here.others.push(node),
            }
        }
        if here.contenders.is_empty() && listed.created_children >= Sequence::RETIRE_FROM.0 as u32 {
            here.lasting_child = here.others.iter().min().cloned();
        }
        here.contenders.sort_by(|a, b| (a.name.sort_key(), &a.node).cmp(&(b.name.sort_key(), &b.node)));
        here.find_curator(reader).await?;
        if here.foreign.is_none() {
            here.find_kazoo(reader).await?;
        }
        Ok(Some(here))
    }

    /// Returns whether the directory is a lock, or may be one.
    pub(crate) fn is_lock(&self) -> bool {
        let ours = matches!(self.record, Record::Marker(_) | Record::Semaphore(_));
        // A list of locks also contains the directories that this client has no permission to read,
        // because they may be locks.
        let perhaps = !self.unread.is_empty();
        ours || perhaps
            || self.foreign.is_some()
            || self.lasting_child.is_some()
            || !self.contenders.is_empty()
    }

    /// Returns the layout of the foreign semaphore at this path, even if it has no leases and no waiters.
    pub(crate) fn layout(&self) -> Option<Layout> {
        let found = self.foreign.as_ref().map(|foreign| foreign.layout);
        found.or_else(|| Layout::detect(&self.others, self.record))
    }

    /// Finds a semaphore of Curator: the children `leases` and `locks`, which contain only znodes of this semaphore.
    async fn find_curator(&mut self, reader: &QueueReader<'_>) -> Result<(), ZkError> {
        if !self.others.iter().any(|name| name == CURATOR_LEASES) {
            return Ok(());
        }
        let below = |name: &str| LockPath::from_server(self.path.child(name));
        let (leases, queue) = (below(CURATOR_LEASES), below(CURATOR_GUARD));
        let all_are = |children: &[String], spelling| {
            children.iter().all(|child| Name::parse(child).is_some_and(|name| name.spelling == spelling))
        };
        let Some(content) = none_if_denied(read_directory(reader, leases.as_str()).await)? else {
            self.others.retain(|name| name != CURATOR_LEASES);
            self.unread.push(leases);
            // A readable child `locks` stays among the other children, because it may be a lock of its own.
            if self.others.iter().any(|name| name == CURATOR_GUARD)
                && none_if_denied(read_directory(reader, queue.as_str()).await)?.is_none()
            {
                self.others.retain(|name| name != CURATOR_GUARD);
                self.unread.push(queue);
            }
            return Ok(());
        };
        let Some((data, _, held, _)) = content else { return Ok(()) };
        let is_lock = matches!(Record::parse(&data), Record::Marker(_) | Record::Semaphore(_));
        if is_lock || !all_are(&held, Spelling::CuratorLease) {
            return Ok(());
        }
        let waiting = self.list_foreign_queue(reader, &queue).await?;
        if held.is_empty() && waiting.is_none() {
            return Ok(());
        }
        let waiting = waiting.unwrap_or_default();
        if !all_are(&waiting, Spelling::CuratorLock) {
            return Ok(());
        }
        self.others.retain(|name| name != CURATOR_LEASES && name != CURATOR_GUARD);
        self.foreign = Some(Foreign {
            layout: Layout::Curator,
            leases: held.len(),
            waiters: waiting.len(),
            lease_directory: leases,
            queue_directory: queue,
        });
        Ok(())
    }

    /// Finds a semaphore of kazoo: its leases are in this directory, and its queue is in a directory beside this one.
    async fn find_kazoo(&mut self, reader: &QueueReader<'_>) -> Result<(), ZkError> {
        let has_size = matches!(self.record, Record::KazooSize(_));
        let leases: Vec<String> = self.others.iter().filter(|name| is_kazoo_lease(name)).cloned().collect();
        if !has_size && leases.is_empty() {
            return Ok(());
        }
        let queue = LockPath::from_server(format!("{}{KAZOO_GUARD}", self.path));
        let waiting = self.list_foreign_queue(reader, &queue).await?;
        if waiting.is_none() && (!has_size || leases.is_empty()) {
            return Ok(());
        }
        // Checks that a child is ephemeral, as kazoo's leases are, because another program may also store
        // a number in a directory, with children whose names look like leases.
        if let Some(lease) = leases.first()
            && reader.exists(&self.path.child(lease)).await?.is_some_and(|stat| stat.owner == SessionId::NONE)
        {
            return Ok(());
        }
        self.others.retain(|name| !leases.contains(name));
        let waiters = waiting.unwrap_or_default().iter().filter(|name| Name::parse(name).is_some()).count();
        self.foreign = Some(Foreign {
            layout: Layout::Kazoo,
            leases: leases.len(),
            waiters,
            lease_directory: self.path.clone(),
            queue_directory: queue,
        });
        Ok(())
    }

    /// Lists the queue of a foreign semaphore. Returns `None` if there is no such directory, and an
    /// empty list if this client has no permission to read the directory.
    async fn list_foreign_queue(
        &mut self,
        reader: &QueueReader<'_>,
        queue: &LockPath,
    ) -> Result<Option<Vec<String>>, ZkError> {
        let waiting = none_if_denied(list_children_if_exists(reader, queue).await)?;
        if waiting.is_none() {
            self.unread.push(queue.clone());
        }
        Ok(waiting.unwrap_or(Some(Vec::new())))
    }
}

/// Returns the answer; `None` if reading is not permitted.
fn none_if_denied<T>(answer: Result<T, ZkError>) -> Result<Option<T>, ZkError> {
    match answer {
        Err(error) if is_denied(&error) => Ok(None),
        answer => answer.map(Some),
    }
}

pub(crate) fn is_denied(error: &ZkError) -> bool {
    error.failure == RequestFailure::Refused(Refusal::Denied)
}

/// The data and the Stat of a directory, its children, and its Stat as of the listing.
type DirectoryContent = (Vec<u8>, ZnodeStat, Vec<String>, ZnodeStat);

async fn read_directory(reader: &QueueReader<'_>, path: &str) -> Result<Option<DirectoryContent>, ZkError> {
    match reader.data_and_children(path).await {
        (Ok((data, stat)), Ok((children, listed))) => Ok(Some((data, stat, children, listed))),
        (Err(error), _) | (_, Err(error)) if error.failure == RequestFailure::NoNode => Ok(None),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

async fn list_children_if_exists(
    reader: &QueueReader<'_>,
    path: &LockPath,
) -> Result<Option<Vec<String>>, ZkError> {
    match reader.children(path.as_str()).await {
        Ok((children, _)) => Ok(Some(children)),
        Err(error) if error.failure == RequestFailure::NoNode => Ok(None),
        Err(error) => Err(error),
    }
}
