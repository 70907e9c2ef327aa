//! One lock, many who want it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock_tests::proxy::Counts;
use zoolock_tests::{Proxy, opcode};

use super::referee::Referee;
use super::{Lock, Outcome};

/// How much work there is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// How many want the lock at any time.
    pub(crate) waiters: usize,
    /// How many sessions they share. Waiters of one session share their watches: the server sends one event, and the
    /// client wakes them all.
    pub(crate) sessions: usize,
    /// How many turns are counted.
    pub(crate) sections: usize,
    /// How long a turn lasts, beside the hand-over.
    pub(crate) work: Duration,
}

/// What it took.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) plan: Plan,
    /// What went over the wire from the first release to the last entry that is counted.
    pub(crate) counts: Counts,
    /// How long that took.
    pub(crate) elapsed: Duration,
    /// Of the first turn of each waiter, how many went to whoever had waited longest.
    pub(crate) in_order: usize,
    /// How many of the counted turns the least and the most lucky waiter had.
    pub(crate) turns: (usize, usize),
    /// The most that were inside together.
    pub(crate) most_inside: usize,
}

impl Figures {
    /// Wake-ups: events of watches, frames with xid -1.
    pub(crate) fn events(&self) -> f64 {
        self.per_hand_over(self.counts.notifications)
    }

    /// Requests but pings, which only show how long it took.
    pub(crate) fn requests(&self) -> f64 {
        self.per_hand_over(self.counts.all_requests() - self.counts.requests(opcode::PING))
    }

    /// Bytes to the server.
    pub(crate) fn sent(&self) -> f64 {
        self.per_hand_over(self.counts.bytes_to_server)
    }

    /// Bytes from the server.
    pub(crate) fn received(&self) -> f64 {
        self.per_hand_over(self.counts.bytes_to_client)
    }

    fn per_hand_over(&self, count: u64) -> f64 {
        count as f64 / self.plan.sections as f64
    }
}

/// Lets all have their turns at the lock `name`, on the server at `server` (`address:port`), which is reached
/// through a proxy that counts.
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
    let game = Arc::new(Game { plan, proxy, referee: Referee::default(), end: Mutex::new(None) });
    let mut waiters = JoinSet::new();
    for number in 0..plan.waiters {
        let joined = joined(&game.proxy.counts()) + 1;
        waiters.spawn(wait(number, locks[number % locks.len()].clone(), game.clone()));
        // One after another, so that it can be said who came first: its create has been answered.
        game.proxy.until("the next waiter", |stats| self::joined(&stats.total) >= joined).await;
    }
    let (began, before) = (Instant::now(), game.proxy.counts());
    locks[0].release(gate).await?;
    while let Some(ended) = waiters.join_next().await {
        ended??;
    }
    drop(locks);
    let end = game.end.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (ended, after) = end.ok_or("there were fewer turns than planned")?;
    let all = game.referee.turns();
    let turns = |waiter| all[..plan.sections].iter().filter(|turn| **turn == waiter).count();
    let fewest = (0..plan.waiters).map(turns).min().unwrap_or(0);
    let most = (0..plan.waiters).map(turns).max().unwrap_or(0);
    // What is left is a directory or two, which are in nobody's way.
    let _ = observer.delete(&path, None).await;
    let _ = observer.delete(&parent, None).await;
    Ok(Figures {
        plan,
        counts: after.since(&before),
        elapsed: ended - began,
        in_order: all.iter().take(plan.waiters).enumerate().filter(|(place, turn)| place == *turn).count(),
        turns: (fewest, most),
        most_inside: game.referee.most_inside(),
    })
}

/// What all waiters see.
struct Game {
    plan: Plan,
    proxy: Arc<Proxy>,
    referee: Referee,
    /// When the last turn that counts began, and what had gone over the wire until then.
    end: Mutex<Option<(Instant, Counts)>>,
}

/// Has one turn after another until there were enough, so that the queue keeps its length.
async fn wait<L: Lock>(number: usize, lock: Arc<L>, game: Arc<Game>) -> Outcome<()> {
    loop {
        let held = lock.lock().await?;
        let turns = game.referee.enter(number);
        if turns == game.plan.sections {
            let end = (Instant::now(), game.proxy.counts());
            *game.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        }
        if game.plan.work.is_zero() {
            // Or nobody else could be seen inside.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(game.plan.work).await;
        }
        game.referee.leave();
        lock.release(held).await?;
        if turns >= game.plan.sections {
            return Ok(());
        }
    }
}

/// How many creates were answered, for whoever waits has tried one.
fn joined(counts: &Counts) -> u64 {
    counts.replies(opcode::CREATE) + counts.replies(opcode::CREATE2)
}

/// A directory that nobody else uses: the server may have been there before.
async fn make_parent(client: &Client) -> Outcome<String> {
    let options = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = client.create("/zoolock-compare-", b"", &options).await?;
    Ok(format!("/zoolock-compare-{sequence}"))
}
