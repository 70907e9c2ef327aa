//! Implements [`Keeper`] over a [`Line`]: the requests and replies of ZooKeeper, on one session.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use zoolock_core::contender::{Failure, Refusal};
use zoolock_core::{Sequence, SessionId, Zxid};
use zoolock_wire::{Acl, Code, CreateRequest, Identity, OpResult, Reply, Request, op, perms};

use super::held_back::{HeldBack, Undone};
use super::{
    Access, Answer, Created, Flight, Interruptions, Keeper, KeeperError, NO_IDENTITY, Op, Stat, Watch,
};
use crate::session::lock;
use crate::tasks::Tasks;

/// A function that is told when an attach was requested, and the shortest session timeout that was granted so far.
pub(crate) type OnGrant = Box<dyn Fn(zoolock_core::Instant, Duration) + Send + Sync>;

/// A boxed future.
pub(crate) type Later<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The client's end of one session. Dropping it closes the session.
pub(crate) trait Line: Send + Sync + 'static {
    /// Returns the session id.
    fn session(&self) -> i64;
    /// Returns the shortest session timeout that was granted so far.
    fn timeout(&self) -> Duration;
    /// Calls `callback` whenever a server has granted a timeout, under the lock of the session.
    fn on_grant(&self, callback: OnGrant);
    /// Sends the next requests together, when the returned value is dropped. Renewals are sent at once.
    fn begin_flight(&self) -> Flight {
        Box::new(())
    }
    /// Returns whether a request would be sent now.
    fn is_connected(&self) -> bool;
    /// Returns how many times a connection was made or lost. Counted before every later event or answer.
    fn interruptions(&self) -> u64;
    /// Attaches the session on a new connection.
    fn reattach(&self, is_hopeless: bool, works: bool);
    /// Sends a request now. `None` if its outcome is unknown.
    fn send(&self, request: Request) -> Later<Option<LineAnswer>>;
    /// Sends a request that renews the lease, ahead of the requests that wait for the server.
    fn renew(&self, request: Request) -> Later<Option<LineAnswer>> {
        self.send(request)
    }
}

/// The answer to a request.
pub(crate) struct LineAnswer {
    /// The reply, or the error code.
    pub(crate) reply: Result<Reply, Code>,
    /// The watch that the request set: whether the znode was deleted. Dropping it removes the watch.
    pub(crate) watch: Option<Later<bool>>,
}

/// One session.
#[derive(Clone)]
pub(crate) struct LineKeeper {
    line: Arc<dyn Line>,
    acls: Arc<[Acl]>,
    deferral: Arc<Deferral>,
}

/// The deferral of releases: a create that follows at once joins the transaction of the release.
struct Deferral {
    /// Sends a deferred release that no create joins.
    tasks: Tasks,
    /// A deferred release, sent before any other request.
    held_back: Mutex<Option<HeldBack>>,
    /// Set if a transaction returns the zxid of its creates (ZOOKEEPER-4026: from 3.7.2 and 3.8.2 on). Assumed until
    /// known.
    returns_zxids: AtomicBool,
    /// For servers that do not: set if the last guessed name was right. It seldom is if other clients queue.
    guesses_names: AtomicBool,
}

const EPHEMERAL: i32 = 1;
const PERSISTENT_SEQUENTIAL: i32 = 2;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const CONTAINER: i32 = 4;
const ANY_VERSION: i32 = -1;

type Read = (Reply, Option<Watch>);

impl LineKeeper {
    /// Wraps a line. Deferred releases are sent by `tasks`.
    pub(crate) fn new(line: Arc<dyn Line>, access: &Access, tasks: Tasks) -> LineKeeper {
        let deferral = Deferral {
            tasks,
            held_back: Mutex::default(),
            returns_zxids: AtomicBool::new(true),
            guesses_names: AtomicBool::new(true),
        };
        LineKeeper { line, acls: acls(access), deferral: Arc::new(deferral) }
    }

