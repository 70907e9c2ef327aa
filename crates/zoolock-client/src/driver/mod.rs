//! The driver: owns the socket of a session, reads the clock, and carries out the outputs of the [`Session`].
//!
//! One task drives a session. One mutex guards the [`Session`], the caller's [`Handler`] and the stream. So replies,
//! watch events and state changes reach the handler in the order in which the server sent them, and never during a call
//! of [`Client::with`]. Such a call usually writes its requests to the stream itself. If the stream is full or many
//! requests are in flight, the driver's task writes them together.

mod handler;
mod handoff;
mod link;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Sleep;

use crate::host::Host;
use crate::hosts::{self, DialError, Dialed, Hosts, Security};
use crate::platform::Platform;
use crate::sasl::{SaslClient, SaslExchange};
use crate::session::{ConnectionId, Output, SaslStep, Session, SessionConfig, SessionState};
use crate::{Instant, RequestError, RequestNumber};
pub use handler::{Handler, Work};
use handoff::{Driven, Handoff};
use link::SocketLink;
use zoolock_wire::Request;

/// The servers of a session, and the security settings of its connections.
#[derive(Clone, Default)]
pub struct Servers {
    /// The servers of one ensemble, in any order.
    pub hosts: Vec<Host>,
    /// Set for TLS on all TCP connections.
    #[cfg(feature = "tls")]
    pub tls: Option<Arc<dyn crate::TlsSource>>,
    /// Set for SASL on all connections.
    pub sasl: Option<Arc<dyn SaslClient>>,
}

impl From<Vec<Host>> for Servers {
    fn from(hosts: Vec<Host>) -> Servers {
        Servers { hosts, ..Servers::default() }
    }
}

/// A client with one session.
///
/// Dropping all clones closes the session in the background, as [`Client::close`] does.
///
/// After a fork, the child process sends nothing on the connection. In the child, the session has
/// ended ([`End::Abandoned`](crate::End::Abandoned)).
pub struct Client<H: Handler> {
    inner: Arc<CloseOnDrop<H>>,
}

struct CloseOnDrop<H: Handler> {
    shared: Arc<SharedDriver<H>>,
}

struct SharedDriver<H: Handler> {
    core: Handoff<DriverCore<H>>,
    platform: Arc<dyn Platform>,
    /// The id of the process that started the session. A fork copies this struct, but the threads and the connection
    /// belong to the parent.
    process: u32,
}

/// The session, its stream, and the receiver of its outputs.
struct DriverCore<H> {
    session: Session,
    handler: H,
    link: Option<SocketLink>,
    hosts: Arc<Mutex<Hosts>>,
    /// Set if the driver must write, because a caller did not write all bytes.
    driver_writes: bool,
    /// The threads whose [batches](Client::begin_batch) have not ended.
    batches: Vec<ThreadId>,
    /// Outputs of the session that the driver must carry out.
    actions: Vec<DriverAction>,
    /// The errors of the last dial. Empty if that dial reached a server.
    dial_errors: Vec<DialError>,
}

/// Work for the driver.
enum DriverAction {
    Dial { id: ConnectionId, avoid_current: bool, same_first: bool },
    AbortDial { id: ConnectionId, is_late: bool },
    Challenge(ConnectionId, Option<Bytes>),
}

impl<H: Handler> Clone for Client<H> {
    fn clone(&self) -> Self {
        Client { inner: self.inner.clone() }
    }
}

impl<H: Handler> Drop for CloseOnDrop<H> {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        let now = self.shared.platform.now();
        self.shared.core.change_and_wake(|core| {
            core.session.close(now);
            core.driver_writes = true;
        });
    }
}

