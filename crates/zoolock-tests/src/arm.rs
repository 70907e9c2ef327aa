//! The two servers on which every conformance test runs.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use zookeeper_client::{Acls, CreateMode, Error};

use crate::four_letter::{watch_count, watches_below};
use crate::skip::Availability;
use crate::wait::eventually;
use crate::{Apache, Authority, Embedded, Failure, Result, ServerOptions, apache, tree};

/// Which server a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arm {
    /// Our own, in the process.
    Embedded,
    /// Apache ZooKeeper.
    Apache,
}

impl Arm {
    /// Whether this arm can run on this machine.
    pub fn availability(self) -> Availability {
        match self {
            Self::Embedded => Availability::Available,
            Self::Apache => apache::availability(),
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "embedded",
            Self::Apache => "apache",
        })
    }
}

/// A running server of either arm; it ends when it is dropped.
#[derive(Debug)]
pub enum Server {
    /// Our own.
    Embedded(Embedded),
    /// Apache ZooKeeper.
    Apache(Apache),
    /// An Apache ZooKeeper that all tests of a run share. [`SHARED_APACHE`] names its address.
    SharedApache(SocketAddr, ServerOptions),
}

/// Environment variable with the address of the Apache ZooKeeper that the tests of a run share.
///
/// The program `with-apache` sets it. Without it, each test process starts a server of its own.
pub const SHARED_APACHE: &str = "ZOOLOCK_TEST_APACHE";

impl Server {
    /// Starts a server of this arm with an empty tree and waits until it serves.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start(arm: Arm, options: ServerOptions) -> Result<Self> {
        match arm {
            Arm::Embedded => Embedded::start(options).await.map(Self::Embedded),
            Arm::Apache => Apache::start(options).await.map(Self::Apache),
        }
    }

    /// Which server this is.
    pub fn arm(&self) -> Arm {
        match self {
            Self::Embedded(_) => Arm::Embedded,
            Self::Apache(_) | Self::SharedApache(..) => Arm::Apache,
        }
    }

    /// Where it listens.
    pub fn socket_addr(&self) -> SocketAddr {
        match self {
            Self::Embedded(server) => server.socket_addr(),
            Self::Apache(server) => server.socket_addr(),
            Self::SharedApache(addr, _) => *addr,
        }
    }

    /// Where it listens, as `host:port`.
    pub fn addr(&self) -> String {
        self.socket_addr().to_string()
    }

    /// As it was asked for.
    pub fn options(&self) -> &ServerOptions {
        match self {
            Self::Embedded(server) => server.options(),
            Self::Apache(server) => server.options(),
            Self::SharedApache(_, options) => options,
        }
    }

    /// Where it listens for TLS, as `host:port`.
    ///
    /// # Panics
    /// When its options ask for none.
    pub fn secure_addr(&self) -> String {
        let addr = match self {
            Self::Embedded(server) => server.secure_addr(),
            Self::Apache(server) => server.secure_addr(),
            Self::SharedApache(..) => None,
        };
        addr.expect("ServerOptions::tls").to_string()
    }

    /// Returns the number of watches of all connections.
    ///
    /// Watches of one connection on the data and on the children of the same znode count as two on Apache ZooKeeper
    /// and as one on the embedded server.
    ///
    /// # Errors
    /// When the server does not answer.
    ///
    /// # Panics
    /// On the shared server, which counts the watches of other tests too.
    pub async fn watch_count(&self) -> Result<u64> {
        match self {
            Self::Embedded(server) => Ok(server.inspect(|handle| handle.stats().watches) as u64),
            Self::Apache(server) => watch_count(server.socket_addr()).await,
            Self::SharedApache(..) => panic!("{NOT_SHARED}"),
        }
    }

    /// Kills the server, as a crash would.
    ///
    /// # Panics
    /// On the shared server.
    pub async fn kill(&self) {
        match self {
            Self::Embedded(server) => server.kill().await,
            Self::Apache(server) => server.kill().await,
            Self::SharedApache(..) => panic!("{NOT_SHARED}"),
        }
    }

    /// Shuts the server down in good order.
    ///
    /// # Panics
    /// On the shared server.
    pub async fn stop(&self) {
        match self {
            Self::Embedded(server) => server.stop().await,
            Self::Apache(server) => server.stop().await,
            Self::SharedApache(..) => panic!("{NOT_SHARED}"),
        }
    }

    /// Starts the server again with the same port and data. Kills it first if it runs.
    ///
    /// # Errors
    /// When the server does not come up.
    ///
    /// # Panics
    /// On the shared server.
    pub async fn restart(&self) -> Result<()> {
        match self {
            Self::Embedded(server) => server.restart().await,
            Self::Apache(server) => server.restart().await,
            Self::SharedApache(..) => panic!("{NOT_SHARED}"),
        }
    }
}

const NOT_SHARED: &str = "other tests use this server: write `private` before the name of the test";

/// What a test of both arms gets: a server, and a node of it that is its own.
#[derive(Clone, Debug)]
pub struct Place {
    server: Arc<Server>,
    chroot: String,
}

