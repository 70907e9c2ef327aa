//! The plan of a run, which follows from its seed: hosts, servers, locks and faults.

use std::time::Duration;

use fastrand::Rng;

use crate::ensemble::{SYNC_LIMIT, TICK};

/// The plan of a run.
#[derive(Debug, Clone)]
pub(crate) struct SimPlan {
    /// For each host, the millionths by which its clock is faster than that of the servers.
    pub(crate) drifts: Vec<i64>,
    pub(crate) servers: usize,
    /// The session timeout in milliseconds.
    pub(crate) timeout: u64,
    /// Set if the hosts know the tick of the servers. Otherwise they learn it.
    pub(crate) knows_tick: bool,
    /// The longest session timeout that the servers grant at the beginning, in milliseconds.
    pub(crate) longest_timeout: u64,
    /// Set if servers answer the attach of an unknown session with a new session.
    pub(crate) replaces_unknown_session: bool,
    /// Set if the servers are older than ZooKeeper 3.6: they answer "moved" in the first part of a transaction, and cannot
    /// list the znodes of a session.
    pub(crate) is_before_3_6: bool,
    /// Set if the servers return the Stat of znodes that a transaction created.
    pub(crate) returns_created_stat: bool,
    /// The maximum duration of most messages, in milliseconds (`world::slowest`).
    pub(crate) latency: u64,
    pub(crate) locks: Vec<PlannedLock>,
    /// The number of tasks on each host.
    pub(crate) workers: usize,
    /// The number of rounds of each task. In a round, the task acquires one or two locks.
    pub(crate) rounds: usize,
    /// The maximum time for which a task holds a lock, in milliseconds.
    pub(crate) max_hold: u64,
    /// The maximum pause of a task before a round, in milliseconds.
    pub(crate) max_idle: u64,
    /// Set if each host has a candidate in one election.
    pub(crate) elects: bool,
    /// Set if tasks revoke and break locks, and operators end sessions and remove directories.
    pub(crate) operators: bool,
    pub(crate) faults: Vec<(u64, PlannedFault)>,
    /// The time at which the last fault ends, in milliseconds.
    pub(crate) healed_at: u64,
}

/// A lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedLock {
    pub(crate) family: PlannedKind,
    pub(crate) crash_detection: bool,
    pub(crate) delay: u64,
}

/// A kind of lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlannedKind {
    Mutex,
    ReadWrite,
    Semaphore(u32),
    /// A mutex whose tasks share a hold, with its limit in milliseconds.
    SharedHold(u64),
}

impl PlannedKind {
    /// Returns the number of permits, or zero for a lock without permits.
    pub(crate) fn size(self) -> u32 {
        match self {
            PlannedKind::Semaphore(size) => size,
            PlannedKind::Mutex | PlannedKind::ReadWrite | PlannedKind::SharedHold(_) => 0,
        }
    }
}

/// A fault, with its end if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlannedFault {
    /// The connections of a host break.
    Break(usize),
    /// The network passes nothing from a host (`up`), to the host (`down`), or both.
    Partition { host: usize, up: bool, down: bool, until: u64 },
    /// A host runs no tasks.
    Pause { host: usize, until: u64 },
    /// A host crashes.
    Crash(usize),
    /// A server is cut off from the leader.
    CutOff { server: usize, until: u64 },
    /// The leader is cut off from all other servers, which elect another leader.
    Depose { server: usize, until: u64, election: u64 },
    /// A server is killed, and comes back.
    Restart { server: usize, until: u64 },
    /// All servers restart, with another longest session timeout.
    Reconfigure { longest_timeout: u64, until: u64 },
    /// An operator stops all servers, and restores the state that they had `back` milliseconds
    /// earlier.
    Restore { back: u64, until: u64 },
    /// A server accepts connections, and answers nothing.
    Silent { server: usize, until: u64 },
    /// A server accepts connections, and closes them.
    Refuse { server: usize, until: u64 },
    /// The replies of a server are late.
    Late { server: usize, by: u64, until: u64 },
    /// The leader does nothing.
    Stall { until: u64 },
    /// A server receives the decisions of the leader late.
    Lag { server: usize, by: u64, until: u64 },
    /// An operator deletes the directory of a lock.
    Remove(usize),
    /// An operator ends the sessions of a host.
    Expire(usize),
}

