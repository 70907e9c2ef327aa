//! Tests of shared holds (`lock/shared_hold.rs` of the library) under many thread schedules.
//!
//! The crate shuttle runs the schedules. If a waiter never gets an answer, shuttle reports a
//! deadlock.

#[expect(dead_code, clippy::needless_update, reason = "the library has more uses, and more options")]
#[path = "../../../../crates/zoolock/src/lock/shared_hold.rs"]
mod library;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use shuttle::sync::Mutex;
use zoolock_core::shared_hold::HoldLimits;

use self::library::Hold;
pub(crate) use self::library::TaskHold;
use crate::base::error::Error;
use crate::toy::{Acquisition, Context, Held, Lock, Server, WaitLimit, lock};

/// An event during the work of the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Nothing,
    /// An operator deletes the znode of the holder.
    Break,
    Revoke,
    /// The client of the first process is closed.
    Close,
}

/// The number of runs in which the event had an effect, plus the number of runs without an event.
static HITS: AtomicU32 = AtomicU32::new(0);

/// The acquisition of the task that works under the lock, or `None` if no task does.
type Worker = Arc<Mutex<Option<Arc<Acquisition>>>>;

/// A task that acquires the lock, works and releases the lock, several times.
struct Task {
    hold: Arc<Hold>,
    worker: Worker,
    event: Event,
}

impl Task {
    /// Works under the lock. Checks that no other task works under the lock at the same time,
    /// unless one of the two tasks has lost it.
    async fn work(&self, held: &Held) {
        if let Some(other) = lock(&self.worker).replace(held.acquisition().clone()) {
            assert!(other.is_lost() || held.acquisition().is_lost(), "two tasks hold the lock");
        }
        shuttle::future::yield_now().await;
        let worker = &mut *lock(&self.worker);
        if worker.as_ref().is_some_and(|worker| Arc::ptr_eq(worker, held.acquisition())) {
            *worker = None;
        }
    }

    async fn run(&self, rounds: u32) {
        for round in 0..rounds {
            match round % 3 {
                // This round drops the future, before or after the grant.
                1 => {
                    let mut acquiring = std::pin::pin!(self.hold.acquire(WaitLimit::ForEver));
                    let yields = async {
                        shuttle::future::yield_now().await;
                        shuttle::future::yield_now().await;
                    };
                    tokio::select! {
                        biased;
                        () = yields => {}
                        _ = &mut acquiring => {}
                    }
                }
                other => {
                    let wait_limit = if other == 2 { WaitLimit::Try } else { WaitLimit::ForEver };
                    match (self.hold.acquire(wait_limit).await, self.event) {
                        (Ok(Some(held)), _) => self.work(&held).await,
                        (Ok(None), _) if other == 2 => {}
                        (Err(Error::NoAnswer), Event::Break | Event::Close) => {}
                        (Err(Error::Closed), Event::Close) => return,
                        (Ok(None), event) => panic!("no lock, {event:?}"),
                        (Err(error), event) => panic!("{error:?}, {event:?}"),
                    }
                }
            }
        }
    }
}

/// Runs two tasks of one process beside a task of another process. Causes `event` meanwhile. The time stands still, so a
/// `max_hold` above zero is never over.
fn run(max_hold: Duration, event: Event) {
    let limits = HoldLimits { max_hold, max_idle: Duration::ZERO, claim_timeout: Duration::from_secs(5) };
    let (server, worker) = (Server::new(), Worker::default());
    let clients = [Context::new(&server), Context::new(&server)];
    let processes = clients.each_ref().map(|client| {
        let lock = Lock::new(client.clone());
        Arc::new(Hold::new(&lock, limits))
    });
    let threads: Vec<_> = [(0, 3), (0, 3), (1, 2)]
        .map(|(process, rounds)| {
            let task = Task { hold: processes[process].clone(), worker: worker.clone(), event };
            shuttle::thread::spawn(move || shuttle::future::block_on(task.run(rounds)))
        })
        .into();
    let hits = match event {
        Event::Nothing => true,
        Event::Break => server.break_holder(),
        Event::Revoke => server.revoke(),
        Event::Close => clients[0].close(),
    };
    HITS.fetch_add(u32::from(hits), Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("the task does not panic");
    }
    drop(processes);
    // A hold aborts its own driver (`HoldState::end_hold`). An aborted driver that still waits for the lock leaves the queue
    // a little later. So wait until the queue is empty.
    while !server.is_free() {
        shuttle::thread::yield_now();
    }
}

#[test]
fn tasks_share_a_lock_in_any_order() {
    for event in [Event::Nothing, Event::Break, Event::Revoke, Event::Close] {
        for max_hold in [Duration::ZERO, Duration::from_secs(1)] {
            let hits = HITS.load(Ordering::Relaxed);
            shuttle::check_random(move || run(max_hold, event), 1_000);
            shuttle::check_pct(move || run(max_hold, event), 1_000, 3);
            assert!(HITS.load(Ordering::Relaxed) > hits + 100, "{event:?} rarely hit a holder");
        }
    }
}
