//! The requests of a session, and the futures for their replies.
//!
//! The engine also builds the requests of its acquisitions here, and gets their replies as arrivals (`inbox.rs`). Other
//! callers await the futures.

use std::sync::Arc;
use std::time::Duration;

use futures_channel::oneshot;
use zoolock_client::{Endpoint, Instant, RequestError, RequestNumber, Session, SessionKey};
use zoolock_core::acquisition::{RequestFailure, RequestId};
use zoolock_core::{ContenderId, SessionId, Zxid};
use zoolock_wire::{Acl, CreateRequest, Identity, OpResult, Reply, Request, op, perms};

use super::codes::{created_znodes, error_of, zk_error};
use super::inbox::{
    CallerReply, Inbox, Receiver, ReplyAddress, ReplyOutcome, ReplyTo, TransactionPart, WatchKey,
    WatchNumber, Watcher, watch_key,
};
use super::join::reply_or_error;
use super::{Answer, Batch, Created, Op, Watch, ZkError, ZkSession, ZnodeAccess, ZnodeStat};
use crate::base::sync::lock;

const EPHEMERAL: i32 = 1;
const PERSISTENT_SEQUENTIAL: i32 = 2;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const CONTAINER: i32 = 4;
const ANY_VERSION: i32 = -1;

type ReadReply = (Reply, Option<Watch>);

impl ZkSession {
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the server of the newest connection.
    pub(crate) fn server(&self) -> Option<Endpoint> {
        self.client.with(|_, inbox, _| inbox.server.clone())
    }

    /// Returns the shortest session timeout that was granted so far.
    pub(crate) fn timeout(&self) -> Duration {
        self.client.with(|session, _, _| session.timeout())
    }

    /// Returns what another process needs to end this session.
    pub(crate) fn key(&self) -> Option<SessionKey> {
        self.client.with(|session, _, _| session.key())
    }

    /// Sets the receiver of the messages to acquisitions and of attaches, from now on. Tells it of the last attach.
    pub(crate) fn set_receiver(&self, receiver: &Arc<dyn Receiver>) {
        self.client.with(|session, inbox, _| {
            // A server may have attached the session again since it was opened.
            receiver.record_attach(inbox.attached, session.timeout());
            inbox.set_receiver(Arc::downgrade(receiver));
        });
    }

    /// Starts the timer of a request. The receiver gets it as [`Arrival::Timer`].
    pub(crate) fn start_timer(&self, wait: Duration, contender: ContenderId, request: RequestId) {
        self.client.with_batched(|_, inbox, now| inbox.start_timer(now.after(wait), contender, request));
    }

    /// Makes all timers of an acquisition due now.
    pub(crate) fn fire_timers_now(&self, contender: ContenderId) {
        self.client.with(|_, inbox, now| inbox.fire_timers(contender, now));
    }

    /// Returns whether a request would be sent now.
    pub(crate) fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    /// Attaches the session on a new connection; see [`zoolock_client::Session::reattach`].
    pub(crate) fn reattach(&self, is_hopeless: bool, works: bool) {
        self.client.with(|session, _, now| session.reattach(is_hopeless, works, now));
    }

    /// Begins a batch: the next requests of this thread are sent together when the returned value is dropped. Renewals
    /// are still sent at once.
    pub(crate) fn begin_batch(&self) -> Batch {
        self.client.begin_batch()
    }

    // ---- requests of acquisitions ----

    /// Sends a request of an acquisition. `watch`: the number of the watch that it sets.
    pub(crate) fn send(&self, request: &Request, to: ReplyAddress, watch: Option<WatchNumber>) {
        let _deferral_lock = self.flush_deferred_release();
        self.send_now(request, ReplyTo::Acquisition(to, watch));
    }

    /// Forgets a watch of an acquisition.
    pub(crate) fn forget(&self, key: WatchKey, contender: ContenderId, watch: WatchNumber) {
        lock(&self.dropped).push((key, Watcher::Acquisition(contender, watch)));
    }

    /// Returns the request that reads a znode and watches it. If the znode does not exist, no watch is set.
    pub(crate) fn watch_request(path: &str) -> (Request, WatchKey) {
        with_watch_key(Request::GetData { path: path.to_owned(), watch: true })
    }

