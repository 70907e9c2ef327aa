//! Translates the machine's requests into requests of the session, and their replies into answers.

use std::sync::Arc;

use zoolock_core::Sequence;
use zoolock_core::contender::{
    Beginning, Directory, Failure, Node, Parting, Reply, Request, RequestId, Says,
};
use zoolock_core::names::{Naming, Prefix};
use zoolock_core::record::{Left, Marker, Record};
use zoolock_wire as wire;

use super::watches::SetWatch;
use super::{Acquisition, InFlight, State, machine};
use crate::base::path::LockPath;
use crate::engine::data::{self, NodeData};
use crate::zk::directory;
use crate::zk::keeper::{
    self, Address, Answer, Created, Joined, Joining, Keeper, KeeperError, Op, Outcome, Part, Stat, WatchKey,
    WatchNumber, failed,
};

/// The reply that a request expects.
pub(super) enum Expected {
    /// The create of a contender.
    Joined(Joining),
    /// The creates of a multi-lock.
    AllJoined,
    Directory,
    Children,
    /// A contender's znode, with its data.
    Node,
    /// The state of the acquisition's own znode.
    Own,
    /// The results of a transaction of this many operations.
    Transaction(usize),
    /// Success without a value.
    Done,
    /// The result of a request that takes several calls.
    Result,
}

/// An answer that has arrived.
pub(super) enum Arrived {
    Outcome { part: Part, sent: zoolock_client::Instant, outcome: Outcome },
    Result(Result<Reply, KeeperError>),
}

/// The meaning of a reply.
pub(super) enum Meaning {
    Now(Result<Reply, KeeperError>),
    /// Another request is needed.
    Later(Answer<Reply>),
}

/// Returns whether the request deletes a znode of the acquisition.
fn is_departure(request: &Request) -> bool {
    matches!(
        request,
        Request::Delete(_) | Request::Withdraw(_) | Request::Release { .. } | Request::ReleaseAll(_)
    )
}

/// Returns whether a success proves that the leader knows the session. A request that takes several calls
/// counts from the first call, which extends the lease by less.
fn is_write(request: &Request) -> bool {
    match request {
        Request::Join
        | Request::JoinAll
        | Request::Delete(_)
        | Request::Withdraw(_)
        | Request::Release { .. }
        | Request::ReleaseAll(_)
        | Request::Barrier
        | Request::Hold { .. }
        | Request::HoldAll(_)
        | Request::WriteSize { .. }
        | Request::SayGranted { .. }
        | Request::DeleteDirectory => true,
        // They may succeed without a successful write: the directory exists, or a read shows that the downgrade is done.
        Request::Downgrade { .. }
        | Request::MakeDirectory
        | Request::ReadDirectory
        | Request::List
        | Request::WatchChildren(_)
        | Request::FindMine
        | Request::Watch { .. }
        | Request::WatchOwn { .. }
        | Request::Exists(_)
        | Request::Sync
        | Request::Sleep(_) => false,
    }
}

impl Acquisition {
    /// Sends a request now.
    pub(super) fn send(self: &Arc<Self>, state: &mut State, id: RequestId, request: Request) {
        // After the end of the session there are no answers. The machine gets the event of that end instead.
        let Some(keeper) = self.session.keeper().filter(|_| self.session.end().is_none()) else { return };
        let (writes, departs) = (is_write(&request), is_departure(&request));
        let number = state.watches.new_number();
        let (expected, watch) = self.call(&keeper, id, request, number, state.in_background);
        let (sent, arrived) = (None, None);
        state.in_flight.push_back(InFlight { id, expected, writes, departs, watch, sent, arrived });
    }

