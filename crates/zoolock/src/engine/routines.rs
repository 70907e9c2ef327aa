//! Requests of the machine that take several rounds of requests to the server: the directories of a new lock, the search for
//! own znodes, and the czxid of a new znode.
//!
//! A request of the machine stays at its place in the order of answers until its last round is answered
//! (`replies.rs`). So the answers to later requests wait, too.

use zoolock_core::acquisition::{Node, Reply, RequestFailure};
use zoolock_core::names::Prefix;
use zoolock_core::{ContenderId, Sequence, Zxid};
use zoolock_wire as wire;

use super::Acquisition;
use super::data::NodeData;
use super::requests::{ExpectedReply, Interpreted, unexpected};
use crate::base::path::LockPath;
use crate::session::znode_owner::{Creator, find_znode_owner, is_mine};
use crate::zk::directory::DirectoryCreation;
use crate::zk::session::{self, ReplyOutcome, ZkError, ZkSession, ZnodeStat};

/// The meaning of the replies to the last round, and what the next rounds need.
pub(super) enum Routine {
    /// The outcome of a create.
    Directory(DirectoryCreation),
    /// The paths of the session's znodes that may belong to the acquisition.
    OwnPaths,
    /// The names of all children of the directory, if the server cannot list the znodes of a session.
    Children,
    /// The znodes that may belong to the acquisition, one reply for each number.
    OwnZnodes { numbers: Vec<Sequence>, pending: Vec<ContenderId> },
    /// The Stat of the first of these new znodes.
    Czxid(NewZnodes),
}

/// The numbers of the znodes that one transaction has created.
pub(super) enum NewZnodes {
    Joined(Sequence),
    /// One znode for each lock.
    AllJoined(Vec<Sequence>),
}

impl NewZnodes {
    pub(super) fn with_czxid(self, prefix: Prefix, czxid: Zxid) -> Reply {
        let node = |sequence| Node { prefix, sequence, czxid };
        match self {
            NewZnodes::Joined(sequence) => Reply::Joined(node(sequence)),
            NewZnodes::AllJoined(sequences) => Reply::AllJoined(sequences.into_iter().map(node).collect()),
        }
    }
}

impl Acquisition {
    /// Begins the creation of the lock directory and its parents.
    pub(super) fn create_directory(&self, zk: &ZkSession, path: &LockPath) -> Interpreted {
        let lasting =
            self.config.tracks_crashes || self.config.delay > 0 || self.needs_persistent_directory();
        next_create(zk, DirectoryCreation::new(path.as_str().to_owned(), lasting))
    }

    /// Begins the search for every znode of this acquisition, after creates whose replies were lost.
    pub(super) fn find_mine(&self, lock_index: usize) -> Interpreted {
        let directory = &self.directories[lock_index];
        if !self.session.can_list_znodes() {
            return list_children(directory);
        }
        let prefix = directory.child(&self.config.prefix().to_string());
        send_one(session::ephemerals_request(&prefix), Routine::OwnPaths)
    }

    /// Continues with the replies to the last round.
    pub(super) fn continue_routine(
        &self,
        zk: &ZkSession,
        lock_index: usize,
        routine: Routine,
        outcomes: Vec<ReplyOutcome>,
    ) -> Result<Interpreted, ZkError> {
        let directory = &self.directories[lock_index];
        let mut outcomes = outcomes.into_iter();
        let mut reply = || session::reply_or_error(outcomes.next().flatten());
        match routine {
            Routine::Directory(mut creation) => {
                creation.handle_outcome(reply().map(drop))?;
                Ok(next_create(zk, creation))
            }
            Routine::OwnPaths => match reply() {
                Err(ZkError { failure: RequestFailure::Refused(_), .. }) => {
                    self.session.record_refused_listing();
                    Ok(list_children(directory))
                }
                paths => {
                    let paths = session::into_paths(paths?).ok_or_else(unexpected)?;
                    let below = directory.child("");
                    let names = paths.iter().filter_map(|path| path.strip_prefix(&below));
                    Ok(self.read_znodes(directory, names))
                }
            },
            Routine::Children => {
                let (names, _) = session::into_children(reply()?).ok_or_else(unexpected)?;
                Ok(self.read_znodes(directory, names.iter().map(String::as_str)))
            }
            Routine::OwnZnodes { numbers, pending } => {
                let prefix = self.config.prefix();
                let mut mine = Vec::new();
                for sequence in numbers {
                    let read = match reply() {
                        Err(ZkError { failure: RequestFailure::NoNode, .. }) => continue,
                        read => read?,
                    };
                    let (data, stat) = session::into_data(read).ok_or_else(unexpected)?;
                    if self.is_own_znode(directory, &data, &stat, &pending) {
                        mine.push(Node { prefix, sequence, czxid: stat.czxid });
                    }
                }
                Ok(Interpreted::Answer(Reply::Mine(mine)))
            }
            Routine::Czxid(created) => {
                let czxid = session::czxid_of_new_znode(outcomes.next().flatten(), self.session.id())?;
                Ok(Interpreted::Answer(created.with_czxid(self.config.prefix(), czxid)))
            }
        }
    }

