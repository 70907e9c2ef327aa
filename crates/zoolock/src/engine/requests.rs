//! Translates the machine's requests into requests of the ZooKeeper session, and the server's
//! replies into answers for the machine. The machine is the acquisition's state machine.

use std::sync::Arc;

use zoolock_core::Sequence;
use zoolock_core::acquisition::{
    Directory, HoldOp, Node, NodeFlags, ReleaseOp, Reply, Request, RequestFailure, RequestId, lock_index,
};
use zoolock_core::names::{Naming, Prefix};
use zoolock_core::record::{self, HolderState, Marker, Record};
use zoolock_wire as wire;

use super::expected::{ArrivedReply, ExpectedReply, Interpreted, NewZnodes, read_czxid, unexpected};
use super::watches::SetWatch;
use super::{Acquisition, AcquisitionState, SentRequest};
use crate::base::path::LockPath;
use crate::engine::data::{self, NodeData};
use crate::zk::session::{
    self, Created, NewZnode, Op, ReplyAddress, TransactionPart, WatchKey, WatchNumber, ZkError, ZkSession,
    ZnodeStat, zk_error,
};

/// Returns whether the request deletes a znode of the acquisition.
fn deletes_own_znode(request: &Request) -> bool {
    matches!(
        request,
        Request::Delete(_) | Request::Withdraw(_) | Request::Release { .. } | Request::ReleaseAll(_)
    )
}

/// Returns whether the request creates a znode of this acquisition.
fn creates_own_znode(request: &Request) -> bool {
    matches!(request, Request::Join | Request::JoinAll | Request::Downgrade { .. })
}

/// Returns whether a success proves that a quorum has confirmed a write of the session. Such a
/// success extends the lease from the time at which the request was sent. If the answer needs
/// another request ([`Interpreted::Send`]), the time of the first request counts, which
/// extends the lease by less.
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
        | Request::MarkGranted { .. }
        | Request::Downgrade { .. }
        | Request::DeleteDirectory => true,
        // `MakeDirectory` does not count as a write, because it succeeds without one if the directory exists.
        Request::MakeDirectory
        | Request::ReadDirectory
        | Request::List
        | Request::WatchChildren(_)
        | Request::FindMine
        | Request::FindReader(_)
        | Request::Watch { .. }
        | Request::WatchOwn { .. }
        | Request::Exists(_)
        | Request::Sync
        | Request::Sleep(_) => false,
    }
}

impl Acquisition {
    /// Sends a request of the machine, and adds it to the requests in flight.
    pub(super) fn send(self: &Arc<Self>, state: &mut AcquisitionState, id: RequestId, request: Request) {
        // Sends nothing after the end of the session, because the machine gets that end in place of answers.
        let Some(zk) = self.session.zk().filter(|_| self.session.end().is_none()) else { return };
        let (writes, creates_own_znode) = (is_write(&request), creates_own_znode(&request));
        let deletes_own_znode = deletes_own_znode(&request);
        let number = state.watches.new_number();
        let (expected, watch) = self.send_request(&zk, id, request, number, state.in_background);
        let (sent, replies, answer) = (None, Vec::new(), None);
        state.in_flight.push_back(SentRequest {
            id,
            expected,
            writes,
            creates_own_znode,
            deletes_own_znode,
            watch,
            sent,
            replies,
            answer,
        });
    }

