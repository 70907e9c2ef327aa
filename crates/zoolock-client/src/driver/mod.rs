//! The driver: owns the socket of a session, reads the clock, and carries out what the machine asks for.
//!
//! One task drives a session. The machine and the caller's [`Handler`] are behind one mutex, so replies, watch events and
//! state changes reach the handler in the order in which the server sent them, and never beside a call of
//! [`Client::with`].

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::hosts::{self, DialError, Host, Hosts, Security};
use crate::platform::{Platform, Stream};
use crate::sasl::{Exchange, Mechanism};
use crate::session::{ConnectionId, Output, SaslStep, Session, SessionConfig, State};
use crate::{Instant, RequestError, RequestId};
use zoolock_wire::{Reply, Request, WatchEvent};

/// The receiver of everything that happens to a session, in order.
pub trait Handler: Send + 'static {
    /// Handles the result of a request that was written at `sent`.
    fn reply(&mut self, request: RequestId, sent: Instant, result: Result<Reply, RequestError>);
    /// Handles a watch event.
    fn event(&mut self, event: WatchEvent);
    /// Handles a change of the session.
    fn state(&mut self, state: State);
    /// Handles a session timeout that a server has granted: the shortest one so far. The attach was requested at `sent`.
    fn granted(&mut self, timeout: Duration, sent: Instant) {
        let _ = (timeout, sent);
    }
    /// Handles a dial that reached no server. Another one follows.
    fn unreachable(&mut self, errors: &[DialError]) {
        let _ = errors;
    }
}

/// The servers of a session, and how its connections are secured.
#[derive(Clone, Default)]
pub struct Servers {
    /// The servers of one ensemble, in any order.
    pub hosts: Vec<Host>,
    /// Set for TLS on all TCP connections.
    #[cfg(feature = "tls")]
    pub tls: Option<Arc<dyn crate::TlsSource>>,
    /// Set for SASL on all connections.
    pub sasl: Option<Arc<dyn Mechanism>>,
}

impl From<Vec<Host>> for Servers {
    fn from(hosts: Vec<Host>) -> Servers {
        Servers { hosts, ..Servers::default() }
    }
}

/// A client with one session.
///
/// Dropping all clones closes the session in the background, as [`Client::close`] does.
pub struct Client<H> {
    inner: Arc<Inner<H>>,
}

struct Inner<H> {
    shared: Arc<Shared<H>>,
}

struct Shared<H> {
    core: Mutex<Core<H>>,
    /// Wakes the driver when there are bytes to write or timers changed.
    wake: Notify,
    platform: Arc<dyn Platform>,
}

/// The machine, and the receiver of its outputs.
struct Core<H> {
    session: Session,
    handler: H,
    /// Outputs for the driver.
    actions: Vec<Action>,
    /// The errors of the last dial, in which no server was reached.
    dial_errors: Vec<DialError>,
}

/// Work for the driver.
enum Action {
    Dial { id: ConnectionId, elsewhere: bool, same_first: bool },
    AbortDial(ConnectionId),
    Close(ConnectionId),
    Challenge(ConnectionId, Option<Bytes>),
}

impl<H> Clone for Client<H> {
    fn clone(&self) -> Self {
        Client { inner: self.inner.clone() }
    }
}

impl<H> Drop for Inner<H> {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        core.session.close(self.shared.platform.now());
        drop(core);
        self.shared.wake.notify_one();
    }
}