impl<H: Handler> Client<H> {
    /// Starts a session with one of these servers. The first [`SessionState`] that the handler gets reports success or
    /// failure.
    ///
    /// # Panics
    /// There is no server in `servers`.
    pub fn start(
        mut config: SessionConfig,
        servers: impl Into<Servers>,
        handler: H,
        platform: Arc<dyn Platform>,
    ) -> Client<H> {
        let servers = servers.into();
        assert!(!servers.hosts.is_empty(), "a session needs at least one server");
        config.sasl = servers.sasl.is_some();
        let hosts = Arc::new(Mutex::new(Hosts::new(servers.hosts, platform.clone())));
        let session = Session::new(config, platform.now());
        let core = DriverCore {
            session,
            handler,
            link: None,
            hosts,
            driver_writes: false,
            batches: Vec::new(),
            actions: Vec::new(),
            dial_errors: Vec::new(),
        };
        let shared = Arc::new(SharedDriver {
            core: Handoff::new(core),
            platform: platform.clone(),
            process: std::process::id(),
        });
        let driver = Driver {
            shared: shared.clone(),
            #[cfg(feature = "tls")]
            tls: servers.tls,
            mechanism: servers.sasl,
            dial: None,
            sasl: None,
            input: vec![0; READ_BYTES],
            reads: 0,
            parts: 0,
        };
        platform.spawn(Box::pin(driver.run()));
        Client { inner: Arc::new(CloseOnDrop { shared }) }
    }

    /// Runs `call` with the session and the handler. No reply or event is handled meanwhile, so
    /// `call` can register a request with the handler before the reply to the request is handled.
    /// The session's pending bytes are written afterwards.
    ///
    /// `call` must not block.
    pub fn with<T>(&self, call: impl FnOnce(&mut Session, &mut H, Instant) -> T) -> T {
        self.inner.shared.with(false, call)
    }

    /// Runs `call` as [`Client::with`] does. During a [batch](Client::begin_batch) of this thread, the session's
    /// pending bytes are written only at the end of the batch.
    pub fn with_batched<T>(&self, call: impl FnOnce(&mut Session, &mut H, Instant) -> T) -> T {
        self.inner.shared.with(true, call)
    }

    /// Begins a batch of this thread. Requests that the thread sends with [`Client::with_batched`] are written
    /// together when the returned value is dropped. That saves system calls in this process and on the server.
    pub fn begin_batch(&self) -> RequestBatch<H> {
        let thread = std::thread::current().id();
        self.inner.shared.core.lock().state.batches.push(thread);
        RequestBatch { shared: self.inner.shared.clone(), thread }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// As [`Session::request`].
    pub fn request(&self, request: &Request) -> Result<RequestNumber, RequestError> {
        self.with(|session, _, now| session.request(request, now))
    }

    /// Returns whether a request would be accepted.
    pub fn is_connected(&self) -> bool {
        self.inner.shared.core.lock().state.session.is_connected()
    }

    /// Closes the session. The end is reported to the handler.
    pub fn close(&self) {
        self.with(|session, _, now| session.close(now));
    }

    /// Returns the errors of the last dial, if that dial reached no server.
    pub fn dial_errors(&self) -> Vec<DialError> {
        self.inner.shared.core.lock().state.dial_errors.clone()
    }
}

/// A period in which the requests of a thread are collected, to be written together at the end of
/// the batch. See [`Client::begin_batch`].
#[must_use = "the batch ends when this is dropped"]
pub struct RequestBatch<H: Handler> {
    shared: Arc<SharedDriver<H>>,
    thread: ThreadId,
}

impl<H: Handler> Drop for RequestBatch<H> {
    fn drop(&mut self) {
        {
            let batches = &mut self.shared.core.lock().state.batches;
            if let Some(at) = batches.iter().position(|thread| *thread == self.thread) {
                batches.swap_remove(at);
            }
        }
        self.shared.with(false, |_, _, _| ());
    }
}

impl<H: Handler> SharedDriver<H> {
    fn with<T>(&self, is_batched: bool, call: impl FnOnce(&mut Session, &mut H, Instant) -> T) -> T {
        self.core.change_and_wake(|core| {
            if self.is_forked() {
                // The link is not dropped: a drop would remove its socket from the parent's epoll instance.
                std::mem::forget(core.link.take());
                core.session.abandon();
            }
            let result = call(&mut core.session, &mut core.handler, self.platform.now());
            core.dispatch_outputs();
            let waits =
                is_batched && !core.batches.is_empty() && core.batches.contains(&std::thread::current().id());
            core.driver_writes |= !waits && !core.try_write();
            result
        })
    }
}

impl<H: Handler> SharedDriver<H> {
    /// Returns whether this process was forked from the process that started the session. A forked
    /// process must not write to the connection.
    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }
}

impl<H: Handler> Driven for DriverCore<H> {
    type Time = Instant;

    fn next_timer(&self) -> Option<Instant> {
        self.session.next_timer().into_iter().chain(self.handler.next_timer()).min()
    }

