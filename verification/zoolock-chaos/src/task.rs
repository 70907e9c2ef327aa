//! One task of a worker: it acquires a lock, writes under it and releases it, again and again.

use clap::ValueEnum;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::sleep;
use zoolock::{AnyGuard, Error, LossReason, Owner, SharedHold, Zoolock};
use zoolock_tests::judge::Share;

use crate::Outcome;
use crate::clock::now;
use crate::messages::{CriticalSection, TaskId, TaskMessage};

/// A deliberate bug, which the judge must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeliberateBug {
    /// The referee accepts writes with older tokens.
    Unfenced,
    /// Tasks treat every guard as valid.
    NoCheck,
    /// In one attempt of ten, a mutex task pretends to hold the lock.
    NoLock,
    /// In one attempt of a hundred the task reports a release without releasing.
    NoRelease,
    /// Each worker connects to one server only, so it loses locks that another server could keep.
    OneServer,
}

/// The number of permits of the semaphore.
const PERMITS: u32 = 3;

/// The kind of lock that a task acquires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskKind {
    Mutex,
    ReadWrite,
    Semaphore,
    Multi,
    SharedHold,
    Reentrant,
}

impl TaskKind {
    /// The tasks of one worker: the number of tasks of each kind.
    pub(crate) const MIX: [(TaskKind, usize); 6] = [
        (TaskKind::Mutex, 4),
        (TaskKind::ReadWrite, 3),
        (TaskKind::Semaphore, 2),
        (TaskKind::Multi, 2),
        (TaskKind::SharedHold, 10),
        (TaskKind::Reentrant, 1),
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            TaskKind::Mutex => "mutex",
            TaskKind::ReadWrite => "read/write",
            TaskKind::Semaphore => "semaphore",
            TaskKind::Multi => "multi",
            TaskKind::SharedHold => "shared hold",
            TaskKind::Reentrant => "reentrant",
        }
    }

    /// Returns the names of the locks that tasks of this kind acquire. Multi-locks acquire the locks of the mutexes.
    pub(crate) fn locks(self) -> &'static [&'static str] {
        match self {
            TaskKind::Mutex | TaskKind::Multi => &["m0", "m1", "m2", "m3", "m4", "m5"],
            TaskKind::ReadWrite => &["rw0", "rw1"],
            TaskKind::Semaphore => &["sem"],
            TaskKind::SharedHold => &["t0", "t1"],
            TaskKind::Reentrant => &["r0"],
        }
    }
}

/// A task, with its own connection to the referee.
pub(crate) struct LockTask {
    who: TaskId,
    kind: TaskKind,
    zoolock: Zoolock,
    /// The locks whose tasks share a hold.
    shared: Vec<SharedHold>,
    from: Lines<BufReader<OwnedReadHalf>>,
    to: OwnedWriteHalf,
    rng: Rng,
    broken: Option<DeliberateBug>,
    owner: Owner,
}

impl LockTask {
    pub(crate) async fn new(
        who: TaskId,
        kind: TaskKind,
        zoolock: Zoolock,
        shared: Vec<SharedHold>,
        referee: &Path,
        seed: u64,
        broken: Option<DeliberateBug>,
    ) -> Outcome<Self> {
        let (from, to) = UnixStream::connect(referee).await?.into_split();
        let (from, rng) = (BufReader::new(from).lines(), Rng::with_seed(seed));
        Ok(LockTask { who, kind, zoolock, shared, from, to, rng, broken, owner: Owner::new() })
    }

    /// Runs until `stop` is set and the last attempt has ended.
    pub(crate) async fn run(mut self, stop: Arc<AtomicBool>) -> Outcome<()> {
        while !stop.load(Ordering::Relaxed) {
            self.make_attempt().await?;
            let pause = self.rng.u64(..3);
            sleep(Duration::from_millis(pause)).await;
        }
        Ok(())
    }

