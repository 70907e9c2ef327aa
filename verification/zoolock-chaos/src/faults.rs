//! The kinds of fault, and how each is injected. The healing is the same for all kinds: it restores
//! everything.

use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;
use rustix::process::Signal;
use tokio::time::sleep;
use zoolock_tests::proxy::LinkFault;

use crate::Outcome;
use crate::ensemble::{Ensemble, NODES};
use crate::referee::Referee;
use crate::task;
use crate::tree;
use crate::workers::Workers;

const PATIENCE: Duration = Duration::from_secs(20);

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub(crate) enum FaultKind {
    /// SIGKILL to the leader.
    KillLeader,
    /// SIGKILL to a follower.
    KillFollower,
    /// SIGKILL to all three nodes at once.
    KillAll,
    /// SIGSTOP to the leader: its connections stay open.
    StopLeader,
    /// SIGSTOP to a follower.
    StopFollower,
    /// SIGTERM to one node after the other. Each node serves again before the next node gets the
    /// signal.
    RollingRestart,
    /// The leader is cut off from the other nodes, in both directions. Its clients still reach it.
    IsolateLeader,
    /// The follower with the most connections is cut off from the other nodes, in both directions. Its clients still reach it.
    IsolateFollower,
    /// The leader receives nothing from its followers. The followers still receive from the leader,
    /// and the clients of the leader are not affected.
    DeafLeader,
    /// The followers receive nothing from the leader. The leader still receives from them.
    MuteLeader,
    /// Two nodes do not reach each other. Both reach the third node.
    HalfPartition,
    /// A node reaches no other node and no client.
    CutOffNode,
    /// All messages between the nodes are late.
    SlowPeers,
    /// All messages between clients and nodes are late.
    SlowClients,
    /// A node cannot write its files. It is restarted without data, and copies the data of the
    /// leader.
    FullDisk,
    /// The directory of a lock is deleted, with its contenders.
    DeleteDirectory,
    /// An intruder attaches to the session of a contender. Then the intruder closes the session, or
    /// keeps the connection for a second.
    TakeSession,
    /// SIGSTOP to a worker for longer than its session timeouts. If possible, the worker stops
    /// between the check of a guard and the write after the check.
    StopClient,
    /// SIGKILL to a worker.
    KillClient,
    /// A worker reaches no node.
    CutOffClient,
    /// A worker receives no messages. Its own messages arrive.
    DeafClient,
    /// The connections of a worker are closed, again and again.
    FlappingClient,
}

/// The targets of faults.
pub(crate) struct Targets {
    pub(crate) ensemble: Ensemble,
    pub(crate) workers: Workers,
}

/// An injected fault.
pub(crate) struct InjectedFault {
    /// The target, in words.
    pub(crate) target: String,
    /// The time for which the fault lasts.
    pub(crate) lasts: Duration,
    /// A node that must be restarted without the data on its disk.
    pub(crate) node_to_wipe: Option<usize>,
}