    /// Sends a request. Returns the reply that it expects, and the watch that it sets. `number`: the number of that watch.
    fn call(
        self: &Arc<Self>,
        keeper: &Arc<Keeper>,
        id: RequestId,
        request: Request,
        number: WatchNumber,
        in_background: bool,
    ) -> (Expected, Option<SetWatch>) {
        let place = machine::place(&self.directories, id);
        let directory = &self.directories[place];
        let (path, child) = (directory.as_str(), |node: &Node| directory.child(&node.name()));
        let to = Address { contender: self.id, request: id, part: Part::All };
        let send = |request, expected| {
            keeper.send(&request, to, None);
            (expected, None)
        };
        let watch = |(request, key): (wire::Request, WatchKey), id, expected| {
            keeper.send(&request, to, Some(number));
            (expected, Some(SetWatch { id, number, key }))
        };
        let commit = |ops: Vec<Op>| {
            let expected = Expected::Transaction(ops.len());
            send(keeper.multi(ops), expected)
        };
        let release_soon = |ops: Vec<Op>| {
            let expected = Expected::Transaction(ops.len());
            keeper.release_soon(ops, to);
            (expected, None)
        };
        match request {
            Request::Join => {
                let prefix = directory.child(&self.config.prefix().to_string());
                (Expected::Joined(keeper.join(&prefix, &self.data.encode(), to)), None)
            }
            Request::JoinAll => {
                let (prefix, data) = (self.config.prefix().to_string(), self.data.encode());
                let join =
                    |directory: &LockPath| Op::Join { prefix: directory.child(&prefix), data: data.clone() };
                send(keeper.multi(self.directories.iter().map(join).collect()), Expected::AllJoined)
            }
            Request::MakeDirectory => {
                let lasting = self.config.tracks_crashes || self.config.delay > 0 || self.expects_to_stay();
                let made = directory::make(keeper.clone(), path.to_owned(), lasting);
                self.run(id, Box::pin(async move { made.await.map(|()| Reply::Done) }));
                (Expected::Result, None)
            }
            Request::ReadDirectory => send(keeper::reading(path), Expected::Directory),
            Request::List => send(keeper::listing(path), Expected::Children),
            Request::WatchChildren(id) => watch(Keeper::watching_children(path), id, Expected::Children),
            Request::Barrier => commit(vec![Op::Check(path.to_owned())]),
            Request::FindMine => {
                let (acquisition, keeper) = (self.clone(), keeper.clone());
                self.run(
                    id,
                    Box::pin(async move { acquisition.find_mine(keeper, place).await.map(Reply::Mine) }),
                );
                (Expected::Result, None)
            }
            Request::Watch { name, watch: id } => {
                watch(Keeper::watching(&directory.child(&name)), id, Expected::Node)
            }
            Request::WatchOwn { node, watch: id } => {
                watch(Keeper::watching(&child(&node)), id, Expected::Node)
            }
            Request::Exists(own) => send(keeper::exists(&child(&own)), Expected::Own),
            Request::Sync => send(wire::Request::Sync { path: path.to_owned() }, Expected::Done),
            Request::Delete(node) if in_background => release_soon(deletion(directory, node, None)),
            Request::Release { node, marker, version } if in_background && marker.left != Left::Panicked => {
                release_soon(deletion(directory, node, Some((marker, version))))
            }
            Request::Delete(own) => send(keeper::deletion(&child(&own)), Expected::Done),
            Request::Withdraw(node) => commit(self.release_ops(directory, node, None)),
            Request::Release { node, marker, version } => {
                commit(self.release_ops(directory, node, Some((marker, version))))
            }
            Request::ReleaseAll(partings) => {
                let places = self.directories.iter().zip(partings);
                let ops = places.flat_map(|(directory, Parting { node, marker })| {
                    self.release_ops(directory, node, marker)
                });
                commit(ops.collect())
            }
            Request::Hold { node, marker, version } => {
                let check = node.map(|node| Op::Check(child(&node)));
                let ops = check.into_iter().chain([record(directory, &marker, Some(version))]);
                commit(ops.collect())
            }
            Request::HoldAll(beginnings) => {
                let ops = beginnings.into_iter().flat_map(|Beginning { place, node, marker, version }| {
                    let directory = &self.directories[place];
                    [Op::Check(directory.child(&node.name())), record(directory, &marker, Some(version))]
                });
                commit(ops.collect())
            }
            Request::WriteSize { size, version } => {
                send(keeper::writing(path, size.encode().as_bytes(), Some(version)), Expected::Done)
            }
            Request::SayGranted { node, version, revoked } => {
                let data = self.data.granted(revoked).encode();
                send(keeper::writing(&child(&node), &data, Some(version)), Expected::Done)
            }
            Request::Downgrade { node, marker } => {
                self.run(id, self.downgrade_in_place(keeper, directory, node, marker));
                (Expected::Result, None)
            }
            Request::DeleteDirectory => send(keeper::deletion(path), Expected::Done),
            Request::Sleep(_) => unreachable!("sleeps never reach the service"),
        }
    }

