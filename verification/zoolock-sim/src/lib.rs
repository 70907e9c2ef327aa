//! Runs the real lock code and the real session client on simulated hosts, a simulated network and
//! a simulated ensemble.
//!
//! The seed of a run decides all of it: hosts, locks, faults, the time of each message, and the
//! order of the tasks. A run takes milliseconds, for minutes of virtual time. If a check fails in a
//! run, it fails again in each run with the same seed. This command prints the events of a run:
//!
//! ```sh
//! ZOOLOCK_SEED=4711 cargo nextest run -p zoolock-sim --no-capture replay
//! ```
//!
//! # The real parts
//! The real parts are everything above the socket: locks, leases, the state machine and the driver
//! of a session, and the wire format. A host (`host.rs`) replaces what these parts take from the
//! operating system:
//! * *The network.* A connection carries bytes, some of which are late or lost (`world.rs`).
//! * *The clock.* Each host's clock drifts by at most 3 %. Timers are tokio's, whose clock jumps to
//!   the next event.
//! * *Tasks.* `executor.rs` draws the next task to run. The tasks of a paused host are not drawn,
//!   while its clock continues. Attempts to connect are tasks of tokio. They continue while the
//!   host is paused, as they do in a kernel.
//! * *Random numbers.* They follow from the seed.
//!
//! The ensemble (`ensemble.rs`) is a leader and some servers. The leader decides with `prepare` and
//! `commit`, two functions of the real server. The simulated servers learn of its decisions late.
//! They answer reads and fire watches. Each half tick they report to the leader which sessions have
//! sent requests. The leader expires sessions only at whole ticks.
//!
//! The faults of the ensemble: A server is cut off from the leader, restarts, does not answer,
//! closes connections at once, or answers late. All servers restart with another maximum session
//! timeout, or are restored to an older state. The leader is deposed, and then still answers
//! `sync`. Or the leader does nothing for a while. Requests of a lost connection can still arrive,
//! until the session is attached by another server, and again if the old server then carries out an
//! attach that the client has given up. In some runs, a server answers the attach of an
//! unknown session with a new session.
//!
//! # The checks
//! `history.rs` records the guards of all hosts. It and `work.rs` check these properties:
//! * At each grant, no other host has a guard that excludes the new guard and is valid by that
//!   host's clock.
//! * At each grant, no contender that excludes the new holder is queued before the new holder.
//! * Tokens rise. No more permits are held than a semaphore has.
//! * A loss is reported in time, and with a true reason.
//! * The znode of a released lock is deleted.
//! * A lock is not lost if a server was usable for all of the sixth of a session timeout before the
//!   loss. This is not checked on a slow network, or after an action of an operator.
//! * After the last fault, all tasks get their locks in bounded time. At the end no contender, task
//!   or session remains.

#![forbid(unsafe_code)]

mod candidate;
mod ensemble;
mod executor;
mod history;
mod host;
mod plan;
mod queue;
mod terms;
mod trace;
mod work;
mod world;

use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use zoolock::sim::SimulatedMachine;
pub(crate) use zoolock_tests::lock;

use executor::Executor;
use history::RunHistory;
use host::SimHost;
use plan::SimPlan;
use world::World;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimReport {
    /// The seed.
    pub seed: u64,
    /// The hash of all events.
    pub hash: u64,
    /// The length of the run, by the clock of the servers.
    pub virtual_time: Duration,
    /// The number of grants of each kind of lock.
    pub grants: Grants,
    /// The number of writes at the leader.
    pub requests: u64,
    /// The first violated property.
    pub violation: Option<String>,
    /// All events, if the run records them.
    pub trace: Vec<String>,
}

/// The number of grants of each kind of lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the kinds")]
pub struct Grants {
    pub mutex: u64,
    pub read: u64,
    pub write: u64,
    pub upgraded: u64,
    pub permits: u64,
    pub multi: u64,
    pub shared_hold: u64,
    pub terms: u64,
    /// The number of losses. The following fields count the losses for each reason.
    pub lost: u64,
    pub expired: u64,
    pub unreachable: u64,
    pub broken: u64,
}

impl Grants {
    /// Returns the number of all grants.
    pub fn all(&self) -> u64 {
        let Grants { mutex, read, write, upgraded, permits, multi, shared_hold, terms, .. } = self;
        mutex + read + write + upgraded + permits + multi + shared_hold + terms
    }
}

/// Runs a seed. With `with_trace`, records the text of all events.
pub fn run(seed: u64, with_trace: bool) -> SimReport {
    block_on(Sim::run(SimPlan::of(seed), seed, with_trace, work::start_host))
}

