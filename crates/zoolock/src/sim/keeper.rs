//! Implements [`Keeper`] over a [`Line`].

use std::sync::Arc;
use std::time::Duration;

use zoolock_core::contender::{Failure, Refusal};
use zoolock_core::{Sequence, SessionId, Zxid};
use zoolock_wire::{Acl, Code, CreateRequest, OpResult, Reply, Request, op, perms};

use super::Line;
use crate::keeper::{self, Created, Interruptions, Keeper, KeeperError, Op, Stat, Watch};

/// One session.
pub(super) struct LineKeeper {
    line: Arc<dyn Line>,
}

const EPHEMERAL: i32 = 1;
const PERSISTENT_SEQUENTIAL: i32 = 2;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const CONTAINER: i32 = 4;
const ANY_VERSION: i32 = -1;

type Read = (Reply, Option<Watch>);

impl LineKeeper {
    pub(super) fn new(line: Arc<dyn Line>) -> LineKeeper {
        LineKeeper { line }
    }

    /// Sends a request. A pending answer keeps the session open, as with the client crate.
    fn send<T: Send + 'static>(
        &self,
        request: Request,
        read: impl FnOnce(Read) -> Option<T> + Send + 'static,
    ) -> keeper::Answer<T> {
        let (answer, line) = (self.line.send(request), self.line.clone());
        Box::pin(async move {
            let answer = answer.await;
            drop(line);
            let answer = answer.ok_or_else(|| failed(Failure::Unknown, "the connection was lost"))?;
            let reply = answer.reply.map_err(refused)?;
            read((reply, answer.watch)).ok_or_else(|| failed(Failure::Unknown, "another answer was expected"))
        })
    }

    fn create(&self, path: &str, data: &[u8], flags: i32) -> keeper::Answer<(Sequence, Zxid)> {
        let op = if flags == CONTAINER { op::CREATE_CONTAINER } else { op::CREATE2 };
        let sequential = flags == EPHEMERAL_SEQUENTIAL;
        self.send(Request::Create(creation(op, path, data, flags)), move |(reply, _)| match reply {
            Reply::PathStat { path, stat } => {
                let number = sequential.then(|| path.get(path.len().checked_sub(10)?..)?.parse().ok());
                Some((Sequence(number.unwrap_or(Some(0))?), Zxid(stat.czxid)))
            }
            _ => None,
        })
    }

    fn stat(&self, request: Request) -> keeper::Answer<Stat> {
        self.send(request, |(reply, _)| match reply {
            Reply::Stat(stat) => Some(stat.into()),
            _ => None,
        })
    }

    fn data(&self, path: &str, watch: bool) -> keeper::Answer<(Vec<u8>, Stat, Option<Watch>)> {
        self.send(Request::GetData { path: path.to_owned(), watch }, |(reply, watch)| match reply {
            Reply::Data { data, stat } => {
                Some((data.map_or(Vec::new(), |data| data.to_vec()), stat.into(), watch))
            }
            _ => None,
        })
    }

    fn names(&self, path: &str, watch: bool) -> keeper::Answer<(Vec<String>, Stat, Option<Watch>)> {
        self.send(Request::GetChildren2 { path: path.to_owned(), watch }, |(reply, watch)| match reply {
            Reply::ChildrenStat { children, stat } => Some((children, stat.into(), watch)),
            _ => None,
        })
    }

    fn done(&self, request: Request) -> keeper::Answer<()> {
        self.send(request, |_| Some(()))
    }
}

impl Keeper for LineKeeper {
    fn session(&self) -> SessionId {
        SessionId(self.line.session())
    }

    fn timeout(&self) -> Duration {
        self.line.timeout()
    }

    fn is_connected(&self) -> bool {
        self.line.is_connected()
    }

    fn interruptions(&self) -> Interruptions {
        // This does not keep the session open.
        let (line, mut before) = (Arc::downgrade(&self.line), self.line.interruptions());
        Box::new(move || {
            let now = line.upgrade().map_or(before, |line| line.interruptions());
            std::mem::replace(&mut before, now) != now
        })
    }

    fn join(&self, prefix: &str, data: &[u8]) -> keeper::Answer<(Sequence, Zxid)> {
        self.create(prefix, data, EPHEMERAL_SEQUENTIAL)
    }

    fn create_ephemeral(&self, path: &str, data: &[u8]) -> keeper::Answer<()> {
        self.done(Request::Create(creation(op::CREATE2, path, data, EPHEMERAL)))
    }

    fn create_container(&self, path: &str) -> keeper::Answer<()> {
        self.done(Request::Create(creation(op::CREATE_CONTAINER, path, b"", CONTAINER)))
    }

    fn create_persistent(&self, path: &str) -> keeper::Answer<()> {
        self.done(Request::Create(creation(op::CREATE2, path, b"", 0)))
    }

    fn delete(&self, path: &str) -> keeper::Answer<()> {
        self.done(Request::Delete { path: path.to_owned(), version: ANY_VERSION })
    }

    fn exists(&self, path: &str) -> keeper::Answer<Option<Stat>> {
        let stat = self.stat(Request::Exists { path: path.to_owned(), watch: false });
        Box::pin(async move {
            match stat.await {
                Err(KeeperError { failure: Failure::NoNode, .. }) => Ok(None),
                outcome => outcome.map(Some),
            }
        })
    }

