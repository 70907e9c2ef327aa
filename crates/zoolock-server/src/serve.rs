//! Sockets and clocks around a [`Core`].
//!
//! Each connection has one task. The core sits behind a mutex that is held for a batch of frames at a time and never
//! across an await; what a batch answers is written to the socket in one piece.

mod connection;
mod connection_limits;
mod door;
mod figures;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub(crate) mod http;
mod journal;
mod kept;
mod outbox;
mod words;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Buf as _, BytesMut};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

pub(crate) use self::connection_limits::ConnectionLimits;
pub(crate) use self::door::{Door, Tls};
use self::journal::Journal;
use self::kept::{Kept, Source};
use self::outbox::Outbox;
use crate::acl::Identity;
use crate::core::{ConnId, Core, Fresh, Latency, Now};
use crate::data_dir::DataDir;
use crate::expiry::Rounds;
use crate::ids::{SessionId, Zxid};
use crate::log::Log;
use crate::state::Session;
use crate::tree::NodeRecord;
use crate::txn::Password;
use crate::word::Word;

/// How many bytes of events may wait for a connection that does not read.
pub(crate) const MAX_OUTPUT: usize = 64 << 20;

/// How many bytes of replies may wait for a connection before it is not read from.
const HIGH_WATER: usize = 1 << 20;

/// The longest frame of a stranger: a greeting has no more than a password in it, and credentials are not longer.
const MAX_GREETING: usize = 8192;

/// How many frames are handled before others get at the core.
const BATCH: usize = 128;
/// How long a connection keeps the core before others have their turn: some requests cost more than others.
const BATCH_TIME: Duration = Duration::from_millis(2);

/// What the tasks have to know about time and limits.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) tick: Duration,
    pub(crate) container_check: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_frame: usize,
    /// How many bytes all connections together may have half sent; 0: any number.
    pub(crate) max_queued: usize,
    /// The words that are answered.
    pub(crate) words: Vec<Word>,
    pub(crate) conf: Conf,
}

/// What `conf` and the handle tell besides.
#[derive(Debug)]
pub(crate) struct Conf {
    pub(crate) addr: Option<SocketAddr>,
    pub(crate) tls_addr: Option<SocketAddr>,
    pub(crate) metrics_addr: Option<SocketAddr>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) max_connections_per_address: usize,
    pub(crate) min_timeout_ms: u32,
    pub(crate) max_timeout_ms: u32,
}

/// The other end of a connection.
#[derive(Debug)]
struct Peer {
    addr: SocketAddr,
    /// Since when, in milliseconds since 1970.
    since_ms: i64,
    waker: Arc<Notify>,
}

/// What all tasks of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    inner: Arc<Mutex<Inner>>,
    started: Instant,
    /// How far the clocks were put forward, in milliseconds.
    advanced: AtomicU64,
    /// How many bytes of requests all connections have sent that are not whole, or not taken yet.
    half_sent: AtomicUsize,
    pub(crate) timing: Timing,
    // Before the directory, whose lock goes when nobody writes there any more.
    journal: Option<Journal>,
    data_dir: Option<DataDir>,
    /// Becomes true when the core must not be used any more.
    broken: watch::Sender<bool>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) core: Core,
    pub(crate) idle_since: Option<Instant>,
    peers: HashMap<ConnId, Peer>,
    opened: u64,
    latency: Latency,
    /// Connections turned away because there were too many.
    rejected: u64,
    /// TLS handshakes that came to nothing.
    failed_handshakes: u64,
    /// What the data directory says of [`Core::owed_ms`].
    noted_ms: u32,
}

/// What became of a connection's input.
struct Fed {
    /// Nothing follows; what is in the output is the last.
    closing: bool,
    /// Whole frames are left in the input.
    more: bool,
    /// The connection has a session, and presented the secret if there is one.
    admitted: bool,
}

