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
use zoolock::{Error, LossReason, Owner, Zoolock};

use crate::Outcome;
use crate::clock::now;
use crate::held::Held;
use crate::notes::{Note, Section, Share, Who};

/// A seeded bug, which the judge must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Break {
    /// The referee lets older tokens write.
    Unfenced,
    /// Tasks do not ask their guards.
    NoCheck,
    /// In one attempt of ten the task does not acquire the lock.
    NoLock,
    /// In one attempt of a hundred the task reports a release without releasing.
    NoRelease,
    /// Each worker knows one server only, so it loses locks that another one could keep.
    OneServer,
}

/// The number of permits of the semaphore.
const PERMITS: u32 = 3;

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    ReadWrite,
    Semaphore,
    Multi,
    Tenure,
    Reentrant,
}

impl Kind {
    /// The tasks of one worker.
    pub(crate) const MIX: [Kind; 22] = [
        Kind::Mutex,
        Kind::Mutex,
        Kind::Mutex,
        Kind::Mutex,
        Kind::ReadWrite,
        Kind::ReadWrite,
        Kind::ReadWrite,
        Kind::Semaphore,
        Kind::Semaphore,
        Kind::Multi,
        Kind::Multi,
        Kind::Tenure,
        Kind::Tenure,
        Kind::Tenure,
        Kind::Tenure,
        Kind::Tenure,
        Kind::Tenure,
        Kind::Tenure,
        Kind::Tenure,
        Kind::Tenure,
        Kind::Tenure,
        Kind::Reentrant,
    ];

    pub(crate) const ALL: [Kind; 6] =
        [Kind::Mutex, Kind::ReadWrite, Kind::Semaphore, Kind::Multi, Kind::Tenure, Kind::Reentrant];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::ReadWrite => "read/write",
            Kind::Semaphore => "semaphore",
            Kind::Multi => "multi",
            Kind::Tenure => "tenure",
            Kind::Reentrant => "reentrant",
        }
    }

    /// Returns the names of its locks. Those of a multi-lock are also mutexes.
    pub(crate) fn locks(self) -> &'static [&'static str] {
        match self {
            Kind::Mutex | Kind::Multi => &["m0", "m1", "m2", "m3", "m4", "m5"],
            Kind::ReadWrite => &["rw0", "rw1"],
            Kind::Semaphore => &["sem"],
            Kind::Tenure => &["t0", "t1"],
            Kind::Reentrant => &["r0"],
        }
    }
}

/// A task. It has its own connection to the referee.
pub(crate) struct Task {
    who: Who,
    kind: Kind,
    zoolock: Zoolock,
    from: Lines<BufReader<OwnedReadHalf>>,
    to: OwnedWriteHalf,
    rng: Rng,
    broken: Option<Break>,
    owner: Owner,
}

impl Task {
    pub(crate) async fn new(
        who: Who,
        kind: Kind,
        zoolock: Zoolock,
        referee: &Path,
        seed: u64,
        broken: Option<Break>,
    ) -> Outcome<Self> {
        let (from, to) = UnixStream::connect(referee).await?.into_split();
        let (from, rng) = (BufReader::new(from).lines(), Rng::with_seed(seed));
        Ok(Task { who, kind, zoolock, from, to, rng, broken, owner: Owner::new() })
    }

    /// Runs until it is told to stop, and its last attempt has ended.
    pub(crate) async fn run(mut self, stop: Arc<AtomicBool>) -> Outcome<()> {
        while !stop.load(Ordering::Relaxed) {
            self.turn().await?;
            let pause = self.rng.u64(..3);
            sleep(Duration::from_millis(pause)).await;
        }
        Ok(())
    }

    async fn turn(&mut self) -> Outcome<()> {
        let zl = self.zoolock.clone();
        let name = self.some_lock();
        let one = vec![name.to_owned()];
        match self.kind {
            Kind::Mutex => {
                if self.broken == Some(Break::NoLock) && self.rng.u8(..10) == 0 {
                    return self.pretend_to_hold(one).await;
                }
                let begun = self.begin(one, Share::Alone).await?;
                let got = zl.mutex(name).lock().await;
                self.work(begun, got).await
            }
            Kind::Tenure => {
                let mutex = zl.mutex(name).batching(400, Duration::from_millis(300));
                let mutex = mutex.linger(Duration::from_millis(30));
                let begun = self.begin(one, Share::Alone).await?;
                let got = mutex.lock().await;
                self.work(begun, got).await
            }
            Kind::Reentrant => {
                let owner = self.owner.clone();
                let begun = self.begin(one, Share::Alone).await?;
                let mutex = zl.mutex(name);
                let got = match mutex.lock_as(&owner).await {
                    Ok(outer) => match mutex.lock_as(&owner).await {
                        Ok(inner) => inner.release().await.map(|()| outer),
                        Err(error) => Err(error),
                    },
                    Err(error) => Err(error),
                };
                self.work(begun, got).await
            }
            Kind::Semaphore => {
                let permits = self.rng.u32(1..=2);
                let begun = self.begin(one, Share::Permits(permits, PERMITS)).await?;
                let got = zl.semaphore(name, PERMITS).acquire_many(permits).await;
                self.work(begun, got).await
            }
            Kind::Multi => {
                let mut names = one;
                while names.len() < 2 {
                    let other = self.some_lock().to_owned();
                    if !names.contains(&other) {
                        names.push(other);
                    }
                }
                let begun = self.begin(names.clone(), Share::Alone).await?;
                let got = zl.multi(names).lock().await;
                self.work(begun, got).await
            }
            Kind::ReadWrite => self.read_or_write(zl, name, one).await,
        }
    }

