//! The real lock code on simulated machines, a simulated network and a simulated ensemble.
//!
//! A run follows from its seed alone: who is there, which locks they use, what goes wrong when, how long each message
//! takes, and in which order tasks run. It takes milliseconds for minutes of virtual time. When a check fails, the
//! same seed fails again, with its story:
//!
//! ```sh
//! ZOOLOCK_SEED=4711 cargo nextest run -p zoolock-sim --no-capture replay
//! ```
//!
//! # Where the seams are
//! * *The port.* A session is a `Keeper` over ZooKeeper's own requests (`zoolock::sim::Line`), instead of one over the
//!   client crate. The client's end (`client.rs`) does what the crate does: it fails what was under way when a connection
//!   is lost, keeps what comes while there is none, sets its watches again, gives a session up late.
//! * *The clock.* `CLOCK_BOOTTIME` and its alarm are the host's; each drifts by its own three hundredths at most. Timers
//!   are tokio's, whose clock stands still but for jumping to the next thing that happens.
//! * *Tasks.* Whatever the lock code spawns goes to `executor.rs`, which draws the next one to run. A host that is paused is
//!   one whose tasks are not drawn, while its clock goes on.
//! * *Random numbers.* UUIDs are the host's.
//!
//! Nothing else of the lock code knows. Beyond the port stands the ensemble (`ensemble.rs`): a leader that decides by
//! the server's own pure `prepare` and `commit`, and servers that learn of its decisions late, answer reads and fire
//! watches from what they know, and collect whom they heard of for the leader, who expires sessions in buckets of ticks.
//! A server can be cut off from the leader, and a leader deposed, which then goes on to answer `sync` for as long as
//! `syncLimit` allows. What a lost connection had sent may arrive later, until the session writes by a newer one.
//!
//! # What is checked
//! `history.rs`, with a god's view: at each grant that nobody else believes (`is_valid()`, by its own clock) in what
//! excludes it, that nobody in the queue of the service stands before it, that tokens rise, that permits suffice; that a
//! loss is told in time, once, and for a reason that is true; that what was released is gone. Once nothing goes wrong any more
//! everybody is served in bounded time, nothing stands in any queue, and no task and no session is left.

#![forbid(unsafe_code)]

mod client;
mod ensemble;
mod executor;
mod history;
mod host;
mod plan;
mod trace;
mod work;
mod world;

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use zoolock::sim::Host;

use client::Effect;
use executor::Executor;
use history::History;
use host::SimHost;
use plan::Plan;
use world::World;

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What the run followed from.
    pub seed: u64,
    /// Of everything that happened.
    pub hash: u64,
    /// How long it took, by the service's clock.
    pub virtual_time: Duration,
    /// How many locks of each kind were granted.
    pub grants: Grants,
    /// How many writes the service was asked for.
    pub requests: u64,
    /// What should not have been.
    pub violation: Option<String>,
    /// What happened, if that was asked for.
    pub story: Vec<String>,
}

/// How many locks of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the kinds")]
pub struct Grants {
    pub mutex: u64,
    pub read: u64,
    pub write: u64,
    pub upgraded: u64,
    pub permits: u64,
    pub multi: u64,
    pub tenure: u64,
    /// How many of all of them were lost again, and how.
    pub lost: u64,
    pub expired: u64,
    pub unreachable: u64,
    pub broken: u64,
}

impl Grants {
    /// All of them.
    pub fn all(&self) -> u64 {
        let Grants { mutex, read, write, upgraded, permits, multi, tenure, .. } = self;
        mutex + read + write + upgraded + permits + multi + tenure
    }
}

/// Runs what follows from a seed. With its `story`, or only the hash of it.
pub fn run(seed: u64, story: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without input and output needs nothing of the system");
    runtime.block_on(tokio::task::unconstrained(Sim::run(seed, story)))
}

/// One run.
pub(crate) struct Sim {
    start: Instant,
    pub(crate) plan: Plan,
    pub(crate) executor: Arc<Executor>,
    world: Mutex<World>,
    pub(crate) history: Mutex<History>,
    hosts: OnceLock<Vec<Arc<dyn Host>>>,
    violation: Mutex<Option<String>>,
}

/// How many steps a run may take, of which most take some thousand: more is somebody who runs in a circle.
const MOST_STEPS: u64 = 3_000_000;

