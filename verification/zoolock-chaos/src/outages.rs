//! Checks that no lock is lost in a short outage. Many clients hold a lock each while one outage
//! after the other hits the ensemble. At the end of each round, each client must still hold its
//! lock.

use std::fmt::Write as _;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fastrand::Rng;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zoolock::{Connection, Guard, Zoolock};
use zoolock_tests::Proxy;

use crate::Outcome;
use crate::ensemble::{Ensemble, NODES, START, TICK, WHOLE};
use crate::interrupt::until_interrupted;
use crate::loss::SYNC_LIMIT;
use crate::settings::parse_duration;

/// The longest time until all holders are connected again.
const RECONNECTED: Duration = Duration::from_secs(60);
/// Pause between two checks of all guards.
const LOOK: Duration = Duration::from_millis(20);
/// The time for which the leader stalls.
const STALL: Duration = Duration::from_secs(2);

/// An outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Outage {
    /// SIGSTOP to the leader for two seconds.
    StalledLeader,
    /// As long as the session timeout, one node accepts connections but answers no request.
    SilentNode,
    /// All nodes refuse connections for a quarter of the session timeout.
    AllAway,
}

impl Outage {
    fn name(self) -> &'static str {
        match self {
            Outage::StalledLeader => "leader stalled for 2 s",
            Outage::SilentNode => "one node silent",
            Outage::AllAway => "all nodes away for T/4",
        }
    }

    /// Returns the session timeout of the holders.
    fn session_timeout(self) -> Duration {
        match self {
            Outage::StalledLeader | Outage::AllAway => Duration::from_secs(30),
            // The timeout is short, because each round of this outage lasts as long.
            Outage::SilentNode => Duration::from_secs(12),
        }
    }
}

/// The settings of the drill.
#[derive(Args, Debug)]
pub(crate) struct OutagesArgs {
    /// The number of rounds of each outage.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// The number of clients, each with a session and a lock.
    #[arg(long, default_value_t = 24)]
    holders: usize,
    /// The seed of the random choices. A random one by default. It is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only these outages.
    #[arg(long, value_delimiter = ',', value_name = "OUTAGE")]
    only: Vec<Outage>,
    /// The longest time from the return of the servers to the last holder's reconnect. Only for a machine without other
    /// load.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    reconnect_within: Option<Duration>,
}

/// The figures of all rounds of one outage.
#[derive(Default)]
struct OutageFigures {
    rounds: usize,
    lost: usize,
    /// The largest number of new connections in a round.
    most_connections: usize,
    /// The longest time from the return of the servers to the last reconnect.
    longest_reconnect: Duration,
}

/// Runs the drill. Returns whether no lock was lost, and all limits were kept.
pub(crate) async fn run(settings: &OutagesArgs) -> Outcome<bool> {
    let seed = settings.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}, {} holders, {} rounds of each outage", settings.holders, settings.rounds);
    // An interrupt drops the future. This ends the nodes and deletes their directory.
    until_interrupted(run_outages(settings, seed)).await
}