impl Place {
    /// Which server this is.
    pub fn arm(&self) -> Arm {
        self.server.arm()
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Who signed its certificate.
    ///
    /// # Panics
    /// When its options name nobody.
    pub fn authority(&self) -> &Authority {
        self.server.options().tls.as_deref().expect("ServerOptions::tls")
    }

    /// Where the server listens, as `host:port`.
    pub fn addr(&self) -> String {
        self.server.addr()
    }

    /// The node made for this test, empty at first.
    pub fn chroot(&self) -> &str {
        &self.chroot
    }

    /// What a client connects to: server and chroot.
    pub fn connect_string(&self) -> String {
        self.through(&self.addr())
    }

    /// Waits until no connection watches a znode of this test.
    ///
    /// On the shared server only watches on data and existence are seen: ZooKeeper does not list watches on children.
    ///
    /// # Panics
    /// When a watch is left after 15 s.
    pub async fn assert_no_watches(&self) {
        let looked = eventually("every watch goes", Duration::from_secs(15), async || {
            let left = match &*self.server {
                Server::SharedApache(addr, _) => watches_below(*addr, &self.chroot).await?,
                server => server.watch_count().await?,
            };
            match left {
                0 => Ok(()),
                left => Err(Failure::new(format!("{left} watches left on {}", self.addr()))),
            }
        });
        if let Err(failure) = looked.await {
            panic!("{failure}");
        }
    }

    /// The same through a proxy that stands before the server at `addr`.
    pub fn through(&self, addr: &str) -> String {
        format!("{addr}{}", self.chroot)
    }
}

/// What the macro runs: starts or joins a server, makes the chroot, runs the body.
///
/// # Panics
/// When the server does not come up, and when the body does.
pub async fn run<F: Future<Output = ()>>(
    arm: Arm,
    sharing: Sharing,
    name: &str,
    body: impl FnOnce(Place) -> F,
) {
    let name = format!("{name}::{arm}");
    if !arm.availability().or_skip(&name) {
        return;
    }
    let placed = async {
        let server = match sharing {
            Sharing::Private(options) => Arc::new(Server::start(arm, options).await?),
            Sharing::Shared => shared(arm).await?,
        };
        let chroot = make_chroot(&server.addr(), &name).await?;
        Ok(Place { server, chroot })
    };
    let placed: Result<Place> = placed.await;
    body(placed.expect("a test of a server needs one that runs")).await;
}

/// Whether a test minds company on its server.
#[derive(Clone, Debug)]
pub enum Sharing {
    /// Other tests of the process may use the server at the same time.
    Shared,
    /// The server is the test's own, to be killed and looked into.
    Private(ServerOptions),
}

/// Returns the server that tests share.
///
/// That is one Apache ZooKeeper per run if [`SHARED_APACHE`] is set, and otherwise one server per process, which ends
/// with the last test that uses it. Under nextest each test is a process.
async fn shared(arm: Arm) -> Result<Arc<Server>> {
    static EMBEDDED: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());
    static APACHE: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());
    if let (Arm::Apache, Ok(addr)) = (arm, std::env::var(SHARED_APACHE)) {
        let addr =
            addr.parse().map_err(|error| Failure::during(format_args!("reading {SHARED_APACHE}"), error))?;
        return Ok(Arc::new(Server::SharedApache(addr, ServerOptions::default())));
    }
    let mut running = match arm {
        Arm::Embedded => EMBEDDED.lock().await,
        Arm::Apache => APACHE.lock().await,
    };
    if let Some(server) = running.upgrade() {
        return Ok(server);
    }
    let server = Arc::new(Server::start(arm, ServerOptions::default()).await?);
    *running = Arc::downgrade(&server);
    Ok(server)
}

async fn make_chroot(addr: &str, test: &str) -> Result<String> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let client = tree::connect(addr).await?;
    loop {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let chroot = format!("/{}-{number}", test.replace("::", "-"));
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match client.create(&chroot, b"", &options).await {
            Ok(_) => return Ok(chroot),
            Err(Error::NodeExists) => {}
            Err(error) => return Err(Failure::during(format_args!("creating {chroot}"), error)),
        }
    }
}

/// Makes of one body two tests, `name::embedded` and `name::apache`.
///
/// By default the body gets a [`Place`] on a server that other tests of the process may use too, with a chroot
/// of its own. `private` before the name gives it a server of its own, `private(options)` one with these
/// [`ServerOptions`]. Attributes before the name are put on both tests.
///
/// ```no_run
/// use std::time::Duration;
/// use zoolock_tests::{ServerOptions, on_both_arms};
///
/// on_both_arms!(answers, |place| async move {
///     assert!(!place.connect_string().is_empty());
/// });
///
/// on_both_arms!(private comes_back, |place| async move {
///     place.server().restart().await.expect("it comes up again");
/// });
///
/// on_both_arms!(private(ServerOptions { tick: Duration::from_secs(2), ..Default::default() }) ticks_slowly,
///     |place| async move { drop(place) });
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! on_both_arms {
    ($(#[$attribute:meta])* private($options:expr) $name:ident, |$place:pat_param| $body:expr $(,)?) => {
        $crate::on_both_arms!(@tests [$(#[$attribute])*] $name, $crate::arm::Sharing::Private($options), $place, $body);
    };
    ($(#[$attribute:meta])* private $name:ident, |$place:pat_param| $body:expr $(,)?) => {
        $crate::on_both_arms!(
            @tests [$(#[$attribute])*] $name,
            $crate::arm::Sharing::Private($crate::ServerOptions::default()),
            $place, $body
        );
    };
    ($(#[$attribute:meta])* $name:ident, |$place:pat_param| $body:expr $(,)?) => {
        $crate::on_both_arms!(@tests [$(#[$attribute])*] $name, $crate::arm::Sharing::Shared, $place, $body);
    };
    (@tests [$($attribute:tt)*] $name:ident, $sharing:expr, $place:pat_param, $body:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn on(arm: $crate::Arm) {
                let body = |$place: $crate::Place| $body;
                $crate::arm::run(arm, $sharing, module_path!(), body).await;
            }

            $($attribute)*
            #[tokio::test(flavor = "multi_thread")]
            async fn embedded() {
                on($crate::Arm::Embedded).await;
            }

            $($attribute)*
            #[tokio::test(flavor = "multi_thread")]
            async fn apache() {
                on($crate::Arm::Apache).await;
            }
        }
    };
}
