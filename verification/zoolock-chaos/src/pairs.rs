//! Checks that no lock is lost while two faults hit at once. Each seed is a round with a plan of its own (`plan.rs`):
//!
//! | pair | first fault | second fault |
//! |-|-|-|
//! | stopped follower and cut | SIGSTOP to a follower: that of the clients, or another one | the connections are reset; one direction of the link to the clients' server is silent; all links refuse |
//! | bad names and restart | name servers are slow, flap, or the first one is dead | the clients' server is ended and started again |
//!
//! Each round has four locks. All holders and half of the waiters are attached to one server, which the seed chooses. The
//! waiters queue before the faults, or when the first fault has begun. The locks are checked all the time. Then each
//! holder releases, sometimes before the longer fault ends, and its waiter must be granted the lock. At the end, while the
//! clients are still open, the queues must be empty.
//!
//! A loss is needless if the clients reached a server with a leader all the time, except for at most a quarter of the
//! session timeout.
//!
//! Drills with bad names run in namespaces with name servers of their own.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use clap::{Args, ValueEnum};
use tempfile::TempDir;
use tokio::process::Command;
use zoolock_tests::name_servers::NameServers;
use zoolock_tests::namespaces::{Namespaces, is_inside};
use zoolock_tests::skip::Availability;

use crate::Outcome;
use crate::ensemble::{Ensemble, NODES, START};
use crate::interrupt::until_interrupted;
use crate::loss::SYNC_LIMIT;

mod plan;
mod round;

use plan::{Pair, Plan, SESSION};
use round::{COLUMNS, RoundResult, run_round};

/// A deliberate bug, which the drill must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PairsBug {
    /// The clients know one server only.
    OneServer,
}

/// The settings of the drill.
#[derive(Args, Debug)]
pub(crate) struct PairsArgs {
    /// The number of seeds for each pair of faults.
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed. The others follow it. A random one by default. It is printed.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Only these pairs.
    #[arg(long, value_delimiter = ',', value_name = "PAIR")]
    only: Vec<Pair>,
    /// Adds a deliberate bug: the drill must fail.
    #[arg(long = "break", value_name = "WHAT")]
    broken: Option<PairsBug>,
}

impl PairsArgs {
    fn pairs(&self) -> impl Iterator<Item = Pair> {
        let all = Pair::value_variants().iter().copied();
        all.filter(|pair| self.only.is_empty() || self.only.contains(pair))
    }
}

/// Runs the drill. Returns whether no lock was lost needlessly and nothing else was wrong.
pub(crate) async fn run(settings: &PairsArgs) -> Outcome<bool> {
    let needs_names = settings.pairs().any(|pair| pair == Pair::BadNamesAndRestart);
    if needs_names && !is_inside() {
        until_interrupted(run_in_namespaces()).await
    } else {
        until_interrupted(run_rounds(settings, needs_names)).await
    }
}

/// Runs this program again, with the same arguments.
async fn run_in_namespaces() -> Outcome<bool> {
    let namespaces = Namespaces::new()?;
    if let Availability::Missing(reason) = namespaces.availability() {
        return Err(
            format!("bad names need namespaces; use --only stopped-follower-and-cut: {reason}").into()
        );
    }
    let mut inside = Command::from(namespaces.command(std::env::current_exe()?));
    // An interrupt kills the program inside. Its files are deleted with those of the namespaces.
    inside.args(std::env::args_os().skip(1)).env("TMPDIR", namespaces.dir()).kill_on_drop(true);
    match inside.status().await?.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        code => Err(format!("the drill ended with {code:?} in its namespaces").into()),
    }
}

async fn run_rounds(settings: &PairsArgs, needs_names: bool) -> Outcome<bool> {
    let first = settings.seed.unwrap_or_else(|| fastrand::u64(..u64::from(u32::MAX)));
    let seeds = first..first.saturating_add(settings.seeds);
    let names = if needs_names { Some(NameServers::start(|_| Ipv4Addr::LOCALHOST).await?) } else { None };
    let dir = TempDir::with_prefix("zoolock-pairs-")?;
    let mut ensemble = Ensemble::configure(dir.path(), SYNC_LIMIT).await?;
    ensemble.wait_until_whole(START).await?;
    let (mut rows, mut sums, mut violations) = (String::new(), String::new(), Vec::new());
    for pair in settings.pairs() {
        let mut sum = RoundResult::default();
        for seed in seeds.clone() {
            let plan = Plan::of(pair, seed);
            let names = names.as_ref().filter(|_| pair == Pair::BadNamesAndRestart);
            let name = format!("pairs{}-{seed}", pair as u8);
            let knows_home_only = settings.broken == Some(PairsBug::OneServer);
            let ended = run_round(&mut ensemble, &plan, names, &name, knows_home_only).await;
            let result = ended.map_err(|error| {
                let logs: Vec<String> = (0..NODES).map(|node| ensemble.log_tail(node)).collect();
                format!("seed {seed}, {plan}: {error}\n{}", logs.join("\n--\n"))
            })?;
            let row = format!("| {seed} | {plan} | {}", result.cells());
            eprintln!("{row}");
            let _ = writeln!(rows, "{row}");
            violations.extend(result.violations.iter().map(|found| format!("seed {seed}, {plan}: {found}")));
            sum.add(&result);
        }
        let _ = writeln!(sums, "| all | {} | {}", pair.name(), sum.cells());
    }
    let lines = "|-".repeat(9);
    let mut text = format!("Sessions of {SESSION:?}.\n\n| seed | faults | {COLUMNS}\n{lines}|\n{rows}{sums}");
    for violation in &violations {
        let _ = writeln!(text, "\nVIOLATION: {violation}");
    }
    println!("{text}");
    Ok(violations.is_empty())
}
