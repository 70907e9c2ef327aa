//! A client in a process of its own, so that its processor time is counted alone. It reads one job per line;
//! `peers/Peers.java` and `peers/peers.py` read the same lines.

mod crowd;
mod etcd;
mod floor;
mod raw;
mod redis_lock;
mod session;
mod solo;
mod spread;
mod zookeeper;
mod zoolock_peer;

use std::io::{BufRead as _, Write as _};
use std::time::Duration;

use zookeeper_client::{Acls, CreateMode};

use crate::Outcome;
use crate::job::{Fields, Measurement};
use session::Session;

/// The session timeout, the same for all clients, so that all keep their sessions alive equally often.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(clippy::enum_variant_names, reason = "zookeeper-client is a name")]
pub(crate) enum Client {
    /// The lock of zoolock.
    Zoolock,
    /// A create and a delete over one blocking socket, and no lock.
    Floor,
    /// A create and a delete, each awaited, with the client of zoolock, and no lock.
    Raw,
    /// The requests that zoolock sends for a lock without other contenders, and no lock.
    Same,
    /// The requests for a lock that is released at once, and no lock.
    SameAtOnce,
    /// The lock of the crate zookeeper-client.
    ZookeeperClient,
    /// etcd's lock.
    Etcd,
    /// `SET NX PX`, and a script that deletes the key if it is still ours.
    Redis,
}

/// Answers each line of standard input, until its end.
pub(crate) fn run(client: Client) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let measurement = runtime.block_on(async {
            match client {
                Client::Zoolock => work::<zoolock_peer::ZoolockPeer>(&line).await,
                Client::Floor => work::<Session<floor::Floor>>(&line).await,
                Client::Raw => work::<Session<raw::Raw>>(&line).await,
                Client::Same => work::<Session<raw::Same<true>>>(&line).await,
                Client::SameAtOnce => work::<Session<raw::Same<false>>>(&line).await,
                Client::ZookeeperClient => work::<Session<zookeeper::Recipe>>(&line).await,
                Client::Etcd => work::<etcd::Etcd>(&line).await,
                Client::Redis => work::<redis_lock::Redis>(&line).await,
            }
        });
        let answer = match measurement {
            Ok(measurement) => measurement.line(),
            Err(error) => format!("failed {}", error.to_string().replace('\n', " ")),
        };
        writeln!(std::io::stdout(), "{answer}")?;
    }
    Ok(())
}

async fn work<P: Peer>(line: &str) -> Outcome<Measurement> {
    let (work, fields) = Fields::parse(line);
    match work {
        "solo" => solo::run::<P>(&fields).await,
        "visit" => solo::visit::<P>(&fields).await,
        "crowd" => crowd::run::<P>(&fields).await,
        "spread" => spread::run::<P>(&fields).await,
        _ => Err(format!("there is no work {work:?}").into()),
    }
}

/// A session with which locks can be acquired.
trait Peer: Clone + Sized + Send + Sync + 'static {
    /// A handle of one lock, for many acquisitions.
    type Lock: Clone + Send + Sync + 'static;
    /// The data that a release needs.
    type Held: Send + 'static;

    fn open(address: &str) -> impl Future<Output = Outcome<Self>> + Send;

    fn lock(&self, path: &str) -> Self::Lock;

    /// Returns a lock whose tasks share one queue position, if the client has one.
    fn shared_lock(&self, _path: &str) -> Option<Self::Lock> {
        None
    }

    fn acquire(lock: &Self::Lock) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Releases the lock and waits for the server's confirmation.
    fn release(lock: &Self::Lock, held: Self::Held) -> impl Future<Output = Outcome<()>> + Send;

    /// Releases the lock without waiting, as the drop of a guard does.
    fn release_without_waiting(_lock: &Self::Lock, _held: Self::Held) -> Outcome<()> {
        no_unawaited_release()
    }

    fn close(self) -> impl Future<Output = Outcome<()>> + Send {
        async { Ok(()) }
    }

    /// Creates the directories of the locks.
    fn prepare(address: &str, paths: &[String]) -> impl Future<Output = Outcome<()>> + Send {
        make_directories(address, paths)
    }

    /// Waits until the queue of each lock has this number of contenders.
    fn await_contenders(
        address: &str,
        paths: &[String],
        count: usize,
    ) -> impl Future<Output = Outcome<()>> + Send {
        await_children(address, paths, count)
    }
}

fn no_unawaited_release() -> Outcome<()> {
    Err("this client always waits for its releases".into())
}

/// Returns the lock that the job asks for, and whether its tasks share a queue position.
fn lock_of<P: Peer>(peer: &P, path: &str, fields: &Fields<'_>) -> (P::Lock, bool) {
    match fields.text("tenure").ok().and_then(|_| peer.shared_lock(path)) {
        Some(lock) => (lock, true),
        None => (peer.lock(path), false),
    }
}

const POLL: Duration = Duration::from_millis(20);

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

async fn connect(address: &str) -> Outcome<zookeeper_client::Client> {
    let connector = zookeeper_client::Client::connector().with_session_timeout(SESSION_TIMEOUT);
    Ok(connector.connect(address).await?)
}

/// Returns the processor time of this process so far, in nanoseconds.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
