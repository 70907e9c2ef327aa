//! The works, the clients that do them, and the targets.

use std::time::Duration;

use super::client::{Client, ClientOnServer};
use super::sizes::Sizes;
use super::target::{Reference, Target};
use crate::job::Job;
use crate::servers::Kind;

/// A work.
pub(super) struct Work {
    pub(super) name: &'static str,
    pub(super) title: String,
    pub(super) job: Job,
    pub(super) who: Vec<ClientOnServer>,
    pub(super) figure: Figure,
    pub(super) network: Network,
    /// Set if a second process also acquires the lock.
    pub(super) has_second_process: bool,
    /// Set if each client starts with a server of its own, which may not survive.
    pub(super) needs_own_server: bool,
    rounds: Rounds,
    pub(super) limit: Duration,
    compiling: usize,
}

/// The number that represents the samples of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// The median of the latencies.
    Median,
    /// The mean of the hand-overs.
    Mean,
    /// The whole time, divided by the turns.
    Share,
}

/// The number of rounds of a work, from the number that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounds {
    /// This multiple: such rounds are short, and the target lies within the difference between two rounds.
    Times(usize),
    /// At most this number: such rounds are long.
    AtMost(usize),
}

/// The network between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    Loopback,
    Delayed,
}

impl Figure {
    pub(super) fn description(self) -> &'static str {
        match self {
            Figure::Median => "the median",
            Figure::Mean => "the mean",
            Figure::Share => "the whole time shared out",
        }
    }
}

impl Work {
    fn new(name: &'static str, title: String, job: Job, figure: Figure, sizes: &Sizes) -> Self {
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

    fn by(mut self, clients: &[Client], servers: &[Kind]) -> Self {
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
            // Tasks of one session would take each other's znode for their own.
            (Client::WriteLock | Client::Etcd, "crowd") => self.job.clone().with("sessions", FEW_TASKS),
            // The bound for two writes, each of which is awaited.
            (Client::Raw | Client::Floor, "solo") => self.job.clone().with("release", "await"),
            _ => self.job.clone(),
        }
    }

    /// Returns the uncounted first job. It is long enough for a virtual machine to compile the code.
    pub(super) fn warming_job(&self, who: ClientOnServer) -> Job {
        match (self.name, who.client) {
            ("alone", Client::Curator | Client::WriteLock) => self.job_of(who).with("warm", self.compiling),
            _ => self.job_of(who),
        }
    }
}

const FEW_TASKS: usize = 8;

const ZOOKEEPERS: [Kind; 2] = [Kind::Apache, Kind::Ours];