impl<H: Handler> Client<H> {
    /// Starts a session with one of these servers. Its first [`State`] says how that went.
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
        config.servers = u32::try_from(servers.hosts.len()).unwrap_or(u32::MAX);
        let session = Session::new(config, platform.now());
        let core = Core { session, handler, actions: Vec::new(), dial_errors: Vec::new() };
        let hosts = Hosts::new(servers.hosts, &*platform);
        let shared =
            Arc::new(Shared { core: Mutex::new(core), wake: Notify::new(), platform: platform.clone() });
        let driver = Driver {
            shared: shared.clone(),
            hosts,
            #[cfg(feature = "tls")]
            tls: servers.tls,
            mechanism: servers.sasl,
            connection: None,
            dial: None,
            sasl: None,
            output: Bytes::new(),
            input: vec![0; READ_BYTES],
            reads: 0,
        };
        platform.spawn(Box::pin(driver.run()));
        Client { inner: Arc::new(Inner { shared }) }
    }

    /// Runs `call` with the session and the handler. No reply or event is handled meanwhile, so a handler can register a
    /// request before its reply arrives. What the session wants to send is written afterwards.
    ///
    /// `call` must not block.
    pub fn with<T>(&self, call: impl FnOnce(&mut Session, &mut H, Instant) -> T) -> T {
        let result = {
            let core = &mut *self.inner.shared.lock();
            let result = call(&mut core.session, &mut core.handler, self.inner.shared.platform.now());
            core.dispatch();
            result
        };
        self.inner.shared.wake.notify_one();
        result
    }

    /// Sends a request.
    ///
    /// # Errors
    /// As [`Session::request`].
    pub fn request(&self, request: &Request) -> Result<RequestId, RequestError> {
        self.with(|session, _, now| session.request(request, now))
    }

    /// Returns whether a request would be accepted.
    pub fn is_connected(&self) -> bool {
        self.inner.shared.lock().session.is_connected()
    }

    /// Closes the session. The end is reported to the handler.
    pub fn close(&self) {
        self.with(|session, _, now| session.close(now));
    }

    /// Returns the errors of the last dial, if it reached no server.
    pub fn dial_errors(&self) -> Vec<DialError> {
        self.inner.shared.lock().dial_errors.clone()
    }
}

impl<H> Shared<H> {
    fn lock(&self) -> MutexGuard<'_, Core<H>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Handler> Core<H> {
    /// Passes the outputs of the machine on.
    fn dispatch(&mut self) {
        while let Some(output) = self.session.next_output() {
            match output {
                Output::Dial { id, elsewhere, same_first } => {
                    self.actions.push(Action::Dial { id, elsewhere, same_first });
                }
                Output::AbortDial(id) => self.actions.push(Action::AbortDial(id)),
                Output::Close(id) => self.actions.push(Action::Close(id)),
                Output::SaslChallenge(id, challenge) => self.actions.push(Action::Challenge(id, challenge)),
                Output::Granted { timeout, sent } => self.handler.granted(timeout, sent),
                Output::State(state) => self.handler.state(state),
                Output::Reply { request, sent, result } => self.handler.reply(request, sent, result),
                Output::Event(event) => self.handler.event(event),
            }
        }
    }
}

/// The size of the read buffer in bytes.
const READ_BYTES: usize = 16 * 1024;

/// The largest number of reads before the timer is checked.
const MAX_READS: u32 = 64;

type DialFuture = Pin<Box<dyn Future<Output = Result<(usize, Box<dyn Stream>), Vec<DialError>>> + Send>>;

type StepFuture = Pin<Box<dyn Future<Output = (Box<dyn Exchange>, SaslStep)> + Send>>;

/// The SASL exchange on a connection.
enum Sasl {
    /// The server has the next word.
    Idle(Box<dyn Exchange>),
    Stepping(StepFuture),
}

struct Driver<H: Handler> {
    shared: Arc<Shared<H>>,
    hosts: Hosts,
    #[cfg(feature = "tls")]
    tls: Option<Arc<dyn crate::TlsSource>>,
    mechanism: Option<Arc<dyn Mechanism>>,
    connection: Option<Connection>,
    dial: Option<(ConnectionId, DialFuture)>,
    /// The exchange on the connection, until it is complete.
    sasl: Option<Sasl>,
    /// Bytes that the stream has not taken yet.
    output: Bytes,
    input: Vec<u8>,
    /// The number of reads since the timer was last checked.
    reads: u32,
}

/// A connection in use.
struct Connection {
    id: ConnectionId,
    /// The name of the server.
    host: String,
    stream: Box<dyn Stream>,
    /// Set if the stream has bytes that it has not sent yet, as TLS may.
    is_unflushed: bool,
    /// Set if the stream takes no more bytes. What the server has sent before is still read.
    is_broken: bool,
}

/// The reason why the driver woke up.
enum Wake {
    /// The socket has bytes, in the input buffer.
    Read(usize),
    /// The connection ended.
    Closed,
    /// The socket took bytes.
    Wrote,
    Dialed(Result<(usize, Box<dyn Stream>), Vec<DialError>>),
    /// The next step of the SASL exchange is known.
    Stepped(Box<dyn Exchange>, SaslStep),
    Timer,
    /// A caller has changed the session.
    Called,
}