impl FaultKind {
    pub(crate) fn all() -> &'static [FaultKind] {
        FaultKind::value_variants()
    }

    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Injects the fault.
    pub(crate) async fn inject(
        self,
        targets: &mut Targets,
        referee: &Referee,
        rng: &mut Rng,
    ) -> Outcome<InjectedFault> {
        let leader = targets.ensemble.leader(PATIENCE).await?;
        let follower = (leader + rng.usize(1..NODES)) % NODES;
        let worker = rng.usize(..targets.workers.len());
        let brief = Duration::from_millis(rng.u64(200..3_000));
        let long = Duration::from_millis(rng.u64(4_000..8_000));
        // Longer than the longest session timeout of a worker.
        let lethal = Duration::from_millis(rng.u64(8_500..10_500));
        let some = if rng.bool() { brief } else { long };
        let mut node_to_wipe = None;
        let node = |node: usize| format!("node {}", node + 1);
        let (target, lasts) = match self {
            FaultKind::KillLeader => {
                targets.ensemble.end_node(leader, Signal::KILL).await;
                (node(leader), some)
            }
            FaultKind::KillFollower => {
                targets.ensemble.end_node(follower, Signal::KILL).await;
                (node(follower), some)
            }
            FaultKind::KillAll => {
                for node in 0..NODES {
                    targets.ensemble.signal(node, Signal::KILL);
                }
                ("all nodes".to_owned(), brief)
            }
            FaultKind::StopLeader => {
                targets.ensemble.signal(leader, Signal::STOP);
                (node(leader), some)
            }
            FaultKind::StopFollower => {
                targets.ensemble.signal(follower, Signal::STOP);
                (node(follower), long)
            }
            FaultKind::RollingRestart => {
                for node in 0..NODES {
                    targets.ensemble.end_node(node, Signal::TERM).await;
                    targets.ensemble.wait_until_whole(3 * PATIENCE).await?;
                }
                ("one after the other".to_owned(), Duration::ZERO)
            }
            FaultKind::IsolateLeader => {
                isolate(&targets.ensemble, leader);
                (node(leader), long)
            }
            FaultKind::IsolateFollower => {
                let connections = |node: &usize| {
                    (0..targets.workers.len())
                        .map(|worker| targets.workers.connections(worker, *node))
                        .sum::<usize>()
                };
                let fullest = (0..NODES).filter(|node| *node != leader).max_by_key(connections);
                let follower = fullest.unwrap_or(follower);
                isolate(&targets.ensemble, follower);
                (format!("{}, {} sessions on it", node(follower), connections(&follower)), lethal)
            }
            FaultKind::DeafLeader => {
                (0..NODES).for_each(|from| block_messages(&targets.ensemble, from, leader));
                (node(leader), long)
            }
            FaultKind::MuteLeader => {
                (0..NODES).for_each(|to| block_messages(&targets.ensemble, leader, to));
                (node(leader), long)
            }
            FaultKind::HalfPartition => {
                let other = if rng.bool() { leader } else { 3 - leader - follower };
                block_messages(&targets.ensemble, follower, other);
                block_messages(&targets.ensemble, other, follower);
                (format!("{} and {}", node(follower), node(other)), long)
            }
            FaultKind::CutOffNode => {
                let victim = if rng.bool() { leader } else { follower };
                isolate(&targets.ensemble, victim);
                for worker in 0..targets.workers.len() {
                    targets.workers.set_fault(worker, victim, BLOCKED);
                }
                (node(victim), long)
            }
            FaultKind::SlowPeers => {
                let delay = Duration::from_millis(rng.u64(20..250));
                for one in 0..NODES {
                    (0..one).for_each(|other| targets.ensemble.delay_messages(one, other, delay));
                }
                (format!("{delay:?} later"), long)
            }
            FaultKind::SlowClients => {
                let delay = Duration::from_millis(rng.u64(20..400));
                for (worker, node) in
                    (0..targets.workers.len()).flat_map(|it| (0..NODES).map(move |node| (it, node)))
                {
                    targets.workers.set_fault(worker, node, LinkFault { delay, ..LinkFault::default() });
                }
                (format!("{delay:?} later"), long)
            }
            FaultKind::FullDisk => {
                let victim = if rng.bool() { leader } else { follower };
                targets.ensemble.limit_file_size(victim, Some(0));
                node_to_wipe = Some(victim);
                (node(victim), long)
            }
            FaultKind::DeleteDirectory => {
                let kinds = task::TaskKind::MIX.into_iter().map(|(kind, _)| kind);
                let locks: Vec<&str> = kinds.flat_map(task::TaskKind::locks).copied().collect();
                let lock = locks[rng.usize(..locks.len())];
                let client = tree::connect(&targets.ensemble.connect_string()).await?;
                for _ in 0..rng.u32(1..4) {
                    tree::delete_lock_directory(&client, lock).await?;
                    sleep(Duration::from_millis(300)).await;
                }
                (lock.to_owned(), Duration::ZERO)
            }
            FaultKind::TakeSession => {
                let client = tree::connect(&targets.ensemble.connect_string()).await?;
                let close = rng.bool();
                let mut attempts = 0;
                loop {
                    attempts += 1;
                    let contenders = tree::contenders(&client).await?;
                    if contenders.is_empty() {
                        return Err("no contender has a session".into());
                    }
                    let session = contenders[rng.usize(..contenders.len())].session;
                    match tree::take_over(targets.ensemble.client_addr(follower), session, close).await {
                        Ok(()) => break,
                        // The owner of the session may have attached first, or may have closed the
                        // session. Then another session is tried.
                        Err(_) if attempts < 5 => sleep(Duration::from_millis(200)).await,
                        Err(error) => return Err(error),
                    }
                }
                ((if close { "taken and closed" } else { "taken for a second" }).to_owned(), Duration::ZERO)
            }
            FaultKind::StopClient => {
                let found = worker_before_write(referee).await;
                let worker = found.unwrap_or(worker);
                targets.workers.signal(worker, Signal::STOP);
                let when = if found.is_some() { ", before a write" } else { "" };
                (format!("worker {worker}{when}"), lethal)
            }
            FaultKind::KillClient => {
                targets.workers.kill(worker).await;
                (format!("worker {worker}"), brief)
            }
            FaultKind::CutOffClient => {
                (0..NODES).for_each(|node| targets.workers.set_fault(worker, node, BLOCKED));
                (format!("worker {worker}"), lethal)
            }
            FaultKind::DeafClient => {
                let deaf = LinkFault { blocks_replies: true, ..LinkFault::default() };
                (0..NODES).for_each(|node| targets.workers.set_fault(worker, node, deaf));
                (format!("worker {worker}"), long)
            }
            FaultKind::FlappingClient => {
                for _ in 0..rng.u32(5..20) {
                    targets.workers.close_connections(worker).await;
                    sleep(Duration::from_millis(rng.u64(10..400))).await;
                }
                (format!("worker {worker}"), Duration::ZERO)
            }
        };
        Ok(InjectedFault { target, lasts, node_to_wipe })
    }
}