/// Returns all works.
pub(super) fn works(sizes: &Sizes, rtt: Duration) -> Vec<Work> {
    use Client::{
        Curator, Etcd, Floor, Kazoo, Raw, Redis, Same, SameAtOnce, WriteLock, ZookeeperClient, Zoolock,
    };
    let solo = |count: usize| {
        Job::new("solo").with("count", count).with("warm", sizes.warm).with("release", "await")
    };
    let crowd = |tasks: usize, sessions: usize, turns: usize| {
        let job = Job::new("crowd").with("tasks", tasks).with("sessions", sessions).with("turns", turns);
        job.with("locks", 1).with("hold_us", 0)
    };
    let all = [Zoolock, Raw, Curator, WriteLock, ZookeeperClient, Kazoo];
    let everywhere = [Kind::Apache, Kind::Ensemble, Kind::Ours];
    let alone = |work: Work| {
        work.by(&all, &everywhere).by(&[Etcd], &[Kind::Etcd]).by(&[Redis], &[Kind::RedisSynced, Kind::Redis])
    };
    vec![
        alone(Work::new(
            "alone",
            "acquire and release, nobody else".to_owned(),
            solo(sizes.solo),
            Figure::Median,
            sizes,
        ))
        // These measure the requests alone.
        .by(&[Floor, SameAtOnce], &ZOOKEEPERS)
        .more_rounds(3, sizes),
        Work {
            network: Network::Delayed,
            ..alone(Work::new(
                "far",
                format!("acquire and release, nobody else, {rtt:?} away"),
                solo(sizes.far).with("warm", 5),
                Figure::Median,
                sizes,
            ))
            .more_rounds(2, sizes)
        },
        Work::new(
            "loop",
            "acquire, drop, acquire … in a loop".to_owned(),
            solo(sizes.solo).with("release", "drop"),
            Figure::Median,
            sizes,
        )
        .by(&[Zoolock, Floor, Raw, ZookeeperClient], &ZOOKEEPERS)
        .more_rounds(5, sizes),
        Work::new(
            "few",
            format!("hand-over, {FEW_TASKS} tasks on 2 sessions"),
            crowd(FEW_TASKS, 2, sizes.turns),
            Figure::Mean,
            sizes,
        )
        .by(&[Zoolock, Curator, WriteLock, ZookeeperClient, Kazoo], &ZOOKEEPERS)
        .by(&[Zoolock, Curator, ZookeeperClient], &[Kind::Ensemble])
        .by(&[Etcd], &[Kind::Etcd])
        .more_rounds(2, sizes),
        Work {
            rounds: Rounds::AtMost(3),
            ..Work::new(
                "many",
                format!("hand-over, {} waiters on 4 sessions", sizes.many),
                crowd(sizes.many, 4, 1),
                Figure::Mean,
                sizes,
            )
            .by(&[Zoolock, Curator, ZookeeperClient, Kazoo], &ZOOKEEPERS)
        },
        Work {
            rounds: Rounds::AtMost(3),
            needs_own_server: true,
            limit: sizes.long_limit,
            ..Work::new(
                "most",
                format!("hand-over, {} waiters on 16 sessions", sizes.most),
                crowd(sizes.most, 16, 1),
                Figure::Mean,
                sizes,
            )
            .by(&[Zoolock, Curator, ZookeeperClient, Kazoo], &[Kind::Apache])
            .by(&[Zoolock], &[Kind::Ours])
        },
        Work::new(
            "locks",
            format!("{} different locks, 4 sessions, all at once", sizes.locks),
            Job::new("spread").with("locks", sizes.locks).with("sessions", 4),
            Figure::Share,
            sizes,
        )
        .by(&[Zoolock, Same, Raw], &ZOOKEEPERS)
        .more_rounds(3, sizes),
        Work {
            has_second_process: true,
            rounds: Rounds::AtMost(3),
            ..Work::new(
                "process",
                format!("{} tasks of one process, and a second process", sizes.local),
                crowd(sizes.local, 1, sizes.local_turns).with("tenure", "yes"),
                Figure::Mean,
                sizes,
            )
            .by(&[Zoolock, Curator, ZookeeperClient], &ZOOKEEPERS)
        },
        Work {
            rounds: Rounds::AtMost(3),
            ..Work::new(
                "articles",
                format!("{} waiters on two locks, {:?} each: what is not the work", sizes.many, sizes.hold),
                crowd(sizes.many, 4, 1).with("locks", 2).with("hold_us", sizes.hold.as_micros()),
                Figure::Mean,
                sizes,
            )
            .by(&[Zoolock, Curator], &ZOOKEEPERS)
        },
        Work::new(
            "rest",
            format!("one write, after {:?} of rest", sizes.hold),
            solo(sizes.far).with("rest_us", sizes.hold.as_micros()),
            Figure::Mean,
            sizes,
        )
        .by(&[Zoolock, Raw], &ZOOKEEPERS),
        Work::new(
            "tenure",
            "acquire again within a tenure".to_owned(),
            solo(100 * sizes.solo).with("tenure", "yes"),
            Figure::Median,
            sizes,
        )
        .by(&[Zoolock], &ZOOKEEPERS),
    ]
}

/// Returns the targets of all works.
pub(super) fn targets() -> Vec<Target> {
    use Client::{Curator, Floor, Raw, Same, ZookeeperClient};
    let at = |client: Client| Reference::One("", client, Kind::Apache);
    let mut targets = vec![
        Target::new("alone", 1.15, at(Floor)),
        Target::new("alone", 1.20, Reference::One("", Floor, Kind::Ours)).with_our_server(),
        Target::new("alone", 1.10, at(Raw)),
        Target::new("alone", 0.8, at(Curator)),
        Target::new("alone", 1.0, Reference::One("", Client::Etcd, Kind::Etcd)),
        Target::cpu("alone", 0.6),
        Target::new("far", 1.05, at(Raw)),
        Target::new("far", 1.0 / 1.25, Reference::BestPeer),
        Target::new("loop", 0.6, at(Floor)),
        Target::new("few", 0.65, Reference::BestPeer),
        Target::new("many", 0.25, at(Curator)),
        Target::new("many", 0.4, at(ZookeeperClient)),
        Target::new("most", 1.2, Reference::One("many", Client::Zoolock, Kind::Apache)),
        Target::new("most", 1.0, Reference::AllPeersFail),
        Target::new("locks", 1.0 / 0.9, at(Same)),
        Target::new("locks", 1.0 / 0.6, at(Raw)),
        Target::new("process", 1.0 / 50.0, at(Curator)),
        // A fifth of the published 3 ms.
        Target::new("articles", 1.0, Reference::Micros(600.0)),
    ];
    for work in ["alone", "far", "loop", "few", "many", "most", "locks", "process", "articles"] {
        targets.push(Target::on_ours(work));
    }
    targets.push(Target::new("tenure", 1e-2, Reference::One("alone", Client::Redis, Kind::Redis)));
    for peer in [Curator, Client::WriteLock, ZookeeperClient, Client::Kazoo] {
        targets.push(Target::new("tenure", 1e-3, Reference::One("alone", peer, Kind::Apache)));
    }
    targets
}