/// Accepts connections until told to stop, then waits for their tasks.
pub(crate) async fn accept(
    shared: Arc<Shared>,
    door: Door,
    limits: Arc<ConnectionLimits>,
    mut stop: watch::Receiver<bool>,
) {
    let Door { listener, tls, .. } = door;
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = stopped(&mut stop) => break,
            Some(ended) = tasks.join_next() => report(ended),
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => {
                    let Some(place) = limits.enter(peer.ip()) else {
                        tracing::debug!(%peer, "too many connections, closing");
                        shared.lock().rejected += 1;
                        continue;
                    };
                    let _ = socket.set_nodelay(true);
                    let (shared, tls, stop) = (Arc::clone(&shared), tls.clone(), stop.clone());
                    tasks.spawn(async move {
                        let _place = place;
                        match tls {
                            None => connection::run(shared, socket, peer, None, stop).await,
                            // Those without TLS are not to be as large as those with it.
                            Some(tls) => Box::pin(door::admit(shared, socket, peer, tls, stop)).await,
                        }
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: let some connections end first.
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    while let Some(ended) = tasks.join_next().await {
        report(ended);
    }
}

/// Expires sessions, removes empty containers and watches over the epoch, until told to stop.
pub(crate) async fn tick(shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let tick = shared.timing.tick;
    // Deadlines are multiples of a tick after the start; so are these.
    let mut ticks = interval_at(shared.started + tick, tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut rounds = Rounds::default();
    let tick_ms = u64::try_from(tick.as_millis()).unwrap_or(u64::MAX);
    let every = shared.timing.container_check;
    let _look = Look(&shared);
    let mut checks = interval_at(shared.started + every, every);
    checks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            () = stopped(&mut stop) => return,
            _ = ticks.tick() => {
                shared.with_core(|core, now| {
                    if rounds.is_due(now.mono_ms, tick_ms) {
                        core.tick(now);
                    }
                });
                shared.note_what_is_owed(&mut shared.lock(), true);
                shared.keep_numbers_coming().await;
            }
            _ = checks.tick() => shared.with_core(Core::remove_empty_containers),
        }
    }
}

impl Shared {
    /// Everything in `core` is in `log` already, if there is one.
    pub(crate) fn new(
        core: Core,
        timing: Timing,
        data_dir: Option<DataDir>,
        log: Option<Log>,
    ) -> std::io::Result<Self> {
        let started = Instant::now();
        let kept = core.last_change();
        let inner = Arc::new(Mutex::new(Inner {
            core,
            idle_since: Some(started),
            peers: HashMap::new(),
            opened: 0,
            latency: Latency::default(),
            rejected: 0,
            failed_handshakes: 0,
            noted_ms: 0,
        }));
        let start = |log| Journal::start(Kept::new(log, Arc::clone(&inner))?, kept);
        let journal = log.map(start).transpose()?;
        let advanced = AtomicU64::new(0);
        let half_sent = AtomicUsize::new(0);
        let broken = watch::channel(false).0;
        let shared = Shared { inner, started, advanced, half_sent, timing, journal, data_dir, broken };
        shared.lock().settle(None);
        Ok(shared)
    }

    /// Why nothing is kept any more, or nobody is served; never, while all is well.
    pub(crate) async fn failed(&self) -> String {
        let mut broken = self.broken.subscribe();
        let unkept = async {
            let Some(journal) = &self.journal else { return std::future::pending().await };
            let _ = journal.failed().wait_for(|failed| *failed).await;
            journal.failure().unwrap_or("the log's thread is gone").to_owned()
        };
        tokio::select! {
            why = unkept => why,
            _ = broken.wait_for(|broken| *broken) => "a bug: the server's core panicked".to_owned(),
        }
    }

    /// Whether nothing will be kept any more of what is not.
    fn keeps_nothing(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.failure().is_some())
    }

    /// Sees to it that a core that panicked is known to have.
    fn look_at_the_core(&self) {
        if self.inner.is_poisoned() {
            self.broken.send_replace(true);
        }
    }

    /// Keeps what was decided, ends the journal, and notes what the next server has to wait for. It blocks.
    pub(crate) fn stop_journal(&self) {
        if let Some(journal) = &self.journal {
            journal.stop();
        } else if self.data_dir.is_some() {
            self.note_what_is_owed(&mut self.lock(), true);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.look_at_the_core();
        self.inner
            .lock()
            .expect("the core panics only through a bug of ours, and must not be used after that")
    }

    /// Whether no bug has left the core half way.
    fn is_sound(&self) -> bool {
        !self.inner.is_poisoned() && !self.keeps_nothing()
    }

    pub(crate) fn expire_session(&self, session: i64) -> bool {
        self.with_core(|core, now| core.expire(SessionId::from_wire(session), now))
    }

    pub(crate) fn expire_sessions(&self) -> usize {
        self.with_core(|core, now| {
            let sessions: Vec<SessionId> = core.state().sessions.keys().copied().collect();
            sessions.iter().filter(|session| core.expire(**session, now)).count()
        })
    }

    pub(crate) fn disconnect_all(&self) {
        self.with_core(|core, _| core.disconnect_all());
    }

    /// Puts the clocks forward, and does what is due by then.
    pub(crate) fn advance(&self, by: Duration) {
        self.advanced.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.with_core(|core, now| {
            core.tick(now);
            core.remove_empty_containers(now);
        });
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let advanced = Duration::from_millis(self.advanced.load(Ordering::Relaxed));
        Now {
            mono_ms: u64::try_from((self.started.elapsed() + advanced).as_millis()).unwrap_or(u64::MAX),
            wall_ms: i64::try_from((wall + advanced).as_millis()).unwrap_or(i64::MAX),
        }
    }

    fn with_core<T>(&self, act: impl FnOnce(&mut Core, Now) -> T) -> T {
        let mut inner = self.lock();
        let result = act(&mut inner.core, self.now());
        self.keep(&mut inner);
        inner.settle(None);
        result
    }

    fn open(&self, addr: SocketAddr, who: Option<Identity>, waker: Arc<Notify>) -> ConnId {
        let mut inner = self.lock();
        let conn = inner.core.open_as(addr.ip(), who);
        inner.peers.insert(conn, Peer { addr, since_ms: self.now().wall_ms, waker });
        inner.opened += 1;
        conn
    }

    /// Lets a connection end with what has been answered; false when nothing has.
    fn finish(&self, conn: ConnId) -> bool {
        let Ok(mut inner) = self.inner.lock() else { return false };
        let had_session = inner.core.finish(conn);
        inner.settle(None);
        had_session
    }

    fn closed(&self, conn: ConnId) {
        // It runs while a panic unwinds, too: a bug may cost the server, but not the process that it lives in.
        self.look_at_the_core();
        let Ok(mut inner) = self.inner.lock() else { return };
        let now = self.now();
        inner.peers.remove(&conn);
        inner.core.closed(conn, now);
        self.keep(&mut inner);
        inner.settle(None);
    }

    /// Hands what was decided to the journal, before anybody else can get at the core.
    fn keep(&self, inner: &mut Inner) {
        if let Some(journal) = &self.journal {
            journal.append(inner.core.decided());
        }
    }

    /// Hands whole frames from `input` to the core, and moves what it has for the connection to `output`.
    fn feed(&self, conn: ConnId, input: &mut BytesMut, output: &mut Outbox) -> Fed {
        let begun = Instant::now();
        let mut inner = self.lock();
        let now = self.now();
        let (mut frames, mut broken) = (0, false);
        let more = loop {
            let full = frames == BATCH || frames > 0 && begun.elapsed() > BATCH_TIME;
            // A stranger is not to make us keep a large frame.
            let most = if inner.core.admitted(conn) { usize::MAX } else { MAX_GREETING };
            let longest = most.min(self.timing.max_frame);
            if full || inner.core.output_len(conn) >= HIGH_WATER {
                break whole_frame(input, longest).is_some();
            }
            match whole_frame(input, longest) {
                None => break false,
                Some(Err(len)) => {
                    tracing::debug!(%conn, len, "no length for a frame, closing");
                    broken = true;
                    break false;
                }
                Some(Ok(len)) => {
                    inner.core.receive(conn, &input[4..4 + len], now, fresh);
                    input.advance(4 + len);
                    frames += 1;
                }
            }
        };
        // Before the answer that gives somebody a session: the next server has to know that it may be believed in.
        let is_noted = self.note_what_is_owed(&mut inner, false);
        self.keep(&mut inner);
        if !is_noted && inner.core.granted_ms(conn) > inner.noted_ms {
            inner.settle(Some(conn));
            return Fed { closing: true, more: false, admitted: false };
        }
        let last_change = inner.core.last_change();
        let closing = output.fill(last_change, |bytes| inner.core.take_output(conn, bytes)) || broken;
        if frames > 0 {
            inner.took(conn, frames as u64, begun.elapsed());
        }
        inner.settle(Some(conn));
        let admitted = inner.core.admitted(conn);
        Fed { closing, more, admitted }
    }

    /// Whether so much waits for the disk that nothing more should be decided.
    fn is_full(&self, waker: &Arc<Notify>) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_full(waker))
    }

    /// Keeps the note in the data directory true. What is more is written at once, what is less when there is time.
    pub(crate) fn note_what_is_owed(&self, inner: &mut Inner, less_too: bool) -> bool {
        // A server with a log brings its sessions back.
        let Some(dir) = self.data_dir.as_ref().filter(|_| self.journal.is_none()) else { return true };
        let owed = inner.core.owed_ms();
        if owed == inner.noted_ms || owed < inner.noted_ms && !less_too {
            return true;
        }
        match dir.owe(owed) {
            Ok(()) => {
                inner.noted_ms = owed;
                true
            }
            Err(error) => {
                tracing::error!(%error, "cannot note that there are sessions; giving none");
                false
            }
        }
    }

    /// Starts a new epoch long before this one has no numbers left.
    async fn keep_numbers_coming(&self) {
        let zxid = self.lock().core.zxid();
        if zxid.count() < 1 << 31 {
            return;
        }
        let epoch = match &self.data_dir {
            None => Ok(zxid.epoch() + 1),
            Some(dir) => dir.next_epoch(0),
        };
        match epoch {
            Ok(epoch) => self.lock().core.start_epoch(epoch),
            Err(error) => {
                tracing::error!(%error, "cannot start a new epoch; writes will be refused in the end")
            }
        }
    }
}

