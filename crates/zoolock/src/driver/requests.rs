//! Translates the machine's requests into calls of the keeper.

use std::pin::Pin;
use std::sync::Arc;

use zoolock_core::Sequence;
use zoolock_core::contender::{Beginning, Directory, Failure, Node, Parting, Reply, Request, Says, WatchId};
use zoolock_core::names::{Naming, Prefix};
use zoolock_core::record::{Left, Marker, Record};

use super::{Acquisition, ReplyWithWatch};
use crate::data::{self, NodeData};
use crate::directory;
use crate::keeper::{Answer, Created, Keeper, KeeperError, Op, Stat, Watch};
use crate::path::LockPath;

type Outcome = Pin<Box<dyn Future<Output = Result<ReplyWithWatch, KeeperError>> + Send>>;

/// Returns whether the request deletes a znode of ours.
pub(super) fn is_departure(request: &Request) -> bool {
    matches!(
        request,
        Request::Delete(_) | Request::Withdraw(_) | Request::Release { .. } | Request::ReleaseAll(_)
    )
}

/// Returns whether the answer may prove that the leader knows our session. A request that takes several calls
/// counts from the first call, which extends the lease by less.
pub(super) fn is_write(request: &Request) -> bool {
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
        // They may succeed although no write did: the directory exists, or a read says that the downgrade is done.
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
    /// Sends a request now, and returns a future for its answer.
    pub(super) fn call(self: &Arc<Self>, keeper: Arc<dyn Keeper>, place: usize, request: Request) -> Outcome {
        let directory = &self.directories[place];
        let path = directory.as_str();
        match request {
            Request::Join => {
                let prefix = self.config.prefix();
                let joined = keeper.join(&directory.child(&prefix.to_string()), &self.data.encode());
                map_reply(joined, move |(sequence, czxid)| {
                    Ok(Reply::Joined(Node { prefix, sequence, czxid }))
                })
            }
            Request::JoinAll => self.join_all(keeper),
            Request::MakeDirectory => {
                let lasting = self.config.tracks_crashes || self.config.delay > 0 || self.expects_to_stay();
                let made: Answer<()> = Box::pin(directory::make(keeper, path.to_owned(), lasting));
                done(made)
            }
            Request::ReadDirectory => map_reply(keeper.read(path), |(data, stat)| {
                Ok(Reply::Directory(Directory {
                    czxid: stat.czxid,
                    pzxid: stat.pzxid,
                    version: stat.version,
                    children: stat.children,
                    record: Record::parse(&data),
                }))
            }),
            Request::List => map_reply(keeper.children(path), |(names, stat)| {
                Ok(Reply::Children { names, pzxid: stat.pzxid })
            }),
            Request::WatchChildren(id) => {
                let answer = keeper.watch_children(path);
                Box::pin(async move {
                    let (names, stat, watch) = answer.await?;
                    let reply = Reply::Children { names, pzxid: stat.pzxid };
                    Ok(ReplyWithWatch { reply, watch: Some((id, watch)) })
                })
            }
            Request::Barrier => commit(&*keeper, vec![Op::Check(path.to_owned())]),
            Request::FindMine => {
                let acquisition = self.clone();
                let found: Answer<Vec<Node>> =
                    Box::pin(async move { acquisition.find_mine(keeper, place).await });
                map_reply(found, |nodes| Ok(Reply::Mine(nodes)))
            }
            Request::Watch { name, watch } => watched(keeper.watch(&directory.child(&name)), watch),
            Request::WatchOwn { node, watch } => watched(keeper.watch(&directory.child(&node.name())), watch),
            Request::Exists(own) => {
                map_reply(keeper.exists(&directory.child(&own.name())), |stat| match stat {
                    Some(stat) => Ok(node(stat, Says::default())),
                    None => Err(KeeperError { failure: Failure::NoNode, message: String::new() }),
                })
            }
            Request::Sync => done(keeper.sync(path)),
            Request::Delete(own) => done(keeper.delete(&directory.child(&own.name()))),
            Request::Withdraw(node) => commit(&*keeper, self.release_ops(directory, node, None)),
            Request::Release { node, marker, version } => {
                commit(&*keeper, self.release_ops(directory, node, Some((marker, version))))
            }
            Request::ReleaseAll(partings) => {
                let places = self.directories.iter().zip(partings);
                let ops = places.flat_map(|(directory, Parting { node, marker })| {
                    self.release_ops(directory, node, marker)
                });
                commit(&*keeper, ops.collect())
            }
            Request::Hold { node, marker, version } => {
                let check = node.map(|node| Op::Check(directory.child(&node.name())));
                let ops = check.into_iter().chain([record(directory, &marker, Some(version))]);
                commit(&*keeper, ops.collect())
            }
            Request::HoldAll(beginnings) => {
                let ops = beginnings.into_iter().flat_map(|Beginning { place, node, marker, version }| {
                    let directory = &self.directories[place];
                    [Op::Check(directory.child(&node.name())), record(directory, &marker, Some(version))]
                });
                commit(&*keeper, ops.collect())
            }
            Request::WriteSize { size, version } => {
                map_reply(keeper.write(path, size.encode().as_bytes(), Some(version)), |_| Ok(Reply::Done))
            }
            Request::SayGranted { node, version, revoked } => {
                let data = self.data.granted(revoked).encode();
                let path = directory.child(&node.name());
                map_reply(keeper.write(&path, &data, Some(version)), |_| Ok(Reply::Done))
            }
            Request::Downgrade { node, marker } => self.downgrade_in_place(&*keeper, directory, node, marker),
            Request::DeleteDirectory => done(keeper.delete(path)),
            Request::Sleep(_) => unreachable!("sleeps never reach the service"),
        }
    }

    /// Sends a release that the caller does not wait for.
    pub(super) fn release_later(
        &self,
        keeper: &dyn Keeper,
        place: usize,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
    ) -> Outcome {
        done(keeper.commit_soon(deletion(&self.directories[place], node, marker)))
    }

    /// Returns the operations of a release. If the deletion of our znode alone would grant the lock, but the
    /// successor must read how we left, our znode is written first.
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

    /// Creates a znode in each directory in one transaction, so all have the same czxid. Servers before 3.7.2
    /// and 3.8.2 do not return it (ZOOKEEPER-4026); then one of the znodes is read.
    fn join_all(&self, keeper: Arc<dyn Keeper>) -> Outcome {
        let prefix = self.config.prefix();
        let data = self.data.encode();
        let join = |directory: &LockPath| Op::Join {
            prefix: directory.child(&prefix.to_string()),
            data: data.clone(),
        };
        let answer = keeper.commit(self.directories.iter().map(join).collect());
        Box::pin(async move {
            let created = answer.await?;
            let unknown =
                |message: &str| KeeperError { failure: Failure::Unknown, message: message.to_owned() };
            let first = created.first().ok_or_else(|| unknown("the service created nothing"))?;
            let czxid = match first.czxid {
                Some(czxid) => czxid,
                None => {
                    // The create has succeeded in spite of this error.
                    let stat = keeper.exists(&first.path).await.map_err(|error| unknown(&error.message))?;
                    let stat = stat.filter(|stat| stat.owner == keeper.session());
                    stat.ok_or_else(|| unknown("the new znode was deleted at once"))?.czxid
                }
            };
            let node = |created: &Created| {
                let name = created.path.rsplit('/').next().unwrap_or_default();
                let sequence = name.strip_prefix(&prefix.to_string()).and_then(Sequence::parse);
                sequence.map(|sequence| Node { prefix, sequence, czxid })
            };
            let nodes: Option<Vec<Node>> = created.iter().map(node).collect();
            let nodes =
                nodes.ok_or_else(|| unknown("the service created other names than it was asked for"))?;
            Ok(ReplyWithWatch { reply: Reply::AllJoined(nodes), watch: None })
        })
    }

    /// Replaces the writer's znode by a reader's with the same sequence number, and reads it in the same
    /// flight.
    fn downgrade_in_place(
        &self,
        keeper: &dyn Keeper,
        directory: &LockPath,
        writer: Node,
        marker: Option<(Marker, Option<i32>)>,
    ) -> Outcome {
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
                        // A client that overwrote the data (a revocation) has removed our UUID. The sequence
                        // number was ours alone.
                        && NodeData::parse(&data).is_none_or(|data| data.is_of(id)) =>
                {
                    own.own(stat.czxid, id);
                    let reader = Node { prefix, sequence, czxid: stat.czxid };
                    Ok(ReplyWithWatch { reply: Reply::Joined(reader), watch: None })
                }
                // The create succeeded, and another client deleted the znode.
                (Ok(_), Err(error)) if error.failure == Failure::NoNode => Err(error),
                (Ok(_), Ok(_)) => Err(KeeperError { failure: Failure::NoNode, message: String::new() }),
                (Ok(_), Err(error)) => Err(KeeperError { failure: Failure::Unknown, ..error }),
                (Err(error), Err(look)) if look.failure == Failure::Unknown => {
                    Err(KeeperError { failure: Failure::Unknown, ..error.clone() })
                }
                (Err(error), _) => Err(error.clone()),
            }
        })
    }

    /// Returns every znode of this acquisition, after creates whose replies were lost.
    ///
    /// A znode is ours if it belongs to our session, to no other acquisition that knows it, and has our UUID.
    /// If another client overwrote its data (a revocation), the UUID is missing. Then the znode is ours only
    /// if no other acquisition of this session may lack its znode here.
    async fn find_mine(&self, keeper: Arc<dyn Keeper>, place: usize) -> Result<Vec<Node>, KeeperError> {
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
    /// objects, and fails if it is deleted later. With `kazoo_pattern`, kazoo's clients also queue with our
    /// native names.
    fn expects_to_stay(&self) -> bool {
        let names = self.config.names;
        names.naming == Naming::Kazoo || names.kazoo_pattern
    }

    fn another_misses_a_znode(&self, directory: &LockPath) -> bool {
        let mut others = self.session.acquisitions().into_iter().filter(|other| other.id != self.id);
        others.any(|other| other.is_nodeless_in(directory))
    }
}

fn watched(answer: Answer<(Vec<u8>, Stat, Watch)>, id: WatchId) -> Outcome {
    Box::pin(async move {
        let (data, stat, watch) = answer.await?;
        Ok(ReplyWithWatch { reply: node(stat, data::says(&data)), watch: Some((id, watch)) })
    })
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

fn commit(keeper: &dyn Keeper, ops: Vec<Op>) -> Outcome {
    map_reply(keeper.commit(ops), |_| Ok(Reply::Done))
}

fn map_reply<T: Send + 'static>(
    answer: Answer<T>,
    reply: impl FnOnce(T) -> Result<Reply, KeeperError> + Send + 'static,
) -> Outcome {
    Box::pin(async move { Ok(ReplyWithWatch { reply: reply(answer.await?)?, watch: None }) })
}

fn done(answer: Answer<()>) -> Outcome {
    map_reply(answer, |()| Ok(Reply::Done))
}
