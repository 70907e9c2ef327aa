//! The works themselves.

use std::sync::{Arc, Mutex as StdMutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::task::JoinSet;
use zoolock::{Mutex, Zoolock};

use super::ground::Ground;
use crate::exit::Failure;

/// What a work took.
pub(super) struct Taken {
    pub(super) elapsed: Duration,
    /// One a turn, in nanoseconds.
    pub(super) samples: Vec<u64>,
}

impl Taken {
    /// Takes in those of another round.
    pub(super) fn add(&mut self, more: Self) {
        self.elapsed += more.elapsed;
        self.samples.extend(more.samples);
    }
}

/// Turns that are not measured: the first one makes directories.
const WARM: usize = 2;
/// Enough of one round for every figure; what follows would only take memory.
const MOST: usize = 200_000;
/// Who never waits has to be interrupted by itself.
const BREATH: usize = 64;
/// Between two looks at who waits.
const POLL: Duration = Duration::from_millis(10);

/// A node is created and deleted.
pub(super) async fn create_delete(ground: &Ground, time: Duration) -> Result<Taken, Failure> {
    let prefix = format!("{}/node-", ground.make_kept("create-delete").await?);
    let prefix = prefix.as_str();
    turns(time, move || ground.create_delete(prefix)).await
}

/// A lock is acquired and released.
pub(super) async fn acquire_release(client: &Zoolock, time: Duration) -> Result<Taken, Failure> {
    let mutex = &client.mutex("acquire-release");
    turns(time, move || release_awaited(mutex)).await
}

/// A lock is acquired, dropped, acquired, dropped.
pub(super) async fn take_and_drop(client: &Zoolock, time: Duration) -> Result<Taken, Failure> {
    let mutex = &client.mutex("loop");
    let taken = turns(time, move || async move {
        drop(mutex.lock().await?);
        Ok::<_, Failure>(())
    });
    let taken = taken.await?;
    // The last one is not to disturb the next work.
    release_awaited(mutex).await?;
    Ok(taken)
}

/// A lock is acquired within a tenure.
pub(super) async fn re_acquire(client: &Zoolock, time: Duration) -> Result<Taken, Failure> {
    let mutex = client.mutex("re-acquire").batching(1_000, Duration::from_millis(20));
    let mutex = &mutex.linger(Duration::from_secs(1));
    turns(time, move || release_awaited(mutex)).await
}

/// Different locks are taken all at once, then all released, as often as the time allows. A sample is one acquisition,
/// among all the others.
pub(super) async fn many(client: &Zoolock, locks: usize, time: Duration) -> Result<Taken, Failure> {
    let mutexes: Vec<Mutex> = (0..locks).map(|at| client.mutex(format!("many/{at}"))).collect();
    round(&mutexes).await?;
    let begun = Instant::now();
    let mut samples = Vec::new();
    while samples.is_empty() || begun.elapsed() < time && samples.len() < MOST {
        samples.extend(round(&mutexes).await?);
    }
    Ok(Taken { elapsed: begun.elapsed(), samples })
}

async fn round(mutexes: &[Mutex]) -> Result<Vec<u64>, Failure> {
    let acquired = mutexes.iter().map(|mutex| async move {
        let begun = Instant::now();
        let guard = mutex.lock().await?;
        Ok::<_, zoolock::Error>((guard, ns(begun.elapsed())))
    });
    let (guards, samples): (Vec<_>, Vec<_>) = try_join_all(acquired).await?.into_iter().unzip();
    try_join_all(guards.into_iter().map(|guard| guard.release())).await?;
    Ok(samples)
}

/// Tasks on two sessions want the same lock all the time. A sample is from the moment in which a holder begins to let go
/// to the moment in which the next one may begin.
pub(super) async fn hand_over(
    clients: &[Zoolock; 2],
    tasks: usize,
    time: Duration,
) -> Result<Taken, Failure> {
    let hall = Arc::new(Hall::default());
    let gate = clients[0].mutex("hand-over");
    let guard = gate.lock().await?;
    let mut crowd = JoinSet::new();
    for task in 0..tasks {
        crowd.spawn(member(clients[task % clients.len()].mutex("hand-over"), Arc::clone(&hall)));
    }
    // Who comes late would be measured as slow.
    while gate.snapshot().await?.waiters.len() < tasks {
        if let Some(Ok(ended)) = crowd.try_join_next() {
            ended?;
        }
        tokio::time::sleep(POLL).await;
    }
    let begun = Instant::now();
    let _ = hall.until.set(begun + time);
    hall.leave();
    guard.release().await?;
    while let Some(ended) = crowd.join_next().await {
        ended.map_err(|error| Failure::unavailable(error.to_string()))??;
    }
    let elapsed = begun.elapsed();
    let samples = std::mem::take(&mut hall.inside.lock().unwrap_or_else(PoisonError::into_inner).samples);
    Ok(Taken { elapsed, samples })
}

async fn member(mutex: Mutex, hall: Arc<Hall>) -> Result<(), Failure> {
    loop {
        let guard = mutex.lock().await?;
        let goes_on = hall.enter();
        hall.leave();
        guard.release().await?;
        if !goes_on {
            return Ok(());
        }
    }
}

/// Where one is at a time.
#[derive(Default)]
struct Hall {
    until: OnceLock<Instant>,
    inside: StdMutex<Inside>,
}

#[derive(Default)]
struct Inside {
    left: Option<Instant>,
    samples: Vec<u64>,
}

impl Hall {
    /// Whether there is time for another turn.
    fn enter(&self) -> bool {
        let now = Instant::now();
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = inside.left.take() {
            inside.samples.push(ns(now - left));
        }
        self.until.get().is_some_and(|until| now < *until) && inside.samples.len() < MOST
    }

    fn leave(&self) {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner).left = Some(Instant::now());
    }
}

async fn release_awaited(mutex: &Mutex) -> Result<(), Failure> {
    Ok(mutex.lock().await?.release().await?)
}

/// One turn after the other, one at least.
async fn turns<F, T>(time: Duration, mut turn: F) -> Result<Taken, Failure>
where
    F: FnMut() -> T,
    T: Future<Output = Result<(), Failure>>,
{
    for _ in 0..WARM {
        turn().await?;
    }
    let (begun, mut samples) = (Instant::now(), Vec::new());
    while samples.is_empty() || begun.elapsed() < time && samples.len() < MOST {
        let begun = Instant::now();
        turn().await?;
        samples.push(ns(begun.elapsed()));
        if samples.len() % BREATH == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(Taken { elapsed: begun.elapsed(), samples })
}

/// Never nothing: a clock may be coarse.
fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(1)
}
