//! The interface of a measured client.

use std::time::Duration;

use zookeeper_client::{Acls, CreateMode};

use crate::Outcome;
use crate::job::Fields;

/// The session timeout, the same for all clients, so that all keep their sessions alive equally often.
pub(super) const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// A session with which locks can be acquired.
pub(super) trait Peer: Clone + Sized + Send + Sync + 'static {
    /// A handle of one lock, for many acquisitions.
    type Lock: Clone + Send + Sync + 'static;
    /// The data that a release needs.
    type Held: Send + 'static;

    fn open(address: &str) -> impl Future<Output = Outcome<Self>> + Send;

    fn lock(&self, path: &str) -> Self::Lock;

    /// Returns a lock whose tasks share a hold, or `None` if the client has no such lock.
    fn shared_lock(&self, _path: &str) -> Option<Self::Lock> {
        None
    }

    fn acquire(lock: &Self::Lock) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Releases the lock and waits for the server's confirmation.
    fn release(lock: &Self::Lock, held: Self::Held) -> impl Future<Output = Outcome<()>> + Send;

    /// Releases the lock without waiting, as the drop of a guard does. Fails if the client cannot
    /// do that.
    fn release_without_waiting(_lock: &Self::Lock, _held: Self::Held) -> Outcome<()> {
        no_unawaited_release()
    }

    fn close(self) -> impl Future<Output = Outcome<()>> + Send {
        async { Ok(()) }
    }

    /// Creates the lock directories.
    fn prepare(address: &str, paths: &[String]) -> impl Future<Output = Outcome<()>> + Send {
        make_directories(address, paths)
    }

    /// Waits until the queue of each lock has at least this number of contenders.
    fn await_contenders(
        address: &str,
        paths: &[String],
        count: usize,
    ) -> impl Future<Output = Outcome<()>> + Send {
        await_children(address, paths, count)
    }
}

pub(super) fn no_unawaited_release() -> Outcome<()> {
    Err("this client always waits for its releases".into())
}

/// Returns a lock whose tasks share a hold, if the job asks for it and the client has such a lock.
pub(super) fn shared_lock_of<P: Peer>(peer: &P, path: &str, fields: &Fields<'_>) -> Option<P::Lock> {
    fields.text("shared_hold").ok().and_then(|_| peer.shared_lock(path))
}

pub(super) const POLL: Duration = Duration::from_millis(20);

async fn make_directories(address: &str, paths: &[String]) -> Outcome<()> {
    let client = connect(address).await?;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    if let Some((parent, _)) = paths.first().and_then(|path| path.rsplit_once('/'))
        && !parent.is_empty()
    {
        client.mkdir(parent, &options).await?;
    }
    let made = paths.iter().map(|path| client.create(path, b"", &options));
    for made in futures_util::future::join_all(made).await {
        match made {
            Ok(_) | Err(zookeeper_client::Error::NodeExists) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn await_children(address: &str, paths: &[String], count: usize) -> Outcome<()> {
    let client = connect(address).await?;
    for path in paths {
        loop {
            let stat = client.check_stat(path).await?;
            if stat.is_some_and(|stat| usize::try_from(stat.num_children).is_ok_and(|there| there >= count)) {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

pub(super) async fn connect(address: &str) -> Outcome<zookeeper_client::Client> {
    let connector = zookeeper_client::Client::connector().with_session_timeout(SESSION_TIMEOUT);
    Ok(connector.connect(address).await?)
}

/// Returns the processor time of this process so far, in nanoseconds.
pub(super) fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

pub(super) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