    /// Sends a request to the server. Returns the expected reply, and the watch that the request sets. `number`: the
    /// number of that watch.
    fn send_request(
        &self,
        zk: &Arc<ZkSession>,
        id: RequestId,
        request: Request,
        number: WatchNumber,
        in_background: bool,
    ) -> (ExpectedReply, Option<SetWatch>) {
        let lock_index = lock_index(id);
        let directory = &self.directories[lock_index];
        let (path, child) = (directory.as_str(), |node: &Node| directory.child(&node.name()));
        let to = ReplyAddress { contender: self.id, request: id, part: TransactionPart::All };
        let send = |request, expected| {
            zk.send(&request, to, None);
            (expected, None)
        };
        let watch = |(request, key): (wire::Request, WatchKey), id, expected| {
            zk.send(&request, to, Some(number));
            (expected, Some(SetWatch { id, number, key }))
        };
        let commit = |ops: Vec<Op>| {
            let expected = ExpectedReply::Transaction(ops.len());
            send(zk.multi(ops), expected)
        };
        // The first round is always one request.
        let begin = |interpreted| match interpreted {
            Interpreted::Send(requests, expected) => {
                requests.iter().for_each(|request| zk.send(request, to, None));
                (expected, None)
            }
            Interpreted::Answer(_) => unreachable!("a routine begins with a request"),
        };
        let release_soon = |ops: Vec<Op>| {
            let expected = ExpectedReply::Transaction(ops.len());
            zk.defer_release(ops, to);
            (expected, None)
        };
        match request {
            Request::Join => {
                let prefix = directory.child(&self.config.prefix().to_string());
                (ExpectedReply::Joined(zk.join(&prefix, &self.data.encode(), to)), None)
            }
            Request::JoinAll => {
                let (prefix, data) = (self.config.prefix().to_string(), self.data.encode());
                let join =
                    |directory: &LockPath| Op::Join { prefix: directory.child(&prefix), data: data.clone() };
                send(zk.multi(self.directories.iter().map(join).collect()), ExpectedReply::AllJoined)
            }
            Request::MakeDirectory => begin(self.create_directory(zk, directory)),
            Request::ReadDirectory => send(session::read_request(path), ExpectedReply::Directory),
            Request::List => send(session::list_request(path), ExpectedReply::Children),
            Request::WatchChildren(id) => {
                watch(ZkSession::watch_children_request(path), id, ExpectedReply::Children)
            }
            Request::Barrier => commit(vec![Op::Check(path.to_owned())]),
            Request::FindMine => begin(self.find_mine(lock_index)),
            Request::Watch { name, watch: id } => {
                watch(ZkSession::watch_request(&directory.child(&name)), id, ExpectedReply::Node)
            }
            Request::WatchOwn { node, watch: id } => {
                watch(ZkSession::watch_request(&child(&node)), id, ExpectedReply::Node)
            }
            Request::Exists(own) => send(session::exists_request(&child(&own)), ExpectedReply::Own),
            Request::Sync => send(wire::Request::Sync { path: path.to_owned() }, ExpectedReply::Done),
            Request::Delete(node) if in_background => release_soon(delete_ops(directory, node, None)),
            Request::Release { node, marker, version }
                if in_background && marker.state != HolderState::Panicked =>
            {
                release_soon(delete_ops(directory, node, Some((marker, version))))
            }
            Request::Delete(own) => send(session::delete_request(&child(&own)), ExpectedReply::Done),
            Request::Withdraw(node) => commit(self.release_ops(directory, node, None)),
            Request::Release { node, marker, version } => {
                commit(self.release_ops(directory, node, Some((marker, version))))
            }
            Request::ReleaseAll(releases) => {
                let releases = self.directories.iter().zip(releases);
                let ops = releases.flat_map(|(directory, ReleaseOp { node, marker })| {
                    self.release_ops(directory, node, marker)
                });
                commit(ops.collect())
            }
            Request::Hold { node, marker, version } => {
                let check = node.map(|node| Op::Check(child(&node)));
                let ops = check.into_iter().chain([self.write_held_op(directory, &marker, version)]);
                commit(ops.collect())
            }
            Request::HoldAll(holds) => {
                let ops = holds.into_iter().flat_map(|HoldOp { lock_index, node, marker, version }| {
                    let directory = &self.directories[lock_index];
                    [
                        Op::Check(directory.child(&node.name())),
                        self.write_held_op(directory, &marker, version),
                    ]
                });
                commit(ops.collect())
            }
            Request::WriteSize { size, version } => send(
                session::write_request(path, size.encode().as_bytes(), Some(version)),
                ExpectedReply::Done,
            ),
            Request::MarkGranted { node, version, revoked } => {
                let data = self.data.with_granted(revoked).encode();
                send(session::write_request(&child(&node), &data, Some(version)), ExpectedReply::Done)
            }
            Request::Downgrade { node, marker } => commit(self.downgrade_ops(directory, node, marker)),
            Request::FindReader(writer) => send(
                session::read_request(&directory.child(&reader_name(writer))),
                ExpectedReply::Reader(writer),
            ),
            Request::DeleteDirectory => send(session::delete_request(path), ExpectedReply::Done),
            Request::Sleep(_) => unreachable!("sleeps are not sent to the server"),
        }
    }

    /// Returns the operation that writes a `held` marker, with the host and the process of this holder.
    fn write_held_op(&self, directory: &LockPath, marker: &Marker, version: i32) -> Op {
        let NodeData { host, pid, .. } = &self.data;
        let pid = pid.map_or_else(String::new, |pid| pid.to_string());
        let holder = format!("{}:{pid}", host.as_deref().unwrap_or_default());
        let data = marker.encode_with_holder(&holder).into_bytes();
        Op::Write { path: directory.as_str().to_owned(), data, version: Some(version) }
    }