    fn has_work(&self) -> bool {
        self.driver_writes
            || !self.actions.is_empty()
            || self.handler.has_work()
            || self.session.end().is_some()
    }
}

impl<H: Handler> DriverCore<H> {
    /// Passes the session's outputs to the handler, and collects the actions for the driver.
    fn dispatch_outputs(&mut self) {
        while let Some(output) = self.session.next_output() {
            match output {
                Output::Dial { id, avoid_current, same_first } => {
                    self.actions.push(DriverAction::Dial { id, avoid_current, same_first });
                }
                Output::AbortDial { id, is_late } => {
                    self.actions.push(DriverAction::AbortDial { id, is_late });
                }
                Output::Close { id, leaves_write } => {
                    if let Some(link) = self.link.take_if(|link| link.id == id)
                        && leaves_write
                    {
                        hosts::lock(&self.hosts).record_late_write(&link.endpoint);
                    }
                }
                Output::SaslChallenge(id, challenge) => {
                    self.actions.push(DriverAction::Challenge(id, challenge))
                }
                Output::Granted { timeout, sent } => self.handler.handle_granted_timeout(timeout, sent),
                Output::State(state) => {
                    if matches!(state, SessionState::Connected { .. }) {
                        hosts::lock(&self.hosts).record_attached();
                    }
                    self.handler.handle_state_change(state);
                }
                Output::Reply { request, sent, result } => self.handler.handle_reply(request, sent, result),
                Output::Event(event) => self.handler.handle_event(event),
            }
        }
    }

    /// Writes on the caller's thread, if few requests are in flight. Returns whether nothing is left to write.
    fn try_write(&mut self) -> bool {
        if self.session.in_flight() > MAX_CALLER_WRITES {
            return false;
        }
        self.poll_write(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.link {
            Some(link) => link.poll_write(&mut self.session, cx),
            None => Poll::Ready(()),
        }
    }
}

/// A caller writes by itself if at most this many requests are in flight. Otherwise the driver writes, because it wakes up for
/// replies anyway, and then writes many requests at once.
const MAX_CALLER_WRITES: usize = 8;

/// The size of the read buffer in bytes.
const READ_BYTES: usize = 16 * 1024;

/// The number of reads in a row after which the driver calls the session's timer, so that reads without a pause do not delay it.
const MAX_READS: u32 = 64;

/// The number of parts of the handler's work after which other tasks run.
const PARTS_PER_YIELD: u32 = 8;

type DialResult = Result<Dialed, Vec<DialError>>;

type DialFuture = Pin<Box<dyn Future<Output = DialResult> + Send>>;

type PendingStep = Pin<Box<dyn Future<Output = (Box<dyn SaslExchange>, SaslStep)> + Send>>;

/// The SASL exchange on a connection.
enum SaslProgress {
    /// The first token was computed during the dial, and is not sent yet.
    Prepared(Box<dyn SaslExchange>, SaslStep),
    /// The exchange waits for the next challenge of the server.
    Idle(Box<dyn SaslExchange>),
    Stepping(PendingStep),
}

struct Driver<H: Handler> {
    shared: Arc<SharedDriver<H>>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<dyn crate::TlsSource>>,
    mechanism: Option<Arc<dyn SaslClient>>,
    dial: Option<(ConnectionId, DialFuture)>,
    /// The SASL exchange that is not complete yet, and its connection.
    sasl: Option<(ConnectionId, SaslProgress)>,
    input: Vec<u8>,
    /// The number of reads since the session's timer was last called.
    reads: u32,
    /// The number of parts of the handler's work so far.
    parts: u32,
}

/// The reason why the driver woke up.
enum DriverWake {
    /// This number of bytes was read into the input buffer.
    Read(ConnectionId, usize),
    /// The connection ended.
    Closed(ConnectionId),
    Dialed(DialResult),
    /// The next step of the SASL exchange is known.
    Stepped(Box<dyn SaslExchange>, SaslStep),
    Timer,
    /// A caller has changed the session, or the handler has work.
    Called,
}

impl<H: Handler> Drop for Driver<H> {
    /// Ends the session if the runtime stops before the session has ended, so that no caller waits
    /// for ever.
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // The sockets are not dropped: a drop would remove them from the parent's epoll instance.
            std::mem::forget((self.shared.core.lock().state.link.take(), self.dial.take()));
        }
        self.with_session(|session, _, _| session.abandon());
    }
}

