//! Sessions on the network, with `zoolock-client`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_channel::oneshot;
use tokio::sync::watch;
use tokio::time::timeout_at;
use zoolock_client::{
    Client, End, Handler, Instant, RequestError, RequestId, Requests, Session, SessionConfig, State,
};
use zoolock_core::contender::SessionEnd;
use zoolock_wire::{Code, EventKind, Hidden, Reply, Request, WatchEvent};

use super::line::{Later, Line, LineAnswer, LineKeeper, OnGrant};
use super::{Deadline, Flight, Link, OpenError, Opened, Opening};
use crate::session::lock;

/// Opens a session. It tries the servers until the deadline.
pub(crate) async fn open(opening: &Opening, deadline: Deadline) -> Result<Opened, OpenError> {
    // The credentials may have been renewed since the last session was opened.
    in_time(deadline, opening.transport.prepare()).await?;
    let (links, mut link) = watch::channel(Link::Down);
    let interruptions = Arc::new(AtomicU64::new(0));
    let dropped = Arc::default();
    let registry = Registry {
        pending: BTreeMap::new(),
        watches: BTreeMap::new(),
        last_watch: 0,
        dropped: Arc::clone(&dropped),
        interruptions: interruptions.clone(),
        links,
        attached: Instant::default(),
        on_grant: None,
    };
    let servers = opening.transport.servers(&opening.hosts);
    let client = Client::start(config(opening), servers, registry, opening.tasks.platform());
    let opened = timeout_at(deadline, link.wait_for(|link| *link != Link::Down)).await;
    match opened.map(|link| link.map(|link| *link)) {
        Ok(Ok(Link::Up)) => {}
        Ok(Ok(Link::Over(SessionEnd::AuthFailed))) => return Err(OpenError::Denied),
        _ => {
            let errors = client.dial_errors();
            return Err(if errors.is_empty() {
                OpenError::NotInTime
            } else {
                OpenError::Unreachable(errors)
            });
        }
    }
    let (session, attached) = client.with(|session, registry, _| (session.id(), registry.attached));
    let line = NetworkLine { client, session, interruptions, dropped };
    if opening.transport.has_sasl() {
        let known = timeout_at(deadline, line.send(Request::WhoAmI)).await;
        let answer = known.map_err(|_| OpenError::NotInTime)?.ok_or(OpenError::NotInTime)?;
        check_sasl_identity(answer.reply.map_err(Some))?;
    }
    let keeper = LineKeeper::new(Arc::new(line), &opening.access, opening.tasks.clone());
    Ok(Opened { keeper: Arc::new(keeper), link, requested: zoolock_core::Instant(attached.0) })
}

/// Opens a session for single requests, without locks. It tries each server once.
pub(crate) async fn open_requests(opening: &Opening, deadline: Deadline) -> Result<Requests, OpenError> {
    in_time(deadline, opening.transport.prepare()).await?;
    let servers = opening.transport.servers(&opening.hosts);
    let opened = Requests::open(config(opening), servers, opening.tasks.platform());
    let requests = timeout_at(deadline, opened).await.map_err(|_| OpenError::NotInTime)?.map_err(
        |error| match error {
            zoolock_client::OpenError::Denied => OpenError::Denied,
            zoolock_client::OpenError::Unreachable(errors) => OpenError::Unreachable(errors),
            _ => OpenError::NotInTime,
        },
    )?;
    if opening.transport.has_sasl() {
        let known = timeout_at(deadline, requests.call(&Request::WhoAmI)).await;
        let reply = known.map_err(|_| OpenError::NotInTime)?.map_err(|error| error.code());
        check_sasl_identity(reply)?;
    }
    Ok(requests)
}

async fn in_time<T>(
    deadline: Deadline,
    future: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    timeout_at(deadline, future).await.unwrap_or(Err(OpenError::NotInTime))
}

fn config(opening: &Opening) -> SessionConfig {
    let mut config = SessionConfig::new(opening.timeout);
    config.credentials =
        opening.auth.iter().map(|(scheme, secret)| (scheme.clone(), Hidden(secret.to_vec()))).collect();
    config
}

