//! The works, and the clients that carry them out.

use std::time::Duration;

use super::client::{ClientOnServer, ComparedClient};
use super::sizes::Sizes;
use crate::job::Job;
use crate::servers::ServerKind;

/// A measured work, and the clients that carry it out.
pub(super) struct ComparedWork {
    pub(super) name: &'static str,
    pub(super) title: String,
    pub(super) job: Job,
    pub(super) who: Vec<ClientOnServer>,
    pub(super) figure: RoundFigure,
    pub(super) network: Network,
    /// Set if a second process also acquires the lock.
    pub(super) has_second_process: bool,
    /// Set if each client gets a new server, because the work may end its server.
    pub(super) needs_own_server: bool,
    rounds: Rounds,
    pub(super) limit: Duration,
    compiling: usize,
}

/// The number that represents the samples of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundFigure {
    /// The median of the latencies.
    Median,
    /// The mean of the hand-overs.
    Mean,
    /// The whole time, divided by the number of acquisitions.
    Share,
}

/// The number of rounds of a work, computed from the requested number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounds {
    /// This multiple of the requested number, for short rounds. More rounds are needed, because the
    /// figures of such rounds vary by more than their distance from the target.
    Times(usize),
    /// The requested number, but at most this one, for long rounds.
    AtMost(usize),
}

/// The network between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    Loopback,
    Delayed,
}

impl RoundFigure {
    pub(super) fn description(self) -> &'static str {
        match self {
            RoundFigure::Median => "the median",
            RoundFigure::Mean => "the mean",
            RoundFigure::Share => "the whole time shared out",
        }
    }
}

impl ComparedWork {
    fn new(name: &'static str, title: String, job: Job, figure: RoundFigure, sizes: &Sizes) -> Self {
        Self {
            name,
            title,
            job,
            who: Vec::new(),
            figure,
            network: Network::Loopback,
            has_second_process: false,
            needs_own_server: false,
            rounds: Rounds::Times(1),
            limit: sizes.limit,
            compiling: sizes.compiling,
        }
    }

    fn more_rounds(self, times: usize, sizes: &Sizes) -> Self {
        Self { rounds: Rounds::Times(if sizes.more_rounds { times } else { 1 }), ..self }
    }

    fn measured_with(mut self, clients: &[ComparedClient], servers: &[ServerKind]) -> Self {
        self.who.extend(
            servers
                .iter()
                .flat_map(|&server| clients.iter().map(move |&client| ClientOnServer { client, server })),
        );
        self
    }

    pub(super) fn rounds(&self, rounds: usize) -> usize {
        match self.rounds {
            Rounds::Times(times) => rounds * times,
            Rounds::AtMost(most) => rounds.min(most),
        }
    }

    /// Returns the number of jobs, including those to warm up.
    pub(super) fn jobs(&self, rounds: usize) -> usize {
        self.who.len() * (self.rounds(rounds) + self.warm_ups())
    }

    pub(super) fn warm_ups(&self) -> usize {
        usize::from(!self.needs_own_server)
    }

    /// Returns the job of one client.
    pub(super) fn job_of(&self, who: ClientOnServer) -> Job {
        match (who.client, self.job.work) {
            // Tasks need sessions of their own: WriteLock mistakes any znode of its session for its
            // own, and etcd treats all acquisitions with one lease as those of one holder.
            (ComparedClient::WriteLock | ComparedClient::Etcd, "crowd") => {
                self.job.clone().with("sessions", FEW_TASKS)
            }
            // These clients measure the least time of two writes, so each write is awaited.
            (ComparedClient::Raw | ComparedClient::Floor, "solo") => {
                self.job.clone().with("release", "await")
            }
            _ => self.job.clone(),
        }
    }

    /// Returns the uncounted first job. In the work `alone` it is long enough for the Java virtual
    /// machine to compile the code.
    pub(super) fn warming_job(&self, who: ClientOnServer) -> Job {
        match (self.name, who.client) {
            ("alone", ComparedClient::Curator | ComparedClient::WriteLock) => {
                self.job_of(who).with("warm", self.compiling)
            }
            _ => self.job_of(who),
        }
    }
}

const FEW_TASKS: usize = 8;

const ZOOKEEPERS: [ServerKind; 2] = [ServerKind::Apache, ServerKind::Ours];