    /// Returns the request that lists the children of a znode and watches them. If the znode does not exist, no watch
    /// is set.
    pub(crate) fn watch_children_request(path: &str) -> (Request, WatchKey) {
        with_watch_key(Request::GetChildren2 { path: path.to_owned(), watch: true })
    }

    /// Returns the request that commits these operations in one transaction.
    pub(crate) fn multi(&self, ops: Vec<Op>) -> Request {
        Request::Multi(ops.into_iter().map(|op| self.wire_op(op)).collect())
    }

    pub(super) fn wire_op(&self, op: Op) -> Request {
        match op {
            Op::Join { prefix, data } => self.create_contender(&prefix, &data),
            Op::Create { path, data } => self.create_request(op::CREATE2, &path, &data, EPHEMERAL),
            Op::CreatePersistent { path, data } => self.create_request(op::CREATE2, &path, &data, 0),
            Op::Delete(path) => delete_request(&path),
            Op::DeleteVersion(path, version) => Request::Delete { path, version },
            Op::Write { path, data, version } => write_request(&path, &data, version),
            Op::CreatePersistentSequential { prefix, data } => {
                self.create_request(op::CREATE2, &prefix, &data, PERSISTENT_SEQUENTIAL)
            }
            Op::Check(path) => Request::Check { path, version: ANY_VERSION },
        }
    }

    /// Returns the request that creates an ephemeral sequential znode; the number is appended to `prefix`.
    pub(super) fn create_contender(&self, prefix: &str, data: &[u8]) -> Request {
        self.create_request(op::CREATE2, prefix, data, EPHEMERAL_SEQUENTIAL)
    }

    /// Returns the request that creates a container. The server removes the container some time after its last child was
    /// deleted.
    pub(crate) fn create_container_request(&self, path: &str) -> Request {
        self.create_request(op::CREATE_CONTAINER, path, b"", CONTAINER)
    }

    /// Returns the request that creates a persistent znode.
    pub(crate) fn create_persistent_request(&self, path: &str) -> Request {
        self.create_request(op::CREATE2, path, b"", 0)
    }

    fn create_request(&self, op: i32, path: &str, data: &[u8], flags: i32) -> Request {
        let (acl, data) = (self.acls.to_vec(), Some(data.to_vec().into()));
        Request::Create(CreateRequest { op, path: path.to_owned(), data, acl, flags, ttl: 0 })
    }

    /// Sends a request. If this thread has a batch, the request is sent at the end of the batch.
    pub(super) fn send_now(&self, request: &Request, to: ReplyTo) {
        self.client.with_batched(|session, inbox, now| {
            let accepted = session.request(request, now);
            inbox.register_receiver(request, to, accepted, now);
        });
    }

    // ---- requests of other callers ----

