//! Implements [`Keeper`] over a [`Line`]: the requests and replies of ZooKeeper, on one session.
#![cfg_attr(not(feature = "simulation"), allow(unreachable_pub))]

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use zoolock_core::contender::{Failure, Refusal};
use zoolock_core::{Sequence, SessionId, Zxid};
use zoolock_wire::{Acl, Code, CreateRequest, Identity, OpResult, Reply, Request, op, perms};

use super::client::NO_IDENTITY;
use super::{Access, Answer, Created, Interruptions, Keeper, KeeperError, Op, Stat, Watch};

/// A boxed future.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The client's end of one session. Dropping it closes the session.
pub trait Line: Send + Sync + 'static {
    /// Returns the session id.
    fn session(&self) -> i64;
    /// Returns the negotiated session timeout.
    fn timeout(&self) -> Duration;
    /// Returns whether a request would be sent now.
    fn is_connected(&self) -> bool;
    /// Returns how many times a connection was made or lost. Counted before every later event or answer.
    fn interruptions(&self) -> u64;
    /// Sends a request now. `None` if its outcome is unknown.
    fn send(&self, request: Request) -> Later<Option<LineAnswer>>;
}

/// The answer to a request.
pub struct LineAnswer {
    /// The reply, or the error code.
    pub reply: Result<Reply, Code>,
    /// The watch that the request set: whether the znode was deleted. Dropping it removes the watch.
    pub watch: Option<Later<bool>>,
}

/// The state of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineState {
    /// There is a connection.
    Up,
    /// There is no connection, and another one is being made.
    Down,
    /// The session has expired.
    Expired,
    /// The session was closed.
    Closed,
    /// The server refused the credentials.
    Refused,
}

/// One session.
pub(crate) struct LineKeeper {
    line: Arc<dyn Line>,
    acls: Arc<[Acl]>,
}

const EPHEMERAL: i32 = 1;
const PERSISTENT_SEQUENTIAL: i32 = 2;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const CONTAINER: i32 = 4;
const ANY_VERSION: i32 = -1;

type Read = (Reply, Option<Watch>);

impl LineKeeper {
    pub(crate) fn new(line: Arc<dyn Line>, access: &Access) -> LineKeeper {
        LineKeeper { line, acls: acls(access) }
    }

