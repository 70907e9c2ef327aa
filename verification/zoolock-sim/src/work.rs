//! The tasks of a run: they acquire locks in every mode, hold them for a while, and release them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use zoolock::{
    AnyGuard, Connection, Error, Guard, LossReason, MultiGuard, Mutex, PermitGuard, RwLock, Semaphore,
    SharedHold, Zoolock,
};

use crate::candidate::run_candidate;
use crate::ensemble::TICK;
use crate::history::{GuardOrigin, RunStage, SimGuard};
use crate::plan::{PlannedKind, PlannedLock};
use crate::world::{is_slow_or_faulty, longest_latency, name};
use crate::{Sim, lock};

/// The maximum duration from the end of the last fault until all tasks have finished, in
/// milliseconds. `SimPlan::max_work_time` is added to it.
const MAX_SERVE_TIME: u64 = 900_000;

/// The maximum duration of each of the stages `Settling` and `Closing`, in milliseconds.
const MAX_SETTLE_TIME: u64 = 120_000;

/// The maximum duration of all requests of a call that does not wait for the lock. A client waits
/// at most 1 s for the replies to one attempt.
const ANSWERS: Duration = Duration::from_secs(8);

/// The maximum duration of a message above which the answers to one attempt may together take longer than the client's
/// limit, in milliseconds. An attempt makes up to seven requests one after the other if the directory does not exist yet.
/// Few messages take the maximum, so no attempt has been late on a faster network.
const SLOW_FOR_ATTEMPT: u64 = 100;

/// The time that a client gives the server for the answers to one attempt (`Builder::answer_timeout`).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// A way to acquire a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcquireMode {
    ForEver,
    Try,
    Within(Duration),
    /// The future is dropped after this duration.
    Cancel(Duration),
    /// After this duration, the future is kept and never polled again.
    Forget(Duration),
}

/// The handles of one task for one lock.
struct Handles {
    mutex: Mutex,
    /// All tasks of the host have clones of this handle.
    shared: SharedHold,
    rwlock: RwLock,
    semaphore: Semaphore,
}

/// Starts the client of a host, and the tasks of the host.
pub(crate) fn start_host(sim: &Arc<Sim>, host: usize, seed: u64) {
    let rng = Rng::with_seed(seed.wrapping_mul(0x9e37).wrapping_add(host as u64) ^ 0x0b00_7000);
    lock(&sim.history).working.insert(host, 1);
    let task = run_host(sim.clone(), host, rng);
    sim.executor.spawn(host, false, Box::pin(task));
}

