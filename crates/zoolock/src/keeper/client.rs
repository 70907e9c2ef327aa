//! The port over the crate `zookeeper-client`.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use zookeeper_client as zk;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};
use zoolock_core::contender::{Failure, Refusal, SessionEnd};
use zoolock_core::{Sequence, SessionId, Zxid};

use super::{Answer, Created, Keeper, KeeperError, Link, Op, Stat, Watch, nodelay};

/// One session of the client crate.
pub(crate) struct ClientKeeper {
    client: Arc<Client>,
}

/// How to open a session.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) endpoints: String,
    /// Of the endpoints.
    pub(crate) ports: Vec<u16>,
    pub(crate) timeout: Duration,
    pub(crate) auth: Vec<(String, Vec<u8>)>,
}

/// Opens a session, trying each endpoint once. To be called on the runtime that is to drive the session.
pub(crate) async fn open(opening: &Opening) -> Result<(ClientKeeper, watch::Receiver<Link>), zk::Error> {
    let mut client = connect(opening, opening.timeout).await?;
    let granted = client.session_timeout();
    if granted < opening.timeout {
        // The connection timeout has to follow the timeout that was granted, and is fixed before that is known.
        drop(client);
        client = connect(opening, granted).await?;
    }
    let mut states = client.state_watcher();
    let (sender, receiver) = watch::channel(Link::Up);
    let ports = opening.ports.clone();
    let _ = tokio::time::timeout(AT_ONCE_PATIENCE, send_at_once(ports.clone())).await;
    tokio::spawn(async move {
        let mut settings = JoinSet::new();
        loop {
            let link = match states.changed().await {
                zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly => {
                    // A new connection, a new socket. Nobody waits for it: the threads for it may be busy.
                    settings.spawn(send_at_once(ports.clone()));
                    while settings.try_join_next().is_some() {}
                    Link::Up
                }
                zk::SessionState::Disconnected => Link::Down,
                zk::SessionState::Expired => Link::Over(SessionEnd::Expired),
                zk::SessionState::AuthFailed => Link::Over(SessionEnd::AuthFailed),
                zk::SessionState::Closed => Link::Over(SessionEnd::Closed),
            };
            if sender.send(link).is_err() || matches!(link, Link::Over(_)) {
                return;
            }
        }
    });
    Ok((ClientKeeper { client: Arc::new(client) }, receiver))
}

/// How long the first request may wait until none does.
const AT_ONCE_PATIENCE: Duration = Duration::from_millis(50);

/// Lets no request wait for the acknowledgement of the one before it.
async fn send_at_once(ports: Vec<u16>) {
    // A process may have many thousand descriptors.
    let set = tokio::task::spawn_blocking(move || nodelay::set(&ports));
    match set.await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "cannot set TCP_NODELAY; a flight may take two round trips")
        }
        Err(error) if error.is_panic() => tracing::error!(%error, "cannot set TCP_NODELAY"),
        // The runtime is going down.
        Err(_) => {}
    }
}

async fn connect(opening: &Opening, timeout: Duration) -> Result<Client, zk::Error> {
    // A quarter of the session: the crate's own two fifths, once to notice and once to connect, are past our
    // deadline if one host is dead.
    let mut connector = Client::connector()
        .with_session_timeout(timeout)
        .with_connection_timeout(timeout / 4)
        .with_fail_eagerly();
    for (scheme, credentials) in &opening.auth {
        connector = connector.with_auth(scheme, credentials);
    }
    connector.connect(&opening.endpoints).await
}

const OPEN: Acls<'static> = Acls::anyone_all();
const CONTENDER: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(OPEN);
const EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(OPEN);
const CONTAINER: CreateOptions<'static> = CreateMode::Container.with_acls(OPEN);
const LINE: CreateOptions<'static> = CreateMode::PersistentSequential.with_acls(OPEN);
const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(OPEN);

impl ClientKeeper {
    /// Calls the client *now*, which queues the request, and keeps the rest for later. The crate's futures borrow
    /// the client and the path, so they are made inside one that owns both; its first poll makes the call.
    fn send<T, F, Fut>(&self, call: F) -> Answer<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Client>) -> Fut,
        Fut: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        let call = call(self.client.clone());
        let mut answer: Answer<T> = Box::pin(async move { call.await.map_err(KeeperError::from) });
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Box::pin(std::future::ready(outcome)),
            Poll::Pending => answer,
        }
    }

    fn create(&self, path: &str, data: &[u8], options: CreateOptions<'static>) -> Answer<(Sequence, Stat)> {
        let (path, data) = (path.to_owned(), data.to_owned());
        self.send(|client| async move {
            let (stat, sequence) = client.create(&path, &data, &options).await?;
            let sequence = i32::try_from(sequence.into_i64())
                .map_err(|_| zk::Error::UnexpectedError("a sequence number past 32 bits".to_owned()))?;
            Ok((Sequence(sequence), stat.into()))
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

    fn join(&self, prefix: &str, data: &[u8]) -> Answer<(Sequence, Stat)> {
        self.create(prefix, data, CONTENDER)
    }

    fn join_as(&self, path: &str, data: &[u8]) -> Answer<(Sequence, Stat)> {
        let created = self.create(path, data, EPHEMERAL);
        Box::pin(async move { created.await.map(|(_, stat)| (Sequence(0), stat)) })
    }

    fn create_ephemeral(&self, path: &str, data: &[u8]) -> Answer<()> {
        Box::pin(discard(self.create(path, data, EPHEMERAL)))
    }

    fn create_container(&self, path: &str) -> Answer<()> {
        Box::pin(discard(self.create(path, b"", CONTAINER)))
    }

    fn create_persistent(&self, path: &str) -> Answer<()> {
        Box::pin(discard(self.create(path, b"", PERSISTENT)))
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
        self.send(|client| async move {
            let mut transaction = client.new_multi_writer();
            for op in &ops {
                match op {
                    Op::Join { prefix, data } => transaction.add_create(prefix, data, &CONTENDER)?,
                    Op::Log { prefix, data } => transaction.add_create(prefix, data, &LINE)?,
                    Op::Create { path, data } => transaction.add_create(path, data, &EPHEMERAL)?,
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
            Ok(created.collect())
        })
    }
}

/// Every node has it.
const ANY_VERSION: i32 = -1;

fn watch(watcher: zk::OneshotWatcher) -> Watch {
    Box::pin(async move { watcher.changed().await.event_type == zk::EventType::NodeDeleted })
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
    /// Anything but an error code from the server leaves the outcome unknown. The crate reports a reset connection as
    /// `Custom`, not as `ConnectionLoss`, so what is known is listed and the rest is unknown.
    fn from(error: zk::Error) -> KeeperError {
        use zk::Error as E;
        let failure = match &error {
            E::NoNode => Failure::NoNode,
            E::NodeExists => Failure::NodeExists,
            E::NotEmpty => Failure::NotEmpty,
            E::BadVersion => Failure::BadVersion,
            E::Throttled => Failure::Throttled,
            // A refused authentication also ends the session, so it does not matter what was under way.
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
        KeeperError { failure, message: error.to_string() }
    }
}