/// Looks at the core when a task ends in which it may have panicked.
struct Look<'a>(&'a Shared);

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.0.look_at_the_core();
    }
}

/// A core that panicked is not looked at any more.
impl Source for Arc<Mutex<Inner>> {
    fn begin(&self) -> (Zxid, BTreeMap<SessionId, Session>) {
        self.lock().map_or_else(
            |_| (Zxid::from_wire(i64::MAX), BTreeMap::new()),
            |mut inner| inner.core.begin_snapshot(),
        )
    }

    fn chunk(&self, max: usize) -> Option<Vec<NodeRecord>> {
        self.lock().ok()?.core.snapshot_chunk(max)
    }

    fn abandon(&self) {
        if let Ok(mut inner) = self.lock() {
            inner.core.abandon_snapshot();
        }
    }
}

impl Inner {
    fn took(&mut self, conn: ConnId, frames: u64, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.latency.add(frames, ms);
        self.core.took(conn, frames, ms);
    }

    /// Wakes the connections that something was queued for, all but the one that is awake anyway.
    fn settle(&mut self, awake: Option<ConnId>) {
        for conn in self.core.take_woken() {
            if Some(conn) != awake
                && let Some(peer) = self.peers.get(&conn)
            {
                peer.waker.notify_one();
            }
        }
        match (self.core.session_count(), self.idle_since) {
            (0, None) => self.idle_since = Some(Instant::now()),
            (0, Some(_)) | (_, None) => {}
            (_, Some(_)) => self.idle_since = None,
        }
    }
}

/// The length of the frame at the start of `input`, if all of it is there; an error for a length no frame has.
fn whole_frame(input: &BytesMut, max: usize) -> Option<Result<usize, i32>> {
    let len = i32::from_be_bytes(*input.first_chunk()?);
    match usize::try_from(len) {
        Ok(len) if len <= max => (input.len() - 4 >= len).then_some(Ok(len)),
        _ => Some(Err(len)),
    }
}

fn fresh() -> Fresh {
    let mut random = [0; 24];
    getrandom::fill(&mut random).expect("the random source worked when the server started");
    let (id, password) = random.split_first_chunk::<8>().expect("24 bytes hold 8");
    Fresh {
        id: u64::from_be_bytes(*id),
        password: Password(password.try_into().expect("24 bytes hold 8 and 16")),
    }
}

/// Waits for the order to stop; a handle that is gone gives it too.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection task panicked");
    }
}