/// Connects the client of a host. Returns `None` after a violation.
pub(crate) async fn connect(sim: &Arc<Sim>, host: usize) -> Option<Zoolock> {
    let plan = &sim.plan;
    loop {
        let mut builder = Zoolock::builder().session_timeout(Duration::from_millis(plan.timeout));
        if plan.knows_tick {
            builder = builder.tick_time(Duration::from_millis(TICK));
        }
        let address = crate::host::address(plan.servers);
        match zoolock::sim::connect(builder, &address, sim.hosts()[host].clone()).await {
            Ok(zoolock) => return Some(zoolock),
            Err(Error::Unavailable { .. }) => {}
            Err(error) => {
                sim.record_violation(format!("host {host} cannot connect: {error}"));
                return None;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until each host that has not crashed closes its client.
pub(crate) async fn until_closing(sim: &Sim) {
    while !matches!(lock(&sim.history).stage, RunStage::Closing(_)) {
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

async fn run_host(sim: Arc<Sim>, host: usize, mut rng: Rng) {
    let plan = &sim.plan;
    let Some(zoolock) = connect(&sim, host).await else { return };
    if let Some(working) = lock(&sim.history).working.get_mut(&host) {
        *working += plan.workers + usize::from(plan.elects);
    }
    let locks = plan.locks.iter().enumerate();
    let shared: Vec<SharedHold> = locks.map(|(index, kind)| shared_handle(&zoolock, index, *kind)).collect();
    for nth in 0..plan.workers {
        let worker = run_worker(sim.clone(), host, nth, zoolock.clone(), shared.clone(), rng.fork());
        sim.executor.spawn(host, false, Box::pin(worker));
    }
    if plan.elects {
        let candidate = run_candidate(sim.clone(), host, zoolock.clone(), rng.fork());
        sim.executor.spawn(host, false, Box::pin(candidate));
    }
    drop(shared);
    sim.count_ended_task(host);
    until_closing(&sim).await;
    if rng.bool() {
        zoolock.close().await;
    }
    drop(zoolock);
}

async fn run_worker(
    sim: Arc<Sim>,
    host: usize,
    nth: usize,
    zoolock: Zoolock,
    shared: Vec<SharedHold>,
    mut rng: Rng,
) {
    let forgotten = {
        let handles: Vec<Handles> = sim
            .plan
            .locks
            .iter()
            .zip(shared)
            .enumerate()
            .map(|(index, (kind, shared))| Handles::of(&zoolock, index, *kind, shared))
            .collect();
        let worker = SimWorker {
            sim: sim.clone(),
            host,
            nth,
            zoolock,
            handles,
            forgotten: std::sync::Mutex::default(),
        };
        for _ in 0..sim.plan.rounds {
            let idle = rng.u64(..=sim.plan.max_idle);
            tokio::time::sleep(Duration::from_millis(idle)).await;
            worker.round(&mut rng).await;
        }
        worker.forgotten
    };
    sim.count_ended_task(host);
    // Keeps the futures until all other tasks have been served.
    until_closing(&sim).await;
    drop(forgotten);
}

impl Handles {
    fn of(zoolock: &Zoolock, index: usize, kind: PlannedLock, shared: SharedHold) -> Handles {
        let mut rwlock = zoolock.rwlock(name(index));
        let size = match kind.family {
            PlannedKind::Semaphore(size) => size,
            PlannedKind::SharedHold(_) | PlannedKind::Mutex | PlannedKind::ReadWrite => 1,
        };
        let semaphore = zoolock.semaphore(name(index), size);
        if kind.crash_detection {
            rwlock = rwlock.crash_detection();
        }
        Handles { mutex: mutex_handle(zoolock, index, kind), shared, rwlock, semaphore }
    }
}

fn mutex_handle(zoolock: &Zoolock, index: usize, kind: PlannedLock) -> Mutex {
    let mut mutex = zoolock.mutex(name(index));
    if kind.crash_detection {
        mutex = mutex.crash_detection();
    }
    if kind.delay > 0 {
        mutex = mutex.lock_delay(Duration::from_millis(kind.delay));
    }
    mutex
}

fn shared_handle(zoolock: &Zoolock, index: usize, kind: PlannedLock) -> SharedHold {
    let limit = if let PlannedKind::SharedHold(limit) = kind.family { limit } else { 0 };
    mutex_handle(zoolock, index, kind).shared_hold(Duration::from_millis(limit))
}

struct SimWorker {
    sim: Arc<Sim>,
    host: usize,
    nth: usize,
    zoolock: Zoolock,
    handles: Vec<Handles>,
    forgotten: std::sync::Mutex<Vec<ForgottenFuture>>,
}

/// The future of an acquisition that is not polled any more.
type ForgottenFuture = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Acquires a lock in the given mode, with one of three methods of its handle. Returns `None` if the lock was not granted
/// in time. `$guard` makes the guard of the simulation.
macro_rules! acquire {
    ($worker:expr, $mode:expr, $handle:expr, $wait:ident, $try:ident, $within:ident, ($($permits:expr),*), $guard:expr) => {{
        let outcome: Result<_, Error> = match $mode {
            AcquireMode::ForEver => $handle.$wait($($permits),*).await.map(Some),
            AcquireMode::Try => $handle.$try($($permits),*).await,
            AcquireMode::Within(patience) => match $handle.$within($($permits,)* patience).await {
                // The server did not answer in time, or the lock was busy.
                Err(Error::Timeout { .. } | Error::Unavailable { .. }) => Ok(None),
                outcome => outcome.map(Some),
            },
            AcquireMode::Cancel(after) => {
                tokio::time::timeout(after, $handle.$wait($($permits),*)).await.ok().transpose()
            }
            AcquireMode::Forget(after) => {
                let handle = $handle.clone();
                let acquire = async move { handle.$wait($($permits),*).await.map(drop) };
                $worker.forget_after(after, Box::pin(acquire)).await;
                Ok(None)
            }
        };
        outcome.map(|guard| guard.map($guard))
    }};
}

impl SimWorker {
    /// Polls the future for this duration, and then keeps it without polling it again.
    async fn forget_after(&self, after: Duration, mut acquire: ForgottenFuture) {
        if tokio::time::timeout(after, &mut acquire).await.is_err() {
            lock(&self.forgotten).push(acquire);
        }
    }

    async fn round(&self, rng: &mut Rng) {
        let plan = &self.sim.plan;
        let patience = Duration::from_millis(rng.u64(..=plan.max_hold * 2 + 300));
        let mode = match rng.u8(..8) {
            0..4 => AcquireMode::ForEver,
            4 => AcquireMode::Try,
            5 | 6 => AcquireMode::Within(patience),
            _ if patience.as_millis().is_multiple_of(2) => AcquireMode::Forget(patience),
            _ => AcquireMode::Cancel(patience),
        };
        let several = plan.locks.len() > 1
            && !plan.locks.iter().any(|lock| matches!(lock.family, PlannedKind::Semaphore(_)));
        let locks = if several && rng.u8(..3) == 0 {
            if rng.bool() { vec![0, 1] } else { vec![1, 0] }
        } else {
            vec![rng.usize(..plan.locks.len())]
        };
        let actions_before = self.operator_actions(&locks);
        if plan.operators && rng.u8(..4) == 0 {
            self.act_as_operator(locks[0], rng).await;
        }
        let asked = self.sim.elapsed();
        let outcome = self.acquire(&locks, mode, rng).await;
        let delay =
            Duration::from_millis(locks.iter().map(|lock| plan.locks[*lock].delay).max().unwrap_or(0));
        match (mode, &outcome) {
            (AcquireMode::Within(patience) | AcquireMode::Cancel(patience), Ok(None)) => {
                self.check_lateness(asked, patience)
            }
            (AcquireMode::Try, _) => self.check_lateness(asked, delay),
            _ => {}
        }
        let guard = match outcome {
            Ok(Some(guard)) => Arc::new(guard),
            Ok(None) => return self.sim.note("missed", &[self.host as u64, self.nth as u64], ""),
            Err(error) => {
                let is_try = matches!((mode, &error), (AcquireMode::Try, Error::Unavailable { .. }));
                if !is_try || !self.may_be_answered_late(asked) {
                    self.check_error(&error, &locks, actions_before);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                return;
            }
        };
        let entry = self.sim.check_and_record_grant(self.host, &locks, &guard, GuardOrigin::Asking);
        let guard = match self.upgrade_or_downgrade(&locks, guard, entry, actions_before, rng).await {
            Some((guard, entry)) => {
                self.hold(&locks, &guard, actions_before, rng).await;
                self.sim.remove_holding(entry);
                guard
            }
            None => return,
        };
        self.release(&locks, guard, actions_before, rng).await;
    }

    async fn acquire(
        &self,
        locks: &[usize],
        mode: AcquireMode,
        rng: &mut Rng,
    ) -> Result<Option<SimGuard>, Error> {
        if locks.len() > 1 {
            let multi = self.zoolock.multi(locks.iter().map(|lock| name(*lock)));
            let of_kind = |guard: MultiGuard| SimGuard::Multi(guard.into());
            return acquire!(self, mode, multi, lock, try_lock, lock_timeout, (), of_kind);
        }
        let Handles { mutex, shared, rwlock, semaphore } = &self.handles[locks[0]];
        let of_mutex = |guard: Guard| SimGuard::Mutex(guard.into());
        match self.sim.plan.locks[locks[0]].family {
            PlannedKind::Mutex => acquire!(self, mode, mutex, lock, try_lock, lock_timeout, (), of_mutex),
            // A plain handle has a queue position of its own, beside that of the shared hold.
            PlannedKind::SharedHold(_) if rng.u8(..6) == 0 => {
                acquire!(self, mode, mutex, lock, try_lock, lock_timeout, (), of_mutex)
            }
            PlannedKind::SharedHold(_) => {
                let of_kind = |guard: Guard| SimGuard::SharedHold(guard.into());
                acquire!(self, mode, shared, lock, try_lock, lock_timeout, (), of_kind)
            }
            PlannedKind::ReadWrite => match rng.u8(..8) {
                0..3 => acquire!(self, mode, rwlock, read, try_read, read_timeout, (), SimGuard::Read),
                3 => acquire!(
                    self,
                    mode,
                    rwlock,
                    upgradable_read,
                    try_upgradable_read,
                    upgradable_read_timeout,
                    (),
                    SimGuard::Upgradable
                ),
                4 => acquire!(self, mode, mutex, lock, try_lock, lock_timeout, (), of_mutex),
                _ => acquire!(self, mode, rwlock, write, try_write, write_timeout, (), SimGuard::Write),
            },
            PlannedKind::Semaphore(size) => {
                let take = rng.u32(1..=size);
                let of_kind = |guard: PermitGuard| SimGuard::Permits(guard.into(), take);
                acquire!(self, mode, semaphore, acquire, try_acquire, acquire_timeout, (take), of_kind)
            }
        }
    }

    /// Upgrades a reader or downgrades a writer, at random. Returns `None` if the lock is lost, or
    /// the change fails.
    async fn upgrade_or_downgrade(
        &self,
        locks: &[usize],
        guard: Arc<SimGuard>,
        entry: u64,
        actions_before: u64,
        rng: &mut Rng,
    ) -> Option<(Arc<SimGuard>, u64)> {
        let may = matches!(*guard, SimGuard::Upgradable(_) | SimGuard::Write(_));
        if !may || rng.bool() {
            return Some((guard, entry));
        }
        self.hold(locks, &guard, actions_before, rng).await;
        self.sim.remove_holding(entry);
        let guard = Arc::into_inner(guard)?;
        let (changed, origin) = match guard {
            SimGuard::Write(guard) => (guard.downgrade().await.map(SimGuard::Read), GuardOrigin::Downgrade),
            SimGuard::Upgradable(guard) => {
                let upgraded = guard.upgrade().await.map(SimGuard::Write);
                (upgraded.map_err(Error::from), GuardOrigin::Upgrade)
            }
            other => (Ok(other), GuardOrigin::Asking),
        };
        match changed {
            // The lock may be lost by now. Then the guard reports the loss, and is not recorded.
            Ok(guard) if !guard.is_valid() => None,
            Ok(guard) => {
                let guard = Arc::new(guard);
                let entry = self.sim.check_and_record_grant(self.host, locks, &guard, origin);
                Some((guard, entry))
            }
            Err(error) => {
                self.check_error(&error, locks, actions_before);
                None
            }
        }
    }

    async fn hold(&self, locks: &[usize], guard: &SimGuard, actions_before: u64, rng: &mut Rng) {
        let time = Duration::from_millis(rng.u64(..=self.sim.plan.max_hold));
        let polite = rng.bool();
        let mut connection = guard.connection_changes();
        // A warning means that a renewal is overdue, so a fast network without faults has none.
        let suspect = async {
            if self.is_slow_or_faulty() {
                return std::future::pending().await;
            }
            connection.wait_for(|now| now == Connection::Suspect).await;
            self.sim.record_violation(format!(
                "host {} suspects {} without a fault",
                self.host,
                guard.node_path()
            ));
        };
        let lost = tokio::select! {
            biased;
            reason = guard.lost() => Some(reason),
            () = guard.revoked(), if polite => None,
            () = suspect => None,
            () = tokio::time::sleep(time) => None,
        };
        if let Some(reason) = lost {
            self.sim.check_loss(self.host, locks, guard, reason, actions_before).await;
        }
    }

    async fn release(&self, locks: &[usize], guard: Arc<SimGuard>, actions_before: u64, rng: &mut Rng) {
        let Some(guard) = Arc::into_inner(guard) else { return };
        let (path, created) = (guard.node_path(), guard.created());
        self.sim.note("lets go", &[self.host as u64, created as u64 & 0xffff_ffff], "");
        if rng.bool() {
            return drop(guard);
        }
        let passes_on = matches!(guard, SimGuard::SharedHold(_));
        match AnyGuard::from(guard).release().await {
            Ok(()) if passes_on => {}
            Ok(()) => self.sim.check_release(&path, created),
            Err(error) => self.check_error(&error, locks, actions_before),
        }
    }

    /// Asks a random contender to release, or deletes its znode, as an operator does.
    async fn act_as_operator(&self, lock: usize, rng: &mut Rng) {
        let (admin, name) = (self.zoolock.admin(), self.handles[lock].mutex.name());
        let Ok(snapshot) = admin.snapshot(name).await else { return };
        let mut all: Vec<_> =
            snapshot.holder.iter().chain(&snapshot.beside).chain(&snapshot.waiters).collect();
        if all.is_empty() {
            return;
        }
        let entry = all.swap_remove(rng.usize(..all.len()));
        let Some(ticket) = entry.token else { return };
        let outcome = if rng.bool() {
            self.sim.world(|world| world.operator_actions[lock] += 1);
            self.sim.note("breaks", &[self.host as u64], &entry.node);
            admin.break_lock(name, ticket).await.map(|_| ())
        } else {
            self.sim.note("revokes", &[self.host as u64], &entry.node);
            admin.revoke(name, ticket).await
        };
        match outcome {
            Ok(()) | Err(Error::NoSuchHolder { .. } | Error::Unavailable { .. } | Error::Lost { .. }) => {}
            Err(error) => self.sim.record_violation(format!("host {} as an operator: {error}", self.host)),
        }
    }

    fn operator_actions(&self, locks: &[usize]) -> u64 {
        self.sim.world(|world| world.count_operator_actions(locks))
    }

    /// Checks that an acquisition with a time limit returned in time, unless the host was paused
    /// meanwhile.
    fn check_lateness(&self, asked: Duration, patience: Duration) {
        let waited = self.sim.elapsed() - asked;
        let resumed = self.sim.world(|world| world.hosts[self.host].resumed_at);
        if u128::from(resumed) < asked.as_millis() && waited > patience + ANSWERS {
            self.sim.record_violation(format!(
                "host {} waited for {waited:?} instead of {patience:?}",
                self.host
            ));
        }
    }

    fn is_slow_or_faulty(&self) -> bool {
        is_slow_or_faulty(&self.sim.plan)
    }

    /// Returns whether the answers to an attempt that began at `asked` may have come after the client's limit.
    fn may_be_answered_late(&self, asked: Duration) -> bool {
        longest_latency(self.sim.plan.latency) > SLOW_FOR_ATTEMPT
            && self.sim.elapsed() - asked >= ANSWER_TIMEOUT
    }

    fn check_error(&self, error: &Error, locks: &[usize], actions_before: u64) {
        self.sim.note("error", &[self.host as u64], &error.to_string());
        let expected = match error {
            Error::Removed { .. } | Error::Lost { reason: LossReason::Broken, .. } => {
                let is_shared = locks
                    .iter()
                    .any(|lock| matches!(self.sim.plan.locks[*lock].family, PlannedKind::SharedHold(_)));
                self.operator_actions(locks) > if is_shared { 0 } else { actions_before }
                    || self.sim.world(|world| world.was_removed_or_restored(locks))
                    || self.sim.world(|world| world.any_expired(self.host))
            }
            Error::Lost { reason: LossReason::SessionExpired, .. } => {
                self.sim.world(|world| world.any_expired(self.host))
            }
            Error::Lost { reason: LossReason::Unreachable, .. } | Error::Unavailable { .. } => {
                // On a fast network without faults, every lease is renewed in time, so this error
                // is wrong there.
                self.is_slow_or_faulty() || self.sim.world(|world| world.was_slow(self.host))
            }
            Error::Conflict { .. } => {
                locks.iter().any(|lock| self.sim.plan.locks[*lock].family == PlannedKind::ReadWrite)
            }
            _ => false,
        };
        if !expected {
            self.sim.record_violation(format!("host {}: {error}", self.host));
        }
    }
}

/// Runs all checks, and begins the next stage of the run when it is due.
pub(crate) fn check_and_advance_stage(sim: &Sim) {
    sim.check_holders();
    sim.check_terms();
    let (stage, working) = {
        let history = &*lock(&sim.history);
        (history.stage, history.working.values().sum::<usize>())
    };
    let (now, healed_at) = sim.world(|world| (world.now, sim.plan.healed_at));
    let next = match stage {
        RunStage::Working if working == 0 && now > healed_at => RunStage::Settling(now),
        RunStage::Working if now > healed_at + MAX_SERVE_TIME + sim.plan.max_work_time() => {
            return sim.record_violation("a task was not served after the last fault".to_owned());
        }
        RunStage::Settling(since) => {
            let left = sim.world(|world| world.contenders());
            if left.is_empty() {
                RunStage::Closing(now)
            } else if now > since + MAX_SETTLE_TIME {
                return sim.record_violation(format!("contenders left in the queues: {left:?}"));
            } else {
                stage
            }
        }
        RunStage::Closing(since) => {
            let sessions = sim.world(|world| world.leader.sessions.len());
            let tasks: usize =
                (0..sim.hosts().len()).map(|host| sim.executor.count_library_tasks(host)).sum();
            if sessions == 0 && tasks == 0 {
                RunStage::Over
            } else if now > since + MAX_SETTLE_TIME {
                return sim.record_violation(format!(
                    "after the end there are {sessions} sessions and {tasks} tasks"
                ));
            } else {
                stage
            }
        }
        stage => stage,
    };
    if next != stage {
        sim.note("stage", &[], &format!("{next:?}"));
        lock(&sim.history).stage = next;
    }
}
