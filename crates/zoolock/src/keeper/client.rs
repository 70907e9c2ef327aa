//! Implements [`Keeper`] with the crate `zookeeper-client`.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::task::coop::unconstrained;
use zeroize::Zeroizing;
use zookeeper_client as zk;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};
use zoolock_core::contender::{Failure, Refusal, SessionEnd};
use zoolock_core::{Sequence, SessionId, Zxid};

use super::held_back::{HeldBack, Undone};
use super::{Access, Answer, Created, Interruptions, Keeper, KeeperError, Link, Op, Stat, Watch, nodelay};
use crate::session::lock;
use crate::transport::Transport;

/// One session of the client crate.
#[derive(Clone)]
pub(crate) struct ClientKeeper {
    client: Arc<Client>,
    /// A deferred release, sent before any other request.
    held_back: Arc<Mutex<Option<HeldBack>>>,
    /// Set if a transaction returns the zxid of its creates (ZOOKEEPER-4026: from 3.7.2 and 3.8.2 on).
    /// Assumed until known.
    returns_zxids: Arc<AtomicBool>,
    /// For servers that do not: set if the last guessed name was right. It seldom is if other clients queue.
    guesses_names: Arc<AtomicBool>,
    acls: Arc<[Acl]>,
    runtime: Handle,
}

/// The parameters of a new session.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) endpoints: String,
    /// The names and ports of the endpoints.
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) timeout: Duration,
    pub(crate) auth: Vec<(String, Zeroizing<Vec<u8>>)>,
    pub(crate) access: Access,
    pub(crate) transport: Transport,
    /// The simulation that opens the session instead.
    #[cfg(feature = "simulation")]
    pub(crate) host: Option<Arc<dyn crate::sim::Host>>,
}

/// Opens a session, trying each endpoint once. Call it on the runtime that drives the session.
pub(crate) async fn open(opening: &Opening) -> Result<(Arc<dyn Keeper>, watch::Receiver<Link>), zk::Error> {
    #[cfg(feature = "simulation")]
    if let Some(host) = &opening.host {
        return crate::sim::open(host, opening.timeout).await.ok_or(zk::Error::Timeout);
    }
    if super::network::is_chosen(opening) {
        return super::network::open(opening).await;
    }
    // The credentials may have been renewed since the last session was opened.
    opening.transport.prepare().await?;
    let mut client = connect(opening, opening.timeout).await?;
    let granted = client.session_timeout();
    if granted < opening.timeout {
        // The connection timeout must follow the granted session timeout, and is fixed before that is known.
        drop(client);
        client = connect(opening, granted).await?;
    }
    if opening.transport.has_sasl() {
        check_sasl_identity(&client, opening.timeout).await?;
    }
    let mut states = client.state_watcher();
    let (sender, receiver) = watch::channel(Link::Up);
    let ports: Vec<u16> = opening.hosts.iter().map(|(_, port)| *port).collect();
    let transport = opening.transport.clone();
    let _ = tokio::time::timeout(NODELAY_PATIENCE, set_nodelay(ports.clone())).await;
    tokio::spawn(async move {
        let mut settings = JoinSet::new();
        loop {
            let link = match states.changed().await {
                zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly => {
                    // A new connection has a new socket. Not awaited: the blocking threads may be busy.
                    settings.spawn(set_nodelay(ports.clone()));
                    while settings.try_join_next().is_some() {}
                    Link::Up
                }
                zk::SessionState::Disconnected => {
                    // The next attempt may need new credentials. A refresh that was too early is repeated
                    // then.
                    let transport = transport.clone();
                    settings.spawn(async move { transport.refresh().await });
                    Link::Down
                }
                zk::SessionState::Expired => Link::Over(SessionEnd::Expired),
                zk::SessionState::AuthFailed => Link::Over(SessionEnd::AuthFailed),
                zk::SessionState::Closed => Link::Over(SessionEnd::Closed),
            };
            if sender.send(link).is_err() || matches!(link, Link::Over(_)) {
                return;
            }
        }
    });
    Ok((Arc::new(ClientKeeper::new(client, &opening.access)), receiver))
}