    /// Sends a request. A pending answer keeps the session open, as with the client crate.
    fn send<T: Send + 'static>(
        &self,
        request: Request,
        read: impl FnOnce(Read) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        let (answer, line) = (self.line.send(request), self.line.clone());
        Box::pin(async move {
            let answer = answer.await;
            drop(line);
            let answer = answer.ok_or_else(|| failed(Failure::Unknown, "the connection was lost"))?;
            let reply = answer.reply.map_err(refused)?;
            read((reply, answer.watch)).ok_or_else(|| failed(Failure::Unknown, "another answer was expected"))
        })
    }

    fn create(&self, path: &str, data: &[u8], flags: i32) -> Answer<(Sequence, Zxid)> {
        let op = if flags == CONTAINER { op::CREATE_CONTAINER } else { op::CREATE2 };
        let sequential = flags == EPHEMERAL_SEQUENTIAL;
        self.send(
            Request::Create(self.create_request(op, path, data, flags)),
            move |(reply, _)| match reply {
                Reply::PathStat { path, stat } => {
                    let number = sequential.then(|| path.get(path.len().checked_sub(10)?..)?.parse().ok());
                    Some((Sequence(number.unwrap_or(Some(0))?), Zxid(stat.czxid)))
                }
                _ => None,
            },
        )
    }

    fn create_request(&self, op: i32, path: &str, data: &[u8], flags: i32) -> CreateRequest {
        let acl = self.acls.to_vec();
        CreateRequest { op, path: path.to_owned(), data: Some(data.to_vec().into()), acl, flags, ttl: 0 }
    }

    fn stat(&self, request: Request) -> Answer<Stat> {
        self.send(request, |(reply, _)| match reply {
            Reply::Stat(stat) => Some(stat.into()),
            _ => None,
        })
    }

    fn data(&self, path: &str, watch: bool) -> Answer<(Vec<u8>, Stat, Option<Watch>)> {
        self.send(Request::GetData { path: path.to_owned(), watch }, |(reply, watch)| match reply {
            Reply::Data { data, stat } => {
                Some((data.map_or(Vec::new(), |data| data.to_vec()), stat.into(), watch))
            }
            _ => None,
        })
    }

    fn names(&self, path: &str, watch: bool) -> Answer<(Vec<String>, Stat, Option<Watch>)> {
        self.send(Request::GetChildren2 { path: path.to_owned(), watch }, |(reply, watch)| match reply {
            Reply::ChildrenStat { children, stat } => Some((children, stat.into(), watch)),
            _ => None,
        })
    }

    fn done(&self, request: Request) -> Answer<()> {
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

    fn join(&self, prefix: &str, data: &[u8]) -> Answer<(Sequence, Zxid)> {
        self.create(prefix, data, EPHEMERAL_SEQUENTIAL)
    }

    fn create_ephemeral(&self, path: &str, data: &[u8]) -> Answer<()> {
        self.done(Request::Create(self.create_request(op::CREATE2, path, data, EPHEMERAL)))
    }

    fn create_container(&self, path: &str) -> Answer<()> {
        self.done(Request::Create(self.create_request(op::CREATE_CONTAINER, path, b"", CONTAINER)))
    }

    fn create_persistent(&self, path: &str) -> Answer<()> {
        self.done(Request::Create(self.create_request(op::CREATE2, path, b"", 0)))
    }

    fn delete(&self, path: &str) -> Answer<()> {
        self.done(Request::Delete { path: path.to_owned(), version: ANY_VERSION })
    }

    fn exists(&self, path: &str) -> Answer<Option<Stat>> {
        let stat = self.stat(Request::Exists { path: path.to_owned(), watch: false });
        Box::pin(async move {
            match stat.await {
                Err(KeeperError { failure: Failure::NoNode, .. }) => Ok(None),
                outcome => outcome.map(Some),
            }
        })
    }

    fn read(&self, path: &str) -> Answer<(Vec<u8>, Stat)> {
        let read = self.data(path, false);
        Box::pin(async move { read.await.map(|(data, stat, _)| (data, stat)) })
    }

    fn watch(&self, path: &str) -> Answer<(Vec<u8>, Stat, Watch)> {
        let read = self.data(path, true);
        Box::pin(async move {
            let (data, stat, watch) = read.await?;
            Ok((data, stat, watch.ok_or_else(|| failed(Failure::Unknown, "no watch was set"))?))
        })
    }

    fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<Stat> {
        self.stat(writing(path, data, version))
    }

    fn children(&self, path: &str) -> Answer<(Vec<String>, Stat)> {
        let read = self.names(path, false);
        Box::pin(async move { read.await.map(|(names, stat, _)| (names, stat)) })
    }

    fn watch_children(&self, path: &str) -> Answer<(Vec<String>, Stat, Watch)> {
        let read = self.names(path, true);
        Box::pin(async move {
            let (names, stat, watch) = read.await?;
            Ok((names, stat, watch.ok_or_else(|| failed(Failure::Unknown, "no watch was set"))?))
        })
    }

    fn sync(&self, path: &str) -> Answer<()> {
        self.done(Request::Sync { path: path.to_owned() })
    }

    fn ephemerals(&self, prefix: &str) -> Answer<Vec<String>> {
        self.send(Request::GetEphemerals { prefix: prefix.to_owned() }, |(reply, _)| match reply {
            Reply::Children(paths) => Some(paths),
            _ => None,
        })
    }

    fn commit(&self, ops: Vec<Op>) -> Answer<Vec<Created>> {
        let requests = ops.into_iter().map(|part| match part {
            Op::Join { prefix, data } => {
                Request::Create(self.create_request(op::CREATE2, &prefix, &data, EPHEMERAL_SEQUENTIAL))
            }
            Op::Create { path, data } => {
                Request::Create(self.create_request(op::CREATE2, &path, &data, EPHEMERAL))
            }
            Op::Delete(path) => Request::Delete { path, version: ANY_VERSION },
            Op::DeleteVersion(path, version) => Request::Delete { path, version },
            Op::Write { path, data, version } => writing(&path, &data, version),
            Op::Log { prefix, data } => {
                Request::Create(self.create_request(op::CREATE2, &prefix, &data, PERSISTENT_SEQUENTIAL))
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
                        created.push(Created { path, czxid: (stat.czxid > 0).then_some(Zxid(stat.czxid)) })
                    }
                    OpResult::Error(number) if !matches!(number, 0 | -2) => return Err(culprit(number)),
                    _ => {}
                }
            }
            Ok(created)
        })
    }

    /// Commits at once: the deferral of the client crate's keeper is not simulated.
    fn commit_soon(&self, ops: Vec<Op>) -> Answer<()> {
        let done = self.commit(ops);
        Box::pin(async move { done.await.map(|_| ()) })
    }
}

fn writing(path: &str, data: &[u8], version: Option<i32>) -> Request {
    let version = version.unwrap_or(ANY_VERSION);
    Request::SetData { path: path.to_owned(), data: Some(data.to_vec().into()), version }
}

/// Returns the access control list of the znodes that a client creates.
fn acls(access: &Access) -> Arc<[Acl]> {
    match access {
        Access::Everybody => Arc::new([Acl::anyone(perms::ALL)]),
        Access::Ours { readers } => {
            let creator = Acl { perms: perms::ALL, who: Identity::new("auth", "") };
            let readers = readers
                .iter()
                .map(|(scheme, id)| Acl { perms: perms::READ, who: Identity::new(scheme, id.as_str()) });
            std::iter::once(creator).chain(readers).collect()
        }
    }
}

/// Returns the error of a failed operation in a transaction.
fn culprit(number: i32) -> KeeperError {
    let unknown = || failed(Failure::Refused(Refusal::Other), &format!("the server answered error {number}"));
    Code::from_number(number).map_or_else(unknown, refused)
}

fn refused(code: Code) -> KeeperError {
    let failure = match code {
        Code::NoNode => Failure::NoNode,
        Code::NodeExists => Failure::NodeExists,
        Code::NotEmpty => Failure::NotEmpty,
        Code::BadVersion => Failure::BadVersion,
        Code::Throttled => Failure::Throttled,
        Code::NoAuth | Code::InvalidAcl | Code::AuthFailed => Failure::Refused(Refusal::Denied),
        Code::QuotaExceeded => Failure::Refused(Refusal::Quota),
        // The server did not decide, or decided for another session.
        Code::SystemError
        | Code::RuntimeInconsistency
        | Code::DataInconsistency
        | Code::SessionExpired
        | Code::SessionMoved
        | Code::UnknownSession
        | Code::RequestTimeout => Failure::Unknown,
        _ => Failure::Refused(Refusal::Other),
    };
    match code {
        // The server has only ACLs from us to check: few servers check the other identities in them.
        Code::InvalidAcl => failed(failure, NO_IDENTITY),
        code => failed(failure, &code.to_string()),
    }
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