/// Queues one task on each of some hosts for one mutex. No faults happen. The first task holds the lock for `wait`, and each
/// other one for a second. With `tells_previous`, the tasks read how the previous holder left before their grants, and do not
/// look ahead. Returns the times from each release to the next grant, by the clock of the servers.
pub fn measure_hand_overs(wait: Duration, tells_previous: bool, seed: u64) -> Vec<Duration> {
    let queue = Arc::new(queue::Queue::new(wait, tells_previous));
    let turns = queue.clone();
    let start = move |sim: &Arc<Sim>, host, _| queue::start_host(&queue, sim, host);
    let report = block_on(Sim::run(SimPlan::of_queue(queue::HOSTS, wait), seed, false, start));
    assert_eq!(report.violation, None, "seed {seed}");
    turns.hand_overs()
}

fn block_on<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O starts");
    runtime.block_on(tokio::task::unconstrained(run))
}

/// One run.
pub(crate) struct Sim {
    start: Instant,
    pub(crate) plan: SimPlan,
    pub(crate) executor: Arc<Executor>,
    world: Mutex<World>,
    pub(crate) history: Mutex<RunHistory>,
    hosts: OnceLock<Vec<Arc<dyn SimulatedMachine>>>,
    violation: Mutex<Option<String>>,
}

/// The maximum number of steps of a run. Most runs take some ten thousand steps.
const MAX_STEPS: u64 = 3_000_000;

impl Sim {
    /// `start_host`: starts the tasks of a host. Its last argument is the seed.
    async fn run(
        plan: SimPlan,
        seed: u64,
        with_trace: bool,
        start_host: impl Fn(&Arc<Sim>, usize, u64),
    ) -> SimReport {
        let executor: Arc<Executor> = Arc::default();
        let sim = Arc::new(Sim {
            start: Instant::now(),
            world: Mutex::new(World::new(seed, plan.clone(), executor.clone(), with_trace)),
            history: Mutex::new(RunHistory::new(plan.locks.len())),
            executor,
            hosts: OnceLock::new(),
            violation: Mutex::default(),
            plan,
        });
        let hosts = (0..sim.plan.drifts.len()).map(|index| SimHost::create(index, seed, &sim)).collect();
        let _ = sim.hosts.set(hosts);
        for host in 0..sim.plan.drifts.len() {
            start_host(&sim, host, seed);
        }
        sim.run_to_end(seed).await;
        // The checks have ended, so the hosts are killed without being checked.
        for host in 0..sim.plan.drifts.len() {
            sim.world(|world| world.hosts[host].dead = true);
            sim.executor.kill(host, sim.hosts());
        }
        let guards = lock(&sim.history).take_all();
        let terms = lock(&sim.history).terms.take_all();
        drop((guards, terms));
        let virtual_time = sim.start.elapsed();
        let grants = lock(&sim.history).grants;
        let violation = lock(&sim.violation).take();
        let (hash, requests, trace) =
            sim.world(|world| (world.trace.hash(), world.requests, world.trace.take_lines()));
        SimReport { seed, hash, virtual_time, grants, requests, violation, trace }
    }

    /// Runs tasks and carries out events, to the end of the run.
    async fn run_to_end(self: &Arc<Sim>, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5c4e_d01e_0000_0001);
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let (mut steps, mut killed) = (0u64, vec![false; self.hosts().len()]);
        std::future::poll_fn(|cx| {
            loop {
                steps += 1;
                if steps > MAX_STEPS {
                    self.record_violation(format!("the run has taken {MAX_STEPS} steps"));
                }
                if self.is_over() {
                    return Poll::Ready(());
                }
                let ready = self.executor.count_ready_tasks();
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
                        self.world(|world| world.trace.add_task_run(task));
                    }
                } else if self.world(|world| world.carry_out_next_event()) {
                    work::check_and_advance_stage(self);
                }
                for (host, killed) in killed.iter_mut().enumerate() {
                    if !*killed && self.world(|world| world.hosts[host].dead) {
                        *killed = true;
                        let gone = lock(&self.history).terms.forget_host(host);
                        drop(gone);
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

    /// Returns the tokio time of a virtual time in milliseconds.
    pub(crate) fn at(&self, ms: u64) -> Instant {
        // The limit only prevents an overflow: no run takes this long.
        self.start + Duration::from_millis(ms.min(1 << 40))
    }

    /// Returns the virtual time.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn hosts(&self) -> &[Arc<dyn SimulatedMachine>] {
        self.hosts.get().map_or(&[], Vec::as_slice)
    }

    /// Calls `what` with the world. `what` must not call this method.
    pub(crate) fn world<T>(&self, what: impl FnOnce(&mut World) -> T) -> T {
        let world = &mut *lock(&self.world);
        world.now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        what(world)
    }

    /// Records a violation. The first one ends the run.
    pub(crate) fn record_violation(&self, what: String) {
        self.world(|world| world.trace.note(world.now, "VIOLATION", &[], &what));
        lock(&self.violation).get_or_insert(what);
    }

    pub(crate) fn note(&self, what: &'static str, numbers: &[u64], text: &str) {
        self.world(|world| world.trace.note(world.now, what, numbers, text));
    }
}
