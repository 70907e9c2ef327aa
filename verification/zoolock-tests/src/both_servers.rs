//! The two servers on which every conformance test runs: the embedded server and Apache ZooKeeper.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use zookeeper_client::{Acls, CreateMode, Error};

use crate::four_letter::{watch_count, watches_below};
use crate::skip::Availability;
use crate::wait::retry_until_ok;
use crate::{Apache, Authority, Embedded, Result, ServerOptions, TestFailure, apache, tree};

/// The kind of server on which a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerKind {
    /// The embedded server, in the test process.
    Embedded,
    /// Apache ZooKeeper.
    Apache,
}

impl ServerKind {
    /// Returns whether this server can run on this machine.
    pub fn availability(self) -> Availability {
        match self {
            Self::Embedded => Availability::Available,
            Self::Apache => apache::availability(),
        }
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "embedded",
            Self::Apache => "apache",
        })
    }
}

/// A running server of either kind. Dropping this value ends the server, except for
/// [`AnyServer::SharedApache`].
#[derive(Debug)]
pub enum AnyServer {
    /// The embedded server.
    Embedded(Embedded),
    /// Apache ZooKeeper.
    Apache(Apache),
    /// An Apache ZooKeeper that all tests of a run share. The environment variable
    /// [`SHARED_APACHE`] has its address.
    SharedApache(SocketAddr, ServerOptions),
}

/// Environment variable with the address of the Apache ZooKeeper that the tests of a run share.
///
/// The program `with-apache` sets this variable. If it is not set, each test process starts a
/// server of its own.
pub const SHARED_APACHE: &str = "ZOOLOCK_TEST_APACHE";

impl AnyServer {
    /// Starts a server with an empty tree and waits until it serves.
    ///
    /// # Errors
    /// Fails if the server does not start.
    pub async fn start(server_kind: ServerKind, options: ServerOptions) -> Result<Self> {
        match server_kind {
            ServerKind::Embedded => Embedded::start(options).await.map(Self::Embedded),
            ServerKind::Apache => Apache::start(options).await.map(Self::Apache),
        }
    }

    /// Returns the kind of this server.
    pub fn server_kind(&self) -> ServerKind {
        match self {
            Self::Embedded(_) => ServerKind::Embedded,
            Self::Apache(_) | Self::SharedApache(..) => ServerKind::Apache,
        }
    }

    /// Returns the address on which the server listens.
    pub fn socket_addr(&self) -> SocketAddr {
        match self {
            Self::Embedded(server) => server.socket_addr(),
            Self::Apache(server) => server.socket_addr(),
            Self::SharedApache(addr, _) => *addr,
        }
    }

    /// Returns the address on which the server listens, as `host:port`.
    pub fn addr(&self) -> String {
        self.socket_addr().to_string()
    }

    /// Returns the options with which the server was started.
    pub fn options(&self) -> &ServerOptions {
        match self {
            Self::Embedded(server) => server.options(),
            Self::Apache(server) => server.options(),
            Self::SharedApache(_, options) => options,
        }
    }

    /// Returns the address of the server's TLS port, as `host:port`.
    ///
    /// # Panics
    /// Panics if the server's options have no [`ServerOptions::tls`].
    pub fn secure_addr(&self) -> String {
        let addr = match self {
            Self::Embedded(server) => server.secure_addr(),
            Self::Apache(server) => server.secure_addr(),
            Self::SharedApache(..) => None,
        };
        addr.expect("the test sets ServerOptions::tls").to_string()
    }

    /// Returns the number of watches of all connections.
    ///
    /// If a connection watches both the data and the children of a znode, Apache ZooKeeper counts
    /// two watches, and the embedded server counts one.
    ///
    /// # Errors
    /// Fails if the server does not answer.
    ///
    /// # Panics
    /// Panics on the shared server, which also counts the watches of other tests.
    pub async fn watch_count(&self) -> Result<u64> {
        match self {
            Self::Embedded(server) => Ok(server.inspect(|handle| handle.stats().watches) as u64),
            Self::Apache(server) => watch_count(server.socket_addr()).await,
            Self::SharedApache(..) => panic!("{NOT_SHARED}"),
        }
    }

    /// Kills the server, to simulate a crash.
    ///
    /// # Panics
    /// Panics on the shared server.
    pub async fn kill(&self) {
        match self {
            Self::Embedded(server) => server.kill().await,
            Self::Apache(server) => server.kill().await,
            Self::SharedApache(..) => panic!("{NOT_SHARED}"),
        }
    }