/// Checks that the server knows us by SASL. A server that does not require SASL may accept a session without an identity.
fn check_sasl_identity(reply: Result<Reply, Option<Code>>) -> Result<(), OpenError> {
    match reply {
        Ok(Reply::Clients(known)) if known.iter().any(|(scheme, _)| scheme == "sasl") => Ok(()),
        Ok(_) => Err(OpenError::Denied),
        // Servers before 3.7 cannot be asked.
        Err(Some(Code::Unimplemented)) => Ok(()),
        Err(_) => Err(OpenError::NotInTime),
    }
}

/// The kind of a watch: on the data of a znode, or on its children. The deletion of the znode fires both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WatchKind {
    Data,
    Children,
}

type WatchKey = (String, WatchKind);

/// The watches that their owners have dropped, and that are to be forgotten.
type Dropped = Mutex<Vec<(WatchKey, u64)>>;

/// The pending requests and the watches of a session. The maps are ordered, so that a simulation repeats itself.
struct Registry {
    pending: BTreeMap<RequestId, (oneshot::Sender<LineAnswer>, Option<WatchKey>)>,
    watches: BTreeMap<WatchKey, Vec<(u64, oneshot::Sender<bool>)>>,
    last_watch: u64,
    /// Behind a mutex of its own: a watch may be dropped while the session is locked.
    dropped: Arc<Dropped>,
    interruptions: Arc<AtomicU64>,
    links: watch::Sender<Link>,
    /// The time at which the last attach was requested.
    attached: Instant,
    on_grant: Option<OnGrant>,
}

impl Registry {
    /// Registers a watch that the server has set.
    fn watch(&mut self, key: WatchKey) -> Later<bool> {
        self.forget_dropped();
        let (sender, fired) = oneshot::channel();
        self.last_watch += 1;
        let number = self.last_watch;
        self.watches.entry(key.clone()).or_default().push((number, sender));
        let guard = WatchGuard { key: Some(key), number, dropped: self.dropped.clone() };
        Box::pin(async move {
            let is_deleted = fired.await.unwrap_or(false);
            drop(guard);
            is_deleted
        })
    }

    fn forget_dropped(&mut self) {
        let dropped = std::mem::take(&mut *lock(&self.dropped));
        for (key, number) in dropped {
            if let Some(watches) = self.watches.get_mut(&key) {
                watches.retain(|(other, _)| *other != number);
                if watches.is_empty() {
                    self.watches.remove(&key);
                }
            }
        }
    }

    fn fire(&mut self, key: &WatchKey, is_deleted: bool) {
        for (_, watch) in self.watches.remove(key).into_iter().flatten() {
            let _ = watch.send(is_deleted);
        }
    }
}

impl Handler for Registry {
    fn reply(&mut self, request: RequestId, _: Instant, result: Result<Reply, RequestError>) {
        let Some((sender, key)) = self.pending.remove(&request) else { return };
        let reply = match result {
            Ok(reply) => Ok(reply),
            // An error that ZooKeeper does not define says nothing about the request.
            Err(RequestError::Refused(number)) => match Code::from_number(number) {
                Some(code) => Err(code),
                None => return,
            },
            // The request was not carried out, and may be repeated.
            Err(RequestError::NotSent) => Err(Code::Throttled),
            // Without an answer, the outcome is unknown.
            Err(_) => return,
        };
        let watch = key.filter(|_| reply.is_ok()).map(|key| self.watch(key));
        let _ = sender.send(LineAnswer { reply, watch });
    }

    fn event(&mut self, event: WatchEvent) {
        let is_deleted = event.kind == EventKind::Deleted;
        if event.kind != EventKind::ChildrenChanged {
            self.fire(&(event.path.clone(), WatchKind::Data), is_deleted);
        }
        if is_deleted || event.kind == EventKind::ChildrenChanged {
            self.fire(&(event.path, WatchKind::Children), is_deleted);
        }
    }

    fn granted(&mut self, timeout: Duration, sent: Instant) {
        self.attached = sent;
        if let Some(on_grant) = &self.on_grant {
            on_grant(zoolock_core::Instant(sent.0), timeout);
        }
    }

