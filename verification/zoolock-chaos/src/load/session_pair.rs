//! Two sessions, and one task that acquires locks with them. The turns of the task ([`TurnKind`])
//! acquire and release locks in several ways, and close and open sessions.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use zoolock::{Error, Guard, Zoolock};
use zoolock_tests::lock;

use super::settings::LoadBug;
use super::tally::SharedTally;

/// The longest wait for a connection or a lock, long enough for a slow ensemble. A longer wait is an error.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of bytes that each turn leaks, with the deliberate bug [`LoadBug::Leak`].
const LEAK: usize = 16 << 10;

static LEAKED: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Two sessions and their locks, which no other client acquires.
pub(super) struct SessionPair {
    connect: String,
    one: Zoolock,
    other: Zoolock,
    locks: Range<usize>,
    /// Number of these locks that were held so far.
    held: usize,
    next: usize,
    pause: Duration,
    rng: Rng,
    broken: Option<LoadBug>,
    shared: Arc<SharedTally>,
}

/// The action of one turn: the task uses one lock, or reopens one session.
#[derive(Clone, Copy, Debug)]
enum TurnKind {
    /// The lock is acquired, held and released.
    Plain,
    /// As `Plain`, but the release is not awaited.
    Dropped,
    /// The other session waits for the lock, and is granted it after the release.
    HandedOver,
    /// The other session waits for the lock, and its time limit passes before the release.
    TimedOut,
    /// The acquisition is dropped after a short time.
    Cancelled,
    /// The acquisition of the other session is dropped while the lock is held.
    CancelledInQueue,
    /// A session is closed and another one opened.
    Reopened,
    /// The session of the holder is closed, and the other session is granted the lock next.
    ClosedInHold,
}

impl TurnKind {
    fn random(rng: &mut Rng) -> TurnKind {
        match rng.u8(..100) {
            0..54 => TurnKind::Plain,
            54..64 => TurnKind::Dropped,
            64..74 => TurnKind::HandedOver,
            74..82 => TurnKind::TimedOut,
            82..90 => TurnKind::Cancelled,
            90..96 => TurnKind::CancelledInQueue,
            96..98 => TurnKind::Reopened,
            _ => TurnKind::ClosedInHold,
        }
    }

    fn name(self) -> &'static str {
        match self {
            TurnKind::Plain => "released",
            TurnKind::Dropped => "dropped",
            TurnKind::HandedOver => "handed over",
            TurnKind::TimedOut => "timed out",
            TurnKind::Cancelled => "cancelled",
            TurnKind::CancelledInQueue => "cancelled in the queue",
            TurnKind::Reopened => "session closed and opened",
            TurnKind::ClosedInHold => "session closed under the lock",
        }
    }
}

async fn connect(address: &str) -> Result<Zoolock, Error> {
    Zoolock::builder().connect_timeout(PATIENCE).connect(address).await
}

impl SessionPair {
    pub(super) async fn open(
        address: String,
        locks: Range<usize>,
        pause: Duration,
        seed: u64,
        broken: Option<LoadBug>,
        shared: Arc<SharedTally>,
    ) -> crate::Outcome<SessionPair> {
        let (one, other) = (connect(&address).await?, connect(&address).await?);
        shared.tally().opened += 2;
        let (next, rng) = (locks.start, Rng::with_seed(seed));
        Ok(SessionPair { connect: address, one, other, locks, held: 0, next, pause, rng, broken, shared })
    }

    /// Takes one turn after another until `stopped` is true.
    pub(super) async fn take_turns(mut self, mut stopped: watch::Receiver<bool>) -> SessionPair {
        let most = u64::try_from(2 * self.pause.as_millis()).unwrap_or(u64::MAX).max(1);
        loop {
            let pause = Duration::from_millis(self.rng.u64(..most));
            // The wait ends on the order to stop, and also if the sender is dropped.
            if timeout(pause, stopped.wait_for(|stopped| *stopped)).await.is_ok() {
                return self;
            }
            let turn = TurnKind::random(&mut self.rng);
            let taken = self.take_turn(turn).await;
            let mut tally = self.shared.tally();
            match taken {
                Ok(()) => *tally.turns.entry(turn.name().to_owned()).or_default() += 1,
                Err(error) => {
                    *tally.errors.entry(format!("{}: {error}", turn.name())).or_default() += 1;
                }
            }
            if self.broken == Some(LoadBug::Leak) {
                lock(&LEAKED).push(vec![1; LEAK]);
            }
        }
    }