    /// Translates the replies to the request `id`.
    ///
    /// # Errors
    /// The request has failed, or its outcome is unknown.
    pub(super) fn interpret(
        &self,
        id: RequestId,
        expected: ExpectedReply,
        replies: Vec<ArrivedReply>,
    ) -> Result<Interpreted, ZkError> {
        let zk = self.session.zk().ok_or_else(unexpected)?;
        let mut replies = replies.into_iter();
        let ArrivedReply { part, outcome, .. } = replies.next().ok_or_else(unexpected)?;
        let mut rest = replies.map(|reply| reply.outcome);
        match expected {
            ExpectedReply::Joined(joining) => {
                match zk.interpret_join_reply(joining, part, outcome, rest.next())? {
                    NewZnode::Known(sequence, czxid) => {
                        let created = NewZnodes::Joined(sequence);
                        Ok(Interpreted::Answer(created.with_czxid(self.config.prefix(), czxid)))
                    }
                    NewZnode::Unread(sequence, path) => Ok(read_czxid(&path, NewZnodes::Joined(sequence))),
                }
            }
            ExpectedReply::AllJoined => self.all_joined(session::reply_or_error(outcome)?),
            ExpectedReply::Routine(routine) => self.continue_routine(&zk, lock_index(id), routine, outcome),
            expected => {
                let reply = session::reply_or_error(outcome)?;
                self.interpret_one(id, expected, part, reply).map(Interpreted::Answer)
            }
        }
    }

    /// Translates the reply to a request that gets one reply.
    fn interpret_one(
        &self,
        id: RequestId,
        expected: ExpectedReply,
        part: TransactionPart,
        reply: wire::Reply,
    ) -> Result<Reply, ZkError> {
        match expected {
            ExpectedReply::Directory => {
                let (data, stat) = session::into_data(reply).ok_or_else(unexpected)?;
                if let Some(holder) = record::holder_in(&data) {
                    self.crashes.remember_holder(lock_index(id), holder);
                }
                Ok(Reply::Directory(Directory {
                    czxid: stat.czxid,
                    pzxid: stat.pzxid,
                    version: stat.version,
                    children: stat.children,
                    record: Record::parse(&data),
                }))
            }
            ExpectedReply::Children => {
                let (names, stat) = session::into_children(reply).ok_or_else(unexpected)?;
                Ok(Reply::Children { names, pzxid: stat.pzxid })
            }
            ExpectedReply::Node => {
                let (data, stat) = session::into_data(reply).ok_or_else(unexpected)?;
                Ok(node_reply(stat, data::parse_flags(&data)))
            }
            ExpectedReply::Own => match reply {
                wire::Reply::Stat(stat) => Ok(node_reply(stat.into(), NodeFlags::default())),
                _ => Err(unexpected()),
            },
            ExpectedReply::Reader(writer) => {
                let (data, stat) = session::into_data(reply).ok_or_else(unexpected)?;
                self.own_reader(writer, &data, &stat)
            }
            ExpectedReply::Transaction(parts) => match reply {
                wire::Reply::Multi(results) => {
                    // Counts one more operation if the create of another acquisition has joined the
                    // transaction of this release.
                    let parts = if let TransactionPart::Before(at) = part { at + 1 } else { parts };
                    let done = session::created_znodes(results, parts);
                    done.map(|_| Reply::Done).map_err(|failed_transaction| failed_transaction.error_for(part))
                }
                // A transaction of one delete is sent as a plain delete.
                _ => Ok(Reply::Done),
            },
            ExpectedReply::Done => Ok(Reply::Done),
            ExpectedReply::Joined(_)
            | ExpectedReply::AllJoined
            | ExpectedReply::Routine(_)
            | ExpectedReply::Taken => Err(unexpected()),
        }
    }

