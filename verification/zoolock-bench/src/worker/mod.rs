//! A measured client in a process of its own, so that its processor time is counted alone. The process reads one job
//! per line; `peers/Peers.java` and `peers/peers.py` read the same lines.

mod crowd;
mod etcd;
mod floor;
mod peer;
mod raw;
mod redis_lock;
mod session;
mod solo;
mod spread;
mod zookeeper;
mod zoolock_peer;

use std::io::{BufRead as _, Write as _};

use crate::Outcome;
use crate::job::{Fields, Measurement};
use peer::Peer;
use session::SessionPeer;

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(clippy::enum_variant_names, reason = "zookeeper-client is a name")]
pub(crate) enum PeerKind {
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
    /// These requests over one blocking socket.
    SameFloor,
    /// The lock of the crate zookeeper-client.
    ZookeeperClient,
    /// etcd's lock.
    Etcd,
    /// `SET NX PX`, and a script that deletes the key if it still has the holder's token.
    Redis,
}

/// Answers each line of standard input, until its end.
pub(crate) fn run(client: PeerKind) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let measurement = runtime.block_on(async {
            match client {
                PeerKind::Zoolock => run_job::<zoolock_peer::ZoolockPeer>(&line).await,
                PeerKind::Floor => run_job::<SessionPeer<floor::Floor>>(&line).await,
                PeerKind::Raw => run_job::<SessionPeer<raw::RawRequests>>(&line).await,
                PeerKind::Same => run_job::<SessionPeer<raw::SameRequests<true>>>(&line).await,
                PeerKind::SameAtOnce => run_job::<SessionPeer<raw::SameRequests<false>>>(&line).await,
                PeerKind::SameFloor => run_job::<SessionPeer<floor::SameFloor>>(&line).await,
                PeerKind::ZookeeperClient => run_job::<SessionPeer<zookeeper::Recipe>>(&line).await,
                PeerKind::Etcd => run_job::<etcd::Etcd>(&line).await,
                PeerKind::Redis => run_job::<redis_lock::Redis>(&line).await,
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

async fn run_job<P: Peer>(line: &str) -> Outcome<Measurement> {
    let (work, fields) = Fields::parse(line);
    match work {
        "solo" => solo::run::<P>(&fields).await,
        "visit" => solo::visit::<P>(&fields).await,
        "crowd" => crowd::run::<P>(&fields).await,
        "spread" => spread::run::<P>(&fields).await,
        _ => Err(format!("there is no work {work:?}").into()),
    }
}