    async fn make_attempt(&mut self) -> Outcome<()> {
        let zl = self.zoolock.clone();
        let name = self.random_lock_name();
        let one = vec![name.to_owned()];
        match self.kind {
            TaskKind::Mutex => {
                if self.broken == Some(DeliberateBug::NoLock) && self.rng.u8(..10) == 0 {
                    return self.pretend_to_hold(one).await;
                }
                let begun = self.begin_attempt(one, Share::Exclusive).await?;
                let got = zl.mutex(name).lock().await;
                self.finish_attempt(begun, got).await
            }
            TaskKind::SharedHold => {
                let shared = self.shared.iter().find(|shared| shared.mutex().name() == name);
                let mutex = shared.expect("a handle for each lock").clone();
                let begun = self.begin_attempt(one, Share::Exclusive).await?;
                let got = mutex.lock().await;
                self.finish_attempt(begun, got).await
            }
            TaskKind::Reentrant => {
                let owner = self.owner.clone();
                let begun = self.begin_attempt(one, Share::Exclusive).await?;
                let mutex = zl.mutex(name);
                let got = match mutex.lock_as(&owner).await {
                    Ok(outer) => match mutex.lock_as(&owner).await {
                        Ok(inner) => inner.release().await.map(|()| outer),
                        Err(error) => Err(error),
                    },
                    Err(error) => Err(error),
                };
                self.finish_attempt(begun, got).await
            }
            TaskKind::Semaphore => {
                let permits = self.rng.u32(1..=2);
                let begun = self.begin_attempt(one, Share::Permits { count: permits, size: PERMITS }).await?;
                let got = zl.semaphore(name, PERMITS).acquire(permits).await;
                self.finish_attempt(begun, got).await
            }
            TaskKind::Multi => {
                let mut names = one;
                while names.len() < 2 {
                    let other = self.random_lock_name().to_owned();
                    if !names.contains(&other) {
                        names.push(other);
                    }
                }
                let begun = self.begin_attempt(names.clone(), Share::Exclusive).await?;
                let got = zl.multi(names).lock().await;
                self.finish_attempt(begun, got).await
            }
            TaskKind::ReadWrite => self.read_or_write(zl, name, one).await,
        }
    }

    async fn read_or_write(&mut self, zl: Zoolock, name: &str, one: Vec<String>) -> Outcome<()> {
        let lock = zl.rwlock(name);
        match self.rng.u8(..10) {
            0..6 => {
                let begun = self.begin_attempt(one, Share::Shared).await?;
                let got = lock.read().await;
                self.finish_attempt(begun, got).await
            }
            6..8 => {
                let begun = self.begin_attempt(one, Share::Exclusive).await?;
                let got = lock.write().await;
                self.finish_attempt(begun, got).await
            }
            8 => {
                // The time of the downgrade is not known, so the whole hold counts as a read.
                let begun = self.begin_attempt(one, Share::Shared).await?;
                let got = match lock.write().await {
                    Ok(writer) => writer.downgrade().await,
                    Err(error) => Err(error),
                };
                self.finish_attempt(begun, got).await
            }
            _ => {
                let begun = self.begin_attempt(one, Share::Exclusive).await?;
                let got = match lock.upgradable_read().await {
                    Ok(reader) => reader.upgrade().await.map_err(|kept| kept.error),
                    Err(error) => Err(error),
                };
                self.finish_attempt(begun, got).await
            }
        }
    }

