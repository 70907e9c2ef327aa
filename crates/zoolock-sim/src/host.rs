//! A simulated machine, for the lock code that runs on it.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use fastrand::Rng;
use zoolock::sim::{Host, Job, Later, Opened};
use zoolock_core::Instant;

use crate::{Sim, lock};

pub(crate) struct SimHost {
    index: usize,
    sim: Weak<Sim>,
    /// How long it had been up when the run began, in nanoseconds.
    uptime: u64,
    /// How much faster its clock is than the service's, in millionths.
    drift: i64,
    rng: Mutex<Rng>,
}

const MILLION: i128 = 1_000_000;

impl SimHost {
    pub(crate) fn start(index: usize, seed: u64, sim: &Arc<Sim>) -> Arc<dyn Host> {
        let mut rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(index as u64) ^ 0x4057);
        let uptime = rng.u64(1..1 << 50);
        let drift = sim.plan.drifts[index];
        Arc::new(SimHost { index, sim: Arc::downgrade(sim), uptime, drift, rng: Mutex::new(rng) })
    }

    fn sim(&self) -> Arc<Sim> {
        self.sim.upgrade().expect("a run outlives what runs in it")
    }
}

impl Host for SimHost {
    fn now(&self) -> Instant {
        let passed = i128::try_from(self.sim().elapsed().as_nanos()).unwrap_or(i128::MAX);
        let shown = passed * (MILLION + i128::from(self.drift)) / MILLION;
        Instant(self.uptime + u64::try_from(shown).unwrap_or(u64::MAX))
    }

    fn alarm(&self, at: Instant) -> Later<()> {
        let sim = self.sim();
        let shown = i128::from(at.0.saturating_sub(self.uptime));
        let passed = shown * MILLION / (MILLION + i128::from(self.drift));
        // One more millisecond, since a division rounds down.
        let ms = u64::try_from(passed / MILLION).unwrap_or(u64::MAX).saturating_add(1);
        Box::pin(tokio::time::sleep_until(sim.at(ms)))
    }

    fn random(&self) -> u128 {
        lock(&self.rng).u128(..)
    }

    fn spawn(&self, task: Later<()>) -> Arc<dyn Job> {
        self.sim().executor.spawn(self.index, true, task)
    }

    fn jobs(&self) -> usize {
        self.sim().executor.count(self.index)
    }

    fn open(&self, timeout: Duration) -> Later<Option<Opened>> {
        let sim = self.sim();
        let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let opened = sim.world(|world| world.open(self.index, timeout));
        Box::pin(async move { opened.await.ok() })
    }
}