    /// Sends a request now, and returns a future for its reply. A pending answer keeps the session open.
    fn call<T: Send + 'static>(
        &self,
        request: &Request,
        read: impl FnOnce(ReadReply) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        let _deferral_lock = self.flush_deferred_release();
        let (sender, answer) = oneshot::channel();
        self.send_now(request, ReplyTo::Caller(sender));
        self.answer(answer, read)
    }

    /// Sends a request with `send`, so that it overtakes the requests that wait to be sent.
    fn send_ahead<T: Send + 'static>(
        &self,
        request: &Request,
        send: impl FnOnce(&mut Session, &Request, Instant) -> Result<RequestNumber, RequestError>,
        read: impl FnOnce(ReadReply) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        let (sender, answer) = oneshot::channel();
        self.client.with(|session: &mut Session, inbox: &mut Inbox, now: Instant| {
            let accepted = send(session, request, now);
            inbox.register_receiver(request, ReplyTo::Caller(sender), accepted, now);
        });
        self.answer(answer, read)
    }

    /// Asks the server for the identities of this session.
    pub(super) async fn who_am_i(&self) -> ReplyOutcome {
        let (sender, answer) = oneshot::channel();
        self.send_now(&Request::WhoAmI, ReplyTo::Caller(sender));
        answer.await.ok().map(|answer| answer.reply)
    }

    fn answer<T: Send + 'static>(
        &self,
        answer: oneshot::Receiver<CallerReply>,
        read: impl FnOnce(ReadReply) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        let client = self.client.clone();
        Box::pin(async move {
            let answer = answer.await.ok();
            drop(client);
            let (outcome, watch) = match answer {
                Some(CallerReply { reply, watch }) => (Some(reply), watch),
                None => (None, None),
            };
            read((reply_or_error(outcome)?, watch))
                .ok_or_else(|| zk_error(RequestFailure::Unknown, "unexpected reply type"))
        })
    }

    /// Sends a request that creates a znode.
    pub(crate) fn create(&self, request: &Request) -> Answer<()> {
        self.call(request, |_| Some(()))
    }

    pub(crate) fn create_ephemeral(&self, path: &str, data: &[u8]) -> Answer<()> {
        self.create(&self.create_request(op::CREATE2, path, data, EPHEMERAL))
    }

    pub(crate) fn exists(&self, path: &str) -> Answer<Option<ZnodeStat>> {
        let answer = self.call(&exists_request(path), into_stat);
        Box::pin(async move {
            match answer.await {
                Err(ZkError { failure: RequestFailure::NoNode, .. }) => Ok(None),
                outcome => outcome.map(Some),
            }
        })
    }

    pub(crate) fn read(&self, path: &str) -> Answer<(Vec<u8>, ZnodeStat)> {
        self.call(&read_request(path), |(reply, _)| into_data(reply))
    }

    pub(crate) fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<ZnodeStat> {
        self.call(&write_request(path, data, version), into_stat)
    }

    pub(crate) fn children(&self, path: &str) -> Answer<(Vec<String>, ZnodeStat)> {
        self.call(&list_request(path), |(reply, _)| into_children(reply))
    }

    /// Lists the children of a znode and watches them. If the znode does not exist, no watch is set.
    pub(crate) fn watch_children(&self, path: &str) -> Answer<(Vec<String>, ZnodeStat, Watch)> {
        self.call(&ZkSession::watch_children_request(path).0, |(reply, watch)| {
            let (names, stat) = into_children(reply)?;
            Some((names, stat, watch?))
        })
    }

    /// Sends a `sync`, which overtakes the requests that wait to be sent. `with_ping`: set to send a ping ahead of it;
    /// otherwise it takes the place of a ping.
    pub(crate) fn sync_ahead(&self, with_ping: bool) -> Answer<()> {
        let send = if with_ping { Session::renew } else { Session::keep_alive };
        self.send_ahead(&Request::Sync { path: "/".to_owned() }, send, |_| Some(()))
    }

    /// Checks in a transaction that a znode exists. Only a quorum can confirm the transaction. The request overtakes
    /// the requests that wait to be sent.
    pub(crate) fn check(&self, path: &str) -> Answer<()> {
        let check = Request::Check { path: path.to_owned(), version: ANY_VERSION };
        let answer = self.send_ahead(&Request::Multi(vec![check]), Session::renew, into_results);
        Box::pin(async move { check_outcome(&answer.await?) })
    }

    /// Returns the paths of this session's ephemeral znodes under a prefix.
    pub(crate) fn ephemerals(&self, prefix: &str) -> Answer<Vec<String>> {
        self.call(&ephemerals_request(prefix), |(reply, _)| into_paths(reply))
    }

    /// Commits one transaction. Returns the created znodes, in order.
    pub(crate) fn commit(&self, ops: Vec<Op>) -> Answer<Vec<Created>> {
        let parts = ops.len();
        let answer = self.call(&self.multi(ops), into_results);
        Box::pin(async move {
            created_znodes(answer.await?, parts)
                .map_err(|failed_transaction| failed_transaction.error_for(TransactionPart::All))
        })
    }
}

fn with_watch_key(request: Request) -> (Request, WatchKey) {
    let key = watch_key(&request).expect("the request sets a watch");
    (request, key)
}

/// Returns the request that reads a znode.
pub(crate) fn read_request(path: &str) -> Request {
    Request::GetData { path: path.to_owned(), watch: false }
}

/// Returns the request that lists the children of a znode.
pub(crate) fn list_request(path: &str) -> Request {
    Request::GetChildren2 { path: path.to_owned(), watch: false }
}

/// Returns the request that lists the paths of this session's ephemeral znodes under a prefix. ZooKeeper has it from 3.6 on.
pub(crate) fn ephemerals_request(prefix: &str) -> Request {
    Request::GetEphemerals { prefix: prefix.to_owned() }
}

/// Returns the request that reads the state of a znode.
pub(crate) fn exists_request(path: &str) -> Request {
    Request::Exists { path: path.to_owned(), watch: false }
}

