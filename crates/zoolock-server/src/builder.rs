use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{oneshot, watch};

use crate::access::{Access, Users};
use crate::connection_limits::ConnectionLimits;
use crate::core::{Core, CoreConfig, Now};
use crate::error::Error;
use crate::ids::Zxid;
use crate::limits::Limits;
use crate::secret::Secret;
use crate::serve::{self, Listener, ReportedSettings, SharedServer, Timing};
use crate::server::{Server, ServerHandle};
use crate::state::State;
use crate::storage::{self, ConfirmLoss, Durability, LogLoss, Storage, StorageSettings};
#[cfg(feature = "tls")]
use crate::tls::TlsConfig;
use crate::word::FourLetterWord;

/// Maximum of [`Limits::max_frame`]. With this limit, every transaction fits into one record of the
/// log. A record has at most 1 GiB.
const MAX_MAX_FRAME: usize = 512 << 20;

/// Default of [`Builder::max_http_connections`]. A few monitors and health checks are expected.
const MAX_HTTP_CONNECTIONS: usize = 128;

/// The address reported for a server that listens only on a Unix socket.
const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A builder of a [`Server`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    listen: SocketAddr,
    tick: Duration,
    max_session_timeout: Option<Duration>,
    container_check: Duration,
    connect_timeout: Duration,
    data_dir: Option<PathBuf>,
    access: Access,
    #[cfg(feature = "tls")]
    tls: Option<(SocketAddr, TlsConfig)>,
    plain: bool,
    unix: Option<Arc<UnixListener>>,
    max_connections: usize,
    max_connections_per_address: usize,
    words: Option<Vec<FourLetterWord>>,
    metrics: Option<SocketAddr>,
    max_http_connections: usize,
    durability: Option<Durability>,
    confirm_loss: Option<ConfirmLoss>,
    limits: Limits,
    owns_runtime: bool,
    resume: Option<State>,
}

impl Server {
    /// Returns a builder with the default configuration.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = zoolock_server::Server::builder().listen(([127, 0, 0, 1], 0).into()).start().await?;
    /// println!("clients connect to {}", server.local_addr());
    /// server.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl Builder {
    pub(crate) fn new() -> Self {
        Builder {
            listen: Server::DEFAULT_LISTEN,
            tick: Server::DEFAULT_TICK,
            max_session_timeout: None,
            container_check: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            data_dir: None,
            access: Access::default(),
            #[cfg(feature = "tls")]
            tls: None,
            plain: true,
            unix: None,
            max_connections: 0,
            max_connections_per_address: 0,
            words: None,
            metrics: None,
            max_http_connections: MAX_HTTP_CONNECTIONS,
            durability: None,
            confirm_loss: None,
            limits: Limits::default(),
            owns_runtime: false,
            resume: None,
        }
    }

    /// Sets the address to listen on. Port 0 selects a free port. Default: 127.0.0.1:2181.
    pub fn listen(mut self, addr: SocketAddr) -> Self {
        self.listen = addr;
        self
    }

    /// Sets the tick, which is the unit of session expiry. Default: 2 s.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Sets the longest session timeout granted. Default: 20 ticks.
    pub fn max_session_timeout(mut self, timeout: Duration) -> Self {
        self.max_session_timeout = Some(timeout);
        self
    }

    /// Sets the interval between removals of empty containers and of znodes past their time to live. Default: 60 s.
    pub fn container_check(mut self, every: Duration) -> Self {
        self.container_check = every;
        self
    }

    /// Sets the maximum time for a new connection to open a session and, if required, to
    /// authenticate. The same time limits four-letter words and HTTP requests, including the time
    /// in which the client reads the answer. Default: 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the data directory, which is locked while the server runs. With [`Durability::Sync`]
    /// the directory stores znodes and sessions. Default: no directory. Without a directory,
    /// nothing survives a restart.
    ///
    /// The server creates a missing directory. It refuses a directory of another user, and one that
    /// other users may write to. It fails if the directory is moved or removed while it runs.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Sets the durability of acknowledged writes. Default: [`Durability::Sync`] with a data directory,
    /// [`Durability::Memory`] without.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Starts from what is left of a damaged or incomplete log if `confirm` returns true. Default: a
    /// damaged or incomplete log is an [`Error::Log`].
    ///
    /// `confirm` is called during [`Builder::start`], and only if the log is damaged or incomplete.
    /// It may block. The old files are kept under the names `NAME.damaged`. The server is then in an
    /// earlier state, in which locks of present holders may be free. So it serves clients only after
    /// [`LogLoss::wait`].
    pub fn restore_if_damaged(mut self, confirm: impl Fn(&LogLoss) -> bool + Send + Sync + 'static) -> Self {
        self.confirm_loss = Some(ConfirmLoss(Arc::new(confirm)));
        self
    }

