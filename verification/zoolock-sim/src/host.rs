//! A simulated host: a clock, tasks, connections and random numbers, in place of those of the
//! operating system.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use fastrand::Rng;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use zoolock::sim::{Later, SimulatedMachine, SimulatedTask};
use zoolock_client::{
    ConnectError, ConnectFuture, DialFailure, Endpoint, LookupFuture, Platform, SessionFuture, Stream,
};
use zoolock_core::Instant;

use crate::{Sim, lock};

pub(crate) struct SimHost {
    index: usize,
    sim: Weak<Sim>,
    /// The uptime of the machine at the beginning of the run, in nanoseconds.
    uptime: u64,
    /// The millionths by which the machine's clock is faster than that of the servers.
    drift: i64,
    rng: Mutex<Rng>,
}

const MILLION: i128 = 1_000_000;

impl SimHost {
    pub(crate) fn create(index: usize, seed: u64, sim: &Arc<Sim>) -> Arc<dyn SimulatedMachine> {
        let mut rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(index as u64) ^ 0x4057);
        let uptime = rng.u64(1..1 << 50);
        let drift = sim.plan.drifts[index];
        Arc::new(SimHost { index, sim: Arc::downgrade(sim), uptime, drift, rng: Mutex::new(rng) })
    }

    fn sim(&self) -> Arc<Sim> {
        self.sim.upgrade().expect("a run outlives its hosts")
    }
}

impl Platform for SimHost {
    fn now(&self) -> Instant {
        let passed = i128::try_from(self.sim().elapsed().as_nanos()).unwrap_or(i128::MAX);
        let shown = passed * (MILLION + i128::from(self.drift)) / MILLION;
        Instant(self.uptime + u64::try_from(shown).unwrap_or(u64::MAX))
    }

    fn random(&self) -> u64 {
        lock(&self.rng).u64(..)
    }

    fn spawn(&self, task: SessionFuture) {
        self.start(task);
    }

    fn resolve(&self, host: &zoolock_client::Host) -> LookupFuture {
        Box::pin(std::future::ready(Ok(vec![Endpoint { host: host.clone(), address: None }])))
    }

    fn connect(&self, endpoint: &Endpoint) -> ConnectFuture {
        let server = server_of(&endpoint.host);
        let id = self.sim().world(|world| world.dial(self.index, server));
        let mut socket = Some(Socket { sim: self.sim.clone(), id });
        let failed = || ConnectError::new(DialFailure::Refused, "cannot connect");
        Box::pin(std::future::poll_fn(move |cx| {
            let Some(Socket { sim, id }) = &socket else { return Poll::Pending };
            match sim.upgrade().map(|sim| sim.world(|world| world.poll_dial(*id, cx.waker()))) {
                Some(Poll::Pending) => Poll::Pending,
                Some(Poll::Ready(true)) => {
                    let socket = socket.take().map(|socket| Box::new(socket) as Box<dyn Stream>);
                    Poll::Ready(socket.ok_or_else(failed))
                }
                Some(Poll::Ready(false)) | None => Poll::Ready(Err(failed())),
            }
        }))
    }
}

impl SimulatedMachine for SimHost {
    fn alarm(&self, at: Instant) -> Later<()> {
        let sim = self.sim();
        let shown = i128::from(at.0.saturating_sub(self.uptime));
        let passed = shown * MILLION / (MILLION + i128::from(self.drift));
        // One more millisecond, because the divisions round down, and a timer must not fire early.
        let ms = u64::try_from(passed / MILLION).unwrap_or(u64::MAX).saturating_add(1);
        Box::pin(tokio::time::sleep_until(sim.at(ms)))
    }

    fn start(&self, task: Later<()>) -> Arc<dyn SimulatedTask> {
        self.sim().executor.spawn(self.index, true, task)
    }

    fn jobs(&self) -> usize {
        self.sim().executor.count_library_tasks(self.index)
    }
}

/// Returns the connect string of all servers.
pub(crate) fn address(servers: usize) -> String {
    (0..servers).map(|server| format!("server-{server}:2181")).collect::<Vec<_>>().join(",")
}

fn server_of(host: &zoolock_client::Host) -> usize {
    let zoolock_client::Host::Tcp { name, .. } = host else { panic!("the servers have TCP addresses") };
    name.trim_start_matches("server-").parse().expect("server names come from `address`")
}

/// The client's end of a connection.
struct Socket {
    sim: Weak<Sim>,
    id: u64,
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(sim) = self.sim.upgrade() else { return Poll::Ready(Ok(())) };
        sim.world(|world| world.read(self.id, buf.remaining(), cx.waker())).map(|bytes| {
            buf.put_slice(&bytes);
            Ok(())
        })
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Some(sim) = self.sim.upgrade() else { return Poll::Ready(Ok(0)) };
        Poll::Ready(sim.world(|world| world.write(self.id, buf)).map(|()| buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(sim) = self.sim.upgrade() {
            sim.world(|world| world.close_client_end(self.id));
        }
    }
}