    /// Closes both sessions and waits until they are closed.
    pub(super) async fn close(self) {
        self.one.close().await;
        self.other.close().await;
    }

    async fn take_turn(&mut self, turn: TurnKind) -> Result<(), String> {
        let name = format!("l{:05}", self.next);
        let (mutex, waiting) = (self.one.mutex(&name), self.other.mutex(&name));
        let hold = Duration::from_millis(self.rng.u64(1..20));
        let soon = Duration::from_micros(self.rng.u64(..10_000));
        match turn {
            TurnKind::Cancelled => {
                // If the lock is granted in this short time, it is released.
                if let Ok(guard) = timeout(soon, mutex.lock()).await {
                    release(guard.map_err(|error| error_kind(&error))?).await?;
                }
                return Ok(());
            }
            TurnKind::Reopened => return self.reopen().await,
            _ => {}
        }
        let guard = mutex.lock_timeout(PATIENCE).await.map_err(|error| error_kind(&error))?;
        self.record_held();
        match turn {
            TurnKind::Dropped => {
                sleep(hold).await;
                drop(guard);
                Ok(())
            }
            TurnKind::HandedOver => {
                let releasing = async {
                    sleep(hold).await;
                    release(guard).await
                };
                let (released, next) = tokio::join!(releasing, waiting.lock_timeout(PATIENCE));
                released?;
                release(next.map_err(|error| error_kind(&error))?).await
            }
            TurnKind::TimedOut => {
                match waiting.lock_timeout(hold).await {
                    Err(Error::Timeout { .. }) => {}
                    Err(error) => return Err(error_kind(&error)),
                    Ok(_) => return Err("two hold it".to_owned()),
                }
                release(guard).await
            }
            TurnKind::CancelledInQueue => {
                if let Ok(granted) = timeout(soon, waiting.lock()).await {
                    return Err(granted.map_or_else(|error| error_kind(&error), |_| "two hold it".to_owned()));
                }
                release(guard).await
            }
            TurnKind::ClosedInHold => {
                let ending = async {
                    sleep(hold).await;
                    self.one.close().await;
                };
                let ((), next) = tokio::join!(ending, waiting.lock_timeout(PATIENCE));
                if guard.is_valid() {
                    return Err("valid without a session".to_owned());
                }
                drop(guard);
                release(next.map_err(|error| error_kind(&error))?).await?;
                self.reopen().await
            }
            TurnKind::Plain | TurnKind::Cancelled | TurnKind::Reopened => {
                sleep(hold).await;
                release(guard).await
            }
        }
    }

    /// Counts the lock as held, and moves on to the next lock.
    fn record_held(&mut self) {
        if self.held < self.locks.len() {
            self.held += 1;
            self.shared.tally().locks += 1;
        }
        self.next = if self.next + 1 < self.locks.end { self.next + 1 } else { self.locks.start };
    }

    async fn reopen(&mut self) -> Result<(), String> {
        self.one.close().await;
        let fresh = connect(&self.connect).await.map_err(|error| error_kind(&error))?;
        self.shared.tally().opened += 1;
        drop(std::mem::replace(&mut self.one, fresh));
        // The sessions change roles, so that each is replaced in turn.
        std::mem::swap(&mut self.one, &mut self.other);
        Ok(())
    }
}

async fn release(guard: Guard) -> Result<(), String> {
    guard.release().await.map_err(|error| error_kind(&error))
}

/// Describes an error without the names of locks and servers, so that equal errors are counted together.
fn error_kind(error: &Error) -> String {
    match error {
        Error::Lost { reason, .. } => format!("lost, {reason}"),
        Error::Timeout { .. } => "not acquired in time".to_owned(),
        Error::Unavailable { message, .. } => message.chars().take(60).collect(),
        error => error.to_string().rsplit(": ").next().unwrap_or_default().chars().take(60).collect(),
    }
}