impl<H: Handler> Drop for Driver<H> {
    /// Reports the end if the runtime stops before the session has ended, so that no caller waits for ever.
    fn drop(&mut self) {
        self.with_session(|session, _, _| session.abandon());
    }
}

impl<H: Handler> Driver<H> {
    async fn run(mut self) {
        loop {
            let Some(timer) = self.carry_out() else { return };
            match self.next_wake(timer).await {
                Wake::Called | Wake::Wrote => {}
                Wake::Read(bytes) => {
                    self.receive(bytes);
                    // A server that always has bytes must not keep the session from its timers.
                    self.reads += 1;
                    if self.reads >= MAX_READS {
                        self.reads = 0;
                        self.with_session(Session::timer);
                    }
                }
                Wake::Closed => self.closed(),
                Wake::Dialed(result) => self.dialed(result),
                Wake::Stepped(exchange, step) => self.stepped(exchange, step),
                Wake::Timer => {
                    self.reads = 0;
                    self.with_session(Session::timer);
                }
            }
        }
    }

    /// Calls the session with the time and a random number, and passes its outputs on.
    fn with_session(&mut self, call: impl FnOnce(&mut Session, Instant, u64)) {
        let core = &mut *self.shared.lock();
        let platform = &self.shared.platform;
        call(&mut core.session, platform.now(), platform.random());
        core.dispatch();
    }

    /// Carries out the actions, and fetches the bytes to write. Returns the time of the next timer, or `None` after the
    /// end of the session.
    fn carry_out(&mut self) -> Option<Option<Instant>> {
        let shared = self.shared.clone();
        let core = &mut *shared.lock();
        core.dispatch();
        for action in std::mem::take(&mut core.actions) {
            match action {
                Action::Dial { id, elsewhere, same_first } => {
                    let head_start = (core.session.timeout() / 60).min(MAX_HEAD_START);
                    self.dial = Some((id, self.start_dial(elsewhere, same_first, head_start)));
                }
                Action::Challenge(id, challenge) => self.answer_challenge(id, challenge),
                Action::AbortDial(id) => drop(self.dial.take_if(|(dialing, _)| *dialing == id)),
                Action::Close(id) => {
                    if self.connection.take_if(|connection| connection.id == id).is_some() {
                        self.output.clear();
                        self.sasl = None;
                    }
                }
            }
        }
        if core.session.end().is_some() {
            return None;
        }
        if self.output.is_empty()
            && let Some((id, bytes)) = core.session.take_bytes()
        {
            // Bytes of a lost connection are never written.
            if self.connection.as_ref().is_some_and(|connection| connection.id == id) {
                self.output = bytes;
            }
        }
        Some(core.session.next_timer())
    }