    /// Translates the reply to the creates of a multi-lock. All creates are one transaction, so all
    /// znodes have the same czxid. Servers before 3.7.2 and 3.8.2 do not return the czxid
    /// (ZOOKEEPER-4026). If the czxid is missing, one of the znodes is read.
    fn all_joined(&self, reply: wire::Reply) -> Result<Interpreted, ZkError> {
        let prefix = self.config.prefix();
        let wire::Reply::Multi(results) = reply else { return Err(unexpected()) };
        let created = session::created_znodes(results, self.directories.len())
            .map_err(|failed_transaction| failed_transaction.error_for(TransactionPart::All))?;
        let sequence = |created: &Created| {
            let name = created.path.rsplit('/').next().unwrap_or_default();
            name.strip_prefix(&prefix.to_string()).and_then(Sequence::parse)
        };
        let sequences: Option<Vec<Sequence>> = created.iter().map(sequence).collect();
        match (sequences.map(NewZnodes::AllJoined), created.first()) {
            (Some(znodes), Some(Created { czxid: Some(czxid), .. })) => {
                Ok(Interpreted::Answer(znodes.with_czxid(prefix, *czxid)))
            }
            (Some(znodes), Some(first)) => Ok(read_czxid(&first.path, znodes)),
            _ => {
                Err(zk_error(RequestFailure::Unknown, "the server created znodes with other names, or none"))
            }
        }
    }

    /// Returns the operations of a release: the deletion of the znode, and the marker if there is
    /// one.
    ///
    /// A successor that uses look-ahead takes the lock as soon as its watch reports the deletion of
    /// this znode, without another read. If the successor must read how this holder left, the
    /// transaction writes to the znode before it deletes the znode. The successor's watch then
    /// reports a change instead of a deletion, so the successor reads the lock directory first.
    fn release_ops(
        &self,
        directory: &LockPath,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
    ) -> Vec<Op> {
        let is_usual = marker.is_some_and(|(marker, _)| marker.state != HolderState::Panicked);
        let mut ops = Vec::new();
        if node.prefix.is_computable() && !is_usual {
            let path = directory.child(&node.name());
            ops.push(Op::Write { path, data: self.data.encode(), version: None });
        }
        ops.extend(delete_ops(directory, node, marker));
        ops
    }

    /// Returns the operations that replace the writer's znode by a reader's znode with the same sequence number.
    fn downgrade_ops(
        &self,
        directory: &LockPath,
        writer: Node,
        marker: Option<(Marker, Option<i32>)>,
    ) -> Vec<Op> {
        let create = Op::Create {
            path: directory.child(&reader_name(writer)),
            data: self.data.with_kind("reader").encode(),
        };
        let mut ops = vec![Op::Delete(directory.child(&writer.name())), create];
        ops.extend(marker.map(|(marker, version)| write_record_op(directory, &marker, version)));
        ops
    }

    /// Returns the reader's znode that was read, if it is ours. Accepts data without a UUID, because a client that asked for a
    /// release may have overwritten the data. The sequence number still shows whose znode it is.
    fn own_reader(&self, writer: Node, data: &[u8], stat: &ZnodeStat) -> Result<Reply, ZkError> {
        let is_ours = stat.owner == self.session.id()
            && NodeData::parse(data).is_none_or(|data| data.is_written_by(self.id));
        match is_ours {
            true => {
                let (prefix, sequence) = (reader_prefix(writer), writer.sequence);
                Ok(Reply::Joined(Node { prefix, sequence, czxid: stat.czxid }))
            }
            false => Err(zk_error(RequestFailure::NoNode, "another contender has the reader's name")),
        }
    }

    /// Returns whether the directory must be persistent. kazoo creates a directory once for each of
    /// its objects, and fails if the directory is deleted later. With `kazoo_pattern`, kazoo's
    /// clients share the queue of zoolock's native names, too.
    pub(super) fn needs_persistent_directory(&self) -> bool {
        let names = self.config.names;
        names.naming == Naming::Kazoo || names.kazoo_pattern
    }
}

fn reader_prefix(writer: Node) -> Prefix {
    writer.prefix.as_reader().unwrap_or(Prefix::Read)
}

fn reader_name(writer: Node) -> String {
    reader_prefix(writer).name(writer.sequence)
}

fn node_reply(stat: ZnodeStat, flags: NodeFlags) -> Reply {
    Reply::Node { czxid: stat.czxid, owner: stat.owner, version: stat.version, flags }
}

fn delete_ops(directory: &LockPath, node: Node, marker: Option<(Marker, Option<i32>)>) -> Vec<Op> {
    let mut ops = vec![Op::Delete(directory.child(&node.name()))];
    ops.extend(marker.map(|(marker, version)| write_record_op(directory, &marker, version)));
    ops
}

fn write_record_op(directory: &LockPath, marker: &Marker, version: Option<i32>) -> Op {
    Op::Write { path: directory.as_str().to_owned(), data: marker.encode().into_bytes(), version }
}
