//! One task: it takes locks of all kinds, in all ways, and lets go in all ways.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use zoolock::{Error, LossReason, MultiLock, Mutex, Owner, RwLock, Zoolock};
use zoolock_tests::Random;

use crate::guards::{Held, token};
use crate::hall::{Hall, Look, Visitor};
use crate::rules::Role;

/// Names of locks, and of semaphores with their sizes.
pub(crate) const LOCKS: [&str; 4] = ["plain", "other", "tracked", "exact"];
pub(crate) const TRACKED: [&str; 2] = ["tracked", "exact"];
pub(crate) const SEMAPHORES: [(&str, u32); 2] = [("three", 3), ("five", 5)];

/// Longer than anybody has to wait.
const STUCK: Duration = Duration::from_secs(60);
/// Within that a holder is told what somebody did.
const TOLD: Duration = Duration::from_secs(20);

pub(crate) struct Worker {
    pub(crate) who: String,
    pub(crate) zl: Zoolock,
    /// A client whose connection is good.
    pub(crate) operator: Zoolock,
    pub(crate) hall: Arc<Hall>,
    pub(crate) random: Random,
    pub(crate) mortal: bool,
}

/// How to wait.
#[derive(Debug, Clone, Copy)]
enum Manner {
    ForEver,
    Try,
    Timeout(Duration),
    /// The future is dropped.
    Drop(Duration),
}

/// Asks in one of four ways. `None`: not had.
macro_rules! ask {
    ($worker:expr, $manner:expr, $lock:expr, $forever:ident, $try:ident, $timeout:ident $(, $what:expr)?) => {
        match $manner {
            Manner::ForEver => $lock.$forever($($what)?).await.map(Some),
            Manner::Try => $lock.$try($($what)?).await,
            Manner::Timeout(wait) => $lock.$timeout($($what,)? wait).await.map(Some),
            Manner::Drop(wait) => match timeout(wait, $lock.$forever($($what)?)).await {
                Ok(outcome) => outcome.map(Some),
                Err(_) => Ok(None),
            },
        }
    };
}

impl Worker {
    pub(crate) async fn run(mut self, until: Instant) {
        while Instant::now() < until {
            self.turn().await;
        }
    }

    async fn turn(&mut self) {
        let manner = self.manner();
        let choice = self.random.below(16);
        let (names, role) = match choice {
            0..3 => (vec![self.one_of(&LOCKS)], Role::Writer),
            3..5 => (vec![self.one_of(&LOCKS)], Role::Writer),
            5..8 => (vec![self.one_of(&LOCKS)], Role::Reader),
            8..10 => (vec![self.one_of(&LOCKS)], Role::Upgradable),
            10..12 => (self.several(), Role::Writer),
            12 => (self.several(), Role::Reader),
            _ => {
                let (name, size) = self.one_of(&SEMAPHORES);
                let take = 1 + self.random.below(size.into()) as u32;
                (vec![name], Role::Permits(take))
            }
        };
        let what = format!("{} asks for {names:?} as {role:?}, {manner:?}", self.who);
        self.hall.note(what.clone());
        let outcome = match timeout(STUCK, self.acquire(choice, &names, role, manner)).await {
            Ok(outcome) => outcome,
            Err(_) => self.stuck(&names, &what).await,
        };
        match outcome {
            Ok(Some(held)) => self.hold(held, names, role).await,
            Ok(None) => {
                self.hall.note(format!("{} has not had {names:?}", self.who));
                self.hall.count("not had");
            }
            Err(error) => self.refused(&error, &what).await,
        }
    }