    /// Reads the znodes whose names have the prefix of this acquisition.
    fn read_znodes<'a>(&self, directory: &LockPath, names: impl Iterator<Item = &'a str>) -> Interpreted {
        let prefix = self.config.prefix();
        let numbers: Vec<Sequence> = names.filter_map(|name| prefix.parse_sequence(name)).collect();
        if numbers.is_empty() {
            return Interpreted::Answer(Reply::Mine(Vec::new()));
        }
        let read = |number: &Sequence| session::read_request(&directory.child(&prefix.name(*number)));
        let reads = numbers.iter().map(read).collect();
        // Keeps the acquisitions of now, because one may end before its znode is read. Each acquisition with a znode in the
        // listing is among them: the server has not answered the delete of that znode yet, and a later acquisition has sent
        // its create after the listing.
        let pending = self.session.acquisition_ids();
        Interpreted::Send(reads, ExpectedReply::Routine(Routine::OwnZnodes { numbers, pending }))
    }

    /// Returns whether a znode with the prefix of this acquisition belongs to it: a znode of the session that belongs to no
    /// other acquisition, and contains the UUID of this acquisition in its name or in its data. See [`is_mine`] for a
    /// znode without a UUID.
    fn is_own_znode(
        &self,
        directory: &LockPath,
        data: &[u8],
        stat: &ZnodeStat,
        pending: &[ContenderId],
    ) -> bool {
        if stat.owner != self.session.id() {
            return false;
        }
        let data = NodeData::parse(data);
        let is_of = |id: ContenderId| data.as_ref().is_some_and(|data| data.is_written_by(id));
        let creator = if self.config.prefix().has_id() || is_of(self.id) {
            Creator::Searching
        } else if pending.iter().any(|id| is_of(*id)) {
            Creator::Pending
        } else {
            Creator::Unknown
        };
        let known = || self.session.acquisition_of_node(stat.czxid, directory);
        let owner = find_znode_owner(known, || self.other_acquisition_may_learn_of_znode(directory));
        is_mine(owner, self.id, creator, || self.session.has_node(self.id, stat.czxid))
    }

    fn other_acquisition_may_learn_of_znode(&self, directory: &LockPath) -> bool {
        let mut others = self.session.acquisitions().into_iter().filter(|other| other.id() != self.id);
        others.any(|other| other.may_learn_of_znode_in(directory))
    }
}

fn next_create(zk: &ZkSession, creation: DirectoryCreation) -> Interpreted {
    match creation.next_request(zk) {
        Some(request) => send_one(request, Routine::Directory(creation)),
        None => Interpreted::Answer(Reply::Done),
    }
}

fn list_children(directory: &LockPath) -> Interpreted {
    send_one(session::list_request(directory.as_str()), Routine::Children)
}

/// Reads a new znode, because the server has not returned its czxid.
pub(super) fn read_czxid(path: &str, created: NewZnodes) -> Interpreted {
    send_one(session::exists_request(path), Routine::Czxid(created))
}

fn send_one(request: wire::Request, routine: Routine) -> Interpreted {
    Interpreted::Send(vec![request], ExpectedReply::Routine(routine))
}