impl<H: Handler> Driver<H> {
    async fn run(mut self) {
        let mut sleep = pin!(tokio::time::sleep(Duration::ZERO));
        while self.run_actions(sleep.as_mut()) {
            match self.next_wake(sleep.as_mut()).await {
                DriverWake::Called => {}
                DriverWake::Read(id, bytes) => {
                    self.receive(id, bytes);
                    self.reads += 1;
                    if self.reads >= MAX_READS {
                        self.reads = 0;
                        self.with_session(Session::run_due_timers);
                    }
                }
                DriverWake::Closed(id) => {
                    self.with_session(|session, now, random| session.handle_connection_end(id, now, random));
                }
                DriverWake::Dialed(result) => self.handle_dial_result(result),
                DriverWake::Stepped(exchange, step) => self.continue_sasl(exchange, step),
                DriverWake::Timer => {
                    self.reads = 0;
                    self.shared.core.lock().clear_alarm();
                    self.with_session(Session::run_due_timers);
                }
            }
            self.run_work().await;
        }
    }

    /// Runs one part of the handler's work. Then lets the other tasks of the runtime run if there is more, and after every
    /// eighth part, because the next read may bring more at once.
    async fn run_work(&mut self) {
        let now = self.shared.platform.now();
        let Some(work) = self.shared.core.lock().state.handler.take_work(now) else { return };
        work();
        self.parts = self.parts.wrapping_add(1);
        if self.shared.core.lock().state.handler.has_work() || self.parts.is_multiple_of(PARTS_PER_YIELD) {
            tokio::task::yield_now().await;
        }
    }

    /// Calls the session with the time and a random number, and dispatches its outputs.
    fn with_session(&mut self, call: impl FnOnce(&mut Session, Instant, u64)) {
        let core = &mut self.shared.core.lock().state;
        let platform = &self.shared.platform;
        call(&mut core.session, platform.now(), platform.random());
        core.dispatch_outputs();
    }

    /// Carries out the actions, and sets the alarm. Returns `false` if the session has ended.
    fn run_actions(&mut self, sleep: Pin<&mut Sleep>) -> bool {
        let shared = self.shared.clone();
        let guarded = &mut *shared.core.lock();
        let core = &mut guarded.state;
        core.dispatch_outputs();
        let connected = core.link.as_ref().map(|link| link.id);
        self.sasl.take_if(|(id, _)| Some(*id) != connected);
        for action in std::mem::take(&mut core.actions) {
            match action {
                DriverAction::Dial { id, avoid_current, same_first } => {
                    let head_start = (core.session.timeout() / 60).min(MAX_HEAD_START);
                    core.session.set_servers(hosts::lock(&core.hosts).begin_dial(avoid_current, same_first));
                    self.dial = Some((id, self.start_dial(core.hosts.clone(), head_start)));
                }
                DriverAction::Challenge(id, challenge) => {
                    if connected == Some(id) {
                        self.answer_challenge(id, challenge);
                    }
                }
                DriverAction::AbortDial { id, is_late } => {
                    let aborted = self.dial.take_if(|(dialing, _)| *dialing == id);
                    if aborted.is_some() && !is_late {
                        hosts::lock(&core.hosts).forget_silent();
                    }
                }
            }
        }
        if core.session.end().is_some() {
            return false;
        }
        let now = shared.platform.now();
        if let Some(alarm) = guarded.set_alarm(now, now.after(LONGEST_SLEEP)) {
            sleep.reset(tokio::time::Instant::now() + now.until(alarm));
        }
        true
    }