    async fn acquire(
        &mut self,
        choice: u64,
        names: &[&'static str],
        role: Role,
        manner: Manner,
    ) -> Result<Option<Held>, Error> {
        let name = names[0];
        Ok(match (choice, role) {
            (0, _) => return self.as_owner(name, manner).await,
            (1..3, _) => ask!(self, manner, self.mutex(name), lock, try_lock, lock_timeout)?.map(Held::Mutex),
            (10..12, _) => {
                ask!(self, manner, self.multi(names), lock, try_lock, lock_timeout)?.map(Held::Multi)
            }
            (12, _) => {
                ask!(self, manner, self.multi(names), read, try_read, read_timeout)?.map(Held::MultiRead)
            }
            (_, Role::Reader) => {
                ask!(self, manner, self.rwlock(name), read, try_read, read_timeout)?.map(Held::Read)
            }
            (_, Role::Upgradable) => {
                let lock = self.rwlock(name);
                ask!(self, manner, lock, upgradable_read, try_upgradable_read, upgradable_read_timeout)?
                    .map(Held::Upgradable)
            }
            (_, Role::Permits(take)) => {
                let size = SEMAPHORES.iter().find(|(other, _)| *other == name).expect("one of them").1;
                let lock = self.zl.semaphore(name, size);
                ask!(self, manner, lock, acquire_many, try_acquire, acquire_timeout, take)?.map(Held::Permits)
            }
            _ => ask!(self, manner, self.rwlock(name), write, try_write, write_timeout)?.map(Held::Write),
        })
    }

    /// Two calls of one owner share a place; one of them may go away. Then one call more, which does not wait.
    async fn as_owner(&mut self, name: &'static str, manner: Manner) -> Result<Option<Held>, Error> {
        let (mutex, owner) = (self.mutex(name), Owner::new());
        let short = Duration::from_millis(self.random.below(20));
        let (first, second) = tokio::join!(
            async { ask!(self, manner, mutex, lock_as, try_lock_as, lock_as_timeout, &owner) },
            timeout(short, mutex.lock_as(&owner)),
        );
        let second = second.ok().transpose();
        let guard = match (first, second) {
            (Ok(first), Ok(second)) => first.or(second),
            // The other call may have it all the same, and whoever has it must be seen to come and go.
            (Err(error), Ok(guard)) | (Ok(guard), Err(error)) if guard.is_some() => {
                self.refused(&error, &format!("{}, one call of two for {name:?}, {manner:?}", self.who))
                    .await;
                guard
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let Some(guard) = guard else { return Ok(None) };
        match mutex.try_lock_as(&owner).await {
            Ok(Some(again)) if again.token() == guard.token() => drop(again),
            Ok(other) => self.hall.fail(&format!("{} as the owner of {guard:?} had {other:?}", self.who)),
            Err(error) => self.refused(&error, &format!("{} again for {name:?}", self.who)).await,
        }
        Ok(Some(Held::Owner(guard)))
    }

    async fn hold(&mut self, mut held: Held, names: Vec<&'static str>, role: Role) {
        let (ticket, previous) = (held.ticket(), held.previous());
        let visitor = Visitor {
            who: self.who.clone(),
            names: names.clone(),
            role,
            ticket,
            previous,
            mortal: self.mortal,
        };
        let Some(id) = self.hall.enter(visitor, || held.is_valid()) else {
            self.hall.note(format!("{} was late for {ticket}: {:?}", self.who, held.loss()));
            self.hall.count("lost before it began");
            return;
        };
        loop {
            if !self.work(id, &held).await {
                return self.lost(id, held).await;
            }
            held = match held {
                Held::Read(guard) if self.random.chance(40) => {
                    let Some(next) = self.upgrade_reader(id, guard, &names).await else { return };
                    next
                }
                Held::Upgradable(guard) if self.random.chance(60) => {
                    let Some(next) = self.upgrade_upgradable(id, guard, &names).await else { return };
                    next
                }
                Held::Write(guard) if self.random.chance(50) => {
                    let Some(next) = self.downgrade(id, guard, &names).await else { return };
                    next
                }
                held => return self.leave(id, held, &names).await,
            }
        }
    }

    /// Looks now and then whether it still holds.
    async fn work(&mut self, id: u64, held: &Held) -> bool {
        for _ in 0..self.random.below(4) {
            let long = if self.random.chance(5) { 30 } else { self.random.below(3) };
            sleep(Duration::from_millis(long)).await;
            match self.hall.look(id, || held.is_valid()) {
                Look::Fine if held.is_revoked() => break,
                Look::Fine => {}
                Look::Lost => return false,
                Look::Broken => {
                    if timeout(TOLD, held.lost()).await.is_err() {
                        self.hall.fail(&format!("#{id} is broken and never told"));
                    }
                    return false;
                }
                Look::Revoked => {
                    let told = timeout(TOLD, async {
                        tokio::select! {
                            () = held.revoked() => true,
                            _ = held.lost() => false,
                        }
                    });
                    match told.await {
                        Ok(true) => return held.is_valid(),
                        Ok(false) => return false,
                        Err(_) => self.hall.fail(&format!("#{id} is asked to let go and never told")),
                    }
                }
            }
        }
        true
    }

    async fn lost(&mut self, id: u64, held: Held) {
        let reason = held.lost().await;
        if held.is_valid() {
            self.hall.fail(&format!("#{id} lost it, {reason}, and has it again"));
        }
        if !self.hall.lost(id) {
            self.hall.fail(&format!("#{id} has lost it, {reason}, and nobody did that"));
        }
        if self.random.chance(50) {
            match timeout(STUCK, held.release()).await {
                Ok(Err(Error::Lost { .. })) => {}
                other => self.hall.fail(&format!("#{id} lost it, {reason}, and released it: {other:?}")),
            }
        }
    }

    async fn leave(&mut self, id: u64, held: Held, names: &[&'static str]) {
        let crash = self.random.chance(10);
        self.hall.leaves(id, crash, || held.is_valid());
        if crash {
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                let _held = held;
                resume_unwind(Box::new("on purpose"));
            }));
            drop(unwound);
            self.hall.left(id, false);
        } else if self.random.chance(30) {
            drop(held);
            self.hall.left(id, false);
        } else {
            match timeout(STUCK, held.release()).await {
                Ok(Ok(())) => {
                    self.hall.left(id, true);
                }
                Ok(Err(error @ Error::Lost { .. })) => {
                    if !self.hall.left(id, false) {
                        self.hall.fail(&format!("#{id} released: {error}, and nobody did that"));
                    }
                }
                Ok(Err(error)) => self.hall.fail(&format!("#{id} released: {error}")),
                Err(_) => self.stuck(names, &format!("#{id} releases")).await,
            }
        }
    }

    async fn downgrade(
        &mut self,
        id: u64,
        guard: zoolock::WriteGuard,
        names: &[&'static str],
    ) -> Option<Held> {
        self.hall.stops_writing(id, || guard.is_valid());
        let mut becoming = Box::pin(guard.downgrade());
        if self.random.chance(10) {
            let short = Duration::from_micros(self.random.below(3_000));
            match timeout(short, &mut becoming).await {
                Ok(outcome) => return self.downgraded(id, outcome),
                Err(_) => {
                    self.hall.vanishes(id);
                    return None;
                }
            }
        }
        match timeout(STUCK, &mut becoming).await {
            Ok(outcome) => self.downgraded(id, outcome),
            Err(_) => self.stuck(names, &format!("#{id} reads on")).await,
        }
    }

    fn downgraded(&mut self, id: u64, outcome: Result<zoolock::ReadGuard, Error>) -> Option<Held> {
        match outcome {
            Ok(reader) => {
                self.hall.reads(id, token(reader.ticket()));
                Some(Held::Read(reader))
            }
            Err(error) => {
                if !self.hall.lost(id) || !matches!(error, Error::Lost { .. }) {
                    self.hall.fail(&format!("#{id} reads on: {error}"));
                }
                None
            }
        }
    }

    /// An error of an acquisition.
    async fn refused(&mut self, error: &Error, what: &str) {
        self.hall.note(format!("{what}: {error}"));
        match error {
            Error::Timeout { .. } => self.hall.count("not had in time"),
            // A waiter, or an owner between two calls.
            Error::Lost { reason: LossReason::Broken, .. } => self.hall.count("waiters told broken"),
            Error::Lost { .. } | Error::Unavailable { .. } if self.mortal => {
                self.hall.count("waiters of lost sessions");
                sleep(Duration::from_millis(50)).await;
            }
            error => self.hall.fail(&format!("{what}: {error}")),
        }
    }

    /// Says who stands in the queue, and fails.
    async fn stuck(&self, names: &[&'static str], what: &str) -> ! {
        let mut queues = String::new();
        for name in names {
            let seen = timeout(TOLD, self.operator.mutex(name).snapshot()).await;
            queues += &format!("\n{seen:#?}");
        }
        self.hall.fail(&format!("{what}: stuck for {STUCK:?}{queues}"));
    }

    // ---- what chance decides ----

    fn manner(&mut self) -> Manner {
        match self.random.below(10) {
            0..4 => Manner::ForEver,
            4..6 => Manner::Try,
            6..8 => Manner::Timeout(Duration::from_millis(self.random.below(200))),
            _ => Manner::Drop(Duration::from_micros(self.random.below(40_000))),
        }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.below(all.len() as u64) as usize]
    }

    fn several(&mut self) -> Vec<&'static str> {
        let mut all = LOCKS.to_vec();
        let count = 2 + self.random.below(2);
        (0..count).map(|_| all.swap_remove(self.random.below(all.len() as u64) as usize)).collect()
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

    /// Not all who use a tracked name ask for it; whoever came first has.
    fn tracks(&mut self, names: &[&str]) -> bool {
        names.iter().all(|name| TRACKED.contains(name)) && self.random.chance(70)
    }
}

/// A reader asks to write, in one of four ways.
macro_rules! upgrade {
    ($name:ident, $guard:ty, $back:expr) => {
        impl Worker {
            async fn $name(&mut self, id: u64, guard: $guard, names: &[&'static str]) -> Option<Held> {
                let manner = self.manner();
                self.hall.upgrading(id, true);
                let outcome = match manner {
                    Manner::ForEver => timeout(STUCK, guard.upgrade()).await.ok(),
                    Manner::Try => timeout(STUCK, guard.try_upgrade()).await.ok(),
                    Manner::Timeout(wait) => timeout(STUCK, guard.upgrade_timeout(wait)).await.ok(),
                    Manner::Drop(wait) => {
                        let mut writing = Box::pin(guard.upgrade());
                        match timeout(wait, &mut writing).await {
                            Ok(outcome) => Some(outcome),
                            Err(_) => {
                                self.hall.vanishes(id);
                                return None;
                            }
                        }
                    }
                };
                match outcome {
                    None => self.stuck(names, &format!("#{id} asks to write, {manner:?}")).await,
                    Some(Ok(writer)) => {
                        let held = Held::Write(writer);
                        let Held::Write(writer) = &held else { unreachable!("made above") };
                        if !self.hall.writes(id, writer.token(), || writer.is_valid()) {
                            self.lost(id, held).await;
                            return None;
                        }
                        Some(held)
                    }
                    Some(Err(not)) => {
                        self.hall.upgrading(id, false);
                        match not.error {
                            Error::Timeout { .. } if !matches!(manner, Manner::ForEver) => {}
                            Error::Conflict { .. } => self.hall.count("outranked"),
                            // The guard says whether the reader's place is lost, or the writer's.
                            Error::Lost { .. } => self.hall.count("upgrades told lost"),
                            Error::Unavailable { .. } if self.mortal => {}
                            error => self.hall.fail(&format!("#{id} asks to write, {manner:?}: {error}")),
                        }
                        Some($back(not.guard))
                    }
                }
            }
        }
    };
}

upgrade!(upgrade_reader, zoolock::ReadGuard, Held::Read);
upgrade!(upgrade_upgradable, zoolock::UpgradableReadGuard, Held::Upgradable);
