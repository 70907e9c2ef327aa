//! The plan of a round: a seed chooses the faults, their times and their targets.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;
use rustix::process::Signal;
use zoolock_tests::Direction;
use zoolock_tests::name_servers::Answers;

/// The session timeout of all clients.
pub(super) const SESSION: Duration = Duration::from_secs(12);
/// The longest outage that may cost no lock. An outage is a time in which the clients reach no server that has a leader.
/// Planned ones are shorter.
pub(super) const SHORT: Duration = Duration::from_secs(3);

/// Two faults at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pair {
    /// A follower is stopped while the clients' connections are cut.
    StoppedFollowerAndCut,
    /// Name servers fail or are slow while the server of the clients restarts.
    BadNamesAndRestart,
}

/// The plan of a round.
#[derive(Debug)]
pub(super) struct Plan {
    /// The time from the settled state until the faults begin.
    pub(super) pause: Duration,
    /// Set if the home of the clients is the leader.
    pub(super) home_leads: bool,
    /// Set if waiters call `lock()` when the faults begin. Otherwise, they are in the queue already.
    pub(super) queues_late: bool,
    /// Set if the holders release while the follower is still stopped, or names still do not resolve as they should.
    pub(super) releases_early: bool,
    pub(super) faults: Faults,
}

#[derive(Debug)]
pub(super) enum Faults {
    StoppedFollowerAndCut {
        /// Set if the home of the clients is stopped. Otherwise, a follower is stopped that is not their home.
        stops_home: bool,
        stopped: Duration,
        cut: Cut,
    },
    BadNamesAndRestart {
        names: BadNames,
        signal: Signal,
        /// The shortest time from the signal until the server is started again.
        down: Duration,
    },
}

#[derive(Debug)]
pub(super) enum Cut {
    /// All connections are closed so many times. New ones are accepted.
    Reset { times: u32 },
    /// The link between the clients and their home holds back the bytes of one direction.
    Silent { direction: Direction, time: Duration },
    /// All connections are closed, and all links refuse new ones.
    Refused { time: Duration },
}

#[derive(Debug)]
pub(super) enum BadNames {
    Slow(Duration),
    DeadFirst,
    Flapping,
}

impl Pair {
    pub(super) fn name(self) -> &'static str {
        match self {
            Pair::StoppedFollowerAndCut => "stopped follower and cut",
            Pair::BadNamesAndRestart => "bad names and restart",
        }
    }
}

impl Plan {
    /// Makes the plan of a seed.
    pub(super) fn of(pair: Pair, seed: u64) -> Plan {
        let mut rng = Rng::with_seed(seed);
        let pause = random_time(&mut rng, Duration::ZERO, SESSION / 6);
        let (queues_late, releases_early) = (rng.bool(), rng.bool());
        let (home_leads, faults) = match pair {
            Pair::StoppedFollowerAndCut => {
                let stops_home = rng.bool();
                let stopped = random_time(&mut rng, SESSION / 4, SESSION);
                let cut = match rng.u8(..5) {
                    0 | 1 => Cut::Reset { times: rng.u32(1..4) },
                    2 => Cut::Refused { time: random_time(&mut rng, SESSION / 24, SESSION / 5) },
                    number => {
                        let direction = if number == 3 { Direction::ToServer } else { Direction::ToClient };
                        Cut::Silent { direction, time: random_time(&mut rng, SESSION / 6, stopped) }
                    }
                };
                // Only a follower is stopped.
                (!stops_home && rng.bool(), Faults::StoppedFollowerAndCut { stops_home, stopped, cut })
            }
            Pair::BadNamesAndRestart => {
                let names = match rng.u8(..3) {
                    0 => BadNames::Slow(random_time(&mut rng, SESSION / 6, SESSION)),
                    1 => BadNames::DeadFirst,
                    _ => BadNames::Flapping,
                };
                let signal = if rng.bool() { Signal::TERM } else { Signal::KILL };
                let down = random_time(&mut rng, Duration::ZERO, SESSION / 2);
                (rng.bool(), Faults::BadNamesAndRestart { names, signal, down })
            }
        };
        Plan { pause, home_leads, queues_late, releases_early, faults }
    }
}

fn random_time(rng: &mut Rng, least: Duration, most: Duration) -> Duration {
    Duration::from_millis(rng.u64(least.as_millis() as u64..most.as_millis() as u64))
}

impl BadNames {
    /// Returns the answers of the two name servers.
    pub(super) fn answers(&self) -> (Answers, Answers) {
        match self {
            BadNames::Slow(time) => (Answers::Right(*time), Answers::Right(*time)),
            BadNames::DeadFirst => (Answers::Silent, Answers::Right(Duration::ZERO)),
            BadNames::Flapping => (Answers::Flaps(false), Answers::Flaps(true)),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let home = if self.home_leads { "leader" } else { "follower" };
        match &self.faults {
            Faults::StoppedFollowerAndCut { stops_home, stopped, cut } => {
                let which = if *stops_home { "home" } else { "other follower" };
                write!(f, "home {home}, {which} stopped {stopped:?}, ")?;
                match cut {
                    Cut::Reset { times } => write!(f, "connections reset {times} times"),
                    Cut::Silent { direction: Direction::ToServer, time } => {
                        write!(f, "requests to home held back {time:?}")
                    }
                    Cut::Silent { direction: Direction::ToClient, time } => {
                        write!(f, "replies of home held back {time:?}")
                    }
                    Cut::Refused { time } => write!(f, "all links refuse {time:?}"),
                }?;
            }
            Faults::BadNamesAndRestart { names, signal, down } => {
                let signal = if *signal == Signal::TERM { "TERM" } else { "KILL" };
                match names {
                    BadNames::Slow(time) => write!(f, "name servers slow {time:?}"),
                    BadNames::DeadFirst => write!(f, "first name server dead"),
                    BadNames::Flapping => write!(f, "name servers flapping"),
                }?;
                write!(f, ", home {home} ended by {signal}, down {down:?}")?;
            }
        }
        f.write_str(if self.queues_late { ", waiters late" } else { "" })?;
        f.write_str(if self.releases_early { ", early release" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_seeds_have_every_fault() {
        for pair in Pair::value_variants() {
            let plans: Vec<String> = (1..=20).map(|seed| Plan::of(*pair, seed).to_string()).collect();
            let all = plans.join("\n");
            let parts: &[&str] = match pair {
                Pair::StoppedFollowerAndCut => &[
                    "home leader, other",
                    "home follower, other",
                    "home follower, home",
                    "reset",
                    "requests",
                    "replies",
                    "refuse",
                ],
                Pair::BadNamesAndRestart => {
                    &["slow", "dead", "flapping", "home leader", "home follower", "TERM", "KILL"]
                }
            };
            for part in [parts, &["late", "early"]].concat() {
                assert!(all.contains(part), "no plan has `{part}`:\n{all}");
            }
        }
    }
}