    fn read(&self, path: &str) -> keeper::Answer<(Vec<u8>, Stat)> {
        let read = self.data(path, false);
        Box::pin(async move { read.await.map(|(data, stat, _)| (data, stat)) })
    }

    fn watch(&self, path: &str) -> keeper::Answer<(Vec<u8>, Stat, Watch)> {
        let read = self.data(path, true);
        Box::pin(async move {
            let (data, stat, watch) = read.await?;
            Ok((data, stat, watch.ok_or_else(|| failed(Failure::Unknown, "no watch was set"))?))
        })
    }

    fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> keeper::Answer<Stat> {
        self.stat(writing(path, data, version))
    }

    fn children(&self, path: &str) -> keeper::Answer<(Vec<String>, Stat)> {
        let read = self.names(path, false);
        Box::pin(async move { read.await.map(|(names, stat, _)| (names, stat)) })
    }

    fn watch_children(&self, path: &str) -> keeper::Answer<(Vec<String>, Stat, Watch)> {
        let read = self.names(path, true);
        Box::pin(async move {
            let (names, stat, watch) = read.await?;
            Ok((names, stat, watch.ok_or_else(|| failed(Failure::Unknown, "no watch was set"))?))
        })
    }

    fn sync(&self, path: &str) -> keeper::Answer<()> {
        self.done(Request::Sync { path: path.to_owned() })
    }

    fn ephemerals(&self, prefix: &str) -> keeper::Answer<Vec<String>> {
        self.send(Request::GetEphemerals { prefix: prefix.to_owned() }, |(reply, _)| match reply {
            Reply::Children(paths) => Some(paths),
            _ => None,
        })
    }

    fn commit(&self, ops: Vec<Op>) -> keeper::Answer<Vec<Created>> {
        let requests = ops.into_iter().map(|part| match part {
            Op::Join { prefix, data } => {
                Request::Create(creation(op::CREATE2, &prefix, &data, EPHEMERAL_SEQUENTIAL))
            }
            Op::Create { path, data } => Request::Create(creation(op::CREATE2, &path, &data, EPHEMERAL)),
            Op::Delete(path) => Request::Delete { path, version: ANY_VERSION },
            Op::DeleteVersion(path, version) => Request::Delete { path, version },
            Op::Write { path, data, version } => writing(&path, &data, version),
            Op::Log { prefix, data } => {
                Request::Create(creation(op::CREATE2, &prefix, &data, PERSISTENT_SEQUENTIAL))
            }
            Op::Check(path) => Request::Check { path, version: ANY_VERSION },
        });
        let answer = self.send(Request::Multi(requests.collect()), |(reply, _)| match reply {
            Reply::Multi(results) => Some(results),
            _ => None,
        });
        Box::pin(async move {
            let mut created = Vec::new();
            for result in answer.await? {
                match result {
                    OpResult::Create { path } => created.push(Created { path, czxid: None }),
                    OpResult::Create2 { path, stat } => {
                        created.push(Created { path, czxid: Some(Zxid(stat.czxid)) })
                    }
                    OpResult::Error(number) if !matches!(number, 0 | -2) => return Err(culprit(number)),
                    _ => {}
                }
            }
            Ok(created)
        })
    }

    /// Commits at once: the deferral of the client crate's keeper is not simulated.
    fn commit_soon(&self, ops: Vec<Op>) -> keeper::Answer<()> {
        let done = self.commit(ops);
        Box::pin(async move { done.await.map(|_| ()) })
    }
}

fn creation(op: i32, path: &str, data: &[u8], flags: i32) -> CreateRequest {
    let acl = vec![Acl::anyone(perms::ALL)];
    CreateRequest { op, path: path.to_owned(), data: Some(data.to_vec().into()), acl, flags, ttl: 0 }
}

fn writing(path: &str, data: &[u8], version: Option<i32>) -> Request {
    let version = version.unwrap_or(ANY_VERSION);
    Request::SetData { path: path.to_owned(), data: Some(data.to_vec().into()), version }
}

/// Returns the error of a failed operation in a transaction.
fn culprit(number: i32) -> KeeperError {
    let codes = [Code::NoNode, Code::NodeExists, Code::NotEmpty, Code::BadVersion, Code::NoAuth];
    let code = codes.into_iter().find(|code| code.number() == number);
    code.map_or_else(|| failed(Failure::Refused(Refusal::Other), "a transaction was refused"), refused)
}

fn refused(code: Code) -> KeeperError {
    let failure = match code {
        Code::NoNode => Failure::NoNode,
        Code::NodeExists => Failure::NodeExists,
        Code::NotEmpty => Failure::NotEmpty,
        Code::BadVersion => Failure::BadVersion,
        Code::NoAuth | Code::InvalidAcl | Code::AuthFailed => Failure::Refused(Refusal::Denied),
        Code::SessionExpired => Failure::Unknown,
        _ => Failure::Refused(Refusal::Other),
    };
    failed(failure, &code.to_string())
}

fn failed(failure: Failure, message: &str) -> KeeperError {
    KeeperError { failure, message: message.to_owned() }
}

impl From<zoolock_wire::Stat> for Stat {
    fn from(stat: zoolock_wire::Stat) -> Stat {
        Stat {
            czxid: Zxid(stat.czxid),
            pzxid: Zxid(stat.pzxid),
            version: stat.version,
            children: u32::try_from(stat.num_children).unwrap_or(0),
            owner: SessionId(stat.ephemeral_owner),
            created_ms: stat.ctime,
        }
    }
}
