//! The record of all holders, and the checks of each grant and each loss.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use zoolock::sim::enter;
use zoolock::{AnyGuard, FencingToken, Held, LossReason, ReadGuard, UpgradableReadGuard, WriteGuard};
use zoolock_tests::judge::{Share, conflicting};

use crate::terms::Terms;
use crate::world::{World, directory, longest_latency};
use crate::{Grants, Sim, lock};

/// A guard, with the kind of lock that a task acquired. The kind decides which checks apply. A guard that may become a
/// guard of another kind keeps its type.
pub(crate) enum SimGuard {
    Mutex(AnyGuard),
    SharedHold(AnyGuard),
    Multi(AnyGuard),
    Permits(AnyGuard, u32),
    Read(ReadGuard),
    Upgradable(UpgradableReadGuard),
    Write(WriteGuard),
}

impl Deref for SimGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        match self {
            SimGuard::Mutex(guard) | SimGuard::SharedHold(guard) => guard,
            SimGuard::Multi(guard) | SimGuard::Permits(guard, _) => guard,
            SimGuard::Read(guard) => guard,
            SimGuard::Upgradable(guard) => guard,
            SimGuard::Write(guard) => guard,
        }
    }
}

impl From<SimGuard> for AnyGuard {
    fn from(guard: SimGuard) -> AnyGuard {
        match guard {
            SimGuard::Mutex(guard) | SimGuard::SharedHold(guard) => guard,
            SimGuard::Multi(guard) | SimGuard::Permits(guard, _) => guard,
            SimGuard::Read(guard) => guard.into(),
            SimGuard::Upgradable(guard) => guard.into(),
            SimGuard::Write(guard) => guard.into(),
        }
    }
}

impl SimGuard {
    /// Returns the zxid of the transaction that created the znode of the guard. For an upgraded
    /// reader, this is the znode of the reader.
    pub(crate) fn created(&self) -> i64 {
        self.ticket().to_string().parse::<FencingToken>().map_or(0, |ticket| ticket.czxid().0)
    }

    fn token(&self) -> Option<FencingToken> {
        match self {
            SimGuard::Mutex(guard) | SimGuard::SharedHold(guard) => guard.token(),
            SimGuard::Multi(guard) | SimGuard::Permits(guard, _) => guard.token(),
            SimGuard::Write(guard) => Some(guard.token()),
            SimGuard::Read(_) | SimGuard::Upgradable(_) => None,
        }
    }

    /// Returns the share of the lock. `size` is the size of a semaphore.
    fn share(&self, size: u32) -> Share {
        match self {
            SimGuard::Mutex(_) | SimGuard::SharedHold(_) | SimGuard::Write(_) | SimGuard::Multi(_) => {
                Share::Exclusive
            }
            SimGuard::Read(_) => Share::Shared,
            SimGuard::Upgradable(_) => Share::Upgradable,
            SimGuard::Permits(_, count) => Share::Permits { count: *count, size },
        }
    }
}

/// The origin of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardOrigin {
    Asking,
    Upgrade,
    Downgrade,
}

struct Holding {
    host: usize,
    locks: Vec<usize>,
    guard: Arc<SimGuard>,
    /// Set if another contender was granted the lock while this host was paused.
    overtaken: bool,
    /// The time at which a check first found the znode of the guard deleted.
    deleted_at: Option<u64>,
}

/// The record of the run so far.
pub(crate) struct RunHistory {
    holdings: BTreeMap<u64, Holding>,
    next: u64,
    /// The newest token that was granted for each lock.
    newest: Vec<Option<FencingToken>>,
    /// The time of the last restore. Tokens from before the restore are not in `newest`.
    restored_at: Option<u64>,
    pub(crate) grants: Grants,
    pub(crate) terms: Terms,
    /// The number of unfinished tasks of the simulation on each host.
    pub(crate) working: BTreeMap<usize, usize>,
    pub(crate) stage: RunStage,
}

/// The stage of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunStage {
    Working,
    /// Since this time no task wants a lock. The remaining contenders must leave the queues.
    Settling(u64),
    /// Since this time the clients close. Their sessions and tasks must end.
    Closing(u64),
    Over,
}