/// Returns the request that deletes a znode.
pub(crate) fn delete_request(path: &str) -> Request {
    Request::Delete { path: path.to_owned(), version: ANY_VERSION }
}

/// Returns the request that writes the data of a znode. `version`: the version that the data must
/// have before the write, or `None` for any version.
pub(crate) fn write_request(path: &str, data: &[u8], version: Option<i32>) -> Request {
    let version = version.unwrap_or(ANY_VERSION);
    Request::SetData { path: path.to_owned(), data: Some(data.to_vec().into()), version }
}

/// Returns the data and the state in a reply.
pub(crate) fn into_data(reply: Reply) -> Option<(Vec<u8>, ZnodeStat)> {
    match reply {
        Reply::Data { data, stat } => Some((data.map_or(Vec::new(), |data| data.to_vec()), stat.into())),
        _ => None,
    }
}

/// Returns the children and the state in a reply.
pub(crate) fn into_children(reply: Reply) -> Option<(Vec<String>, ZnodeStat)> {
    match reply {
        Reply::ChildrenStat { children, stat } => Some((children, stat.into())),
        _ => None,
    }
}

/// Returns the paths in a reply.
pub(crate) fn into_paths(reply: Reply) -> Option<Vec<String>> {
    match reply {
        Reply::Children(paths) => Some(paths),
        _ => None,
    }
}

fn into_stat((reply, _): ReadReply) -> Option<ZnodeStat> {
    match reply {
        Reply::Stat(stat) => Some(stat.into()),
        _ => None,
    }
}

fn into_results((reply, _): ReadReply) -> Option<Vec<OpResult>> {
    match reply {
        Reply::Multi(results) => Some(results),
        _ => None,
    }
}

/// Returns the outcome of a transaction of one check.
fn check_outcome(results: &[OpResult]) -> Result<(), ZkError> {
    match results {
        [OpResult::Check] => Ok(()),
        [OpResult::Error(number)] => Err(error_of(*number)),
        _ => Err(zk_error(RequestFailure::Unknown, "a transaction has no clear result")),
    }
}

/// Returns the access control list of the znodes that a client creates.
pub(super) fn acls(access: &ZnodeAccess) -> Arc<[Acl]> {
    match access {
        ZnodeAccess::Anyone => Arc::new([Acl::anyone(perms::ALL)]),
        ZnodeAccess::Creator { readers } => {
            let creator = Acl { perms: perms::ALL, identity: Identity::new("auth", "") };
            let readers = readers
                .iter()
                .map(|(scheme, id)| Acl { perms: perms::READ, identity: Identity::new(scheme, id.as_str()) });
            std::iter::once(creator).chain(readers).collect()
        }
    }
}

impl From<zoolock_wire::Stat> for ZnodeStat {
    fn from(stat: zoolock_wire::Stat) -> ZnodeStat {
        ZnodeStat {
            czxid: Zxid(stat.czxid),
            pzxid: Zxid(stat.pzxid),
            version: stat.version,
            children: u32::try_from(stat.num_children).unwrap_or(0),
            created_children: stat.created_children(),
            owner: SessionId(stat.ephemeral_owner),
            created_ms: stat.ctime,
            modified_ms: stat.mtime,
        }
    }
}

#[cfg(test)]
mod tests {
    use zoolock_core::acquisition::Refusal;
    use zoolock_wire::Code;

    use super::*;

    #[test]
    fn only_success_of_the_check_confirms() {
        let outcome = |results: Vec<OpResult>| check_outcome(&results).map_err(|error| error.failure);
        assert_eq!(outcome(vec![OpResult::Check]), Ok(()));
        assert_eq!(outcome(vec![OpResult::Error(Code::NoNode.number())]), Err(RequestFailure::NoNode));
        assert_eq!(outcome(Vec::new()), Err(RequestFailure::Unknown));
        let refused = |outcome| reply_or_error(outcome).map_err(|error| error.failure);
        assert_eq!(refused(Some(Err(Code::NoAuth))), Err(RequestFailure::Refused(Refusal::Denied)));
        assert_eq!(refused(Some(Err(Code::Throttled))), Err(RequestFailure::Throttled));
        assert_eq!(refused(None), Err(RequestFailure::Unknown));
    }
}
