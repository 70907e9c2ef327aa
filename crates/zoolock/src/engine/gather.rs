//! Reads one directory: the contenders of a lock, and whether it is a semaphore of another client library.

use zoolock_core::contender::{Failure, Refusal};
use zoolock_core::layout::{CURATOR_GUARD, CURATOR_LEASES, KAZOO_GUARD, Layout, is_kazoo_lease};
use zoolock_core::names::{Name, Spelling};
use zoolock_core::record::Record;
use zoolock_core::{SessionId, Zxid};

use super::reader::Reader;
use crate::base::path::LockPath;
use crate::zk::session::{Stat, ZkError};

/// The content of one lock directory.
pub(crate) struct Gathered {
    pub(crate) path: LockPath,
    /// Creation of the directory; `None` if there is no directory.
    pub(crate) made: Option<Zxid>,
    pub(crate) record: Record,
    /// The semaphore of another client library at this path.
    pub(crate) foreign: Option<Foreign>,
    pub(crate) contenders: Vec<Contender>,
    /// Children that are neither contenders nor a part of the lock. Among them are names that end in a number
    /// which the directory has not given.
    pub(crate) others: Vec<String>,
    /// Directories that may be a part of the lock and may not be read.
    pub(crate) unread: Vec<LockPath>,
}

/// The znode of one contender.
pub(crate) struct Contender {
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

impl Contender {
    pub(crate) fn path(&self, directory: &LockPath) -> String {
        directory.child(&self.node)
    }
}

impl Gathered {
    /// Returns an unused lock.
    pub(crate) fn nothing(path: LockPath) -> Gathered {
        Gathered {
            path,
            made: None,
            record: Record::Empty,
            foreign: None,
            contenders: Vec::new(),
            others: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// Returns a directory of which nothing may be read.
    pub(crate) fn hidden(path: LockPath) -> Gathered {
        Gathered { unread: vec![path.clone()], ..Gathered::nothing(path) }
    }

    /// Reads the directory at `path`; `None` if there is none.
    pub(crate) async fn at(reader: &Reader<'_>, path: LockPath) -> Result<Option<Gathered>, ZkError> {
        let Some((data, stat, children, created)) = read_directory(reader, path.as_str()).await? else {
            return Ok(None);
        };
        let (made, record) = (Some(stat.czxid), Record::parse(&data));
        let mut here = Gathered { made, record, ..Gathered::nothing(path) };
        for node in children {
            match Name::parse(&node).filter(|name| name.counts_below(created)) {
                Some(name) => here.contenders.push(Contender { node, name }),
                None => here.others.push(node),
            }
        }
        here.contenders.sort_by(|a, b| (a.name.order(), &a.node).cmp(&(b.name.order(), &b.node)));
        here.find_curator(reader).await?;
        if here.foreign.is_none() {
            here.find_kazoo(reader).await?;
        }
        Ok(Some(here))
    }

    /// Returns whether the directory is a lock, or may be one.
    pub(crate) fn is_lock(&self) -> bool {
        let ours = matches!(self.record, Record::Marker(_) | Record::Semaphore(_));
        // A list of locks also names the directories that may not be read.
        let perhaps = !self.unread.is_empty();
        ours || perhaps || self.foreign.is_some() || !self.contenders.is_empty()
    }

    /// Returns the layout of the foreign semaphore here, also of one that has no leases and no waiters.
    pub(crate) fn layout(&self) -> Option<Layout> {
        let found = self.foreign.as_ref().map(|foreign| foreign.layout);
        found.or_else(|| Layout::proven_by(&self.others, self.record))
    }

    /// Finds a semaphore of Curator: the children `leases` and `locks`, with no other contenders in them.
    async fn find_curator(&mut self, reader: &Reader<'_>) -> Result<(), ZkError> {
        if !self.others.iter().any(|name| name == CURATOR_LEASES) {
            return Ok(());
        }
        let below = |name: &str| LockPath::from_server(self.path.child(name));
        let (leases, queue) = (below(CURATOR_LEASES), below(CURATOR_GUARD));
        let all_are = |children: &[String], spelling| {
            children.iter().all(|child| Name::parse(child).is_some_and(|name| name.spelling == spelling))
        };
        let Some(content) = permitted(read_directory(reader, leases.as_str()).await)? else {
            self.others.retain(|name| name != CURATOR_LEASES);
            self.unread.push(leases);
            // A `locks` that may be read is listed by itself: it may be a lock of its own.
            if self.others.iter().any(|name| name == CURATOR_GUARD)
                && permitted(read_directory(reader, queue.as_str()).await)?.is_none()
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
        let waiting = self.waiting(reader, &queue).await?;
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

    /// Finds a semaphore of kazoo: leases in the directory itself, and a queue in the directory beside it.
    async fn find_kazoo(&mut self, reader: &Reader<'_>) -> Result<(), ZkError> {
        let has_size = matches!(self.record, Record::Leases(_));
        let leases: Vec<String> = self.others.iter().filter(|name| is_kazoo_lease(name)).cloned().collect();
        if !has_size && leases.is_empty() {
            return Ok(());
        }
        let queue = LockPath::from_server(format!("{}{KAZOO_GUARD}", self.path));
        let waiting = self.waiting(reader, &queue).await?;
        if waiting.is_none() && (!has_size || leases.is_empty()) {
            return Ok(());
        }
        // Other programs may keep a number in a directory, and children of this form. Their children are not ephemeral.
        if let Some(lease) = leases.first()
            && reader.exists(&self.path.child(lease)).await?.is_some_and(|stat| stat.owner == SessionId(0))
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

    /// Lists the queue of a foreign semaphore; `None` if there is no such directory, empty if it may not be read.
    async fn waiting(
        &mut self,
        reader: &Reader<'_>,
        queue: &LockPath,
    ) -> Result<Option<Vec<String>>, ZkError> {
        let waiting = permitted(children(reader, queue).await)?;
        if waiting.is_none() {
            self.unread.push(queue.clone());
        }
        Ok(waiting.unwrap_or(Some(Vec::new())))
    }
}

/// Returns the answer; `None` if reading is not permitted.
fn permitted<T>(answer: Result<T, ZkError>) -> Result<Option<T>, ZkError> {
    match answer {
        Err(error) if is_denied(&error) => Ok(None),
        answer => answer.map(Some),
    }
}

pub(crate) fn is_denied(error: &ZkError) -> bool {
    error.failure == Failure::Refused(Refusal::Denied)
}

/// The data and the children of a directory, and the number of children that it had ever had at the listing.
type DirectoryContent = (Vec<u8>, Stat, Vec<String>, u32);

async fn read_directory(reader: &Reader<'_>, path: &str) -> Result<Option<DirectoryContent>, ZkError> {
    match reader.data_and_children(path).await {
        (Ok((data, stat)), Ok((children, listed))) => {
            Ok(Some((data, stat, children, listed.created_children)))
        }
        (Err(error), _) | (_, Err(error)) if error.failure == Failure::NoNode => Ok(None),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

async fn children(reader: &Reader<'_>, path: &LockPath) -> Result<Option<Vec<String>>, ZkError> {
    match reader.children(path.as_str()).await {
        Ok((children, _)) => Ok(Some(children)),
        Err(error) if error.failure == Failure::NoNode => Ok(None),
        Err(error) => Err(error),
    }
}