impl RunHistory {
    pub(crate) fn new(locks: usize) -> RunHistory {
        RunHistory {
            holdings: BTreeMap::new(),
            next: 0,
            newest: vec![None; locks],
            restored_at: None,
            grants: Grants::default(),
            terms: Terms::default(),
            working: BTreeMap::new(),
            stage: RunStage::Working,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stage == RunStage::Over
    }

    /// Forgets a crashed host, so that its guards are not checked.
    pub(crate) fn forget_host(&mut self, host: usize) {
        // The guards are dropped later, with the tasks of the host.
        self.holdings.retain(|_, holding| holding.host != host);
        self.working.remove(&host);
    }

    pub(crate) fn take_all(&mut self) -> Vec<Arc<SimGuard>> {
        std::mem::take(&mut self.holdings).into_values().map(|holding| holding.guard).collect()
    }
}

impl Sim {
    /// Checks and records a guard that was granted on this host just now. Returns the number of its
    /// entry in `holdings`.
    pub(crate) fn check_and_record_grant(
        &self,
        host: usize,
        locks: &[usize],
        guard: &Arc<SimGuard>,
        origin: GuardOrigin,
    ) -> u64 {
        let mut wrong = Vec::new();
        let created = guard.created();
        let text = format!("{} by {origin:?} on host {host}", guard.node_path());
        self.note("granted", &[created as u64 & 0xffff_ffff], &text);
        if !guard.is_valid() {
            wrong.push("a guard was handed out that is not valid".to_owned());
        }
        let history = &mut *lock(&self.history);
        history.count_grant(guard, origin);
        // An operator may already have deleted the znode of the new guard, before the new holder
        // has been told. Then another contender can hold at the same time. Only fencing tokens
        // protect against that, so the grant of this guard is not checked.
        let broken = self.may_be_deleted_by_operator(locks, guard);
        for &lock in locks.iter().filter(|_| !broken) {
            let size = self.plan.locks[lock].family.size();
            let ours = guard.share(size);
            let mut holders = Vec::new();
            for holding in history.holdings.values_mut().filter(|holding| holding.locks.contains(&lock)) {
                let theirs = holding.guard.share(size);
                if !theirs.excludes(ours) && theirs.permits() == 0 {
                    continue;
                }
                if self.world(|world| world.hosts[holding.host].paused_until > world.now) {
                    // A paused holder of permits is not overtaken by a grant of other permits: both
                    // may fit into the semaphore.
                    holding.overtaken |= theirs.excludes(ours)
                        && !self.may_be_deleted_by_operator(&holding.locks, &holding.guard);
                    continue;
                }
                if self.may_be_deleted_by_operator(&holding.locks, &holding.guard)
                    || self.world(|world| world.is_shortened(holding.host))
                {
                    continue;
                }
                let _inside = enter(&self.hosts()[holding.host]);
                if holding.guard.is_valid() {
                    holders.push(((holding.host, holding.guard.node_path(), theirs), theirs));
                }
            }
            if let Some(others) = conflicting(ours, holders) {
                wrong.push(format!(
                    "lock {lock}: host {host} was granted {text} ({ours:?}), beside these hosts: {others:?}"
                ));
            }
            if let Some(token) = guard.token() {
                // After a restore, tokens may be lower than before, because the epoch of the
                // servers may have gone back. (`Builder::token_epoch` is the remedy.) So tokens
                // from before the restore are forgotten.
                let restored = self.world(|world| world.restored_at);
                if history.restored_at != restored {
                    history.restored_at = restored;
                    history.newest.fill(None);
                }
                let newest = &mut history.newest[lock];
                if newest.is_some_and(|newest| newest >= token) {
                    wrong.push(format!("lock {lock}: token {token} was granted after {newest:?}"));
                }
                *newest = Some(token);
            }
            if origin == GuardOrigin::Asking && !self.world(|world| world.was_just_restored()) {
                wrong.extend(self.world(|world| find_passed_contenders(world, lock, guard, size)));
            }
        }
        history.next += 1;
        let id = history.next;
        let (locks, guard) = (locks.to_vec(), guard.clone());
        history.holdings.insert(id, Holding { host, locks, guard, overtaken: false, deleted_at: None });
        wrong.into_iter().for_each(|wrong| self.record_violation(wrong));
        id
    }

    /// Returns whether a znode of the guard is missing, and an operator may have deleted it.
    fn may_be_deleted_by_operator(&self, locks: &[usize], guard: &SimGuard) -> bool {
        self.world(|world| world.count_operator_actions(locks) > 0 && !all_znodes_exist(world, locks, guard))
    }