    /// Returns the meaning of the reply to a request.
    pub(super) fn meaning(&self, expected: Expected, part: Part, outcome: Outcome) -> Meaning {
        let other = || failed(Failure::Unknown, "another answer was expected");
        let joining = match expected {
            Expected::Joined(joining) => joining,
            expected => {
                let reply = match keeper::reply(outcome) {
                    Ok(reply) => reply,
                    Err(error) => return Meaning::Now(Err(error)),
                };
                return Meaning::Now(match expected {
                    Expected::AllJoined => return self.all_joined(reply),
                    Expected::Directory => keeper::data(reply).ok_or_else(other).map(|(data, stat)| {
                        Reply::Directory(Directory {
                            czxid: stat.czxid,
                            pzxid: stat.pzxid,
                            version: stat.version,
                            children: stat.children,
                            record: Record::parse(&data),
                        })
                    }),
                    Expected::Children => keeper::names(reply)
                        .ok_or_else(other)
                        .map(|(names, stat)| Reply::Children { names, pzxid: stat.pzxid }),
                    Expected::Node => keeper::data(reply)
                        .ok_or_else(other)
                        .map(|(data, stat)| node(stat, data::says(&data))),
                    Expected::Own => match reply {
                        wire::Reply::Stat(stat) => Ok(node(stat.into(), Says::default())),
                        _ => Err(other()),
                    },
                    Expected::Transaction(parts) => match reply {
                        wire::Reply::Multi(results) => {
                            // A create has joined the transaction of a release.
                            let parts = if let Part::Before(at) = part { at + 1 } else { parts };
                            let done = keeper::transaction(results, parts);
                            done.map(|_| Reply::Done).map_err(|undone| undone.for_part(part))
                        }
                        // A transaction of one delete is sent without the frame of a transaction.
                        _ => Ok(Reply::Done),
                    },
                    Expected::Done => Ok(Reply::Done),
                    Expected::Joined(_) | Expected::Result => Err(other()),
                });
            }
        };
        let Some(keeper) = self.session.keeper() else { return Meaning::Now(Err(other())) };
        let prefix = self.config.prefix();
        let joined = move |(sequence, czxid)| Reply::Joined(Node { prefix, sequence, czxid });
        match keeper.joined(joining, part, outcome) {
            Joined::Now(result) => Meaning::Now(result.map(joined)),
            Joined::Later(answer) => Meaning::Later(Box::pin(async move { answer.await.map(joined) })),
        }
    }

    /// Evaluates the creates of a multi-lock. They are one transaction, so all znodes have the same czxid. Servers before
    /// 3.7.2 and 3.8.2 do not return it (ZOOKEEPER-4026); then one of the znodes is read.
    fn all_joined(&self, reply: wire::Reply) -> Meaning {
        let prefix = self.config.prefix();
        let unknown = |message: &str| failed(Failure::Unknown, message);
        let wire::Reply::Multi(results) = reply else {
            return Meaning::Now(Err(unknown("another answer was expected")));
        };
        let created = match keeper::transaction(results, self.directories.len()) {
            Ok(created) => created,
            Err(undone) => return Meaning::Now(Err(undone.for_part(Part::All))),
        };
        let nodes = move |created: &[Created], czxid| {
            let node = |created: &Created| {
                let name = created.path.rsplit('/').next().unwrap_or_default();
                let sequence = name.strip_prefix(&prefix.to_string()).and_then(Sequence::parse);
                sequence.map(|sequence| Node { prefix, sequence, czxid })
            };
            let nodes: Option<Vec<Node>> = created.iter().map(node).collect();
            let other = || failed(Failure::Unknown, "the service created other names than it was asked for");
            nodes.map(Reply::AllJoined).ok_or_else(other)
        };
        let (Some(first), Some(keeper)) = (created.first(), self.session.keeper()) else {
            return Meaning::Now(Err(unknown("the service created nothing")));
        };
        if let Some(czxid) = first.czxid {
            return Meaning::Now(nodes(&created, czxid));
        }
        let (look, session) = (keeper.exists(&first.path), keeper.session());
        Meaning::Later(Box::pin(async move {
            // The create has succeeded in spite of this error.
            let stat = look.await.map_err(|error| failed(Failure::Unknown, &error.message))?;
            let stat = stat.filter(|stat| stat.owner == session);
            let gone = || failed(Failure::Unknown, "the new znode was deleted at once");
            nodes(&created, stat.ok_or_else(gone)?.czxid)
        }))
    }

    /// Returns the operations of a release. The deletion of the znode alone may grant the lock to the successor. If the
    /// successor must read how this holder left, the znode is written first.
    fn release_ops(
        &self,
        directory: &LockPath,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
    ) -> Vec<Op> {
        let is_usual = marker.is_some_and(|(marker, _)| marker.left != Left::Panicked);
        let mut ops = Vec::new();
        if node.prefix.is_computable() && !is_usual {
            let path = directory.child(&node.name());
            ops.push(Op::Write { path, data: self.data.encode(), version: None });
        }
        ops.extend(deletion(directory, node, marker));
        ops
    }

