//! Which nodes stand for the contenders of one lock, whoever made them.

use zoolock_core::contender::{Failure, Refusal};
use zoolock_core::layout::{CURATOR_GUARD, CURATOR_LEASES, Layout, is_kazoo_lease};
use zoolock_core::names::{Family, Name, Spelling};
use zoolock_core::record::Record;
use zoolock_core::{SessionId, Zxid};

use super::reader::Reader;
use crate::keeper::{KeeperError, Stat};
use crate::layout::{Places, places};
use crate::path::LockPath;

/// What lives at one path.
pub(crate) struct Gathered {
    pub(crate) path: LockPath,
    /// When the directory was made; `None` where there is none.
    pub(crate) made: Option<Zxid>,
    pub(crate) record: Record,
    /// How many permits a semaphore of kazoo has.
    pub(crate) size: Option<u32>,
    /// Whether a semaphore of Curator's is here.
    curators: bool,
    pub(crate) contenders: Vec<Contender>,
    /// The directory beside this one that is part of it.
    pub(crate) beside: Option<LockPath>,
    /// Children that are no contenders, nor a part of the lock.
    pub(crate) others: Vec<String>,
    /// Directories that would be a part of the lock if they were another make's, and may not be read.
    pub(crate) unread: Vec<LockPath>,
}

/// A node that stands for somebody.
pub(crate) struct Contender {
    pub(crate) directory: LockPath,
    pub(crate) node: String,
    pub(crate) part: Part,
    /// `None` for kazoo's leases, whose names say nothing.
    pub(crate) name: Option<Name>,
}

/// Where a contender stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// In the one queue that a lock is, as a rule.
    Queue,
    /// Among the holders of a semaphore of another make.
    Lease,
    /// In the queue of those who may become one.
    Guard,
}

impl Contender {
    pub(crate) fn path(&self) -> String {
        self.directory.child(&self.node)
    }

    /// Whose name it has.
    pub(crate) fn family(&self) -> Family {
        self.name.map_or(Family::Kazoo, |name| name.family())
    }

    fn order(&self) -> (Part, Option<(u32, bool)>, &str) {
        (self.part, self.name.map(|name| name.order()), &self.node)
    }
}

