//! Connects to the server.

use std::time::{Duration, Instant};

use zoolock::{Builder, Zoolock};
use zoolock_client::RequestSession;

use crate::base::exit::Failure;
use crate::base::reporter::Reporter;
use crate::base::server_clock;
use crate::local::{self, LocalState, StateDir};
use crate::plan::{ConnectionSettings, Endpoint};
use crate::service::outer::check_server;

/// Maximum number of attempts to connect to this user's server. If the server stops during an attempt, the next attempt
/// starts it again.
const LOCAL_ATTEMPTS: usize = 5;
/// Maximum time to ask for the time of the server's clock.
const CLOCK_BOUND: Duration = Duration::from_secs(1);
/// Maximum time to close a session.
const CLOSE_BOUND: Duration = Duration::from_secs(5);
/// Maximum time to close a session without znodes, or whose server was unreachable a moment ago.
const ABANDON_BOUND: Duration = Duration::from_millis(500);

/// The note about a server of this user that starts although the user may have forgotten to name an ensemble.
const LOCAL_NOTE: &str = "started a server for this user: its locks exclude no other user and no other machine; for an \
     ensemble, set ZOOLOCK_CONNECT (which sudo, su -, ssh and env -i drop), --connect or /etc/zoolock.conf; --connect local \
     omits this note";

/// Connects to the server of `service`. In local mode, starts this user's server if it is not running.
pub(crate) async fn connect(service: &ConnectionSettings, reporter: &Reporter) -> Result<Zoolock, Failure> {
    check_server(service)?;
    use_clock_of_server(service);
    match &service.endpoint {
        Endpoint::Remote { hosts, .. } => {
            reporter.detail(format_args!("using the servers {hosts}"));
            Ok(builder(service).await?.connect(hosts).await?)
        }
        Endpoint::Local => connect_locally(service, reporter).await,
    }
}

/// Connects, makes one request, and closes the session.
pub(crate) async fn connect_and_request<T>(
    service: &ConnectionSettings,
    reporter: &Reporter,
    request: impl AsyncFnOnce(&Zoolock) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let zoolock = connect(service, reporter).await?;
    let result = request(&zoolock).await;
    // The session has no znodes, so a slow server need not confirm its end.
    close_quickly(zoolock).await;
    result
}

/// Learns the time of the server's clock, which gives the times of locks. Without an answer, such as a permission to
/// create a znode below the root, the clock of this machine counts.
pub(crate) async fn learn_server_clock(zoolock: &Zoolock) {
    if let Ok(Ok(ahead)) = tokio::time::timeout(CLOCK_BOUND, zoolock.admin().server_clock_ahead_ms()).await {
        server_clock::set_ahead(ahead);
    }
}

async fn connect_locally(service: &ConnectionSettings, reporter: &Reporter) -> Result<Zoolock, Failure> {
    let began = Instant::now();
    let mut attempt = 1;
    loop {
        let passed = if attempt == 1 { Duration::ZERO } else { began.elapsed() };
        let server = local::find_or_start_server(service.connect_timeout.saturating_sub(passed)).await?;
        let address = server.address()?;
        if server.was_started && service.is_default {
            reporter.note(LOCAL_NOTE);
        }
        if attempt == 1 {
            reporter.detail(format_args!(
                "using this user's server at {address}, which only this host can reach{}",
                service.endpoint.ensemble_hint()
            ));
        }
        let builder = builder(service).await?;
        let connected = tokio::select! {
            connected = builder.connect(&address) => connected,
            () = local::wait_for_server_end() => {
                if attempt == LOCAL_ATTEMPTS || began.elapsed() >= service.connect_timeout {
                    return Err(local::session_failure("no session"));
                }
                attempt += 1;
                continue;
            }
        };
        return connected.map_err(local_failure);
    }
}

fn local_failure(error: zoolock::Error) -> Failure {
    match error {
        error @ zoolock::Error::Unavailable { .. } => local::session_failure(error),
        error => error.into(),
    }
}

/// Opens a session to the server of `service`, for ZooKeeper requests instead of locks. The session
/// ignores the chroot, so the caller adds it to the paths. In local mode, fails if this user's
/// server does not run.
pub(crate) async fn connect_for_requests(service: &ConnectionSettings) -> Result<RequestSession, Failure> {
    check_server(service)?;
    use_clock_of_server(service);
    match &service.endpoint {
        Endpoint::Remote { hosts, .. } => Ok(builder(service).await?.requests(hosts).await?),
        Endpoint::Local => {
            if !matches!(local::server_state(&StateDir::open()?)?, LocalState::Listening(_)) {
                return Err(Failure::unavailable(
                    "this user's server has stopped; run the command again to start it".to_owned(),
                ));
            }
            let server = local::find_or_start_server(service.connect_timeout).await?;
            let connected = builder(service).await?.requests(&server.address()?).await;
            connected.map_err(local_failure)
        }
    }
}

/// Makes the sessions of this process use the clock of the server if the server is on this machine, as its file lock on a
/// local disk shows. That clock stops while the machine sleeps. The first session must not start before this call.
fn use_clock_of_server(service: &ConnectionSettings) {
    if matches!(service.endpoint, Endpoint::Local) {
        zoolock_client::stop_session_clock_in_suspend();
    }
}

/// Returns the chroot of a connect string; empty if there is none.
pub(crate) fn chroot_of(hosts: &str) -> String {
    zoolock::internals::ConnectString::parse(hosts)
        .map_or(String::new(), |connect| connect.chroot().to_owned())
}

/// Returns the settings of the library with the credentials. The connect timeout includes the time of a command that prints
/// them, unless that command had more time because it asked on the terminal.
async fn builder(service: &ConnectionSettings) -> Result<Builder, Failure> {
    let (limit, began) = (service.connect_timeout, Instant::now());
    let builder = service.builder.clone().connect_timeout(limit);
    let Endpoint::Remote { auth: Some(auth), .. } = &service.endpoint else { return Ok(builder) };
    let builder = auth.credentials(limit).await?.apply(builder)?;
    Ok(builder.connect_timeout(limit.checked_sub(began.elapsed()).unwrap_or(limit)))
}

/// Closes the session, so that its ephemeral znodes are deleted at once and not after the session timeout.
pub(crate) async fn close(zoolock: Zoolock) {
    let _ = tokio::time::timeout(CLOSE_BOUND, zoolock.close()).await;
}

/// Closes the session like [`close`], but waits for a shorter time. For a session without znodes, or after a lock was
/// lost: then the server is probably unreachable.
pub(crate) async fn close_quickly(zoolock: Zoolock) {
    let _ = tokio::time::timeout(ABANDON_BOUND, zoolock.close()).await;
}