/// Checks that the server authenticated us. A server without SASL accepts the session without an identity,
/// and the client crate does not report that.
async fn check_sasl_identity(client: &Client, timeout: Duration) -> Result<(), zk::Error> {
    match tokio::time::timeout(timeout / 4, client.list_auth_users()).await {
        Ok(Ok(known)) if known.iter().any(|identity| identity.scheme() == "sasl") => Ok(()),
        Ok(Ok(_)) => Err(zk::Error::AuthFailed),
        // Servers before 3.7 cannot be asked.
        Ok(Err(zk::Error::Unimplemented)) => Ok(()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(zk::Error::Timeout),
    }
}

/// Maximum time that the first request waits for the socket option.
const NODELAY_PATIENCE: Duration = Duration::from_millis(50);

/// Sets TCP_NODELAY, so that no request waits for the acknowledgement of the previous one.
async fn set_nodelay(ports: Vec<u16>) {
    // On a blocking thread: a process may have many thousand descriptors.
    let set = tokio::task::spawn_blocking(move || nodelay::set(&ports));
    match set.await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "cannot set TCP_NODELAY; a flight may take two round trips")
        }
        Err(error) if error.is_panic() => tracing::error!(%error, "cannot set TCP_NODELAY"),
        // The runtime is shutting down.
        Err(_) => {}
    }
}

async fn connect(opening: &Opening, timeout: Duration) -> Result<Client, zk::Error> {
    // The client crate's default is two fifths of the session timeout, needed once to notice a dead host and
    // once to connect. Together they exceed our deadline, so this uses a quarter.
    let mut connector = Client::connector()
        .with_session_timeout(timeout)
        .with_connection_timeout(timeout / 4)
        .with_fail_eagerly();
    for (scheme, credentials) in &opening.auth {
        connector = connector.with_auth(scheme, credentials);
    }
    opening.transport.connect(connector, &opening.endpoints).await
}

const CONTENDER: CreateMode = CreateMode::EphemeralSequential;
const AUDIT_LINE: CreateMode = CreateMode::PersistentSequential;

/// Returns the access control list of the znodes that this client creates.
fn acls(access: &Access) -> Arc<[Acl]> {
    match access {
        Access::Everybody => Arc::from(&*Acls::anyone_all()),
        Access::Ours { readers } => {
            let readers =
                readers.iter().map(|(scheme, id)| Acl::new(Permission::READ, AuthId::new(scheme, id)));
            Acls::creator_all().iter().cloned().chain(readers).collect()
        }
    }
}

impl ClientKeeper {
    fn new(client: Client, access: &Access) -> ClientKeeper {
        ClientKeeper {
            client: Arc::new(client),
            held_back: Arc::default(),
            returns_zxids: Arc::new(AtomicBool::new(true)),
            guesses_names: Arc::new(AtomicBool::new(true)),
            acls: acls(access),
            runtime: Handle::current(),
        }
    }