impl Sim {
    async fn run(seed: u64, story: bool) -> Report {
        let plan = Plan::of(seed);
        let executor: Arc<Executor> = Arc::default();
        let sim = Arc::new_cyclic(|sim| Sim {
            start: Instant::now(),
            world: Mutex::new(World::new(seed, plan.clone(), executor.clone(), story, sim.clone())),
            history: Mutex::new(History::new(plan.locks.len())),
            executor,
            hosts: OnceLock::new(),
            violation: Mutex::default(),
            plan,
        });
        let hosts = (0..sim.plan.drifts.len()).map(|index| SimHost::start(index, seed, &sim)).collect();
        let _ = sim.hosts.set(hosts);
        for host in 0..sim.plan.drifts.len() {
            work::boot(&sim, host, seed);
        }
        sim.drive(seed).await;
        // What goes down now says nothing any more.
        for host in 0..sim.plan.drifts.len() {
            sim.world(|world| world.hosts[host].dead = true);
            sim.executor.kill(host, sim.hosts());
        }
        let remains = lock(&sim.history).take_all();
        drop(remains);
        let virtual_time = sim.start.elapsed();
        let grants = lock(&sim.history).grants;
        let violation = lock(&sim.violation).take();
        let (hash, requests, story) = sim.world(|world| {
            let clients = std::mem::take(&mut world.clients);
            world.effects.extend(clients.into_values().map(Effect::leave));
            (world.trace.hash(), world.requests, world.trace.take_lines())
        });
        Report { seed, hash, virtual_time, grants, requests, violation, story }
    }

    /// Runs tasks, and lets happen what is due, until all is over.
    async fn drive(self: &Arc<Sim>, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5c4e_d01e_0000_0001);
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let (mut steps, mut killed) = (0u64, vec![false; self.hosts().len()]);
        std::future::poll_fn(|cx| {
            loop {
                steps += 1;
                if steps > MOST_STEPS {
                    self.violated("somebody runs in a circle".to_owned());
                }
                if self.is_over() {
                    return Poll::Ready(());
                }
                let ready = self.executor.ready();
                let (now, due) = self.world(|world| (world.now, world.next_at()));
                let due = due.unwrap_or(u64::MAX);
                let choices = ready + usize::from(due <= now);
                if choices == 0 {
                    self.executor.wake_with(cx.waker());
                    timer.as_mut().reset(self.at(due));
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    continue;
                }
                let choice = if choices == 1 { 0 } else { rng.usize(..choices) };
                if choice < ready {
                    if let Some(task) = self.executor.run(choice, self.hosts()) {
                        self.world(|world| world.trace.ran(task));
                    }
                } else if self.world(|world| world.step()) {
                    work::audit(self);
                }
                for (host, killed) in killed.iter_mut().enumerate() {
                    if !*killed && self.world(|world| world.hosts[host].dead) {
                        *killed = true;
                        lock(&self.history).forget_host(host);
                        self.executor.kill(host, self.hosts());
                    }
                }
            }
        })
        .await;
    }

    fn is_over(&self) -> bool {
        lock(&self.history).is_over() || lock(&self.violation).is_some()
    }

    /// When that is.
    pub(crate) fn at(&self, ms: u64) -> Instant {
        // Something is always due: audits.
        self.start + Duration::from_millis(ms.min(1 << 40))
    }

    /// The virtual time.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn hosts(&self) -> &[Arc<dyn Host>] {
        self.hosts.get().map_or(&[], Vec::as_slice)
    }

    /// Looks at the world, or changes it. Not to be called within itself.
    pub(crate) fn world<T>(&self, what: impl FnOnce(&mut World) -> T) -> T {
        let (done, effects) = {
            let world = &mut *lock(&self.world);
            world.now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
            (what(world), std::mem::take(&mut world.effects))
        };
        effects.into_iter().for_each(Effect::happen);
        done
    }

    /// Something is as it must not be.
    pub(crate) fn violated(&self, what: String) {
        self.world(|world| world.trace.note(world.now, "VIOLATION", &[], &what));
        lock(&self.violation).get_or_insert(what);
    }

    pub(crate) fn note(&self, what: &'static str, numbers: &[u64], text: &str) {
        self.world(|world| world.trace.note(world.now, what, numbers, text));
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