    fn random_lock_name(&mut self) -> &'static str {
        let locks = self.kind.locks();
        locks[self.rng.usize(..locks.len())]
    }

    async fn begin_attempt(&mut self, locks: Vec<String>, share: Share) -> Outcome<CriticalSection> {
        self.send(&TaskMessage::Asks { who: self.who, locks: locks.clone() }).await?;
        Ok(CriticalSection {
            who: self.who,
            kind: self.kind.name().to_owned(),
            locks,
            share,
            asked: now(),
            granted: None,
            last_valid: None,
            lost: None,
            released: None,
            ticket: None,
            refused_while_valid: 0,
            refused_while_invalid: 0,
            end: String::new(),
        })
    }

    /// Works under the lock, if it was granted, and reports the end of the attempt.
    async fn finish_attempt(
        &mut self,
        mut section: CriticalSection,
        got: Result<impl Into<AnyGuard>, Error>,
    ) -> Outcome<()> {
        match got {
            Ok(guard) => self.work_under_guard(&mut section, guard.into()).await?,
            Err(error) => {
                section.end = format!("not granted: {error}");
                sleep(Duration::from_millis(self.rng.u64(10..100))).await;
            }
        }
        self.send(&TaskMessage::Done(section)).await
    }

    async fn work_under_guard(&mut self, section: &mut CriticalSection, guard: AnyGuard) -> Outcome<()> {
        section.granted = Some(now());
        section.ticket = Some(guard.ticket().to_string());
        let token = guard.token().map(|token| token.to_string());
        for round in 0..2 {
            if !self.check_valid(section, &guard) {
                section.note_loss(guard.loss());
                section.end = "lost".to_owned();
                break;
            }
            // Some tasks pause between the check and the write.
            let pause = match self.rng.u16(..1000) {
                0..10 => self.rng.u64(100..1000),
                10..50 => self.rng.u64(5..50),
                _ => 0,
            };
            if pause >= 100 && token.is_some() {
                self.send(&TaskMessage::WillWrite { who: self.who, millis: pause }).await?;
            }
            if pause > 0 {
                sleep(Duration::from_millis(pause)).await;
            }
            let Some(token) = &token else { continue };
            if !self.write(&section.locks, token).await? {
                match self.check_valid(section, &guard) {
                    true => section.refused_while_valid += 1,
                    false => section.refused_while_invalid += 1,
                }
            }
            if round == 0 && self.rng.bool() {
                break;
            }
        }
        if !self.check_valid(section, &guard) {
            section.note_loss(guard.loss());
        }
        if self.broken == Some(DeliberateBug::NoRelease) && self.rng.u8(..100) == 0 {
            std::mem::forget(guard);
            section.released = Some(now());
            return Ok(());
        }
        match guard.release().await {
            Ok(()) => {
                section.released = Some(now());
                section.end = "released".to_owned();
            }
            Err(error) => {
                if let Error::Lost { reason, .. } = &error {
                    section.note_loss(Some(*reason));
                }
                section.end = format!("not released: {error}");
            }
        }
        Ok(())
    }

    /// Checks whether the guard is valid. The clock is read before the check: even if the process is stopped in
    /// between, a valid guard was valid at the recorded time.
    fn check_valid(&self, section: &mut CriticalSection, guard: &AnyGuard) -> bool {
        let at = now();
        let valid = guard.is_valid() || self.broken == Some(DeliberateBug::NoCheck);
        if valid {
            section.last_valid = Some(at);
        }
        valid
    }

    /// Pretends to hold the lock without acquiring it.
    async fn pretend_to_hold(&mut self, locks: Vec<String>) -> Outcome<()> {
        let mut section = self.begin_attempt(locks, Share::Exclusive).await?;
        section.granted = Some(now());
        sleep(Duration::from_millis(100)).await;
        section.last_valid = Some(now());
        self.send(&TaskMessage::Done(section)).await
    }

    async fn write(&mut self, locks: &[String], token: &str) -> Outcome<bool> {
        self.send(&TaskMessage::Writes { who: self.who, locks: locks.to_vec(), token: token.to_owned() })
            .await?;
        let answer = self.from.next_line().await?.ok_or("the referee closed the connection")?;
        Ok(answer == "true")
    }

    async fn send(&mut self, note: &TaskMessage) -> Outcome<()> {
        let mut line = serde_json::to_string(note)?;
        line.push('\n');
        Ok(self.to.write_all(line.as_bytes()).await?)
    }
}

impl CriticalSection {
    /// Records the time at which the task first noticed that the session or its lease had ended. Ignores other reasons.
    fn note_loss(&mut self, reason: Option<LossReason>) {
        if matches!(reason, Some(LossReason::SessionExpired | LossReason::Unreachable)) {
            self.lost.get_or_insert(now());
        }
    }
}