async fn run_outages(settings: &OutagesArgs, seed: u64) -> Outcome<bool> {
    let dir = TempDir::with_prefix("zoolock-outages-")?;
    let mut ensemble = Ensemble::configure(dir.path(), SYNC_LIMIT).await?;
    ensemble.wait_until_whole(START).await?;
    let mut rng = Rng::with_seed(seed);
    let mut violations = Vec::new();
    let mut text = format!("{} holders, seed {seed}.\n\n", settings.holders);
    text += "| outage | T | rounds | locks lost | most new connections in a round | longest time to reconnect |\n";
    text += "|-|-|-|-|-|-|\n";
    for outage in Outage::value_variants() {
        if !settings.only.is_empty() && !settings.only.contains(outage) {
            continue;
        }
        let mut field = OutageSetup::open(&ensemble, *outage, settings.holders).await?;
        let mut figures = OutageFigures::default();
        for round in 1..=settings.rounds {
            field.run_round(&mut ensemble, *outage, &mut rng, &mut figures).await?;
            eprintln!("{round:3} {}, {} locks lost so far", outage.name(), figures.lost);
        }
        // Together with the pause at the end of the last round, this time is longer than a usual
        // lease. So a guard whose lease was not renewed after the last outage is no longer valid.
        field.check_guards_for(outage.session_timeout() * 2 / 3).await;
        figures.lost += field.count_lost_locks();
        field.close().await;
        violations.extend(figures.violations(*outage, settings));
        let _ = writeln!(
            text,
            "| {} | {:?} | {} | {} | {} | {:.3} s |",
            outage.name(),
            outage.session_timeout(),
            figures.rounds,
            figures.lost,
            figures.most_connections,
            figures.longest_reconnect.as_secs_f64(),
        );
    }
    for violation in &violations {
        let _ = writeln!(text, "\nVIOLATION: {violation}");
    }
    println!("{text}");
    Ok(violations.is_empty())
}

impl OutageFigures {
    fn violations(&self, outage: Outage, settings: &OutagesArgs) -> Vec<String> {
        let holders = settings.holders;
        let mut found = Vec::new();
        if self.lost > 0 {
            found.push(format!("{}: {} locks were lost", outage.name(), self.lost));
        }
        if outage == Outage::StalledLeader && self.most_connections * 10 > holders {
            let moved = self.most_connections;
            found.push(format!("{}: {moved} of {holders} sessions moved in one round", outage.name()));
        }
        if outage == Outage::SilentNode && self.most_connections == 0 {
            found.push(format!("{}: no session was on the silent node", outage.name()));
        }
        if settings.reconnect_within.is_some_and(|most| self.longest_reconnect > most) {
            let time = self.longest_reconnect;
            found.push(format!("{}: the last holder was connected after {time:?}", outage.name()));
        }
        found
    }
}

/// The holders of one kind of outage, and the proxies through which they reach the nodes.
struct OutageSetup {
    proxies: Vec<Proxy>,
    holders: Vec<(Zoolock, Guard)>,
}

impl OutageSetup {
    async fn open(ensemble: &Ensemble, outage: Outage, holders: usize) -> Outcome<OutageSetup> {
        let mut proxies = Vec::new();
        for node in 0..NODES {
            proxies.push(Proxy::start(&ensemble.client_addr(node).to_string()).await?);
        }
        let mut field = OutageSetup { proxies, holders: Vec::new() };
        let mut opening = JoinSet::new();
        for number in 0..holders {
            let (address, timeout) = (field.addresses(), outage.session_timeout());
            opening.spawn(async move {
                let builder = Zoolock::builder().tick_time(TICK).session_timeout(timeout);
                let zoolock = builder.connect(&address).await?;
                let guard = zoolock.mutex(format!("outage{number}")).lock().await?;
                Ok::<_, zoolock::Error>((zoolock, guard))
            });
        }
        while let Some(opened) = opening.join_next().await {
            field.holders.push(opened??);
        }
        field.check_guards_for(outage.session_timeout() / 3).await;
        Ok(field)
    }

    fn addresses(&self) -> String {
        self.proxies.iter().map(Proxy::addr).collect::<Vec<_>>().join(",")
    }

    /// Returns the number of connections through all proxies so far.
    fn connections(&self) -> usize {
        self.proxies.iter().map(|proxy| proxy.stats().connections.len()).sum()
    }

    /// Returns the proxy with the most open connections.
    fn busiest(&self) -> &Proxy {
        let open = |proxy: &&Proxy| proxy.open_connections();
        self.proxies.iter().max_by_key(open).expect("each node has a proxy")
    }