    /// Replaces the writer's znode by a reader's with the same sequence number, and reads it in the same
    /// flight.
    fn downgrade_in_place(
        &self,
        keeper: &Keeper,
        directory: &LockPath,
        writer: Node,
        marker: Option<(Marker, Option<i32>)>,
    ) -> Answer<Reply> {
        let (prefix, sequence) = (writer.prefix.as_reader().unwrap_or(Prefix::Read), writer.sequence);
        let path = directory.child(&prefix.name(sequence));
        let mut ops = vec![
            Op::Delete(directory.child(&writer.name())),
            Op::Create { path: path.clone(), data: self.data.of_kind("reader").encode() },
        ];
        ops.extend(marker.map(|(marker, version)| record(directory, &marker, version)));
        let (session, id) = (self.session.id(), self.id);
        let (answer, look) = (keeper.commit(ops), keeper.read(&path));
        let own = self.session.clone();
        Box::pin(async move {
            let (answer, look) = (answer.await, look.await);
            match (&answer, look) {
                (Ok(_) | Err(KeeperError { failure: Failure::NoNode, .. }), Ok((data, stat)))
                    if stat.owner == session
                        // A client that overwrote the data (a revocation) has removed the UUID. But only this
                        // acquisition had this sequence number.
                        && NodeData::parse(&data).is_none_or(|data| data.is_of(id)) =>
                {
                    own.own(stat.czxid, id);
                    let reader = Node { prefix, sequence, czxid: stat.czxid };
                    Ok(Reply::Joined(reader))
                }
                // The create succeeded, and another client deleted the znode.
                (Ok(_), Err(error)) if error.failure == Failure::NoNode => Err(error),
                (Ok(_), Ok(_)) => Err(KeeperError { failure: Failure::NoNode, message: String::new() }),
                (Ok(_), Err(error)) => Err(KeeperError { failure: Failure::Unknown, ..error }),
                // Without the read, NoNode may mean that a first attempt succeeded.
                (Err(error), Err(look)) if !look.failure.is_answer() => {
                    Err(KeeperError { failure: Failure::Unknown, ..error.clone() })
                }
                (Err(error), _) => Err(error.clone()),
            }
        })
    }

    /// Returns every znode of this acquisition, after creates whose replies were lost.
    ///
    /// Such a znode belongs to the session, is known to no other acquisition, and has the UUID of this one. If
    /// another client overwrote its data (a revocation), the UUID is missing. Then the znode counts only if no
    /// other acquisition of this session may lack its znode here.
    async fn find_mine(&self, keeper: Arc<Keeper>, place: usize) -> Result<Vec<Node>, KeeperError> {
        let directory = &self.directories[place];
        let prefix = self.config.prefix();
        let start = directory.child(&prefix.to_string());
        let below = directory.child("");
        let names: Vec<Sequence> = match keeper.ephemerals(&start).await {
            Ok(paths) => paths.iter().filter_map(|p| prefix.number(p.strip_prefix(&below)?)).collect(),
            Err(KeeperError { failure: Failure::Refused(_), .. }) => {
                let (names, _) = keeper.children(directory.as_str()).await?;
                names.iter().filter_map(|name| prefix.number(name)).collect()
            }
            Err(error) => return Err(error),
        };
        let reads: Vec<_> = names
            .into_iter()
            .map(|sequence| (sequence, keeper.read(&directory.child(&prefix.name(sequence)))))
            .collect();
        let mut mine = Vec::new();
        for (sequence, read) in reads {
            let (data, stat) = match read.await {
                Ok(read) => read,
                Err(KeeperError { failure: Failure::NoNode, .. }) => continue,
                Err(error) => return Err(error),
            };
            if stat.owner != self.session.id() {
                continue;
            }
            let ours = match (self.session.owner_of(stat.czxid), NodeData::parse(&data)) {
                (Some(owner), _) => owner == self.id,
                _ if prefix.has_id() => true,
                (None, Some(data)) => data.is_of(self.id),
                (None, None) => !self.another_misses_a_znode(directory),
            };
            if ours {
                mine.push(Node { prefix, sequence, czxid: stat.czxid });
            }
        }
        Ok(mine)
    }

    /// Returns whether the directory must be persistent. kazoo creates a directory once for each of its
    /// objects, and fails if it is deleted later. With `kazoo_pattern`, kazoo's clients also queue with
    /// native names.
    fn expects_to_stay(&self) -> bool {
        let names = self.config.names;
        names.naming == Naming::Kazoo || names.kazoo_pattern
    }

    fn another_misses_a_znode(&self, directory: &LockPath) -> bool {
        let mut others = self.session.acquisitions().into_iter().filter(|other| other.id() != self.id);
        others.any(|other| other.is_nodeless_in(directory))
    }
}

fn node(stat: Stat, says: Says) -> Reply {
    Reply::Node { czxid: stat.czxid, owner: stat.owner, version: stat.version, says }
}

fn deletion(directory: &LockPath, node: Node, marker: Option<(Marker, Option<i32>)>) -> Vec<Op> {
    let mut ops = vec![Op::Delete(directory.child(&node.name()))];
    ops.extend(marker.map(|(marker, version)| record(directory, &marker, version)));
    ops
}

fn record(directory: &LockPath, marker: &Marker, version: Option<i32>) -> Op {
    Op::Write { path: directory.as_str().to_owned(), data: marker.encode().into_bytes(), version }
}