    /// Sends the deferred release, then a request.
    fn send<T: Send + 'static>(
        &self,
        request: Request,
        read: impl FnOnce(Read) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        // Under the mutex, so that no other request overtakes the release.
        let held_back = &mut *lock(&self.deferral.held_back);
        self.send_release(held_back);
        self.send_now(request, read)
    }

    fn send_release(&self, held_back: &mut Option<HeldBack>) {
        let Some(HeldBack { ops, sent }) = held_back.take() else { return };
        let answer: Answer<()> = match <[Op; 1]>::try_from(ops) {
            Ok([Op::Delete(path)]) => {
                self.send_now(Request::Delete { path, version: ANY_VERSION }, |_| Some(()))
            }
            Ok([op]) => self.commit_now(vec![op]),
            Err(ops) => self.commit_now(ops),
        };
        // Dropping the answer does not cancel the request.
        let _ = sent.send(answer);
    }

    /// Deletes our old znode and creates the new one in one transaction.
    fn delete_and_join(&self, before: HeldBack, prefix: &str, data: &[u8]) -> Answer<(Sequence, Zxid)> {
        let guess = before.next(prefix).filter(|_| !self.deferral.returns_zxids.load(Ordering::Relaxed));
        let HeldBack { mut ops, sent } = before;
        let join = ops.len();
        ops.push(Op::Join { prefix: prefix.to_owned(), data: data.to_owned() });
        let both = self.transact(ops).shared();
        // The guess is read in the same flight. It is right unless another contender queued in between.
        let guess = guess.map(|path| (self.exists_now(&path), path));
        let left = both.clone();
        let left = async move { left.await.map(|_| ()).map_err(|undone| undone.for_those_before(join)) };
        let _ = sent.send(Box::pin(left));
        let (keeper, prefix) = (self.clone(), prefix.to_owned());
        Box::pin(async move {
            let created = both.await.map_err(|undone| undone.for_the_one(join))?;
            let unknown = |message: &str| failed(Failure::Unknown, message);
            let created = created.first().ok_or_else(|| unknown("the server created nothing"))?;
            let sequence = created.path.strip_prefix(&prefix).and_then(Sequence::parse);
            let sequence = sequence.ok_or_else(|| unknown("the server created a znode with another name"))?;
            let czxid = match created.czxid {
                Some(czxid) => czxid,
                None => {
                    keeper.deferral.returns_zxids.store(false, Ordering::Relaxed);
                    if let Some((_, path)) = &guess {
                        keeper.deferral.guesses_names.store(*path == created.path, Ordering::Relaxed);
                    }
                    let look = match guess {
                        Some((look, path)) if path == created.path => look,
                        _ => keeper.exists(&created.path),
                    };
                    // The create has succeeded in spite of this error.
                    let stat = look.await.map_err(|error| unknown(&error.message))?;
                    let stat = stat.filter(|stat| stat.owner == keeper.session());
                    stat.ok_or_else(|| unknown("the new znode was deleted at once"))?.czxid
                }
            };
            Ok((sequence, czxid))
        })
    }

    fn commit_now(&self, ops: Vec<Op>) -> Answer<()> {
        let answer = self.transact(ops);
        Box::pin(async move { answer.await.map(|_| ()).map_err(|undone| undone.error) })
    }

    fn exists_now(&self, path: &str) -> Answer<Option<Stat>> {
        let request = Request::Exists { path: path.to_owned(), watch: false };
        missing_is_none(self.send_now(request, |(reply, _)| match reply {
            Reply::Stat(stat) => Some(stat.into()),
            _ => None,
        }))
    }

    fn transact(&self, ops: Vec<Op>) -> Answer<Vec<Created>, Undone> {
        let parts = ops.len();
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
        let answer = self.send_now(Request::Multi(requests.collect()), |(reply, _)| match reply {
            Reply::Multi(results) => Some(results),
            _ => None,
        });
        Box::pin(async move {
            let results = answer.await.map_err(|error| Undone { at: None, error })?;
            let unknown =
                || Undone { at: None, error: failed(Failure::Unknown, "a transaction has no clear result") };
            if results.len() != parts {
                return Err(unknown());
            }
            let mut created = Vec::new();
            let mut has_failed = false;
            for (at, result) in results.into_iter().enumerate() {
                match result {
                    OpResult::Create { path } => created.push(Created { path, czxid: None }),
                    OpResult::Create2 { path, stat } => {
                        created.push(Created { path, czxid: (stat.czxid > 0).then_some(Zxid(stat.czxid)) })
                    }
                    // Operations before the refused one have the error 0, and later operations have -2.
                    OpResult::Error(number) if !matches!(number, 0 | -2) => {
                        return Err(Undone { at: Some(at), error: culprit(number) });
                    }
                    OpResult::Error(_) => has_failed = true,
                    _ => {}
                }
            }
            if has_failed { Err(unknown()) } else { Ok(created) }
        })
    }

    /// Sends a request. A pending answer keeps the session open.
    fn send_now<T: Send + 'static>(
        &self,
        request: Request,
        read: impl FnOnce(Read) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        self.read_answer(self.line.send(request), read)
    }

    fn read_answer<T: Send + 'static>(
        &self,
        answer: Later<Option<LineAnswer>>,
        read: impl FnOnce(Read) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        let line = self.line.clone();
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
        let (sequential, asked) = (flags == EPHEMERAL_SEQUENTIAL, path.to_owned());
        self.send(
            Request::Create(self.create_request(op, path, data, flags)),
            move |(reply, _)| match reply {
                Reply::PathStat { path, stat } => {
                    let number =
                        if sequential { Sequence::parse(path.strip_prefix(&asked)?)? } else { Sequence(0) };
                    Some((number, Zxid(stat.czxid)))
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
    fn begin_flight(&self) -> Flight {
        self.line.begin_flight()
    }

    fn session(&self) -> SessionId {
        SessionId(self.line.session())
    }

    fn timeout(&self) -> Duration {
        self.line.timeout()
    }

    fn on_grant(&self, callback: OnGrant) {
        self.line.on_grant(callback);
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
        let deferral = &self.deferral;
        let mut held_back = lock(&deferral.held_back);
        let Some(next) = held_back.as_ref().filter(|before| before.is_beside(prefix)).map(|b| b.next(prefix))
        else {
            drop(held_back);
            return self.create(prefix, data, EPHEMERAL_SEQUENTIAL);
        };
        let pays =
            deferral.returns_zxids.load(Ordering::Relaxed) || deferral.guesses_names.load(Ordering::Relaxed);
        if let Some(before) = held_back.take_if(|_| pays && self.is_connected()) {
            return self.delete_and_join(before, prefix, data);
        }
        drop(held_back);
        let (created, deferral) = (self.create(prefix, data, EPHEMERAL_SEQUENTIAL), deferral.clone());
        let prefix = prefix.to_owned();
        Box::pin(async move {
            let (sequence, czxid) = created.await?;
            let right = next == Some(format!("{prefix}{:010}", sequence.0));
            deferral.guesses_names.store(right, Ordering::Relaxed);
            Ok((sequence, czxid))
        })
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
        missing_is_none(self.stat(Request::Exists { path: path.to_owned(), watch: false }))
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

    fn sync_ahead(&self) -> Answer<()> {
        self.read_answer(self.line.renew(Request::Sync { path: "/".to_owned() }), |_| Some(()))
    }

    fn reattach(&self, is_hopeless: bool, works: bool) {
        self.line.reattach(is_hopeless, works);
    }

    fn check(&self, path: &str) -> Answer<()> {
        let check = Request::Check { path: path.to_owned(), version: ANY_VERSION };
        let answer =
            self.read_answer(self.line.renew(Request::Multi(vec![check])), |(reply, _)| match reply {
                Reply::Multi(results) => Some(results),
                _ => None,
            });
        Box::pin(async move {
            match answer.await?.as_slice() {
                [OpResult::Check] => Ok(()),
                [OpResult::Error(number)] => Err(culprit(*number)),
                _ => Err(failed(Failure::Unknown, "a transaction has no clear result")),
            }
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
        let held_back = &mut *lock(&self.deferral.held_back);
        self.send_release(held_back);
        let answer = self.transact(ops);
        Box::pin(async move { answer.await.map_err(Undone::for_all) })
    }

    fn commit_soon(&self, ops: Vec<Op>) -> Answer<()> {
        let (next, sent) = HeldBack::new(ops);
        {
            let held_back = &mut *lock(&self.deferral.held_back);
            self.send_release(held_back);
            *held_back = Some(next);
        }
        let keeper = self.clone();
        self.deferral.tasks.spawn(async move { keeper.send_release(&mut lock(&keeper.deferral.held_back)) });
        Box::pin(
            async move { sent.await.map_err(|_| failed(Failure::Unknown, "the session is over"))?.await },
        )
    }
}

/// Turns the error of a missing znode into `None`.
fn missing_is_none(answer: Answer<Stat>) -> Answer<Option<Stat>> {
    Box::pin(async move {
        match answer.await {
            Err(KeeperError { failure: Failure::NoNode, .. }) => Ok(None),
            outcome => outcome.map(Some),
        }
    })
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
    let unknown = || failed(Failure::Unknown, &format!("the server answered error {number}"));
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
            created_children: stat.created_children(),
            owner: SessionId(stat.ephemeral_owner),
            created_ms: stat.ctime,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that gives the same answer to each request.
    struct Answers(fn() -> Option<Result<Reply, Code>>);

    impl Line for Answers {
        fn session(&self) -> i64 {
            1
        }

        fn timeout(&self) -> Duration {
            Duration::from_secs(30)
        }

        fn is_connected(&self) -> bool {
            true
        }

        fn on_grant(&self, _: OnGrant) {}

        fn reattach(&self, _: bool, _: bool) {}

        fn interruptions(&self) -> u64 {
            0
        }

        fn send(&self, _: Request) -> Later<Option<LineAnswer>> {
            let answer = (self.0)().map(|reply| LineAnswer { reply, watch: None });
            Box::pin(std::future::ready(answer))
        }
    }

    fn check(answer: fn() -> Option<Result<Reply, Code>>) -> Result<(), Failure> {
        let tasks = Tasks::Runtime(tokio::runtime::Handle::current());
        let keeper = LineKeeper::new(Arc::new(Answers(answer)), &Access::Everybody, tasks);
        keeper.check("/a").now_or_never().expect("an answer").map_err(|error| error.failure)
    }

    #[tokio::test]
    async fn only_success_of_the_check_confirms() {
        assert_eq!(check(|| Some(Ok(Reply::Multi(vec![OpResult::Check])))), Ok(()));
        let missing = || Some(Ok(Reply::Multi(vec![OpResult::Error(Code::NoNode.number())])));
        assert_eq!(check(missing), Err(Failure::NoNode));
        assert_eq!(check(|| Some(Ok(Reply::Multi(Vec::new())))), Err(Failure::Unknown));
        assert_eq!(check(|| Some(Err(Code::NoAuth))), Err(Failure::Refused(Refusal::Denied)));
        assert_eq!(check(|| Some(Err(Code::Throttled))), Err(Failure::Throttled));
        assert_eq!(check(|| None), Err(Failure::Unknown));
    }
}
