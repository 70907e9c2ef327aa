//! The worker: one task that acquires and releases locks of all kinds in all ways.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use zoolock::{AnyGuard, Error, LossReason, MultiLock, Mutex, Owner, RwLock, UpgradableReadGuard, Zoolock};

use crate::histories::guards::{WorkerGuard, token};
use crate::histories::referee::{Grant, Referee, Status};
use crate::histories::rules::Role;
use fastrand::Rng;

/// Names of the locks.
pub(crate) const LOCKS: [&str; 4] = ["plain", "other", "tracked", "unbroken"];
pub(crate) const TRACKED: [&str; 2] = ["tracked", "unbroken"];
pub(crate) const SEMAPHORES: [(&str, u32); 2] = [("three", 3), ("five", 5)];

/// Time limit of each call. It is longer than the wait in any queue.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Time limit for reporting a revocation or a break to the holder.
const MAX_NOTICE: Duration = Duration::from_secs(20);

pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) zl: Zoolock,
    /// A client with a stable connection.
    pub(crate) operator: Zoolock,
    pub(crate) referee: Arc<Referee>,
    pub(crate) random: Rng,
    pub(crate) may_expire: bool,
}

/// Mode of waiting for a lock.
#[derive(Debug, Clone, Copy)]
enum WaitMode {
    ForEver,
    Try,
    Timeout(Duration),
    /// Drops the future after this time.
    Drop(Duration),
}

/// Acquires a lock in one of the four wait modes. The result is `None` if the lock was not acquired.
macro_rules! acquire {
    ($worker:expr, $mode:expr, $lock:expr, $forever:ident, $try:ident, $timeout:ident $(, $what:expr)?) => {
        match $mode {
            WaitMode::ForEver => $lock.$forever($($what)?).await.map(Some),
            WaitMode::Try => $lock.$try($($what)?).await,
            WaitMode::Timeout(wait) => $lock.$timeout($($what,)? wait).await.map(Some),
            WaitMode::Drop(wait) => match timeout(wait, $lock.$forever($($what)?)).await {
                Ok(outcome) => outcome.map(Some),
                Err(_) => Ok(None),
            },
        }
    };
}

impl Worker {
    pub(crate) async fn run(mut self, until: Instant) {
        while Instant::now() < until {
            self.run_once().await;
        }
    }

    async fn run_once(&mut self) {
        let mode = self.wait_mode();
        let choice = self.random.u64(..16);
        let (names, role) = match choice {
            0..3 => (vec![self.one_of(&LOCKS)], Role::Writer),
            3..5 => (vec![self.one_of(&LOCKS)], Role::Writer),
            5..8 => (vec![self.one_of(&LOCKS)], Role::Reader),
            8..10 => (vec![self.one_of(&LOCKS)], Role::Upgradable),
            10..12 => (self.several(), Role::Writer),
            12 => (self.several(), Role::Reader),
            _ => {
                let (name, size) = self.one_of(&SEMAPHORES);
                let take = 1 + self.random.u32(..size);
                (vec![name], Role::Permits(take))
            }
        };
        let what = format!("{} acquires {names:?} as {role:?}, {mode:?}", self.name);
        self.referee.note(what.clone());
        let outcome = match timeout(MAX_WAIT, self.acquire(choice, &names, role, mode)).await {
            Ok(outcome) => outcome,
            Err(_) => self.fail_as_stuck(&names, &what).await,
        };
        match outcome {
            Ok(Some(held)) => self.hold(held, names, role).await,
            Ok(None) => {
                self.referee.note(format!("{} did not acquire {names:?}", self.name));
                self.referee.count("not had");
            }
            Err(error) => self.check_error(&error, mode, &what).await,
        }
    }