/// Returns all works.
pub(super) fn works(sizes: &Sizes, rtt: Duration) -> Vec<ComparedWork> {
    use ComparedClient::{
        Curator, Etcd, Floor, Kazoo, Raw, Redis, Same, SameAtOnce, SameFloor, WriteLock, ZookeeperClient,
        Zoolock,
    };
    let solo = |count: usize| {
        Job::new("solo").with("count", count).with("warm", sizes.warm).with("release", "await")
    };
    let crowd = |tasks: usize, sessions: usize, turns: usize| {
        let job = Job::new("crowd").with("tasks", tasks).with("sessions", sessions).with("turns", turns);
        job.with("locks", 1).with("hold_us", 0)
    };
    let all = [Zoolock, Raw, Curator, WriteLock, ZookeeperClient, Kazoo];
    let everywhere = [ServerKind::Apache, ServerKind::Ensemble, ServerKind::Ours];
    let alone = |work: ComparedWork| {
        work.measured_with(&all, &everywhere)
            .measured_with(&[Etcd], &[ServerKind::Etcd])
            .measured_with(&[Redis], &[ServerKind::RedisSynced, ServerKind::Redis])
    };
    vec![
        alone(ComparedWork::new(
            "alone",
            "acquire and release, nobody else".to_owned(),
            solo(sizes.solo),
            RoundFigure::Median,
            sizes,
        ))
        // The following clients send the requests without a lock.
        .measured_with(&[Floor, SameFloor, SameAtOnce], &ZOOKEEPERS)
        .more_rounds(3, sizes),
        ComparedWork {
            network: Network::Delayed,
            ..alone(ComparedWork::new(
                "far",
                format!("acquire and release, nobody else, {rtt:?} away"),
                solo(sizes.far).with("warm", 5),
                RoundFigure::Median,
                sizes,
            ))
            .more_rounds(2, sizes)
        },
        ComparedWork::new(
            "loop",
            "acquire, drop, acquire … in a loop".to_owned(),
            solo(sizes.solo).with("release", "drop"),
            RoundFigure::Median,
            sizes,
        )
        .measured_with(&[Zoolock, Floor, Raw, ZookeeperClient], &ZOOKEEPERS)
        .more_rounds(5, sizes),
        ComparedWork::new(
            "few",
            format!("hand-over, {FEW_TASKS} tasks on 2 sessions"),
            crowd(FEW_TASKS, 2, sizes.turns),
            RoundFigure::Mean,
            sizes,
        )
        .measured_with(&[Zoolock, Curator, WriteLock, ZookeeperClient, Kazoo], &ZOOKEEPERS)
        .measured_with(&[Zoolock, Curator, ZookeeperClient], &[ServerKind::Ensemble])
        .measured_with(&[Etcd], &[ServerKind::Etcd])
        .more_rounds(2, sizes),
        ComparedWork {
            rounds: Rounds::AtMost(3),
            ..ComparedWork::new(
                "many",
                format!("hand-over, {} waiters on 4 sessions", sizes.many),
                crowd(sizes.many, 4, 1),
                RoundFigure::Mean,
                sizes,
            )
            .measured_with(&[Zoolock, Curator, ZookeeperClient, Kazoo], &ZOOKEEPERS)
        },
        ComparedWork {
            rounds: Rounds::AtMost(3),
            needs_own_server: true,
            limit: sizes.long_limit,
            ..ComparedWork::new(
                "most",
                format!("hand-over, {} waiters on 16 sessions", sizes.most),
                crowd(sizes.most, 16, 1),
                RoundFigure::Mean,
                sizes,
            )
            .measured_with(&[Zoolock, Curator, ZookeeperClient, Kazoo], &[ServerKind::Apache])
            .measured_with(&[Zoolock], &[ServerKind::Ours])
        },
        ComparedWork::new(
            "locks",
            format!("{} different locks, 4 sessions, all at once", sizes.locks),
            Job::new("spread").with("locks", sizes.locks).with("sessions", 4),
            RoundFigure::Share,
            sizes,
        )
        .measured_with(&[Zoolock, Same, Raw], &ZOOKEEPERS)
        .more_rounds(3, sizes),
        ComparedWork {
            has_second_process: true,
            rounds: Rounds::AtMost(3),
            ..ComparedWork::new(
                "process",
                format!("{} tasks of one process, and a second process", sizes.local),
                crowd(sizes.local, 1, sizes.local_turns).with("shared_hold", "yes"),
                RoundFigure::Mean,
                sizes,
            )
            .measured_with(&[Zoolock, Curator, ZookeeperClient], &ZOOKEEPERS)
        },
        ComparedWork {
            rounds: Rounds::AtMost(3),
            ..ComparedWork::new(
                "articles",
                format!("{} waiters on two locks, {:?} each: what is not the work", sizes.many, sizes.hold),
                crowd(sizes.many, 4, 1).with("locks", 2).with("hold_us", sizes.hold.as_micros()),
                RoundFigure::Mean,
                sizes,
            )
            .measured_with(&[Zoolock, Curator], &ZOOKEEPERS)
        },
        ComparedWork::new(
            "rest",
            format!("one write, after {:?} of rest", sizes.hold),
            solo(sizes.far).with("rest_us", sizes.hold.as_micros()),
            RoundFigure::Mean,
            sizes,
        )
        .measured_with(&[Zoolock, Raw], &ZOOKEEPERS),
        ComparedWork::new(
            "shared",
            "acquire again within a shared hold".to_owned(),
            solo(100 * sizes.solo).with("shared_hold", "yes"),
            RoundFigure::Median,
            sizes,
        )
        .measured_with(&[Zoolock], &ZOOKEEPERS),
    ]
}