impl Gathered {
    /// A lock that nobody has used yet.
    pub(crate) fn nothing(path: LockPath) -> Gathered {
        Gathered {
            path,
            made: None,
            record: Record::Empty,
            size: None,
            curators: false,
            contenders: Vec::new(),
            beside: None,
            others: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// Of which nothing may be read.
    pub(super) fn hidden(path: LockPath) -> Gathered {
        Gathered { unread: vec![path.clone()], ..Gathered::nothing(path) }
    }

    /// Looks at one path; `None` where there is nothing.
    pub(crate) async fn at(reader: &Reader<'_>, path: LockPath) -> Result<Option<Gathered>, KeeperError> {
        let Some((data, stat, children)) = look(reader, path.as_str()).await? else { return Ok(None) };
        let (made, record) = (Some(stat.czxid), Record::parse(&data));
        let mut here = Gathered { made, record, ..Gathered::nothing(path) };
        here.add(&here.path.clone(), Part::Queue, children);
        here.add_curators(reader).await?;
        here.add_kazoos(reader).await?;
        here.contenders.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(Some(here))
    }

    /// Whether it is a lock, of all that lives in a tree.
    pub(crate) fn is_lock(&self) -> bool {
        let ours = matches!(self.record, Record::Marker(_) | Record::Semaphore(_));
        // Whoever lists locks is to hear of what he may not read.
        let perhaps = !self.unread.is_empty();
        ours || perhaps || self.curators || self.size.is_some() || !self.contenders.is_empty()
    }

    fn add(&mut self, directory: &LockPath, part: Part, children: Vec<String>) {
        for node in children {
            match Name::parse(&node) {
                name @ Some(_) => {
                    self.contenders.push(Contender { directory: directory.clone(), node, part, name })
                }
                None if part == Part::Queue => self.others.push(node),
                None => {}
            }
        }
    }

    /// `leases` and `locks`, where nobody else uses directories of these names.
    async fn add_curators(&mut self, reader: &Reader<'_>) -> Result<(), KeeperError> {
        if !self.others.iter().any(|name| name == CURATOR_LEASES) {
            return Ok(());
        }
        let Places { leases, guard } = places(Layout::Curator, &self.path);
        let of = |children: &[String], spelling| {
            children.iter().all(|child| Name::parse(child).is_some_and(|name| name.spelling == spelling))
        };
        let Some(looked) = permitted(look(reader, leases.as_str()).await)? else {
            self.others.retain(|name| name != CURATOR_LEASES);
            self.unread.push(leases);
            // One that may be read is listed by itself: it may be a lock of its own.
            if self.others.iter().any(|name| name == CURATOR_GUARD)
                && permitted(look(reader, guard.as_str()).await)?.is_none()
            {
                self.others.retain(|name| name != CURATOR_GUARD);
                self.unread.push(guard);
            }
            return Ok(());
        };
        let Some((data, _, held)) = looked else { return Ok(()) };
        let is_lock = matches!(Record::parse(&data), Record::Marker(_) | Record::Semaphore(_));
        if is_lock || !of(&held, Spelling::CuratorLease) {
            return Ok(());
        }
        let waiting = self.waiting(reader, &guard).await?;
        if held.is_empty() && waiting.is_none() {
            return Ok(());
        }
        let waiting = waiting.unwrap_or_default();
        if !of(&waiting, Spelling::CuratorLock) {
            return Ok(());
        }
        self.curators = true;
        self.others.retain(|name| name != CURATOR_LEASES && name != CURATOR_GUARD);
        self.add(&leases, Part::Lease, held);
        self.add(&guard, Part::Guard, waiting);
        Ok(())
    }

    /// Leases in the directory itself, and those who want one in the directory beside it.
    async fn add_kazoos(&mut self, reader: &Reader<'_>) -> Result<(), KeeperError> {
        let size = match self.record {
            Record::Leases(permits) => Some(permits),
            _ => None,
        };
        let leases: Vec<String> = self.others.iter().filter(|name| is_kazoo_lease(name)).cloned().collect();
        if size.is_none() && leases.is_empty() {
            return Ok(());
        }
        let Places { guard, .. } = places(Layout::Kazoo, &self.path);
        let waiting = self.waiting(reader, &guard).await?;
        if waiting.is_none() && (size.is_none() || leases.is_empty()) {
            return Ok(());
        }
        // Others, too, have directories with numbers in them and names of this form below.
        if let Some(lease) = leases.first()
            && reader.exists(&self.path.child(lease)).await?.is_some_and(|stat| stat.owner == SessionId(0))
        {
            return Ok(());
        }
        self.size = size;
        self.others.retain(|name| !leases.contains(name));
        let directory = &self.path;
        self.contenders.extend(leases.into_iter().map(|node| Contender {
            directory: directory.clone(),
            node,
            part: Part::Lease,
            name: None,
        }));
        self.add(&guard, Part::Guard, waiting.unwrap_or_default());
        self.beside = Some(guard);
        Ok(())
    }

    /// The children of a guard; none where it is there and may not be read.
    async fn waiting(
        &mut self,
        reader: &Reader<'_>,
        guard: &LockPath,
    ) -> Result<Option<Vec<String>>, KeeperError> {
        let waiting = permitted(children(reader, guard).await)?;
        if waiting.is_none() {
            self.unread.push(guard.clone());
        }
        Ok(waiting.unwrap_or(Some(Vec::new())))
    }
}

/// The answer; `None` where the question is not permitted.
fn permitted<T>(answer: Result<T, KeeperError>) -> Result<Option<T>, KeeperError> {
    match answer {
        Err(error) if is_denied(&error) => Ok(None),
        answer => answer.map(Some),
    }
}

pub(super) fn is_denied(error: &KeeperError) -> bool {
    error.failure == Failure::Refused(Refusal::Denied)
}

type Looked = (Vec<u8>, Stat, Vec<String>);

async fn look(reader: &Reader<'_>, path: &str) -> Result<Option<Looked>, KeeperError> {
    match reader.data_and_children(path).await {
        (Ok((data, stat)), Ok((children, _))) => Ok(Some((data, stat, children))),
        (Err(error), _) | (_, Err(error)) if error.failure == Failure::NoNode => Ok(None),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

async fn children(reader: &Reader<'_>, path: &LockPath) -> Result<Option<Vec<String>>, KeeperError> {
    match reader.children(path.as_str()).await {
        Ok((children, _)) => Ok(Some(children)),
        Err(error) if error.failure == Failure::NoNode => Ok(None),
        Err(error) => Err(error),
    }
}
