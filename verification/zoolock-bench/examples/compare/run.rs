//! The measured work: many contenders for one lock. A turn is one hold of the lock by a contender.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock_tests::judge::{Judge, Share};
use zoolock_tests::proxy::FrameCounts;
use zoolock_tests::{Proxy, opcode};

use super::{Lock, Outcome};

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The number of contenders at any time.
    pub(crate) waiters: usize,
    /// The number of sessions that the contenders share. Contenders of one session share their watches: the server sends
    /// one event, and the client wakes all of them.
    pub(crate) sessions: usize,
    /// The number of counted turns.
    pub(crate) sections: usize,
    /// The duration of a turn, without the hand-over.
    pub(crate) work: Duration,
}

/// The results.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) plan: Plan,
    /// The traffic from the first release to the beginning of the last counted turn.
    pub(crate) counts: FrameCounts,
    /// The time from the first release to the beginning of the last counted turn.
    pub(crate) elapsed: Duration,
    /// Of the first `plan.waiters` turns, the number that were in the order of arrival: the waiter
    /// that arrived as the n-th had the n-th turn.
    pub(crate) in_order: usize,
    /// The smallest and the largest number of counted turns of a waiter.
    pub(crate) turns: (usize, usize),
    /// The largest number of simultaneous holders.
    pub(crate) most_inside: usize,
}

impl Figures {
    /// Returns the wake-ups per hand-over: watch events, which are frames with xid -1.
    pub(crate) fn events(&self) -> f64 {
        self.per_hand_over(self.counts.notifications)
    }

    /// Returns the requests per hand-over, without pings, whose number only depends on the time.
    pub(crate) fn requests(&self) -> f64 {
        self.per_hand_over(self.counts.all_requests() - self.counts.requests(opcode::PING))
    }

    /// Returns the bytes to the server per hand-over.
    pub(crate) fn bytes_sent(&self) -> f64 {
        self.per_hand_over(self.counts.bytes_to_server)
    }

    /// Returns the bytes from the server per hand-over.
    pub(crate) fn bytes_received(&self) -> f64 {
        self.per_hand_over(self.counts.bytes_to_client)
    }

    fn per_hand_over(&self, count: u64) -> f64 {
        count as f64 / self.plan.sections as f64
    }
}

/// Runs all turns at the lock `name`, and counts the traffic in a proxy. `server` is an `address:port`.
pub(crate) async fn run<L: Lock>(server: &str, name: &str, plan: Plan) -> Outcome<Figures> {
    let observer = Client::connect(server).await;
    let observer = observer.map_err(|error| format!("cannot connect to {server}: {error}"))?;
    let parent = make_parent(&observer).await?;
    let proxy = Arc::new(Proxy::start(server).await?);
    let path = format!("{parent}/{name}");
    let mut locks = Vec::new();
    for _ in 0..plan.sessions {
        locks.push(Arc::new(L::connect(&proxy.addr(), &path).await?));
    }
    let gate = locks[0].lock().await?;
    let shared = Arc::new(Shared { plan, proxy, judge: Judge::new(), end: Mutex::new(None) });
    let mut waiters = JoinSet::new();
    for number in 0..plan.waiters {
        let joined = joined(&shared.proxy.counts()) + 1;
        waiters.spawn(take_turns(number, locks[number % locks.len()].clone(), shared.clone()));
        // Waits for the reply to the create, so that the order of arrival is known.
        shared.proxy.until("the next waiter", |stats| self::joined(&stats.total) >= joined).await;
    }
    let (began, before) = (Instant::now(), shared.proxy.counts());
    locks[0].release(gate).await?;
    while let Some(ended) = waiters.join_next().await {
        ended??;
    }
    drop(locks);
    let end = zoolock_tests::lock(&shared.end).take();
    let (ended, after) = end.ok_or("there were fewer turns than planned")?;
    let all = shared.judge.grants();
    let turns = |waiter| all[..plan.sections].iter().filter(|turn| **turn == waiter).count();
    let fewest = (0..plan.waiters).map(turns).min().unwrap_or(0);
    let most = (0..plan.waiters).map(turns).max().unwrap_or(0);
    // Errors are ignored: each run creates its own parent znode.
    let _ = observer.delete(&path, None).await;
    let _ = observer.delete(&parent, None).await;
    Ok(Figures {
        plan,
        counts: after.since(&before),
        elapsed: ended - began,
        in_order: all.iter().take(plan.waiters).enumerate().filter(|(place, turn)| place == *turn).count(),
        turns: (fewest, most),
        most_inside: shared.judge.most_holders(),
    })
}

/// The state that all waiters share.
struct Shared {
    plan: Plan,
    proxy: Arc<Proxy>,
    /// Observes the holders, independently of the lock. The naive locks have no tokens.
    judge: Judge<usize, ()>,
    /// The beginning of the last counted turn, and the traffic until then.
    end: Mutex<Option<(Instant, FrameCounts)>>,
}

/// Takes one turn after another until enough turns were counted, so that the queue keeps its length.
async fn take_turns<L: Lock>(number: usize, lock: Arc<L>, shared: Arc<Shared>) -> Outcome<()> {
    loop {
        let held = lock.lock().await?;
        let turns = shared.judge.enter_with(number, Share::Exclusive, None) + 1;
        if turns == shared.plan.sections {
            let end = (Instant::now(), shared.proxy.counts());
            *zoolock_tests::lock(&shared.end) = Some(end);
        }
        if shared.plan.work.is_zero() {
            // Lets another task enter, if the lock does not exclude that task.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(shared.plan.work).await;
        }
        shared.judge.exit(&number);
        lock.release(held).await?;
        if turns >= shared.plan.sections {
            return Ok(());
        }
    }
}

/// Returns the number of answered creates. Each waiter in the queue has sent at least one create.
fn joined(counts: &FrameCounts) -> u64 {
    counts.replies(opcode::CREATE) + counts.replies(opcode::CREATE2)
}

/// Creates a parent znode that no other client uses. The server may have data of earlier runs.
async fn make_parent(client: &Client) -> Outcome<String> {
    let options = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = client.create("/zoolock-compare-", b"", &options).await?;
    Ok(format!("/zoolock-compare-{sequence}"))
}