impl SimPlan {
    pub(crate) fn of(seed: u64) -> SimPlan {
        let mut rng = Rng::with_seed(seed ^ 0x5eed_0fa1_1c10_c5ed);
        let hosts = rng.usize(2..=4);
        let servers = rng.usize(1..=3);
        let timeout = [3 * TICK, 3 * TICK, 4 * TICK, 5 * TICK, 15 * TICK][rng.usize(..5)];
        let count = rng.usize(1..=2);
        let locks: Vec<PlannedLock> = (0..count).map(|_| PlannedLock::of(&mut rng)).collect();
        let (workers, rounds) = (rng.usize(1..=3), rng.usize(2..=5));
        // The last two are long enough for a session to end during a hold.
        let max_hold = [0, 20, 400, timeout / 2, 2 * timeout, 4 * timeout][rng.usize(..6)];
        let max_idle = [20, 400, 3000, 8000][rng.usize(..4)];
        // The approximate duration of the work, in milliseconds.
        let work = ((hosts * workers / count) as u64 * max_hold + max_idle) * rounds as u64 / 2;
        let horizon = work.clamp(timeout / 2, 8 * timeout + 30_000);
        let trouble = [0, 4, 10, 20][rng.usize(..4)];
        let operators = rng.u8(..3) == 0;
        let mut times: Vec<u64> = (0..trouble).map(|_| rng.u64(50..horizon)).collect();
        times.sort_unstable();
        let mut fault = |at| PlannedFault::of(&mut rng, at, timeout, hosts, servers, count, operators);
        let mut faults: Vec<(u64, PlannedFault)> = times.into_iter().map(|at| (at, fault(at))).collect();
        // The restore has its own generator, so that it does not change the rest of a plan.
        let mut other = Rng::with_seed(seed ^ 0x0bac_ca00_0000_0001);
        if trouble > 0 && other.u8(..8) == 0 {
            let at = other.u64(50..horizon);
            // A long outage makes the clients give up their sessions, so that any older state can be restored. If a
            // session continued, znodes that it had deleted would exist again (docs/design/limits.md). After a short
            // outage, the empty state is restored, which has no sessions.
            let is_long = other.bool();
            let until = at + if is_long { 2 * timeout } else { 0 } + other.u64(50..timeout);
            faults.push((
                at,
                PlannedFault::Restore { back: if is_long { other.u64(..=at) } else { at }, until },
            ));
        }
        let healed_at = faults.iter().map(|(at, fault)| fault.end_time(*at)).max().unwrap_or(0);
        SimPlan {
            drifts: (0..hosts).map(|_| rng.i64(-30_000..=30_000)).collect(),
            servers,
            timeout,
            knows_tick: rng.u8(..4) != 0,
            longest_timeout: 20 * TICK,
            replaces_unknown_session: rng.u8(..8) == 0,
            // A generator of its own, so that the rest of the plan stays the same.
            is_before_3_6: Rng::with_seed(seed ^ 0x0035_0000_0000_0001).u8(..8) == 0,
            returns_created_stat: rng.bool(),
            latency: [1, 3, 3, 20, 120][rng.usize(..5)],
            locks,
            workers,
            rounds,
            max_hold,
            max_idle,
            // A generator of its own, so that the rest of the plan stays the same.
            elects: Rng::with_seed(seed ^ 0x0e1e_c700_0000_0001).u8(..4) == 0,
            operators,
            faults,
            healed_at,
        }
    }
}

impl SimPlan {
    /// Returns the plan of a run without faults, in which each host waits for one mutex ([`crate::queue`]).
    pub(crate) fn of_queue(hosts: usize, wait: Duration) -> SimPlan {
        SimPlan {
            drifts: vec![0; hosts],
            servers: 3,
            timeout: 15 * TICK,
            knows_tick: true,
            longest_timeout: 20 * TICK,
            replaces_unknown_session: false,
            is_before_3_6: false,
            returns_created_stat: true,
            latency: 20,
            locks: vec![PlannedLock { family: PlannedKind::Mutex, crash_detection: false, delay: 0 }],
            workers: 1,
            rounds: 1,
            max_hold: u64::try_from(wait.as_millis()).expect("wait fits in u64"),
            max_idle: 0,
            elects: false,
            operators: false,
            faults: Vec::new(),
            healed_at: 0,
        }
    }