    /// Starts the server again with the same port and data. Kills it first if it runs.
    ///
    /// # Errors
    /// Fails if the server does not start.
    ///
    /// # Panics
    /// Panics on the shared server.
    pub async fn restart(&self) -> Result<()> {
        match self {
            Self::Embedded(server) => server.restart().await,
            Self::Apache(server) => server.restart().await,
            Self::SharedApache(..) => panic!("{NOT_SHARED}"),
        }
    }

    /// Restarts the server like [`AnyServer::restart`], with `longest` as its new maximum session timeout.
    ///
    /// # Errors
    /// Fails if the server does not start.
    ///
    /// # Panics
    /// Panics on the shared server.
    pub async fn restart_with_limit(&self, longest: Duration) -> Result<()> {
        match self {
            Self::Embedded(server) => server.restart_with_limit(longest).await,
            Self::Apache(server) => server.restart_with_limit(longest).await,
            Self::SharedApache(..) => panic!("{NOT_SHARED}"),
        }
    }
}

const NOT_SHARED: &str = "other tests use this server: put `private` before the name of the test";

/// The server of a test, and the chroot that only this test uses.
#[derive(Clone, Debug)]
pub struct Place {
    server: Arc<AnyServer>,
    test: String,
    chroot: String,
}

impl Place {
    /// Returns the kind of the server.
    pub fn server_kind(&self) -> ServerKind {
        self.server.server_kind()
    }

    /// Returns the server.
    pub fn server(&self) -> &AnyServer {
        &self.server
    }

    /// Returns the certificate authority of the server.
    ///
    /// # Panics
    /// Panics if the server's options have no [`ServerOptions::tls`].
    pub fn authority(&self) -> &Authority {
        self.server.options().tls.as_deref().expect("the test sets ServerOptions::tls")
    }

    /// Returns the address of the server, as `host:port`.
    pub fn addr(&self) -> String {
        self.server.addr()
    }

    /// Returns the full name of the test, for reports of skipped tests.
    pub fn test(&self) -> &str {
        &self.test
    }

    /// Returns the path of the chroot. The chroot has no children at first.
    pub fn chroot(&self) -> &str {
        &self.chroot
    }

    /// Returns the connect string of the test: the address of the server and the chroot.
    pub fn connect_string(&self) -> String {
        self.connect_string_through(&self.addr())
    }

    /// Waits until no connection watches a znode of this test.
    ///
    /// On [`AnyServer::SharedApache`], this checks only watches on data and existence, because
    /// ZooKeeper does not list watches on children. On any other server, it counts the watches of
    /// all connections. Other tests of this process can use the same server, so each test needs a
    /// process of its own. nextest gives each test its own process.
    ///
    /// # Panics
    /// Panics if a watch is left after 15 s.
    pub async fn assert_no_watches(&self) {
        let checked = retry_until_ok("every watch is removed", Duration::from_secs(15), async || {
            let left = match &*self.server {
                AnyServer::SharedApache(addr, _) => watches_below(*addr, &self.chroot).await?,
                server => server.watch_count().await?,
            };
            match left {
                0 => Ok(()),
                left => Err(TestFailure::new(format!("{left} watches left on {}", self.addr()))),
            }
        });
        if let Err(failure) = checked.await {
            panic!("{failure}");
        }
    }

    /// Returns the connect string for a proxy at `addr`: this address and the chroot.
    pub fn connect_string_through(&self, addr: &str) -> String {
        format!("{addr}{}", self.chroot)
    }
}

/// Starts or shares a server, creates the chroot and calls a test body, for [`on_both_servers!`](crate::on_both_servers).
///
/// # Panics
/// Panics if the server does not start, and if the body panics.
pub async fn run<F: Future<Output = ()>>(
    server_kind: ServerKind,
    sharing: Sharing,
    name: &str,
    body: impl FnOnce(Place) -> F,
) {
    let name = format!("{name}::{server_kind}");
    if !server_kind.availability().or_skip(&name) {
        return;
    }
    let set_up = async {
        let server = match sharing {
            Sharing::Private(options) => Arc::new(AnyServer::start(server_kind, options).await?),
            Sharing::Shared => shared_server(server_kind).await?,
        };
        let chroot = create_chroot(&server.addr(), &name).await?;
        Ok(Place { server, test: name.clone(), chroot })
    };
    let place: Result<Place> = set_up.await;
    body(place.expect("the server runs")).await;
}