    /// Requires every connection to present this secret before its requests are executed: scheme `digest`, credentials
    /// `zoolock:<secret>`.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.access.secret = Some(secret);
        self
    }

    /// Sets the super user, in the form `user:base64(sha1(user:password))`. The super user bypasses
    /// all access lists. Default: none.
    pub fn super_digest(mut self, digest: impl Into<String>) -> Self {
        self.access.super_digest = Some(Secret::new(digest));
        self
    }

    /// Requires clients to authenticate: with an account of [`Builder::users`], with a client certificate, or as the
    /// super user. Default: all clients are served.
    pub fn require_auth(mut self) -> Self {
        self.access.required = true;
        self
    }

    /// Sets the accounts of scheme `digest`. Default: any user name and password is accepted.
    pub fn users(mut self, users: Users) -> Self {
        self.access.users = Some(users);
        self
    }

    /// Also listens for TLS connections, on this address.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, listen: SocketAddr, config: TlsConfig) -> Self {
        self.tls = Some((listen, config));
        self
    }

    /// Listens on a Unix socket instead of plain TCP. Only processes of the server's user and of
    /// root may connect. The identity of a client has the scheme `uid` and the number of the
    /// client's user.
    pub fn unix(mut self, listener: UnixListener) -> Self {
        self.unix = Some(Arc::new(listener));
        self.plain = false;
        self
    }

    /// Accepts TLS connections only.
    #[cfg(feature = "tls")]
    pub fn tls_only(mut self) -> Self {
        self.plain = false;
        self
    }

    /// Sets the maximum number of open connections. Further connections are closed at once. Default: 0, no limit.
    ///
    /// One connection is reserved for each disconnected session with ephemeral znodes, and at most a quarter of all
    /// connections. A new session is refused if all free connections are reserved: the server closes its connection without
    /// an answer, and logs the reason.
    pub fn max_connections(mut self, count: usize) -> Self {
        self.max_connections = count;
        self
    }

    /// Sets the maximum number of open connections per client address, like ZooKeeper's `maxClientCnxns`. Default: 0,
    /// no limit. Connections are reserved as with [`Builder::max_connections`].
    pub fn max_connections_per_address(mut self, count: usize) -> Self {
        self.max_connections_per_address = count;
        self
    }

    /// Sets all limits. Default: [`Limits::default`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the four-letter words that are answered. Default: [`FourLetterWord::DEFAULT`], or only `ruok` if clients
    /// have to present a secret or authenticate.
    pub fn words(mut self, words: impl IntoIterator<Item = FourLetterWord>) -> Self {
        self.words = Some(words.into_iter().collect());
        self
    }

    /// Serves `/metrics` (in Prometheus' text format), `/ready` and `/live` over HTTP, on this address.
    #[cfg(feature = "http")]
    pub fn metrics(mut self, addr: SocketAddr) -> Self {
        self.metrics = Some(addr);
        self
    }

    /// Sets the maximum number of open HTTP connections. Default: 128.
    ///
    /// [`Builder::max_connections`] does not count these connections. One client address may have an eighth of them, and
    /// at least four. A loopback address may have half of them. For IPv6, all addresses with the same first 64 bits count
    /// as one. If a limit is reached, a new connection replaces the oldest one of its address, or else the oldest of all.
    pub fn max_http_connections(mut self, count: usize) -> Self {
        self.max_http_connections = count;
        self
    }

    /// Declares that the runtime of [`Builder::start`] serves nothing but this server. Then a client that has the server
    /// for itself, with one request under way, gets the answer to a write in about two thirds of the time. Such a write
    /// blocks a thread of the runtime until it is on disk. If a write took longer than 2 ms, a thread outside the
    /// runtime does the next one.
    ///
    /// Has no effect if the runtime has fewer than two worker threads.
    pub fn owns_runtime(mut self) -> Self {
        self.owns_runtime = true;
        self
    }

    /// Continues with the state of an earlier server, for tests that restart a server without a disk.
    #[doc(hidden)]
    pub fn resume(mut self, state: State) -> Self {
        self.resume = Some(state);
        self
    }

    /// Writes all transactions that a server has acknowledged from its data directory to a new one, and returns the last. The
    /// server may be running. A server that starts in `to` first waits for the longest session timeout of the server and of
    /// this builder, because holders may rely on locks that the backup lacks. Blocks the thread.
    ///
    /// # Errors
    /// If a server could not start in the data directory, if there is no log in it, or if `to` is not empty or cannot be
    /// written.
    pub fn back_up(&self, to: &Path) -> Result<Zxid, Error> {
        let Some(from) = &self.data_dir else {
            return Err(Error::Invalid { what: "a backup needs a data directory; set one".to_owned() });
        };
        storage::back_up(from, to, self.core_config()?.max_timeout_ms)
    }

    /// Starts the server: locks the data directory, listens, and serves.
    ///
    /// # Errors
    /// If the server cannot start. The [`Error`] says what to change.
    // Not an `async fn`, because each crate that awaits one compiles its body, and all tasks that it starts.
    pub fn start(self) -> impl Future<Output = Result<ServerHandle, Error>> + Send {
        let starting: Pin<Box<dyn Future<Output = Result<ServerHandle, Error>> + Send>> =
            Box::pin(self.start_here());
        starting
    }

    async fn start_here(self) -> Result<ServerHandle, Error> {
        let core = self.core_config()?;
        let mut probe = [0; 1];
        getrandom::fill(&mut probe).map_err(|error| Error::Random { what: error.to_string() })?;
        let mut listeners = Vec::new();
        if self.plain {
            listeners.push(Listener::open(self.listen, None).await?);
        }
        #[cfg(feature = "tls")]
        if let Some((listen, config)) = &self.tls {
            listeners.push(Listener::open(*listen, Some(config.load()?)).await?);
        }
        let tls_addr = listeners.iter().find_map(Listener::tls_addr);
        if let Some(listener) = &self.unix {
            listeners.push(Listener::from_unix(listener)?);
        }
        let http = match self.metrics {
            None => None,
            Some(addr) => {
                Some(TcpListener::bind(addr).await.map_err(|source| Error::Listen { addr, source })?)
            }
        };
        let metrics_addr = http.as_ref().and_then(|listener| listener.local_addr().ok());
        let Some(first) = listeners.first() else {
            return Err(Error::Invalid {
                what: "no client can connect: plain connections are off and TLS is not configured; set a \
                       certificate and key"
                    .to_owned(),
            });
        };
        let addr = first.addr().unwrap_or(NO_ADDRESS);
        // The storage is opened last, because this step uses up one epoch of zxids. A start that
        // fails earlier uses up none.
        let Storage { dir, log, state, epoch, repairs } = self.open_storage(core.max_timeout_ms).await?;
        if let Some(listener) = &http {
            tracing::info!(addr = ?listener.local_addr().ok(), "answering HTTP");
        }
        let conf = ReportedSettings {
            addr: self.plain.then_some(addr),
            tls_addr,
            metrics_addr,
            data_dir: self.data_dir.clone(),
            max_connections_per_address: self.max_connections_per_address,
            max_http_connections: self.max_http_connections,
            min_timeout_ms: core.min_timeout_ms,
            max_timeout_ms: core.max_timeout_ms,
        };
        // Clients without credentials learn only that the server runs, unless the words are set explicitly.
        let words = match &self.words {
            Some(words) => words.clone(),
            None if self.access.requires_credentials() => vec![FourLetterWord::Ruok],
            None => FourLetterWord::DEFAULT.to_vec(),
        };
        let timing = Timing {
            tick: self.tick,
            container_check: self.container_check,
            connect_timeout: self.connect_timeout,
            max_frame: self.limits.max_frame,
            max_queued: self.limits.max_queued,
            may_block: self.owns_runtime && has_several_workers(&Handle::current()),
            words,
            conf,
        };
        let core = Core::restore(core, state, epoch, Now { mono_ms: 0, wall_ms: 0 });
        let shared = SharedServer::new(core, timing, dir, log).map_err(|source| Error::Thread { source })?;
        let shared = Arc::new(shared);
        let (stop, stopped) = watch::channel(false);
        let failing = (Arc::clone(&shared), stop.clone(), stopped.clone());
        let limits = Arc::new(ConnectionLimits::new(self.max_connections, self.max_connections_per_address));
        let mut tasks = vec![
            tokio::spawn(serve::run_timers(Arc::clone(&shared), stopped.clone())),
            tokio::spawn(serve::background::continue_work(Arc::clone(&shared), stopped.clone())),
        ];
        for listener in listeners {
            tracing::info!(on = %listener, epoch, "serving");
            let limits = Arc::clone(&limits);
            tasks.push(tokio::spawn(serve::accept_connections(
                Arc::clone(&shared),
                listener,
                limits,
                stopped.clone(),
            )));
        }
        tasks.push(tokio::spawn(async move {
            let (shared, stop, mut stopped) = failing;
            tokio::select! {
                // The server stops if its log has failed or its core has panicked. The server must
                // not acknowledge writes after that.
                _ = shared.wait_for_failure() => { stop.send_replace(true); }
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        }));
        let clients_stopped = watch::Sender::new(false);
        #[cfg(feature = "http")]
        let http = http.map(|listener| {
            let (shared, most, http_stop) =
                (Arc::clone(&shared), self.max_http_connections, clients_stopped.subscribe());
            tokio::spawn(serve::http::serve_http(shared, listener, most, stopped, http_stop))
        });
        #[cfg(not(feature = "http"))]
        let http = None;
        Ok(ServerHandle { addr, epoch, repairs, shared, stop, clients_stopped, tasks, http })
    }

    /// Opens the storage on a separate thread, because opening it blocks.
    async fn open_storage(&self, max_timeout_ms: u32) -> Result<Storage, Error> {
        let Some(path) = self.data_dir.clone() else {
            return match self.durability {
                None | Some(Durability::Memory) => Ok(Storage::without_directory(self.resume.clone())),
                Some(_) => Err(Error::Invalid {
                    what: "this durability needs a data directory; set one, or use durability memory"
                        .to_owned(),
                }),
            };
        };
        let settings = StorageSettings {
            path,
            disk: self.limits.disk.clone(),
            durability: self.durability.unwrap_or(Durability::Sync),
            options: self.limits.log.clone(),
            confirm_loss: self.confirm_loss.clone(),
            max_timeout_ms,
        };
        // This is a thread of the standard library. `spawn_blocking` of tokio panics if the system
        // cannot create a thread.
        let (sender, opened) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("zoolock-open".to_owned())
            .spawn(move || drop(sender.send(Storage::open(settings))))
            .map_err(|source| Error::Thread { source })?;
        match (opened.await, thread.join()) {
            (Ok(opened), _) => opened,
            (Err(_), Err(panic)) => std::panic::resume_unwind(panic),
            (Err(_), Ok(())) => unreachable!("the thread sends its result, or panics"),
        }
    }

    fn core_config(&self) -> Result<CoreConfig, Error> {
        let millis = |name: &str, d: Duration| match u32::try_from(d.as_millis()) {
            Ok(ms) if ms > 0 && i32::try_from(ms).is_ok() => Ok(ms),
            _ => Err(Error::Invalid { what: format!("the {name} is {d:?}; choose 1 ms to 24 days") }),
        };
        let tick_ms = millis("tick", self.tick)?;
        #[cfg(feature = "tls")]
        let certificates = self.tls.as_ref().is_some_and(|(_, tls)| tls.asks_for_certificates());
        #[cfg(not(feature = "tls"))]
        let certificates = false;
        let Access { required, users, super_digest, .. } = &self.access;
        if *required && !certificates && users.as_ref().is_none_or(Users::is_empty) && super_digest.is_none()
        {
            let what =
                "authentication is required, but no client can authenticate; give accounts, a super user, or a \
                        certificate authority for clients"
                    .to_owned();
            return Err(Error::Invalid { what });
        }
        if let Some(digest) = super_digest
            && !digest.is_digest()
        {
            let what = "the super user does not have the form user:base64(sha1(user:password))".to_owned();
            return Err(Error::Invalid { what });
        }
        if self.access.secret.as_ref().is_some_and(|secret| secret.matches("")) {
            return Err(Error::Invalid { what: "the secret is empty; set a secret, or none".to_owned() });
        }
        millis("container check", self.container_check)?;
        if self.limits.max_frame > MAX_MAX_FRAME {
            let what = format!(
                "frames of {} bytes are too large for the log; choose at most 512 MiB",
                self.limits.max_frame
            );
            return Err(Error::Invalid { what });
        }
        let min = self.limits.min_session_timeout.unwrap_or(self.tick.saturating_mul(2));
        let max = self.max_session_timeout.unwrap_or(self.tick.saturating_mul(20)).max(min);
        Ok(CoreConfig {
            tick_ms,
            min_timeout_ms: millis("shortest session timeout", min)?,
            max_timeout_ms: millis("longest session timeout", max)?,
            access: self.access.clone(),
            max_output: serve::MAX_OUTPUT,
            extended_types: self.limits.extended_types,
            journal: self.data_dir.is_some() && self.durability != Some(Durability::Memory),
            max_queued: self.limits.max_queued,
            max_watches: self.limits.max_watches,
            max_total_watches: self.limits.max_total_watches,
            max_undelivered: self.limits.max_queued / 4,
            max_znode_memory: self.limits.max_znode_memory,
            max_sessions: self.limits.max_sessions,
            max_part: serve::background::PART,
            max_connections: self.max_connections,
            max_connections_per_address: self.max_connections_per_address,
        })
    }
}

fn has_several_workers(runtime: &Handle) -> bool {
    runtime.runtime_flavor() == RuntimeFlavor::MultiThread && runtime.metrics().num_workers() > 1
}