    async fn acquire(
        &mut self,
        choice: u64,
        names: &[&'static str],
        role: Role,
        mode: WaitMode,
    ) -> Result<Option<WorkerGuard>, Error> {
        let name = names[0];
        Ok(match (choice, role) {
            (0, _) => return self.as_owner(name, mode).await,
            (1..3, _) => {
                acquire!(self, mode, self.mutex(name), lock, try_lock, lock_timeout)?.map(WorkerGuard::other)
            }
            (10..12, _) => {
                acquire!(self, mode, self.multi(names), lock, try_lock, lock_timeout)?.map(WorkerGuard::other)
            }
            (12, _) => {
                acquire!(self, mode, self.multi(names), read, try_read, read_timeout)?.map(WorkerGuard::other)
            }
            (_, Role::Reader) => {
                acquire!(self, mode, self.rwlock(name), read, try_read, read_timeout)?.map(WorkerGuard::Read)
            }
            (_, Role::Upgradable) => {
                let lock = self.rwlock(name);
                acquire!(self, mode, lock, upgradable_read, try_upgradable_read, upgradable_read_timeout)?
                    .map(WorkerGuard::Upgradable)
            }
            (_, Role::Permits(take)) => {
                let size = SEMAPHORES.iter().find(|(other, _)| *other == name).expect("one of them").1;
                let lock = self.zl.semaphore(name, size);
                acquire!(self, mode, lock, acquire, try_acquire, acquire_timeout, take)?
                    .map(WorkerGuard::other)
            }
            _ => acquire!(self, mode, self.rwlock(name), write, try_write, write_timeout)?
                .map(WorkerGuard::Write),
        })
    }

    /// Acquires the lock twice at the same time as one owner. The two calls share a queue position,
    /// and the second is cancelled after a short time. If the owner then holds the lock, makes a
    /// third call, which must not wait.
    async fn as_owner(&mut self, name: &'static str, mode: WaitMode) -> Result<Option<WorkerGuard>, Error> {
        let (mutex, owner) = (self.mutex(name), Owner::new());
        let short = Duration::from_millis(self.random.u64(..20));
        let (first, second) = tokio::join!(
            async { acquire!(self, mode, mutex, lock_as, try_lock_as, lock_as_timeout, &owner) },
            timeout(short, mutex.lock_as(&owner)),
        );
        let second = second.ok().transpose();
        let guard = match (first, second) {
            (Ok(first), Ok(second)) => first.or(second),
            // One call failed, and the other call acquired the lock. The guard is kept, because the
            // referee must record every hold.
            (Err(error), Ok(guard)) | (Ok(guard), Err(error)) if guard.is_some() => {
                self.check_error(
                    &error,
                    mode,
                    &format!("{}, one call of two for {name:?}, {mode:?}", self.name),
                )
                .await;
                guard
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let Some(guard) = guard else { return Ok(None) };
        match mutex.try_lock_as(&owner).await {
            Ok(Some(again)) if again.token() == guard.token() => drop(again),
            Ok(other) => {
                self.referee.fail(&format!("{} as the owner of {guard:?} was refused: {other:?}", self.name))
            }
            Err(error) => {
                self.check_error(&error, WaitMode::Try, &format!("{} again for {name:?}", self.name)).await
            }
        }
        Ok(Some(WorkerGuard::other(guard)))
    }

    async fn hold(&mut self, mut held: WorkerGuard, names: Vec<&'static str>, role: Role) {
        let ticket = token(held.ticket());
        // An upgraded reader repeats the value from its read lock.
        let previous = (!matches!(role, Role::Permits(_))).then(|| held.previous());
        let grant = Grant {
            worker: self.name.clone(),
            names: names.clone(),
            role,
            ticket,
            previous,
            may_expire: self.may_expire,
        };
        let Some(id) = self.referee.record_grant(grant, || held.is_valid()) else {
            self.referee.note(format!("{} lost {ticket} before it entered: {:?}", self.name, held.loss()));
            self.referee.count("lost before it began");
            return;
        };
        loop {
            if !self.work(id, &held).await {
                return self.handle_loss(id, held).await;
            }
            held = match held {
                WorkerGuard::Upgradable(guard) if self.random.u8(..100) < 60 => {
                    let Some(next) = self.upgrade(id, guard, &names).await else { return };
                    next
                }
                WorkerGuard::Write(guard) if self.random.u8(..100) < 50 => {
                    let Some(next) = self.downgrade(id, guard, &names).await else { return };
                    next
                }
                held => return self.release_in_some_way(id, held, &names).await,
            }
        }
    }

    /// Works under the lock, and checks from time to time whether it is still held. Returns false after a loss.
    async fn work(&mut self, id: u64, held: &WorkerGuard) -> bool {
        for _ in 0..self.random.u64(..4) {
            let long = if self.random.u8(..100) < 5 { 30 } else { self.random.u64(..3) };
            sleep(Duration::from_millis(long)).await;
            match self.referee.check(id, || held.is_valid()) {
                Status::Fine if held.is_revoked() => break,
                Status::Fine => {}
                Status::Lost => return false,
                Status::Broken => {
                    if timeout(MAX_NOTICE, held.lost()).await.is_err() {
                        self.referee.fail(&format!("#{id} was broken and did not report the loss in time"));
                    }
                    return false;
                }
                Status::Revoked => {
                    let told = timeout(MAX_NOTICE, async {
                        tokio::select! {
                            () = held.revoked() => true,
                            _ = held.lost() => false,
                        }
                    });
                    match told.await {
                        Ok(true) => return held.is_valid(),
                        Ok(false) => return false,
                        Err(_) => self.referee.fail(&format!("#{id} did not report its revocation in time")),
                    }
                }
            }
        }
        true
    }

    async fn handle_loss(&mut self, id: u64, held: WorkerGuard) {
        let reason = held.lost().await;
        if held.is_valid() {
            self.referee.fail(&format!("#{id} lost the lock, {reason}, and its guard is valid again"));
        }
        if !self.referee.record_loss(id) {
            self.referee.fail(&format!("#{id} lost the lock without a cause: {reason}"));
        }
        if self.random.u8(..100) < 50 {
            match timeout(MAX_WAIT, AnyGuard::from(held).release()).await {
                Ok(Err(Error::Lost { .. })) => {}
                other => self
                    .referee
                    .fail(&format!("#{id} lost the lock, {reason}, and its release returned {other:?}")),
            }
        }
    }

    async fn release_in_some_way(&mut self, id: u64, held: WorkerGuard, names: &[&'static str]) {
        let crash = self.random.u8(..100) < 10;
        self.referee.begin_release(id, crash, || held.is_valid());
        if crash {
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                let _held = held;
                resume_unwind(Box::new("on purpose"));
            }));
            drop(unwound);
            self.referee.end_release(id, false);
        } else if self.random.u8(..100) < 30 {
            drop(held);
            self.referee.end_release(id, false);
        } else {
            match timeout(MAX_WAIT, AnyGuard::from(held).release()).await {
                Ok(Ok(())) => {
                    self.referee.end_release(id, true);
                }
                Ok(Err(error @ Error::Lost { .. })) => {
                    if !self.referee.end_release(id, false) {
                        self.referee.fail(&format!("#{id} failed to release without a cause: {error}"));
                    }
                }
                Ok(Err(error)) => self.referee.fail(&format!("#{id} released: {error}")),
                Err(_) => self.fail_as_stuck(names, &format!("#{id} releases")).await,
            }
        }
    }

    async fn downgrade(
        &mut self,
        id: u64,
        guard: zoolock::WriteGuard,
        names: &[&'static str],
    ) -> Option<WorkerGuard> {
        self.referee.begin_downgrade(id, || guard.is_valid());
        let mut downgrading = Box::pin(guard.downgrade());
        if self.random.u8(..100) < 10 {
            let short = Duration::from_micros(self.random.u64(..3_000));
            match timeout(short, &mut downgrading).await {
                Ok(outcome) => return self.downgraded(id, outcome),
                Err(_) => {
                    self.referee.record_dropped_future(id);
                    return None;
                }
            }
        }
        match timeout(MAX_WAIT, &mut downgrading).await {
            Ok(outcome) => self.downgraded(id, outcome),
            Err(_) => self.fail_as_stuck(names, &format!("#{id} downgrades")).await,
        }
    }

    fn downgraded(&mut self, id: u64, outcome: Result<zoolock::ReadGuard, Error>) -> Option<WorkerGuard> {
        match outcome {
            Ok(reader) => {
                self.referee.record_downgrade(id, token(reader.ticket()));
                Some(WorkerGuard::Read(reader))
            }
            Err(error) => {
                if !self.referee.record_loss(id) || !matches!(error, Error::Lost { .. }) {
                    self.referee.fail(&format!("#{id} cannot downgrade: {error}"));
                }
                None
            }
        }
    }

    /// Checks that the error of an acquisition is allowed.
    async fn check_error(&mut self, error: &Error, mode: WaitMode, what: &str) {
        self.referee.note(format!("{what}: {error}"));
        match error {
            Error::Timeout { .. } => self.referee.count("not had in time"),
            // The operator broke a waiter, or broke the hold of an owner between two calls of this
            // owner.
            Error::Removed { .. } | Error::Lost { reason: LossReason::Broken, .. } => {
                self.referee.count("waiters told broken");
            }
            Error::Unavailable { .. } if self.may_be_unavailable(mode) => {
                self.referee.count("not answered in time")
            }
            Error::Lost { .. } if self.may_expire => {
                self.referee.count("waiters of lost sessions");
                sleep(Duration::from_millis(50)).await;
            }
            error => self.referee.fail(&format!("{what}: {error}")),
        }
    }

    /// Returns whether a call may fail with [`Error::Unavailable`]. A call may if its session can
    /// expire, or if the call does not wait for ever.
    fn may_be_unavailable(&self, mode: WaitMode) -> bool {
        self.may_expire || !matches!(mode, WaitMode::ForEver)
    }

    /// Fails the test with snapshots of the queues.
    async fn fail_as_stuck(&self, names: &[&'static str], what: &str) -> ! {
        let mut queues = String::new();
        for name in names {
            let seen = timeout(MAX_NOTICE, self.operator.admin().snapshot(name)).await;
            queues += &format!("\n{seen:#?}");
        }
        self.referee.fail(&format!("{what}: stuck for {MAX_WAIT:?}{queues}"));
    }

    // ---- random choices ----

    fn wait_mode(&mut self) -> WaitMode {
        match self.random.u64(..10) {
            0..4 => WaitMode::ForEver,
            4..6 => WaitMode::Try,
            6..8 => WaitMode::Timeout(Duration::from_millis(self.random.u64(..200))),
            _ => WaitMode::Drop(Duration::from_micros(self.random.u64(..40_000))),
        }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.u64(..all.len() as u64) as usize]
    }

    fn several(&mut self) -> Vec<&'static str> {
        let mut all = LOCKS.to_vec();
        let count = 2 + self.random.u64(..2);
        (0..count).map(|_| all.swap_remove(self.random.u64(..all.len() as u64) as usize)).collect()
    }

    fn mutex(&mut self, name: &str) -> Mutex {
        let mutex = self.zl.mutex(name);
        if self.tracks(&[name]) { mutex.crash_detection() } else { mutex }
    }

    fn rwlock(&mut self, name: &str) -> RwLock {
        let lock = self.zl.rwlock(name);
        if self.tracks(&[name]) { lock.crash_detection() } else { lock }
    }

    fn multi(&mut self, names: &[&str]) -> MultiLock {
        let lock = self.zl.multi(names);
        if self.tracks(names) { lock.crash_detection() } else { lock }
    }

    /// Returns whether to request crash detection for these names: at random if all of them are in
    /// [`TRACKED`], and otherwise never. A lock keeps crash detection after one request.
    fn tracks(&mut self, names: &[&str]) -> bool {
        names.iter().all(|name| TRACKED.contains(name)) && self.random.u8(..100) < 70
    }
}

impl Worker {
    /// Upgrades a reader in one of the four wait modes.
    async fn upgrade(
        &mut self,
        id: u64,
        guard: UpgradableReadGuard,
        names: &[&'static str],
    ) -> Option<WorkerGuard> {
        let mode = self.wait_mode();
        self.referee.set_upgrading(id, true);
        let outcome = match mode {
            WaitMode::ForEver => timeout(MAX_WAIT, guard.upgrade()).await.ok(),
            WaitMode::Try => timeout(MAX_WAIT, guard.try_upgrade()).await.ok(),
            WaitMode::Timeout(wait) => timeout(MAX_WAIT, guard.upgrade_timeout(wait)).await.ok(),
            WaitMode::Drop(wait) => {
                let mut writing = Box::pin(guard.upgrade());
                match timeout(wait, &mut writing).await {
                    Ok(outcome) => Some(outcome),
                    Err(_) => {
                        self.referee.record_dropped_future(id);
                        return None;
                    }
                }
            }
        };
        match outcome {
            None => self.fail_as_stuck(names, &format!("#{id} upgrades, {mode:?}")).await,
            Some(Ok(writer)) => {
                let held = WorkerGuard::Write(writer);
                let WorkerGuard::Write(writer) = &held else { unreachable!("made above") };
                if !self.referee.record_upgrade(id, writer.token(), || writer.is_valid()) {
                    self.handle_loss(id, held).await;
                    return None;
                }
                Some(held)
            }
            Some(Err(not)) => {
                self.referee.set_upgrading(id, false);
                match not.error {
                    Error::Timeout { .. } if !matches!(mode, WaitMode::ForEver) => {}
                    Error::Conflict { .. } => self.referee.count("outranked"),
                    // The returned guard reports whether the read lock was lost too.
                    Error::Lost { .. } => self.referee.count("upgrades told lost"),
                    Error::Unavailable { .. } if self.may_be_unavailable(mode) => {
                        self.referee.count("upgrades not answered in time");
                    }
                    error => self.referee.fail(&format!("#{id} cannot upgrade, {mode:?}: {error}")),
                }
                Some(WorkerGuard::Upgradable(not.guard))
            }
        }
    }
}
