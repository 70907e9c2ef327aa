//! Requests of the machine that take several rounds of requests to the server: the directories of a new lock, the search for
//! own znodes, and the czxid of a new znode.
//!
//! The rounds of several such requests run side by side. The answer of each keeps its place in the order of the machine's
//! requests (`replies.rs`).

use std::collections::VecDeque;

use zoolock_core::acquisition::{Node, Reply, RequestFailure};
use zoolock_core::{ContenderId, Sequence};
use zoolock_wire as wire;

use super::Acquisition;
use super::data::NodeData;
use super::expected::{ExpectedReply, Interpreted, Routine, Search, send_one, unexpected};
use crate::base::path::LockPath;
use crate::session::Connection;
use crate::session::znode_owner::{Creator, find_znode_owner, is_mine};
use crate::zk::directory::DirectoryCreation;
use crate::zk::session::{self, ReplyOutcome, ZkError, ZkSession, ZnodeStat};

impl Acquisition {
    /// Begins the creation of the lock directory and its parents.
    pub(super) fn create_directory(&self, zk: &ZkSession, path: &LockPath) -> Interpreted {
        let lasting =
            self.config.tracks_crashes || self.config.delay > 0 || self.needs_persistent_directory();
        next_create(zk, DirectoryCreation::new(path.as_str().to_owned(), lasting))
    }

    /// Continues the creation of a directory without the acquisition, unless the session has ended. Otherwise callers with a
    /// short deadline would never get a directory with several missing parents.
    pub(super) fn continue_alone(&self, expected: ExpectedReply) {
        if let ExpectedReply::Routine(Routine::Directory(creation)) = expected
            && let Some(zk) = self.session.zk().filter(|_| self.session.end().is_none())
        {
            let mut connection = self.session.connection();
            self.session.tasks().spawn(async move {
                tokio::select! {
                    biased;
                    _ = connection.wait_for(|now| *now == Connection::Ended) => {}
                    _ = creation.run(&zk) => {}
                }
            });
        }
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

    /// Continues with the next reply.
    pub(super) fn continue_routine(
        &self,
        zk: &ZkSession,
        lock_index: usize,
        routine: Routine,
        outcome: ReplyOutcome,
    ) -> Result<Interpreted, ZkError> {
        let directory = &self.directories[lock_index];
        let reply = session::reply_or_error(outcome);
        match routine {
            Routine::Directory(mut creation) => {
                creation.handle_outcome(reply.map(drop))?;
                Ok(next_create(zk, creation))
            }
            Routine::OwnPaths => match reply {
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
                let (names, _) = session::into_children(reply?).ok_or_else(unexpected)?;
                Ok(self.read_znodes(directory, names.iter().map(String::as_str)))
            }
            Routine::OwnZnodes(mut search) => {
                // Asks for the owner of each znode as soon as its reply is here, because the owner may end later.
                let found = self.own_znode(directory, &mut search, reply);
                if let Ok(mine) = &mut search.mine {
                    match found {
                        Ok(node) => mine.extend(node),
                        Err(error) => search.mine = Err(error),
                    }
                }
                // Waits for all replies also after a failure, because the machine uses the id of this request again.
                match search.numbers.is_empty() {
                    true => Ok(Interpreted::Answer(Reply::Mine(search.mine?))),
                    false => {
                        Ok(Interpreted::Send(Vec::new(), ExpectedReply::Routine(Routine::OwnZnodes(search))))
                    }
                }
            }
            Routine::Czxid(created) => {
                let czxid = session::czxid_of_new_znode(reply, self.session.id())?;
                Ok(Interpreted::Answer(created.with_czxid(self.config.prefix(), czxid)))
            }
        }
    }

    /// Reads the znodes whose names have the prefix of this acquisition.
    fn read_znodes<'a>(&self, directory: &LockPath, names: impl Iterator<Item = &'a str>) -> Interpreted {
        let prefix = self.config.prefix();
        let numbers: VecDeque<Sequence> = names.filter_map(|name| prefix.parse_sequence(name)).collect();
        if numbers.is_empty() {
            return Interpreted::Answer(Reply::Mine(Vec::new()));
        }
        let read = |number: &Sequence| session::read_request(&directory.child(&prefix.name(*number)));
        let reads = numbers.iter().map(read).collect();
        // Keeps the acquisitions of now, because one may end before its znode is read. The reads find no znode of any other
        // acquisition: one that has ended has seen its znode deleted, or the znode is a stray, which any acquisition may take.
        // A later one has sent its create after the listing.
        let pending = self.session.acquisition_ids();
        let search = Search { numbers, pending, mine: Ok(Vec::new()) };
        Interpreted::Send(reads, ExpectedReply::Routine(Routine::OwnZnodes(search)))
    }

    /// Returns the next znode of a search from the reply to its read, if it is an own one.
    fn own_znode(
        &self,
        directory: &LockPath,
        search: &mut Search,
        reply: Result<wire::Reply, ZkError>,
    ) -> Result<Option<Node>, ZkError> {
        let Some(sequence) = search.numbers.pop_front() else { return Err(unexpected()) };
        let read = match reply {
            Err(ZkError { failure: RequestFailure::NoNode, .. }) => return Ok(None),
            read => read?,
        };
        let (data, stat) = session::into_data(read).ok_or_else(unexpected)?;
        let node = Node { prefix: self.config.prefix(), sequence, czxid: stat.czxid };
        Ok(self.is_own_znode(directory, &data, &stat, &search.pending).then_some(node))
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
        let known = self.session.acquisition_of_node(stat.czxid, directory);
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