/// A choice between a shared and a private server.
#[derive(Clone, Debug)]
pub enum Sharing {
    /// Other tests may use the server at the same time.
    Shared,
    /// Only this test uses the server, so the test may kill and inspect the server.
    Private(ServerOptions),
}

/// Returns the shared server of this kind.
///
/// If [`SHARED_APACHE`] is set, all processes share the Apache ZooKeeper at that address.
/// Otherwise, each process has its own shared servers, at most one of each kind. Such a server ends
/// with the last test that uses it. Under nextest, each test is a process.
async fn shared_server(server_kind: ServerKind) -> Result<Arc<AnyServer>> {
    static EMBEDDED: Mutex<Weak<AnyServer>> = Mutex::const_new(Weak::new());
    static APACHE: Mutex<Weak<AnyServer>> = Mutex::const_new(Weak::new());
    if let (ServerKind::Apache, Ok(addr)) = (server_kind, std::env::var(SHARED_APACHE)) {
        let addr = addr
            .parse()
            .map_err(|error| TestFailure::during(format_args!("reading {SHARED_APACHE}"), error))?;
        return Ok(Arc::new(AnyServer::SharedApache(addr, ServerOptions::default())));
    }
    let mut running = match server_kind {
        ServerKind::Embedded => EMBEDDED.lock().await,
        ServerKind::Apache => APACHE.lock().await,
    };
    if let Some(server) = running.upgrade() {
        return Ok(server);
    }
    let server = Arc::new(AnyServer::start(server_kind, ServerOptions::default()).await?);
    *running = Arc::downgrade(&server);
    Ok(server)
}

async fn create_chroot(addr: &str, test: &str) -> Result<String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let client = tree::connect(addr).await?;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let chroot = format!("/{}-{number}", test.replace("::", "-"));
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match client.create(&chroot, b"", &options).await {
            Ok(_) => return Ok(chroot),
            Err(Error::NodeExists) => {}
            Err(error) => return Err(TestFailure::during(format_args!("creating {chroot}"), error)),
        }
    }
}

/// Defines two tests with one body, `name::embedded` and `name::apache`.
///
/// By default the body gets a [`Place`] with its own chroot on a server that other tests may use
/// too. `private` before the name gives the test its own server. `private(options)` gives it its
/// own server with these [`ServerOptions`]. Attributes before the name apply to both tests.
///
/// ```no_run
/// use std::time::Duration;
/// use zoolock_tests::{ServerOptions, on_both_servers};
///
/// on_both_servers!(server_answers, |place| async move {
///     assert!(!place.connect_string().is_empty());
/// });
///
/// on_both_servers!(private server_restarts, |place| async move {
///     place.server().restart().await.expect("the server restarts");
/// });
///
/// on_both_servers!(private(ServerOptions { tick: Duration::from_secs(2), ..Default::default() }) server_ticks_slowly,
///     |place| async move { drop(place) });
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! on_both_servers {
    ($(#[$attribute:meta])* private($options:expr) $name:ident, |$place:pat_param| $body:expr $(,)?) => {
        $crate::on_both_servers!(@tests [$(#[$attribute])*] $name, $crate::both_servers::Sharing::Private($options), $place, $body);
    };
    ($(#[$attribute:meta])* private $name:ident, |$place:pat_param| $body:expr $(,)?) => {
        $crate::on_both_servers!(
            @tests [$(#[$attribute])*] $name,
            $crate::both_servers::Sharing::Private($crate::ServerOptions::default()),
            $place, $body
        );
    };
    ($(#[$attribute:meta])* $name:ident, |$place:pat_param| $body:expr $(,)?) => {
        $crate::on_both_servers!(@tests [$(#[$attribute])*] $name, $crate::both_servers::Sharing::Shared, $place, $body);
    };
    (@tests [$($attribute:tt)*] $name:ident, $sharing:expr, $place:pat_param, $body:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn on(server_kind: $crate::ServerKind) {
                let body = |$place: $crate::Place| $body;
                $crate::both_servers::run(server_kind, $sharing, module_path!(), body).await;
            }

            $($attribute)*
            #[tokio::test(flavor = "multi_thread")]
            async fn embedded() {
                on($crate::ServerKind::Embedded).await;
            }

            $($attribute)*
            #[tokio::test(flavor = "multi_thread")]
            async fn apache() {
                on($crate::ServerKind::Apache).await;
            }
        }
    };
}