    /// Removes the entry of a guard that is about to be released, upgraded or downgraded.
    pub(crate) fn remove_holding(&self, id: u64) {
        let holding = lock(&self.history).holdings.remove(&id);
        drop(holding);
    }

    /// Checks a reported loss.
    pub(crate) async fn check_loss(
        &self,
        host: usize,
        locks: &[usize],
        guard: &SimGuard,
        reason: LossReason,
        actions_before: u64,
    ) {
        self.note("lost", &[host as u64], &format!("{} {reason:?}", guard.node_path()));
        if guard.is_valid() || guard.loss() != Some(reason) || guard.lost().await != reason {
            self.record_violation(format!(
                "host {host} reported the loss of {} for {reason:?} inconsistently",
                guard.node_path()
            ));
        }
        {
            let grants = &mut lock(&self.history).grants;
            grants.lost += 1;
            match reason {
                LossReason::SessionExpired => grants.expired += 1,
                LossReason::Unreachable => grants.unreachable += 1,
                _ => grants.broken += 1,
            }
        }
        let is_shared = matches!(guard, SimGuard::SharedHold(_));
        let true_reason = self.world(|world| {
            let exists = all_znodes_exist(world, locks, guard);
            match reason {
                LossReason::SessionExpired => !exists || world.any_expired(host),
                // A lock whose znodes exist was not broken. Write guards are an exception: the
                // guard of an upgraded reader identifies the writer's znode only by its path, and
                // that path may now belong to another contender's znode. An operator's action from
                // before a task requested the lock can end a shared hold, too. So all actions count
                // for such a task.
                // A backup that was restored later may have brought back a znode that was deleted.
                LossReason::Broken => {
                    let exists = exists && !matches!(guard, SimGuard::Write(_));
                    let earlier = if is_shared { 0 } else { actions_before };
                    let acted = world.count_operator_actions(locks) > earlier;
                    if exists {
                        acted && world.restored_at.is_some()
                    } else {
                        acted || world.was_removed_or_restored(locks)
                    }
                }
                LossReason::Unreachable => true,
                _ => false,
            }
        });
        if !true_reason {
            self.record_violation(format!(
                "host {host} lost {} for {reason:?}, which is wrong",
                guard.node_path()
            ));
        }
        if reason != LossReason::Broken && self.world(|world| world.count_operator_actions(locks)) == 0 {
            self.check_loss_was_needed(host, guard);
        }
    }

    /// Checks that a lost lock could not have been kept: no server was usable for all of the sixth
    /// of a session timeout before the loss.
    fn check_loss_was_needed(&self, host: usize, guard: &SimGuard) {
        let timeout = self.plan.timeout;
        // On a slow network, a sixth of the timeout is too short for a reconnect to another server.
        if longest_latency(self.plan.latency) > timeout / 60 {
            return;
        }
        let (now, usable) = self.world(|world| {
            let usable =
                world.now.checked_sub(timeout / 6).and_then(|since| world.usable_server(host, since));
            (world.now, usable)
        });
        if let Some(server) = usable {
            self.record_violation(format!(
                "host {host} lost {} at {now}, though server {server} was usable all the time",
                guard.node_path()
            ));
        }
    }

    /// Checks that the znode is deleted after a confirmed release.
    pub(crate) fn check_release(&self, path: &str, created: i64) {
        let exists = |world: &mut World| world.restored_at.is_none() && world.znode_exists(path, created);
        if self.world(exists) {
            self.record_violation(format!("{path} was released, and is still there"));
        }
    }

    /// Records that a task of the simulation has ended.
    pub(crate) fn count_ended_task(&self, host: usize) {
        if let Some(working) = lock(&self.history).working.get_mut(&host) {
            *working -= 1;
        }
    }