    fn state(&mut self, state: State) {
        let link = match state {
            State::Connected { .. } => {
                self.interruptions.fetch_add(1, Ordering::AcqRel);
                // The server has forgotten the watches of the last connection, and anything may have changed.
                let lost: Vec<WatchKey> = self.watches.keys().cloned().collect();
                self.links.send_replace(Link::Up);
                lost.iter().for_each(|key| self.fire(key, false));
                return;
            }
            State::Disconnected(loss) => {
                self.interruptions.fetch_add(1, Ordering::AcqRel);
                tracing::debug!(%loss, "the connection to the server is lost");
                Link::Down
            }
            State::Over(end) => {
                self.watches.clear();
                Link::Over(match end {
                    End::Closed | End::Abandoned => SessionEnd::Closed,
                    End::AuthFailed => SessionEnd::AuthFailed,
                    _ => SessionEnd::Expired,
                })
            }
        };
        self.links.send_replace(link);
    }
}

/// Tells the registry that a watch was dropped.
struct WatchGuard {
    key: Option<WatchKey>,
    number: u64,
    dropped: Arc<Dropped>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            lock(&self.dropped).push((key, self.number));
        }
    }
}

/// A session on the network.
struct NetworkLine {
    client: Client<Registry>,
    session: i64,
    interruptions: Arc<AtomicU64>,
    dropped: Arc<Dropped>,
}

impl Line for NetworkLine {
    fn begin_flight(&self) -> Flight {
        Box::new(self.client.begin_flight())
    }

    fn session(&self) -> i64 {
        self.session
    }

    fn timeout(&self) -> Duration {
        self.client.with(|session, _, _| session.timeout())
    }

    fn on_grant(&self, callback: OnGrant) {
        self.client.with(|session, registry, _| {
            // A server may have attached the session again since it was opened.
            callback(zoolock_core::Instant(registry.attached.0), session.timeout());
            registry.on_grant = Some(callback);
        });
    }

    fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    fn reattach(&self, is_hopeless: bool, works: bool) {
        self.client.with(|session, _, now| session.reattach(is_hopeless, works, now));
    }

    fn interruptions(&self) -> u64 {
        self.interruptions.load(Ordering::Acquire)
    }

    fn send(&self, request: Request) -> Later<Option<LineAnswer>> {
        self.send_with(&request, true, Session::request)
    }

    fn renew(&self, request: Request) -> Later<Option<LineAnswer>> {
        self.send_with(&request, false, Session::renew)
    }
}

impl NetworkLine {
    /// Sends a request, at the end of its flight if it may wait for that.
    fn send_with(
        &self,
        request: &Request,
        in_flight: bool,
        send: impl FnOnce(&mut Session, &Request, Instant) -> Result<RequestId, RequestError>,
    ) -> Later<Option<LineAnswer>> {
        let (sender, answer) = oneshot::channel();
        let call = |session: &mut Session, registry: &mut Registry, now| {
            if lock(&self.dropped).len() >= MAX_DROPPED {
                registry.forget_dropped();
            }
            send(session, request, now).map(|id| registry.pending.insert(id, (sender, watched(request))))
        };
        let sent = if in_flight { self.client.with_in_flight(call) } else { self.client.with(call) };
        match sent {
            Ok(_) => Box::pin(async move { answer.await.ok() }),
            Err(RequestError::NotSent) => {
                Box::pin(std::future::ready(Some(LineAnswer { reply: Err(Code::Throttled), watch: None })))
            }
            Err(RequestError::Refused(number)) => {
                let answer =
                    Code::from_number(number).map(|code| LineAnswer { reply: Err(code), watch: None });
                Box::pin(std::future::ready(answer))
            }
            Err(_) => Box::pin(std::future::ready(None)),
        }
    }
}

/// The number of dropped watches that are forgotten together.
const MAX_DROPPED: usize = 64;

/// Returns the watch that a request sets.
fn watched(request: &Request) -> Option<WatchKey> {
    match request {
        Request::GetData { path, watch: true } => Some((path.clone(), WatchKind::Data)),
        Request::GetChildren2 { path, watch: true } => Some((path.clone(), WatchKind::Children)),
        _ => None,
    }
}