    async fn read_or_write(&mut self, zl: Zoolock, name: &str, one: Vec<String>) -> Outcome<()> {
        let lock = zl.rwlock(name);
        match self.rng.u8(..10) {
            0..6 => {
                let begun = self.begin(one, Share::Reads).await?;
                let got = lock.read().await;
                self.work(begun, got).await
            }
            6..8 => {
                let begun = self.begin(one, Share::Alone).await?;
                let got = lock.write().await;
                self.work(begun, got).await
            }
            8 => {
                // The time of the downgrade is not known, so it counts as a reader only.
                let begun = self.begin(one, Share::Reads).await?;
                let got = match lock.write().await {
                    Ok(writer) => writer.downgrade().await,
                    Err(error) => Err(error),
                };
                self.work(begun, got).await
            }
            _ => {
                let begun = self.begin(one, Share::Alone).await?;
                let got = match lock.upgradable_read().await {
                    Ok(reader) => reader.upgrade().await.map_err(|kept| kept.error),
                    Err(error) => Err(error),
                };
                self.work(begun, got).await
            }
        }
    }

    fn some_lock(&mut self) -> &'static str {
        let locks = self.kind.locks();
        locks[self.rng.usize(..locks.len())]
    }

    async fn begin(&mut self, locks: Vec<String>, share: Share) -> Outcome<Section> {
        self.send(&Note::Asks { who: self.who, locks: locks.clone() }).await?;
        Ok(Section {
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

    /// Works under the lock, if it was granted.
    async fn work<G: Held>(&mut self, mut section: Section, got: Result<G, Error>) -> Outcome<()> {
        match got {
            Ok(guard) => self.work_under_guard(&mut section, guard).await?,
            Err(error) => {
                section.end = format!("not granted: {error}");
                sleep(Duration::from_millis(self.rng.u64(10..100))).await;
            }
        }
        self.send(&Note::Done(section)).await
    }

    async fn work_under_guard<G: Held>(&mut self, section: &mut Section, guard: G) -> Outcome<()> {
        section.granted = Some(now());
        section.ticket = Some(guard.ticket());
        let token = guard.token();
        for round in 0..2 {
            if !self.check_valid(section, &guard) {
                section.note_loss(guard.loss());
                section.end = "lost".to_owned();
                break;
            }
            // Some tasks work for a while between the look and the write.
            let pause = match self.rng.u16(..1000) {
                0..10 => self.rng.u64(100..1000),
                10..50 => self.rng.u64(5..50),
                _ => 0,
            };
            if pause >= 100 && token.is_some() {
                self.send(&Note::WillWrite { who: self.who, millis: pause }).await?;
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
        if self.broken == Some(Break::NoRelease) && self.rng.u8(..100) == 0 {
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

    /// Asks the guard whether it is valid. The clock is read before: if the process is stopped in between, the lock was held
    /// at that time.
    fn check_valid<G: Held>(&self, section: &mut Section, guard: &G) -> bool {
        let at = now();
        let valid = guard.is_valid() || self.broken == Some(Break::NoCheck);
        if valid {
            section.last_valid = Some(at);
        }
        valid
    }

    /// Pretends to hold the lock without acquiring it.
    async fn pretend_to_hold(&mut self, locks: Vec<String>) -> Outcome<()> {
        let mut section = self.begin(locks, Share::Alone).await?;
        section.granted = Some(now());
        sleep(Duration::from_millis(100)).await;
        section.last_valid = Some(now());
        self.send(&Note::Done(section)).await
    }

    async fn write(&mut self, locks: &[String], token: &str) -> Outcome<bool> {
        self.send(&Note::Writes { who: self.who, locks: locks.to_vec(), token: token.to_owned() }).await?;
        let answer = self.from.next_line().await?.ok_or("the referee closed the connection")?;
        Ok(answer == "true")
    }

    async fn send(&mut self, note: &Note) -> Outcome<()> {
        let mut line = serde_json::to_string(note)?;
        line.push('\n');
        Ok(self.to.write_all(line.as_bytes()).await?)
    }
}

impl Section {
    /// Records the loss of the lock by the end of the session or the lease, at its first notice.
    fn note_loss(&mut self, reason: Option<LossReason>) {
        if matches!(reason, Some(LossReason::SessionExpired | LossReason::Unreachable)) {
            self.lost.get_or_insert(now());
        }
    }
}