    /// Checks all holders.
    pub(crate) fn check_holders(&self) {
        let mut wrong = Vec::new();
        let history = &mut *lock(&self.history);
        for holding in history.holdings.values_mut() {
            let (now, paused, fresh, exists) = self.world(|world| {
                let machine = &world.hosts[holding.host];
                let fresh = world.now < machine.resumed_at + 5;
                let exists = all_znodes_exist(world, &holding.locks, &holding.guard);
                (world.now, machine.paused_until > world.now, fresh, exists)
            });
            // While the host is paused or has tasks to run, a loss may not have been reported yet.
            // So this host is checked later.
            if paused || self.executor.is_busy(holding.host) {
                continue;
            }
            let _inside = enter(&self.hosts()[holding.host]);
            if holding.overtaken && holding.guard.is_valid() {
                wrong.push(format!(
                    "{} is valid after a pause in which it was lost",
                    holding.guard.node_path()
                ));
            }
            if exists {
                holding.deleted_at = None;
            } else if is_long_ago(holding.deleted_at.get_or_insert(now), now, self.plan.timeout)
                && holding.guard.loss().is_none()
            {
                wrong.push(format!(
                    "{} was deleted long ago, and the loss was not reported",
                    holding.guard.node_path()
                ));
            }
            if !fresh && holding.guard.loss().is_none() && holding.guard.valid_until().has_passed() {
                let late = holding.guard.valid_until().remaining();
                wrong.push(format!(
                    "{}: its lease has ended, and the loss was not reported ({late:?})",
                    holding.guard.node_path()
                ));
            }
        }
        wrong.into_iter().for_each(|wrong| self.record_violation(wrong));
    }
}

impl RunHistory {
    fn count_grant(&mut self, guard: &SimGuard, origin: GuardOrigin) {
        let grants = &mut self.grants;
        let count = match guard {
            SimGuard::Mutex(_) => &mut grants.mutex,
            SimGuard::SharedHold(_) => &mut grants.shared_hold,
            SimGuard::Read(_) | SimGuard::Upgradable(_) => &mut grants.read,
            SimGuard::Write(_) if origin == GuardOrigin::Upgrade => &mut grants.upgraded,
            SimGuard::Write(_) => &mut grants.write,
            SimGuard::Permits(..) => &mut grants.permits,
            SimGuard::Multi(_) => &mut grants.multi,
        };
        *count += 1;
    }
}

/// Returns whether all znodes of a guard exist at the leader.
fn all_znodes_exist(world: &World, locks: &[usize], guard: &SimGuard) -> bool {
    let tree = &world.leader.state.tree;
    let created = guard.created();
    let exists = |lock: &usize| {
        let directory = directory(*lock);
        tree.get(&directory).is_some_and(|node| {
            let mut children = node.children();
            children.any(|name| world.znode_exists(&format!("{directory}/{name}"), created))
        })
    };
    locks.iter().all(exists) && tree.get(&guard.check().path).is_some()
}

/// Returns whether a znode was deleted so long ago that its watch, or the end of the lease, must
/// have reported the loss.
fn is_long_ago(deleted_at: &u64, now: u64, timeout: u64) -> bool {
    now > deleted_at + 3 * timeout
}

/// Returns a violation if the leader's tree has contenders that exclude the new holder and are
/// queued before the new holder.
fn find_passed_contenders(world: &World, lock: usize, guard: &SimGuard, size: u32) -> Option<String> {
    let directory = directory(lock);
    let node = world.leader.state.tree.get(&directory)?;
    let created = guard.created();
    let mut nodes = Vec::new();
    for name in node.children() {
        let child = world.leader.state.tree.get(&format!("{directory}/{name}"))?;
        let Some(number) =
            name.get(name.len().checked_sub(10)?..).and_then(|number| number.parse::<i64>().ok())
        else {
            continue;
        };
        nodes.push((number, name, child.czxid().0));
    }
    // The znode of the new holder may be deleted by now, before the new holder has been told of the
    // loss. Then there is no violation.
    let own = nodes.iter().find(|(.., czxid)| *czxid == created)?.0;
    let before = nodes.iter().filter(|(number, ..)| *number < own);
    let passed =
        conflicting(guard.share(size), before.map(|(_, name, _)| (*name, share_of_name(name, size))))?;
    Some(format!("{directory}: granted number {own} before {passed:?}"))
}

/// Returns the share that the name of a contender's znode stands for.
fn share_of_name(name: &str, size: u32) -> Share {
    if name.starts_with("__READ__") {
        Share::Shared
    } else if name.starts_with("upgr-") {
        Share::Upgradable
    } else if let Some(rest) = name.strip_prefix("permit-") {
        let count = rest.split('-').next().and_then(|count| count.parse().ok()).unwrap_or(0);
        Share::Permits { count, size }
    } else {
        Share::Exclusive
    }
}