    /// Returns the maximum duration of the work if all tasks run one after the other, in
    /// milliseconds. A task that upgrades or downgrades holds twice.
    pub(crate) fn max_work_time(&self) -> u64 {
        let tasks = self.workers + usize::from(self.elects);
        (self.drifts.len() * tasks * self.rounds) as u64 * (2 * self.max_hold + self.max_idle)
    }
}

impl PlannedLock {
    fn of(rng: &mut Rng) -> PlannedLock {
        let family = match rng.u8(..8) {
            0..3 => PlannedKind::Mutex,
            3 | 4 => PlannedKind::ReadWrite,
            5 => PlannedKind::Semaphore(rng.u32(1..=4)),
            _ => {
                // The number that nothing uses keeps the plans of the seeds that once found a bug.
                let _ = rng.usize(..4);
                let limit = [0, 50, 1000][rng.usize(..3)];
                PlannedKind::SharedHold([0, 0, 500, 5000][rng.usize(..4)].max(limit))
            }
        };
        let keeps = matches!(family, PlannedKind::SharedHold(500 | 5000));
        let crash_detection = !matches!(family, PlannedKind::Semaphore(_)) && !keeps && rng.u8(..3) == 0;
        let delay = if crash_detection && rng.bool() { 700 } else { 0 };
        PlannedLock { family, crash_detection, delay }
    }
}

impl PlannedFault {
    fn of(
        rng: &mut Rng,
        at: u64,
        timeout: u64,
        hosts: usize,
        servers: usize,
        locks: usize,
        operators: bool,
    ) -> PlannedFault {
        let (host, server) = (rng.usize(..hosts), rng.usize(..servers));
        // The durations of faults: from a moment to longer than the session timeout.
        let long = [timeout / 20, timeout / 4, timeout * 2 / 3, timeout, timeout * 3 / 2, timeout * 5 / 2];
        let until = at + long[rng.usize(..long.len())] + rng.u64(..timeout / 4);
        match rng.u8(..28) {
            0..4 => PlannedFault::Break(host),
            4..8 => {
                let (up, down) = [(true, true), (true, true), (true, false), (false, true)][rng.usize(..4)];
                PlannedFault::Partition { host, up, down, until }
            }
            8..11 => PlannedFault::Pause { host, until },
            11 => PlannedFault::Crash(host),
            12 | 13 => PlannedFault::CutOff { server, until },
            14 | 15 => {
                // The deposed leader gives up after the sync limit. Meanwhile the other servers
                // elect another leader.
                let until = at + SYNC_LIMIT * TICK + rng.u64(..2000);
                PlannedFault::Depose { server, until, election: rng.u64(100..3000) }
            }
            16 => PlannedFault::Restart { server, until: at + rng.u64(50..timeout) },
            17 => PlannedFault::Lag { server, by: rng.u64(1..timeout / 3), until },
            18..21 => PlannedFault::Silent { server, until },
            21 => PlannedFault::Refuse { server, until },
            22 => PlannedFault::Late { server, by: rng.u64(1..timeout / 3), until },
            23 | 24 => PlannedFault::Stall { until: at + rng.u64(200..SYNC_LIMIT * TICK) },
            25 => {
                let longest_timeout = (timeout * rng.u64(2..=4) / 4).max(3 * TICK);
                PlannedFault::Reconfigure { longest_timeout, until: at + rng.u64(50..timeout / 2) }
            }
            _ if operators && rng.bool() => PlannedFault::Remove(rng.usize(..locks)),
            _ if operators => PlannedFault::Expire(host),
            _ => PlannedFault::Break(host),
        }
    }

    fn end_time(&self, at: u64) -> u64 {
        match *self {
            PlannedFault::Partition { until, .. }
            | PlannedFault::Pause { until, .. }
            | PlannedFault::CutOff { until, .. }
            | PlannedFault::Depose { until, .. }
            | PlannedFault::Restart { until, .. }
            | PlannedFault::Reconfigure { until, .. }
            | PlannedFault::Restore { until, .. }
            | PlannedFault::Silent { until, .. }
            | PlannedFault::Refuse { until, .. }
            | PlannedFault::Late { until, .. }
            | PlannedFault::Stall { until }
            | PlannedFault::Lag { until, .. } => until,
            PlannedFault::Break(_)
            | PlannedFault::Crash(_)
            | PlannedFault::Remove(_)
            | PlannedFault::Expire(_) => at,
        }
    }
}