    /// Waits for the next event, and writes meanwhile.
    ///
    /// Polls the socket before the timer, because after the process was stopped for a while, every deadline has passed, but
    /// replies may wait in the socket.
    async fn next_wake(&mut self, mut sleep: Pin<&mut Sleep>) -> DriverWake {
        let shared = self.shared.clone();
        let mut wake = pin!(shared.core.wait_for_wake());
        let Driver { dial, sasl, input, .. } = self;
        poll_fn(|cx| {
            // The dial and the SASL exchange are polled first, because a stream that always has bytes would keep them from
            // being polled.
            if let Some((_, dial)) = dial
                && let Poll::Ready(result) = dial.as_mut().poll(cx)
            {
                return Poll::Ready(DriverWake::Dialed(result));
            }
            if let Some((_, SaslProgress::Stepping(step))) = sasl
                && let Poll::Ready((exchange, step)) = step.as_mut().poll(cx)
            {
                return Poll::Ready(DriverWake::Stepped(exchange, step));
            }
            let core = &mut shared.core.lock().state;
            core.driver_writes = false;
            // The driver reads even if the stream accepts no bytes, because the server may read no requests until the
            // driver has read the replies. Otherwise both sides would wait for ever.
            let _ = core.poll_write(cx);
            // The handler's work comes before the next read, so that the server's replies cannot pile up.
            if core.handler.has_work() {
                return Poll::Ready(DriverWake::Called);
            }
            if let Some(link) = &mut core.link {
                match link.poll_read(cx, input) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(DriverWake::Closed(link.id)),
                    Poll::Ready(Ok(bytes)) => return Poll::Ready(DriverWake::Read(link.id, bytes)),
                    Poll::Pending => {}
                }
            }
            if wake.as_mut().poll(cx).is_ready() {
                return Poll::Ready(DriverWake::Called);
            }
            sleep.as_mut().poll(cx).map(|()| DriverWake::Timer)
        })
        .await
    }

    fn receive(&mut self, id: ConnectionId, bytes: usize) {
        let input = std::mem::take(&mut self.input);
        self.with_session(|session, now, random| session.receive(id, &input[..bytes], now, random));
        self.input = input;
    }

    fn handle_dial_result(&mut self, result: DialResult) {
        let Some((id, _)) = self.dial.take() else { return };
        let shared = self.shared.clone();
        let core = &mut shared.core.lock().state;
        let (now, random) = (shared.platform.now(), shared.platform.random());
        match result {
            Ok(Dialed { endpoint, stream, sasl }) => {
                core.session.set_servers(hosts::lock(&core.hosts).record_reached(&endpoint));
                core.dial_errors.clear();
                let is_used = core.session.dial_succeeded(id, now, random);
                // Closes the old connection, which the session has just replaced.
                core.dispatch_outputs();
                if is_used {
                    core.handler.handle_dial(&endpoint);
                    core.link = Some(SocketLink::new(id, endpoint, stream));
                    self.sasl = sasl.map(|(exchange, step)| (id, SaslProgress::Prepared(exchange, step)));
                }
            }
            Err(errors) => {
                core.handler.handle_failed_dial(&errors);
                core.dial_errors = errors;
                core.session.dial_failed(id, now, random);
                core.dispatch_outputs();
            }
        }
    }
}

impl<H: Handler> Driver<H> {
    fn start_dial(&self, hosts: Arc<Mutex<Hosts>>, head_start: Duration) -> DialFuture {
        let security = Security::new(self.mechanism.clone());
        #[cfg(feature = "tls")]
        let tls = self.tls.clone();
        Box::pin(async move {
            #[cfg(feature = "tls")]
            let security = match tls {
                Some(tls) => Security { tls: Some(tls.config().await), ..security },
                None => security,
            };
            hosts::dial(hosts, head_start, security).await
        })
    }

    /// Starts the next step of the SASL exchange.
    fn answer_challenge(&mut self, id: ConnectionId, challenge: Option<Bytes>) {
        let step: PendingStep = match self.sasl.take() {
            Some((_, SaslProgress::Prepared(exchange, step))) => {
                Box::pin(std::future::ready((exchange, step)))
            }
            Some((_, SaslProgress::Idle(mut exchange))) => Box::pin(async move {
                let step = exchange.step(challenge).await;
                (exchange, step)
            }),
            Some((_, SaslProgress::Stepping(_))) | None => return,
        };
        self.sasl = Some((id, SaslProgress::Stepping(step)));
    }

    fn continue_sasl(&mut self, exchange: Box<dyn SaslExchange>, step: SaslStep) {
        let Some((id, _)) = self.sasl.take() else { return };
        if matches!(step, SaslStep::Send(_)) {
            self.sasl = Some((id, SaslProgress::Idle(exchange)));
        }
        self.with_session(|session, now, random| session.sasl_step(id, step, now, random));
    }
}

/// The maximum head start of a server: the time for which a dial tries this server alone. After
/// that, the dial also tries the next server.
const MAX_HEAD_START: Duration = Duration::from_millis(500);

/// The maximum sleep of the driver. It is short, because the runtime's timers stop during suspend, but the session's clock
/// goes on. So the driver notices a deadline that passed during suspend at most this long after it.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