    /// Checks all guards again and again for this time. A check after the end of the lease marks
    /// the guard as lost for good. So a later count also includes guards that were invalid for a
    /// short time.
    async fn check_guards_for(&self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let _ = self.count_lost_locks();
            if Instant::now() >= until {
                return;
            }
            sleep(LOOK).await;
        }
    }

    /// Returns the number of lost locks.
    fn count_lost_locks(&self) -> usize {
        self.holders.iter().filter(|(_, guard)| !guard.is_valid()).count()
    }

    async fn run_round(
        &mut self,
        ensemble: &mut Ensemble,
        outage: Outage,
        rng: &mut Rng,
        figures: &mut OutageFigures,
    ) -> Outcome<()> {
        let timeout = outage.session_timeout();
        // The outage begins at a random time between two renewals.
        let pause = rng.u64(..u64::try_from(timeout.as_millis())? / 6);
        self.check_guards_for(Duration::from_millis(pause)).await;
        let before = self.connections();
        match outage {
            Outage::StalledLeader => {
                let leader = ensemble.leader(WHOLE).await?;
                ensemble.signal(leader, Signal::STOP);
                self.check_guards_for(STALL).await;
                ensemble.signal(leader, Signal::CONT);
            }
            Outage::SilentNode => {
                let node = self.busiest();
                node.blackhole(true);
                self.check_guards_for(timeout).await;
                node.blackhole(false);
            }
            Outage::AllAway => {
                for proxy in &self.proxies {
                    proxy.refuse(true).await;
                    proxy.close_connections().await;
                }
                self.check_guards_for(timeout / 4).await;
                for proxy in &self.proxies {
                    proxy.refuse(false).await;
                }
                figures.longest_reconnect =
                    figures.longest_reconnect.max(self.wait_until_reconnected().await?);
            }
        }
        // This time is long enough for the next renewal, and for a move to another server.
        self.check_guards_for(timeout / 6).await;
        figures.most_connections = figures.most_connections.max(self.connections() - before);
        figures.rounds += 1;
        figures.lost += self.count_lost_locks();
        for (number, (zoolock, guard)) in self.holders.iter_mut().enumerate() {
            if !guard.is_valid() {
                let name = format!("again{number}-{}", figures.rounds);
                *guard = timeout_at(Instant::now() + RECONNECTED, zoolock.mutex(name).lock()).await??;
            }
        }
        ensemble.wait_until_whole(WHOLE).await
    }

    /// Waits until all holders are connected. Returns the time that this took.
    async fn wait_until_reconnected(&self) -> Outcome<Duration> {
        let begun = Instant::now();
        for (_, guard) in self.holders.iter().filter(|(_, guard)| guard.is_valid()) {
            let mut connection = guard.connection_changes();
            let connected = connection.wait_for(|connection| connection == Connection::Connected);
            timeout(RECONNECTED, connected).await.map_err(|_| "a holder is not connected again")?;
        }
        Ok(begun.elapsed())
    }

    async fn close(self) {
        for (zoolock, guard) in self.holders {
            drop(guard);
            zoolock.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_judged() {
        let figures = |lost, most_connections, ms| OutageFigures {
            rounds: 1,
            lost,
            most_connections,
            longest_reconnect: Duration::from_millis(ms),
        };
        let mut settings = OutagesArgs {
            rounds: 1,
            holders: 24,
            seed: None,
            only: Vec::new(),
            reconnect_within: Some(Duration::from_secs(1)),
        };
        assert_eq!(figures(0, 2, 999).violations(Outage::StalledLeader, &settings), Vec::<String>::new());
        assert_eq!(figures(0, 24, 999).violations(Outage::AllAway, &settings), Vec::<String>::new());
        let found = figures(1, 3, 1_001).violations(Outage::StalledLeader, &settings);
        assert!(
            found.len() == 3
                && found[0].contains("1 locks")
                && found[1].contains("3 of 24")
                && found[2].contains("1.001s"),
            "{found:?}"
        );
        settings.reconnect_within = None;
        assert_eq!(figures(0, 24, 5_000).violations(Outage::AllAway, &settings), Vec::<String>::new());
    }
}