/// The fault of a link that passes nothing.
pub(crate) const BLOCKED: LinkFault =
    LinkFault { blocks_requests: true, blocks_replies: true, delay: Duration::ZERO, hangs_up: false };

impl Targets {
    /// Heals all faults: opens all links, continues stopped processes, and starts missing ones.
    pub(crate) fn heal(&mut self) -> Outcome<()> {
        self.ensemble.open_links();
        self.workers.open_links();
        for node in 0..NODES {
            self.ensemble.signal(node, Signal::CONT);
            self.ensemble.limit_file_size(node, None);
            self.ensemble.start(node)?;
        }
        for worker in 0..self.workers.len() {
            self.workers.signal(worker, Signal::CONT);
            self.workers.start(worker)?;
        }
        Ok(())
    }
}

/// Waits, for at most ten seconds, for a worker with a task between the check of its guard and its
/// write. A process that is stopped there writes after its check is out of date.
async fn worker_before_write(referee: &Referee) -> Option<usize> {
    for _ in 0..2_000 {
        let found = referee.live().worker_before_write();
        if found.is_some() {
            return found;
        }
        sleep(Duration::from_millis(5)).await;
    }
    None
}

/// Cuts a node off from the others, in both directions. Its clients still reach it.
pub(crate) fn isolate(ensemble: &Ensemble, node: usize) {
    for other in 0..NODES {
        block_messages(ensemble, node, other);
        block_messages(ensemble, other, node);
    }
}

fn block_messages(ensemble: &Ensemble, from: usize, to: usize) {
    if from != to {
        ensemble.block_messages(from, to);
    }
}