    /// Sends the deferred release, then this request.
    fn send<T, F, Fut>(&self, call: F) -> Answer<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Client>) -> Fut,
        Fut: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        // Under the mutex, so that no other request overtakes it.
        let held_back = &mut *lock(&self.held_back);
        self.send_first(held_back);
        self.call(call)
    }

    fn send_first(&self, held_back: &mut Option<HeldBack>) {
        let Some(HeldBack { ops, sent }) = held_back.take() else { return };
        if !self.is_connected() {
            // In the client's queue it would wait for the reconnect, and then delete any znode with that
            // name.
            let not_sent = KeeperError { failure: Failure::Throttled, message: "no connection".to_owned() };
            let _ = sent.send(Box::pin(std::future::ready(Err(not_sent))));
            return;
        }
        let answer: Answer<()> = match <[Op; 1]>::try_from(ops) {
            Ok([Op::Delete(path)]) => self.call(|client| async move { client.delete(&path, None).await }),
            Ok([op]) => self.commit_now(vec![op]),
            Err(ops) => self.commit_now(ops),
        };
        // Dropping the answer does not cancel the request.
        let _ = sent.send(answer);
    }

    /// Calls the client *now*, which queues the request, and returns a future for the answer. The crate's
    /// futures borrow the client and the path, so they are made inside a future that owns both. Its first
    /// poll makes the call.
    fn call<T, E, F, Fut>(&self, call: F) -> Answer<T, E::Converted>
    where
        T: Send + 'static,
        E: CrateError,
        F: FnOnce(Arc<Client>) -> Fut,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let call = call(self.client.clone());
        // The crate panics on some answers that are too short. The panic must not end the task of the
        // session.
        let read = AssertUnwindSafe(call).catch_unwind();
        let mut answer: Answer<T, E::Converted> = Box::pin(async move {
            match read.await {
                Ok(outcome) => outcome.map_err(E::convert),
                Err(_) => Err(E::unreadable()),
            }
        });
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Box::pin(std::future::ready(outcome)),
            Poll::Pending => answer,
        }
    }

    /// Deletes our old znode and creates the new one in one transaction.
    fn delete_and_join(&self, before: HeldBack, prefix: &str, data: &[u8]) -> Answer<(Sequence, Zxid)> {
        let guess = before.next(prefix).filter(|_| !self.returns_zxids.load(Ordering::Relaxed));
        let HeldBack { mut ops, sent } = before;
        let join = ops.len();
        ops.push(Op::Join { prefix: prefix.to_owned(), data: data.to_owned() });
        let both = self.transact(ops).shared();
        // The guess is read in the same flight. It is right unless another contender queued in between.
        let guess = guess.map(|path| (self.look(&path), path));
        let left = both.clone();
        let left = async move { left.await.map(|_| ()).map_err(|undone| undone.for_those_before(join)) };
        let _ = sent.send(Box::pin(left));
        let (keeper, prefix) = (self.clone(), prefix.to_owned());
        Box::pin(async move {
            let created = both.await.map_err(|undone| undone.for_the_one(join))?;
            let created = created.first().ok_or_else(|| unknown("the service created nothing"))?;
            let sequence = created.path.strip_prefix(&prefix).and_then(Sequence::parse);
            let sequence =
                sequence.ok_or_else(|| unknown("the service created another name than it was asked for"))?;
            let czxid = match created.czxid {
                Some(czxid) => czxid,
                None => {
                    keeper.returns_zxids.store(false, Ordering::Relaxed);
                    if let Some((_, path)) = &guess {
                        keeper.guesses_names.store(*path == created.path, Ordering::Relaxed);
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

    fn look(&self, path: &str) -> Answer<Option<Stat>> {
        let path = path.to_owned();
        self.call(|client| async move { Ok::<_, zk::Error>(client.check_stat(&path).await?.map(Stat::from)) })
    }

    fn transact(&self, ops: Vec<Op>) -> Answer<Vec<Created>, Undone> {
        let acls = self.acls.clone();
        self.call(|client| async move {
            let contenders = CONTENDER.with_acls(Acls::new(&acls));
            let nodes = CreateMode::Ephemeral.with_acls(Acls::new(&acls));
            let lines = AUDIT_LINE.with_acls(Acls::new(&acls));
            let mut transaction = client.new_multi_writer();
            for op in &ops {
                match op {
                    Op::Join { prefix, data } => transaction.add_create(prefix, data, &contenders)?,
                    Op::Log { prefix, data } => transaction.add_create(prefix, data, &lines)?,
                    Op::Create { path, data } => transaction.add_create(path, data, &nodes)?,
                    Op::Delete(path) => transaction.add_delete(path, None)?,
                    Op::DeleteVersion(path, version) => transaction.add_delete(path, Some(*version))?,
                    Op::Write { path, data, version } => transaction.add_set_data(path, data, *version)?,
                    Op::Check(path) => transaction.add_check_version(path, ANY_VERSION)?,
                }
            }
            let results = transaction.commit().await?;
            let created = results.into_iter().filter_map(|result| match result {
                zk::MultiWriteResult::Create { path, stat } => {
                    Some(Created { path, czxid: (!stat.is_invalid()).then_some(Zxid(stat.czxid)) })
                }
                _ => None,
            });
            Ok::<_, zk::MultiWriteError>(created.collect())
        })
    }

    fn create(&self, path: &str, data: &[u8], mode: CreateMode) -> Answer<(Sequence, Zxid)> {
        let (path, data, acls) = (path.to_owned(), data.to_owned(), self.acls.clone());
        self.send(|client| async move {
            let options = mode.with_acls(Acls::new(&acls));
            let (stat, sequence) = client.create(&path, &data, &options).await?;
            let sequence = i32::try_from(sequence.into_i64())
                .map_err(|_| zk::Error::UnexpectedError("a sequence number past 32 bits".to_owned()))?;
            Ok((Sequence(sequence), Zxid(stat.czxid)))
        })
    }
}

async fn discard<T>(answer: Answer<T>) -> Result<(), KeeperError> {
    answer.await.map(|_| ())
}

impl Keeper for ClientKeeper {
    fn session(&self) -> SessionId {
        SessionId(self.client.session_id().0)
    }

    fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    fn is_connected(&self) -> bool {
        self.client.state() == zk::SessionState::SyncConnected
    }

    fn interruptions(&self) -> Interruptions {
        let mut states = self.client.state_watcher();
        states.state();
        Box::new(move || unconstrained(states.changed()).now_or_never().is_some())
    }

    fn join(&self, prefix: &str, data: &[u8]) -> Answer<(Sequence, Zxid)> {
        let mut held_back = lock(&self.held_back);
        let Some(next) = held_back.as_ref().filter(|before| before.is_beside(prefix)).map(|b| b.next(prefix))
        else {
            drop(held_back);
            return self.create(prefix, data, CONTENDER);
        };
        let pays = self.returns_zxids.load(Ordering::Relaxed) || self.guesses_names.load(Ordering::Relaxed);
        if let Some(before) = held_back.take_if(|_| pays && self.is_connected()) {
            return self.delete_and_join(before, prefix, data);
        }
        drop(held_back);
        let (created, keeper) = (self.create(prefix, data, CONTENDER), self.clone());
        let prefix = prefix.to_owned();
        Box::pin(async move {
            let (sequence, czxid) = created.await?;
            let right = next == Some(format!("{prefix}{:010}", sequence.0));
            keeper.guesses_names.store(right, Ordering::Relaxed);
            Ok((sequence, czxid))
        })
    }

    fn create_ephemeral(&self, path: &str, data: &[u8]) -> Answer<()> {
        Box::pin(discard(self.create(path, data, CreateMode::Ephemeral)))
    }

    fn create_container(&self, path: &str) -> Answer<()> {
        Box::pin(discard(self.create(path, b"", CreateMode::Container)))
    }

    fn create_persistent(&self, path: &str) -> Answer<()> {
        Box::pin(discard(self.create(path, b"", CreateMode::Persistent)))
    }

    fn delete(&self, path: &str) -> Answer<()> {
        let path = path.to_owned();
        self.send(|client| async move { client.delete(&path, None).await })
    }

    fn exists(&self, path: &str) -> Answer<Option<Stat>> {
        let path = path.to_owned();
        self.send(|client| async move { Ok(client.check_stat(&path).await?.map(Stat::from)) })
    }

    fn read(&self, path: &str) -> Answer<(Vec<u8>, Stat)> {
        let path = path.to_owned();
        self.send(|client| async move {
            let (data, stat) = client.get_data(&path).await?;
            Ok((data, stat.into()))
        })
    }

    fn watch(&self, path: &str) -> Answer<(Vec<u8>, Stat, Watch)> {
        let path = path.to_owned();
        self.send(|client| async move {
            let (data, stat, watcher) = client.get_and_watch_data(&path).await?;
            Ok((data, stat.into(), watch(watcher)))
        })
    }

    fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<Stat> {
        let (path, data) = (path.to_owned(), data.to_owned());
        self.send(|client| async move { client.set_data(&path, &data, version).await.map(Stat::from) })
    }

    fn children(&self, path: &str) -> Answer<(Vec<String>, Stat)> {
        let path = path.to_owned();
        self.send(|client| async move {
            let (names, stat) = client.get_children(&path).await?;
            Ok((names, stat.into()))
        })
    }

    fn watch_children(&self, path: &str) -> Answer<(Vec<String>, Stat, Watch)> {
        let path = path.to_owned();
        self.send(|client| async move {
            let (names, stat, watcher) = client.get_and_watch_children(&path).await?;
            Ok((names, stat.into(), watch(watcher)))
        })
    }

    fn sync(&self, path: &str) -> Answer<()> {
        let path = path.to_owned();
        self.send(|client| async move { client.sync(&path).await })
    }

    fn ephemerals(&self, prefix: &str) -> Answer<Vec<String>> {
        let prefix = prefix.to_owned();
        self.send(|client| async move { client.list_ephemerals(&prefix).await })
    }

    fn commit(&self, ops: Vec<Op>) -> Answer<Vec<Created>> {
        let held_back = &mut *lock(&self.held_back);
        self.send_first(held_back);
        let answer = self.transact(ops);
        Box::pin(async move { answer.await.map_err(|undone| undone.error) })
    }

    fn commit_soon(&self, ops: Vec<Op>) -> Answer<()> {
        let (next, sent) = HeldBack::new(ops);
        {
            let held_back = &mut *lock(&self.held_back);
            self.send_first(held_back);
            *held_back = Some(next);
        }
        let keeper = self.clone();
        self.runtime.spawn(async move { keeper.send_first(&mut lock(&keeper.held_back)) });
        Box::pin(async move { sent.await.map_err(|_| unknown("the session is over"))?.await })
    }
}

/// The error if the server finds no identity for an ACL that grants access to the creator only.
pub(crate) const NO_IDENTITY: &str = "the service knows no identity of ours to which the lock could belong; does it ask clients for certificates?";

/// Matches every version.
const ANY_VERSION: i32 = -1;

fn watch(watcher: zk::OneshotWatcher) -> Watch {
    Box::pin(async move { watcher.changed().await.event_type == zk::EventType::NodeDeleted })
}

fn unknown(message: &str) -> KeeperError {
    KeeperError { failure: Failure::Unknown, message: message.to_owned() }
}

/// Converts an error of the client crate.
trait CrateError: Send + 'static {
    type Converted: Send + 'static;

    fn convert(self) -> Self::Converted;

    /// Returns the error for an answer that cannot be parsed.
    fn unreadable() -> Self::Converted;
}

impl CrateError for zk::Error {
    type Converted = KeeperError;

    fn convert(self) -> KeeperError {
        self.into()
    }

    fn unreadable() -> KeeperError {
        unknown("the server sent an answer that cannot be parsed")
    }
}

impl CrateError for zk::MultiWriteError {
    type Converted = Undone;

    fn convert(self) -> Undone {
        let at = match &self {
            zk::MultiWriteError::OperationFailed { index, .. } => Some(*index),
            zk::MultiWriteError::RequestFailed { .. } => None,
        };
        Undone { at, error: zk::Error::from(self).into() }
    }

    fn unreadable() -> Undone {
        Undone { at: None, error: zk::Error::unreadable() }
    }
}

impl From<zk::Stat> for Stat {
    fn from(stat: zk::Stat) -> Stat {
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

impl From<zk::Error> for KeeperError {
    /// Anything but an error code from the server leaves the outcome unknown. The crate reports a reset
    /// connection as `Custom`, not as `ConnectionLoss`, so the known errors are listed and the rest is
    /// unknown.
    fn from(error: zk::Error) -> KeeperError {
        use zk::Error as E;
        let failure = match &error {
            E::NoNode => Failure::NoNode,
            E::NodeExists => Failure::NodeExists,
            E::NotEmpty => Failure::NotEmpty,
            E::BadVersion => Failure::BadVersion,
            E::Throttled => Failure::Throttled,
            // A refused authentication also ends the session, so the outcome of pending requests does not
            // matter.
            E::NoAuth | E::InvalidAcl | E::AuthFailed => Failure::Refused(Refusal::Denied),
            E::QuotaExceeded => Failure::Refused(Refusal::Quota),
            E::NoChildrenForEphemerals
            | E::Unimplemented
            | E::MarshallingError
            | E::BadArguments(_)
            | E::NotReadOnly
            | E::UnexpectedErrorCode(_) => Failure::Refused(Refusal::Other),
            _ => Failure::Unknown,
        };
        let message = match &error {
            // The server has only ACLs from us to check: few servers check the other identities in them.
            E::InvalidAcl => NO_IDENTITY.to_owned(),
            other => other.to_string(),
        };
        KeeperError { failure, message }
    }
}