    /// Waits for something to do.
    ///
    /// The socket comes before the timer: after a pause of the process every deadline is past, while the replies wait in
    /// the socket. The runtime learns of both at the same time.
    async fn next_wake(&mut self, timer: Option<Instant>) -> Wake {
        let shared = self.shared.clone();
        let mut called = pin!(shared.wake.notified());
        let delay = timer.map_or(LONGEST_SLEEP, |at| shared.platform.now().until(at).min(LONGEST_SLEEP));
        let mut sleep = pin!(tokio::time::sleep(delay));
        let Driver { connection, dial, sasl, output, input, .. } = self;
        poll_fn(move |cx| {
            // A stream that always has bytes must not keep a dial or the SASL exchange waiting.
            if let Some((_, dial)) = dial
                && let Poll::Ready(result) = dial.as_mut().poll(cx)
            {
                return Poll::Ready(Wake::Dialed(result));
            }
            if let Some(Sasl::Stepping(step)) = sasl
                && let Poll::Ready((exchange, step)) = step.as_mut().poll(cx)
            {
                return Poll::Ready(Wake::Stepped(exchange, step));
            }
            if let Some(Connection { stream, is_unflushed, is_broken, .. }) = connection {
                if *is_broken {
                    output.clear();
                }
                if !output.is_empty() {
                    match Pin::new(&mut *stream).poll_write(cx, output) {
                        Poll::Ready(Ok(0) | Err(_)) => *is_broken = true,
                        Poll::Ready(Ok(bytes)) => {
                            output.advance(bytes);
                            *is_unflushed = true;
                            return Poll::Ready(Wake::Wrote);
                        }
                        Poll::Pending => {}
                    }
                }
                if *is_unflushed && !*is_broken {
                    match Pin::new(&mut *stream).poll_flush(cx) {
                        Poll::Ready(Err(_)) => *is_broken = true,
                        Poll::Ready(Ok(())) => *is_unflushed = false,
                        Poll::Pending => {}
                    }
                }
                match poll_read(&mut **stream, cx, input) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Wake::Closed),
                    Poll::Ready(Ok(bytes)) => return Poll::Ready(Wake::Read(bytes)),
                    Poll::Pending => {}
                }
            }
            if called.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Wake::Called);
            }
            sleep.as_mut().poll(cx).map(|()| Wake::Timer)
        })
        .await
    }

    fn receive(&mut self, bytes: usize) {
        let Some(id) = self.connection.as_ref().map(|connection| connection.id) else { return };
        let input = std::mem::take(&mut self.input);
        self.with_session(|session, now, random| session.received(id, &input[..bytes], now, random));
        self.input = input;
    }

    fn closed(&mut self) {
        let Some(Connection { id, .. }) = self.connection.take() else { return };
        self.output.clear();
        self.sasl = None;
        self.with_session(|session, now, random| session.disconnected(id, now, random));
    }

    fn dialed(&mut self, result: Result<(usize, Box<dyn Stream>), Vec<DialError>>) {
        let Some((id, _)) = self.dial.take() else { return };
        match result {
            Ok((at, stream)) => {
                let host = self.hosts.reached(at).to_owned();
                let mut used = false;
                self.with_session(|session, now, random| used = session.connected(id, now, random));
                if used {
                    self.shared.lock().dial_errors.clear();
                    // The bytes for the old connection are never written.
                    self.output.clear();
                    self.sasl = None;
                    self.connection =
                        Some(Connection { id, host, stream, is_unflushed: false, is_broken: false });
                }
            }
            Err(errors) => {
                {
                    let core = &mut *self.shared.lock();
                    core.handler.unreachable(&errors);
                    core.dial_errors = errors;
                }
                self.with_session(|session, now, random| session.dial_failed(id, now, random));
            }
        }
    }
}

impl<H: Handler> Driver<H> {
    fn start_dial(&mut self, elsewhere: bool, same_first: bool, head_start: Duration) -> DialFuture {
        let (round, platform) = (self.hosts.round(elsewhere, same_first), self.shared.platform.clone());
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls.clone() {
            return Box::pin(async move {
                let security = Security { tls: Some(tls.config().await) };
                hosts::dial(round, head_start, security, platform).await
            });
        }
        Box::pin(hosts::dial(round, head_start, Security::default(), platform))
    }

    /// Starts the next step of the SASL exchange.
    fn answer_challenge(&mut self, id: ConnectionId, challenge: Option<Bytes>) {
        let Some(connection) = self.connection.as_ref().filter(|connection| connection.id == id) else {
            return;
        };
        let mut exchange = match (self.sasl.take(), &self.mechanism) {
            (Some(Sasl::Idle(exchange)), _) => exchange,
            (_, Some(mechanism)) => mechanism.start(&connection.host),
            (_, None) => return,
        };
        self.sasl = Some(Sasl::Stepping(Box::pin(async move {
            let step = exchange.step(challenge).await;
            (exchange, step)
        })));
    }

    fn stepped(&mut self, exchange: Box<dyn Exchange>, step: SaslStep) {
        self.sasl = matches!(step, SaslStep::Send(_)).then_some(Sasl::Idle(exchange));
        let Some(id) = self.connection.as_ref().map(|connection| connection.id) else { return };
        self.with_session(|session, now, random| session.sasl_step(id, step, now, random));
    }
}

/// The longest time for which a server is dialed alone.
const MAX_HEAD_START: Duration = Duration::from_millis(500);

/// The longest time between two looks at the clock. It counts suspend, and the timers of the runtime do not.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

fn poll_read(
    stream: &mut dyn Stream,
    cx: &mut Context<'_>,
    input: &mut [u8],
) -> Poll<std::io::Result<usize>> {
    let mut buffer = ReadBuf::new(input);
    match Pin::new(stream).poll_read(cx, &mut buffer) {
        Poll::Ready(Ok(())) => Poll::Ready(Ok(buffer.filled().len())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Pending => Poll::Pending,
    }
}
