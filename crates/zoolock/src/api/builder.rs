//! The settings of a client.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;
#[cfg(feature = "tls")]
use zoolock_client::Host;

use crate::api::zoolock::Zoolock;
use crate::base::error::Error;
use crate::base::naming::Naming;
use crate::base::owner_id::{self, OwnerIds};
use crate::base::path::{ConnectString, DEFAULT_ROOT, check_root};
use crate::base::process::Process;
use crate::engine::data::ClientInfo;
use crate::lock::context::{Context, ContextState, EmbeddedServer, SessionThread};
use crate::session::pool::{Sessions, check_grace, shortest_timeout};
#[cfg(feature = "sasl")]
use crate::zk::sasl::Mechanism;
use crate::zk::session::{SessionParameters, ZnodeAccess};
#[cfg(feature = "sasl")]
use crate::zk::transport::SaslIdentity;
use crate::zk::transport::Transport;

/// Upper limit of the session timeout, of the answer timeout and of the tick time.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

/// Settings of a [`Zoolock`], with defaults for an ensemble of several hosts.
#[derive(Clone)]
pub struct Builder {
    pub(super) session_timeout: Duration,
    pub(super) connect_timeout: Duration,
    answer_timeout: Duration,
    claim_timeout: Duration,
    pub(super) grace: Duration,
    root: String,
    pub(super) auth: Vec<(String, Zeroizing<Vec<u8>>)>,
    readers: Vec<(String, String)>,
    world_writable: bool,
    epoch: u32,
    naming: Naming,
    kazoo_pattern: bool,
    pub(super) client_info: ClientInfo,
    owner_id: Option<Arc<str>>,
    tick: Option<Duration>,
    labels_metrics_by_lock: bool,
    #[cfg(feature = "sasl")]
    sasl: Option<(String, Zeroizing<String>)>,
    #[cfg(feature = "sasl")]
    mechanism: Option<Arc<dyn Mechanism>>,
    #[cfg(feature = "tls")]
    tls: Option<crate::zk::tls::Tls>,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            session_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(15),
            answer_timeout: Duration::from_secs(1),
            claim_timeout: Duration::from_secs(5),
            grace: Duration::ZERO,
            root: DEFAULT_ROOT.to_owned(),
            auth: Vec::new(),
            readers: Vec::new(),
            world_writable: false,
            epoch: 0,
            naming: Naming::Native,
            kazoo_pattern: false,
            client_info: ClientInfo::this_process(),
            owner_id: None,
            tick: None,
            labels_metrics_by_lock: false,
            #[cfg(feature = "sasl")]
            sasl: None,
            #[cfg(feature = "sasl")]
            mechanism: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Sets the session timeout to request; 30 s unless set. If a client crashes or is
    /// disconnected, the server keeps its locks for this time. The server may grant another
    /// timeout, and all deadlines follow the granted one. At least three [ticks](Builder::tick_time) of the servers, or
    /// connecting fails. A lease lasts between half and three
    /// quarters of the granted timeout.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Sets the time limit for opening a session; 15 s unless set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        // An `Instant` could overflow with a longer time.
        self.connect_timeout = timeout.min(Duration::from_secs(365 * 86_400));
        self
    }

    /// Sets the time within which the server must say whether the lock is busy; 1 s unless set. An attempt makes one or
    /// two requests as a rule, and up to two more for each part of the path that does not exist yet, one after the other.
    /// So set at least ten times the duration of one write. The time applies to calls that do not wait, such as
    /// [`Mutex::try_lock`](crate::Mutex::try_lock), and to calls whose deadline has passed. If the server has not
    /// answered by then, the call fails with [`Error::Unavailable`]. So a call takes at most this time and the lock delay
    /// longer than asked, and twice this time if there is no session and the deadline is shorter.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Sets the time within which a future that was granted the lock must be polled; 5 s unless set, and at most a third
    /// of the session timeout. If it is not polled by then, the lock is given back, so that a future that is pinned and
    /// forgotten keeps nobody out. When such a future is polled again, it queues anew.
    pub fn claim_timeout(mut self, timeout: Duration) -> Self {
        self.claim_timeout = timeout;
        self
    }

    /// Sets the directory of locks with relative names; `/locks` unless set.
    pub fn root(mut self, root: &str) -> Self {
        self.root = root.to_owned();
        self
    }

    /// Adds the credentials of a user, of the scheme `digest`; see [`Builder::auth`].
    pub fn digest(self, user: &str, password: &str) -> Self {
        self.auth("digest", format!("{user}:{password}"))
    }

    /// Adds credentials of any scheme, such as `digest` with `user:password`. May be called several times.
    ///
    /// New znodes then belong to these credentials. Clients without these credentials cannot read,
    /// change or delete the znodes, and cannot queue in a lock directory that this client created.
    /// The same applies to the root and to its directory `.audit`. A client without permission to
    /// create znodes in `.audit` cannot break a lock. So all clients of a root need the same
    /// credentials, unless [`Builder::world_writable`] is set. Without credentials, every client
    /// that reaches the server can do everything with the locks of this client.
    ///
    /// Connecting fails with [`Error::Invalid`] if credentials of the scheme `digest` have no user.
    ///
    /// The credentials do not appear in `Debug` output or in logs. They are wiped from memory when the last
    /// client that has them is dropped.
    pub fn auth(mut self, scheme: &str, credentials: impl Into<Vec<u8>>) -> Self {
        self.auth.push((scheme.to_owned(), Zeroizing::new(credentials.into())));
        self
    }

    /// Authenticates by SASL with DIGEST-MD5. The password is not sent to the server, but the algorithm is old and does
    /// not replace TLS.
    ///
    /// New znodes then belong to the user, under the scheme `sasl`. The rules of [`Builder::auth`] on access apply.
    /// Apache ZooKeeper accepts DIGEST-MD5 if `SASLAuthenticationProvider` is configured. The server must not set
    /// `sessionRequireClientSASLAuth`, which ends sessions that reconnect. The embedded server does not support
    /// DIGEST-MD5.
    #[cfg(feature = "sasl")]
    pub fn sasl_digest_md5(mut self, user: &str, password: impl Into<String>) -> Self {
        self.sasl = Some((user.to_owned(), Zeroizing::new(password.into())));
        self
    }

    /// Authenticates by SASL with a mechanism from another crate, such as Kerberos from
    /// [zoolock-gssapi](https://docs.rs/zoolock-gssapi).
    ///
    /// New znodes then belong to the identity that the mechanism proves, under the scheme `sasl`. The rules
    /// of [`Builder::auth`] on access apply.
    ///
    /// # Errors
    /// Connecting fails with [`Error::Denied`] at once if there are no credentials; with [`Error::Unavailable`] if they
    /// could not be fetched within the connect timeout; with [`Error::Invalid`] if [`Builder::sasl_digest_md5`] is set,
    /// too.
    #[cfg(feature = "sasl")]
    pub fn sasl_mechanism(mut self, mechanism: impl Mechanism) -> Self {
        self.mechanism = Some(Arc::new(mechanism));
        self
    }

    /// Uses TLS for the connections to all hosts.
    ///
    /// With a client certificate, new znodes belong to the name in it, and the rules of
    /// [`Builder::auth`] on access apply. A server that does not ask for client certificates does
    /// not know this name. Such a server refuses to create the znodes ([`Error::Denied`]), unless
    /// the client has other credentials, too.
    ///
    /// With both credentials and a certificate, either of them is enough to do everything with the znodes. If each host
    /// has a certificate of its own, hosts that share locks need the same credentials ([`Builder::auth`]) or
    /// [`Builder::world_writable`].
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: crate::zk::tls::Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Lets another identity read the znodes of this client, and do nothing else:
    /// `("digest", "ops:…")` with the hashed password, as in ZooKeeper's ACLs,
    /// `("x509", "CN=ops")`, or `("world", "anyone")`. Needs credentials, see [`Builder::auth`].
    /// May be called several times.
    pub fn allow_read(mut self, scheme: &str, id: &str) -> Self {
        self.readers.push((scheme.to_owned(), id.to_owned()));
        self
    }

    /// Creates znodes that anyone may modify, although this client has credentials. Use it for queues with
    /// clients that have no credentials.
    pub fn world_writable(mut self) -> Self {
        self.world_writable = true;
        self
    }

    /// Sets the first part of every fencing token; 0 unless set. Raise it when the ensemble is wiped, restored from a
    /// backup, or replaced by another one: transaction ids then start again at lower values, and so would the tokens.
    /// Before the restored servers start, keep all servers stopped for longer than twice the longest session timeout,
    /// so that all clients have given up their sessions.
    pub fn token_epoch(mut self, epoch: u32) -> Self {
        self.epoch = epoch;
        self
    }

    /// Sets the naming scheme of this client's contenders in all locks, unless a handle sets another scheme;
    /// [`Naming::Native`] unless set.
    pub fn naming(mut self, naming: Naming) -> Self {
        self.naming = naming;
        self
    }

    /// Declares that every kazoo client of these locks was created with `extra_lock_patterns=["lock-"]`; see
    /// [`Mutex::kazoo_pattern`](crate::Mutex::kazoo_pattern).
    pub fn kazoo_pattern(mut self) -> Self {
        self.kazoo_pattern = true;
        self
    }

    /// Sets a note, a free text that operators see beside the locks of this client.
    pub fn note(mut self, note: &str) -> Self {
        self.client_info.note = Some(note.to_owned());
        self
    }

    /// Sets the program name that operators see; the name of the executable unless set.
    pub fn program(mut self, program: &str) -> Self {
        self.client_info.program = Some(program.to_owned());
        self.client_info.runs_program = false;
        self
    }

    /// Sets the owner of all locks of this client, so that observers see which owner waits for which. Several processes
    /// may have one owner: `zoolock run` passes its owner to the command as `ZOOLOCK_OWNER`. The text is printable
    /// ASCII of at most 64 bytes. The owner is no credential, and excludes no other client. Unless set, the owner is
    /// the tokio task that acquires, or the thread outside of a task; see [`Entry::owner`](crate::admin::Entry::owner). A lock
    /// that is acquired with an [`Owner`](crate::Owner) has that owner instead.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a text that is empty, too long, or not printable ASCII.
    pub fn owner_id(mut self, owner: &str) -> Result<Self, Error> {
        owner_id::check(owner)?;
        self.owner_id = Some(owner.into());
        Ok(self)
    }

    /// Sets the ensemble's `tickTime`. Unless set, the client assumes half of the shortest session timeout that a
    /// server grants, which is right unless `minSessionTimeout` is configured. The client learns this shortest timeout
    /// with an additional session, once it has held or awaited locks for a third of the session timeout. Set the tick
    /// if `minSessionTimeout` is below two ticks: otherwise the client may rely on a lock for too long.
    ///
    /// A known tick makes leases longer. With a session timeout of 30 s, a lease lasts 22.5 s if the tick is known to
    /// be 2 s, and 15 s if the tick is unknown.
    pub fn tick_time(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// Adds a label `lock` with the path of the lock to all metrics of locks. Off
    /// unless set. The recorder may then keep one series per lock for ever. So use it only in
    /// programs with few locks, whose names do not come from users or other programs.
    pub fn metrics_by_lock(mut self) -> Self {
        self.labels_metrics_by_lock = true;
        self
    }

    /// Connects to an ensemble: `host:port,host:port/chroot`, or `unix:/path` for the Unix socket of a server on this
    /// machine.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad setting or connect string, before any request is sent;
    /// [`Error::Unavailable`] if no session could be opened within the connect timeout; [`Error::Denied`] for
    /// refused credentials.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most a session without locks, which expires.
    pub async fn connect(self, address: impl AsRef<str>) -> Result<Zoolock, Error> {
        self.open(address.as_ref(), None).await
    }

    /// Returns a client for an ensemble that need not be reachable yet. The first request opens the first session, and
    /// fails as [`connect`](Builder::connect) does, after the connect timeout; the next request tries again.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad setting or connect string.
    pub fn connect_lazy(self, address: impl AsRef<str>) -> Result<Zoolock, Error> {
        Ok(Zoolock::new(self.prepare(address.as_ref(), None, SessionThread::start)?))
    }

    #[cfg(feature = "embedded")]
    pub(crate) fn tick(&self) -> Option<Duration> {
        self.tick
    }

    /// Connects, and keeps `server` alive as long as there are sessions.
    pub(crate) async fn open(self, address: &str, server: Option<EmbeddedServer>) -> Result<Zoolock, Error> {
        self.open_on(address, server, SessionThread::start).await
    }

    /// Connects as `open` does, and runs the sessions on `thread`.
    pub(crate) async fn open_on(
        self,
        address: &str,
        server: Option<EmbeddedServer>,
        thread: impl FnOnce() -> io::Result<SessionThread>,
    ) -> Result<Zoolock, Error> {
        let context = self.prepare(address, server, thread)?;
        context.open_first_session().await?;
        Ok(Zoolock::new(context))
    }

    /// Checks the settings, and starts the thread of the sessions. Opens no session.
    fn prepare(
        self,
        address: &str,
        server: Option<EmbeddedServer>,
        thread: impl FnOnce() -> io::Result<SessionThread>,
    ) -> Result<Context, Error> {
        let connect = ConnectString::parse(address)?;
        check_root(&self.root)?;
        if self.answer_timeout.is_zero() || self.answer_timeout > LONGEST {
            let message = format!("is not between 0 and {LONGEST:?}");
            return Err(Error::invalid(format!("answer timeout {:?}", self.answer_timeout), message));
        }
        if self.claim_timeout < Duration::from_millis(1) {
            let message = "must be at least 1 ms, because a caller needs time to poll its future";
            return Err(Error::invalid(format!("claim timeout {:?}", self.claim_timeout), message));
        }
        if let Some(tick) = self.tick.filter(|tick| tick.is_zero() || *tick > LONGEST) {
            return Err(Error::invalid(
                format!("tick time {tick:?}"),
                "must be greater than zero and at most 1 h",
            ));
        }
        if self.session_timeout > LONGEST {
            let message = format!("is longer than {LONGEST:?}, the maximum");
            return Err(Error::invalid(format!("session timeout {:?}", self.session_timeout), message));
        }
        let shortest = shortest_timeout(self.tick);
        if self.session_timeout < shortest {
            return Err(Error::invalid(
                format!("session timeout {:?}", self.session_timeout),
                format!("is shorter than three ticks of the ensemble; at least {shortest:?}"),
            ));
        }
        check_grace(self.grace, self.session_timeout, self.tick)?;
        let access = self.build_access()?;
        let transport = self.build_transport(&connect)?;
        let thread = thread().map_err(|error| Error::Unavailable {
            servers: connect.endpoints(),
            message: format!("cannot start the threads of a session: {error}"),
            source: Some(Arc::new(error)),
        })?;
        crate::base::telemetry::queue(crate::base::metrics::describe);
        // The library itself adds the chroot to each path. If the ZooKeeper client added it, the library could not
        // create the chroot.
        let root = match (connect.chroot(), self.root.as_str()) {
            ("", root) => root.to_owned(),
            (chroot, "/") => chroot.to_owned(),
            (chroot, root) => format!("{chroot}{root}"),
        };
        let parameters = SessionParameters {
            hosts: connect.hosts().to_vec(),
            timeout: self.session_timeout,
            auth: self.auth,
            access,
            transport,
            tasks: thread.tasks(),
        };
        let chroot = connect.chroot().to_owned();
        let sessions = Sessions::new(connect, parameters, self.tick, self.grace, self.connect_timeout);
        let inner = ContextState {
            sessions: Arc::new(sessions),
            thread,
            chroot,
            root,
            epoch: self.epoch,
            naming: self.naming,
            kazoo_pattern: self.kazoo_pattern,
            client_info: self.client_info,
            owner_ids: OwnerIds::new(self.owner_id),
            labels_metrics_by_lock: self.labels_metrics_by_lock,
            server,
            process: Process::current(),
            answer_timeout: self.answer_timeout,
            claim_timeout: self.claim_timeout.min(self.session_timeout / 3),
            session_timeout: self.session_timeout,
            tick: self.tick,
        };
        Ok(Context::new(inner))
    }

    #[cfg(feature = "sasl")]
    fn build_sasl(&self, connect: &ConnectString) -> Result<Option<SaslIdentity>, Error> {
        match (&self.sasl, &self.mechanism) {
            (None, None) => Ok(None),
            (Some((user, password)), None) => {
                let mechanism = zoolock_client::sasl::DigestMd5::new(user, password.clone());
                Ok(Some(SaslIdentity::DigestMd5(Arc::new(mechanism))))
            }
            (None, Some(mechanism)) => {
                Ok(Some(SaslIdentity::Mechanism(crate::zk::sasl::start(&**mechanism, connect)?)))
            }
            (Some(_), Some(_)) => {
                Err(Error::invalid("SASL", "uses DIGEST-MD5 or another mechanism; leave one of them out"))
            }
        }
    }

    #[cfg_attr(not(any(feature = "tls", feature = "sasl")), allow(unused_variables))]
    pub(super) fn build_transport(&self, connect: &ConnectString) -> Result<Transport, Error> {
        for (scheme, secret) in &self.auth {
            // The server would accept these credentials, although they identify no user.
            let user = secret.iter().position(|byte| *byte == b':');
            if scheme.is_empty() || (scheme == "digest" && user.is_none_or(|length| length == 0)) {
                let message =
                    "name no user; give a scheme and its credentials, such as `digest` and `user:password`";
                return Err(Error::invalid(format!("credentials of scheme {scheme:?}"), message));
            }
        }
        Ok(Transport {
            #[cfg(feature = "sasl")]
            sasl: self.build_sasl(connect)?,
            #[cfg(feature = "tls")]
            certificates: match &self.tls {
                None => None,
                Some(tls) => {
                    for host in connect.hosts() {
                        match host {
                            Host::Tcp { name, .. } => drop(crate::zk::tls::server_name(name)?),
                            Host::Unix(_) => {
                                return Err(Error::invalid(
                                    format!("connect string {:?}", connect.endpoints()),
                                    "is a Unix socket, to which there is no TLS; leave the certificates out",
                                ));
                            }
                        }
                    }
                    Some(crate::zk::tls::Certificates::new(tls.clone())?)
                }
            },
        })
    }

    /// Returns whether the client has an identity to present to the server.
    fn has_credentials(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.as_ref().is_some_and(crate::zk::tls::Tls::has_identity) {
            return true;
        }
        #[cfg(feature = "sasl")]
        if self.sasl.is_some() || self.mechanism.is_some() {
            return true;
        }
        !self.auth.is_empty()
    }

    fn build_access(&self) -> Result<ZnodeAccess, Error> {
        let Some((scheme, id)) = self.readers.first() else {
            let everybody = self.world_writable || !self.has_credentials();
            return Ok(if everybody {
                ZnodeAccess::Anyone
            } else {
                ZnodeAccess::Creator { readers: Vec::new() }
            });
        };
        let shown = format!("reader {scheme}:{id}");
        if self.world_writable {
            return Err(Error::invalid(
                shown,
                "has no effect if all znodes are world-writable; remove one of the two",
            ));
        }
        if !self.has_credentials() {
            return Err(Error::invalid(
                shown,
                "has no effect without credentials of this client; add credentials or a client certificate",
            ));
        }
        if let Some((scheme, id)) =
            self.readers.iter().find(|(scheme, id)| scheme.is_empty() || id.is_empty())
        {
            return Err(Error::invalid(
                format!("reader {scheme:?}:{id:?}"),
                "is not a valid identity; give a scheme and an id, such as `x509` and `CN=ops`",
            ));
        }
        Ok(ZnodeAccess::Creator { readers: self.readers.clone() })
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("root", &self.root)
            .field("auth", &format_args!("{} credentials", self.auth.len()))
            .finish_non_exhaustive()
    }
}
