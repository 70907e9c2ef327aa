//! Checks elections while their leaders are killed, stopped or cut off. There are three candidates, each in its own
//! process, and each stands in several elections at once.
//!
//! All processes read the same clock, so the last time at which a term was valid can be compared with the begin of the next
//! term. The drill also refuses an older token after a newer one, as a resource would.

pub(crate) mod candidate;
mod terms;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Args, ValueEnum};
use fastrand::Rng;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use zoolock_tests::lock;
use zoolock_tests::proxy::LinkFault;
use zoolock_tests::wait::wait_until;

use crate::Outcome;
use crate::clock::{now, seconds};
use crate::commands::{own_command, send_signal};
use crate::ensemble::{Ensemble, NODES, START};
use crate::faults::BLOCKED;
use crate::interrupt::until_interrupted;
use crate::link::Link;
use crate::loss::SYNC_LIMIT;
use crate::orders::read_reports;
use crate::settings::parse_duration;
use terms::Terms;

pub(crate) const SESSION: Duration = Duration::from_secs(6);
pub(crate) const GRACE: Duration = Duration::from_millis(500);
const CANDIDATES: usize = 3;
/// The longest time until all candidates stand in all elections, and until a new term begins.
const READY: Duration = Duration::from_secs(60);
/// The further part of a lease that a short cut leaves: time to connect again.
const RECONNECT: Duration = Duration::from_millis(700);
/// Pause between two looks at the lateness of this process.
const LATENESS_LOOK: Duration = Duration::from_millis(20);
/// The longest time from the end of a stall until the term is renewed.
const RENEWED: Duration = Duration::from_secs(3);

/// A fault of the candidate that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ElectionFault {
    /// SIGKILL.
    Killed,
    /// SIGSTOP until the next terms have begun.
    Stopped,
    /// No link reaches a node until the next terms have begun. In every other round the connections are also closed.
    Cut,
    /// SIGSTOP for almost the rest of the lease: the terms must go on.
    Stalled,
    /// No link for almost the rest of the lease: the terms must go on.
    CutShortly,
    /// The leader resigns.
    Resigned,
}

impl ElectionFault {
    fn ends_terms(self) -> bool {
        !matches!(self, ElectionFault::Stalled | ElectionFault::CutShortly)
    }
}

/// A deliberate bug of the candidates, which the judge must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CandidateBug {
    /// A task that the work has spawned reports the term as valid for ever.
    Outlives,
    /// The candidate gives up its terms when it loses a connection, as with other libraries.
    Flees,
}

/// The settings of the drill.
#[derive(Args, Debug)]
pub(crate) struct ElectionArgs {
    /// The number of rounds of each fault.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// The number of elections.
    #[arg(long, default_value_t = 10)]
    elections: usize,
    /// The seed of the random choices. A random one by default. It is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only these faults.
    #[arg(long, value_delimiter = ',', value_name = "FAULT")]
    only: Vec<ElectionFault>,
    /// The milliseconds of a lease that a stall leaves, beside the grace: time for the signals, the check and the renewal.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    reserve_ms: u64,
    /// The longest time from a fault to the next term, beyond the session timeout. Only for a machine without other load.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    new_term_within: Option<Duration>,
    /// Adds a deliberate bug: the drill must fail.
    #[arg(long = "break", value_name = "WHAT")]
    broken: Option<CandidateBug>,
}

/// Returns the name of an election.
pub(crate) fn name(number: usize) -> String {
    format!("e{number:02}")
}

/// Runs the drill. Returns whether there were no violations.
pub(crate) async fn run(settings: &ElectionArgs) -> Outcome<bool> {
    let seed = settings.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}, {} elections, {} rounds of each fault", settings.elections, settings.rounds);
    until_interrupted(run_rounds(settings, seed)).await
}

async fn run_rounds(settings: &ElectionArgs, seed: u64) -> Outcome<bool> {
    let dir = TempDir::with_prefix("zoolock-election-")?;
    let mut ensemble = Ensemble::configure(dir.path(), SYNC_LIMIT).await?;
    ensemble.wait_until_whole(START).await?;
    let terms = Arc::new(Mutex::new(Terms::new(settings.elections)));
    let mut candidates = Vec::new();
    for number in 0..CANDIDATES {
        candidates.push(Candidate::start(&ensemble, number, settings, &terms).await?);
    }
    let lateness = Lateness::watch();
    let mut drill = Drill { settings, rng: Rng::with_seed(seed), terms, candidates, ensemble, lateness };
    let mut text =
        "| fault | terms hit | rounds missed | longest stall | longest time to the next term | terms lost |\n|-|-|-|-|-|-|\n".to_owned();
    let mut violations = Vec::new();
    for fault in ElectionFault::value_variants() {
        if !settings.only.is_empty() && !settings.only.contains(fault) {
            continue;
        }
        let mut figures = FaultFigures::default();
        let mut round = 0;
        while round - figures.missed < settings.rounds && figures.missed <= 10 * settings.rounds {
            round += 1;
            drill.run_round(*fault, round, &mut figures).await?;
            eprintln!("{round:3} {fault:?}: {} terms hit so far", figures.hit);
        }
        let FaultFigures { hit, longest, lost, longest_stall, missed } = figures;
        let (longest, stall) = (seconds(longest), longest_stall.as_secs_f64());
        let _ = writeln!(text, "| {fault:?} | {hit} | {missed} | {stall:.3} s | {longest:.3} s | {lost} |");
        if round - missed < settings.rounds {
            violations.push(format!("{fault:?}: only {} rounds were possible", round - missed));
        }
        if figures.lost > 0 {
            violations.push(format!("{fault:?}: {} terms were lost", figures.lost));
        }
        let limit = settings.new_term_within.map(|more| (SESSION + more).as_nanos() as i64);
        if fault.ends_terms() && limit.is_some_and(|limit| figures.longest > limit) {
            violations.push(format!("{fault:?}: a new term began only after {longest:.3} s"));
        }
    }
    let Drill { candidates, terms, .. } = drill;
    for candidate in candidates {
        violations.extend(candidate.end().await);
    }
    let terms = lock(&terms);
    violations.extend(terms.violations());
    let _ = writeln!(
        text,
        "\n{} terms, {} writes, {} of them refused.",
        terms.count(),
        terms.writes,
        terms.refused
    );
    for violation in &violations {
        let _ = writeln!(text, "\nVIOLATION: {violation}");
    }
    println!("{text}");
    Ok(violations.is_empty())
}

#[derive(Default)]
struct FaultFigures {
    /// The terms of the candidates that were hit.
    hit: usize,
    /// The longest time in nanoseconds from the fault to the next term.
    longest: i64,
    /// The terms that ended although nothing should have ended them.
    lost: usize,
    longest_stall: Duration,
    /// The rounds without a stall: too little was left of the leases, or the machine was too slow. They are repeated.
    missed: usize,
}

struct Drill<'a> {
    settings: &'a ElectionArgs,
    rng: Rng,
    terms: Arc<Mutex<Terms>>,
    candidates: Vec<Candidate>,
    ensemble: Ensemble,
    lateness: Lateness,
}

/// Watches whether this process gets its processor time.
struct Lateness(Arc<Mutex<Duration>>);

impl Lateness {
    fn watch() -> Lateness {
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let shared = longest.clone();
        tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                sleep(LATENESS_LOOK).await;
                let late = begun.elapsed() - LATENESS_LOOK;
                let mut longest = lock(&shared);
                *longest = late.max(*longest);
            }
        });
        Lateness(longest)
    }

    /// Returns the longest lateness since the last call.
    fn take(&self) -> Duration {
        std::mem::take(&mut lock(&self.0))
    }
}

impl Drill<'_> {
    async fn run_round(
        &mut self,
        fault: ElectionFault,
        round: usize,
        figures: &mut FaultFigures,
    ) -> Outcome<()> {
        self.wait_until_all_stand().await?;
        sleep(Duration::from_millis(self.rng.u64(..2_000))).await;
        let leaders = lock(&self.terms).leaders();
        let hit = self.rng.usize(..leaders.len());
        let victim = leaders[hit].0;
        let (terms, others): (Vec<_>, Vec<_>) =
            leaders.into_iter().enumerate().partition(|(_, (who, _))| *who == victim);
        let tokens = |terms: Vec<(usize, (usize, String))>| -> Vec<(usize, String)> {
            terms.into_iter().map(|(it, (_, token))| (it, token)).collect()
        };
        let (terms, others) = (tokens(terms), tokens(others));
        self.lateness.take();
        let struck = now();
        match fault {
            ElectionFault::Killed => self.candidates[victim].kill().await,
            ElectionFault::Stopped => self.candidates[victim].signal(Signal::STOP),
            ElectionFault::Cut => self.candidates[victim].cut(round.is_multiple_of(2)).await,
            ElectionFault::Resigned => self.candidates[victim].order("resign").await?,
            ElectionFault::Stalled | ElectionFault::CutShortly => {
                return self.stall(fault, victim, &terms, &others, figures).await;
            }
        }
        figures.hit += terms.len();
        let begun = || lock(&self.terms).next_terms(&terms);
        wait_until("the next terms have begun", READY, || begun().is_some()).await?;
        figures.longest = figures.longest.max(begun().unwrap_or(struck) - struck);
        // The old leader lives on beside the new ones for a while.
        sleep(Duration::from_millis(self.rng.u64(..500))).await;
        match fault {
            ElectionFault::Killed => {
                self.candidates[victim] =
                    Candidate::start(&self.ensemble, victim, self.settings, &self.terms).await?;
            }
            ElectionFault::Stopped => self.candidates[victim].signal(Signal::CONT),
            ElectionFault::Resigned => lock(&self.terms).require_order(&terms),
            _ => self.candidates[victim].heal(),
        }
        if !self.was_late() {
            figures.lost += lock(&self.terms).count_ended(&others);
        }
        Ok(())
    }

    /// Returns whether the machine gave this process, and so perhaps also the candidates, too little time to renew a term.
    fn was_late(&self) -> bool {
        self.lateness.take() > Duration::from_millis(self.settings.reserve_ms) / 4
    }

    /// Stalls a candidate for almost the rest of its leases. Counts the terms that have ended afterwards, also the `others`, which
    /// have other leaders.
    async fn stall(
        &mut self,
        fault: ElectionFault,
        victim: usize,
        terms: &[(usize, String)],
        others: &[(usize, String)],
        figures: &mut FaultFigures,
    ) -> Outcome<()> {
        let candidate = &mut self.candidates[victim];
        let more = if fault == ElectionFault::Stalled { Duration::ZERO } else { RECONNECT };
        let reserve = Duration::from_millis(self.settings.reserve_ms) + more;
        let left = lock(&self.terms).least_left(terms, now());
        let Some(stall) = left.checked_sub(GRACE + reserve) else {
            figures.missed += 1;
            return Ok(());
        };
        match fault {
            ElectionFault::Stalled => candidate.signal(Signal::STOP),
            _ => candidate.cut(true).await,
        }
        sleep(stall).await;
        candidate.signal(Signal::CONT);
        candidate.heal();
        let healed = now();
        let is_renewed = || lock(&self.terms).are_valid_since(terms, healed + SESSION.as_nanos() as i64 / 4);
        let renewed = wait_until("the terms are renewed", RENEWED + SESSION / 4, is_renewed).await;
        if self.was_late() {
            figures.missed += 1;
            return Ok(());
        }
        figures.hit += terms.len();
        figures.longest_stall = figures.longest_stall.max(stall);
        figures.lost += lock(&self.terms).count_ended(others);
        if renewed.is_err() {
            // A term that is neither renewed nor over is as bad.
            figures.lost += lock(&self.terms).count_ended(terms).max(1);
        }
        Ok(())
    }

    /// Waits until each election has a leader whose term is valid, and all candidates stand in it.
    async fn wait_until_all_stand(&mut self) -> Outcome<()> {
        let client = crate::tree::connect(&self.ensemble.connect_string()).await?;
        let deadline = Instant::now() + READY;
        loop {
            for (number, candidate) in self.candidates.iter_mut().enumerate() {
                if let Ok(Some(status)) = candidate.child.try_wait() {
                    return Err(format!("candidate {number} ended with {status}").into());
                }
            }
            let queued = crate::tree::contenders(&client).await?.len();
            let led = lock(&self.terms).led_at(now());
            if queued == CANDIDATES * self.settings.elections && led == self.settings.elections {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("after {READY:?}, {queued} candidates stand and {led} lead").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A candidate, with its links to all nodes.
struct Candidate {
    links: Vec<Link>,
    child: Child,
    /// Records the reports until the process has ended.
    reports: JoinHandle<()>,
}

impl Candidate {
    async fn start(
        ensemble: &Ensemble,
        number: usize,
        settings: &ElectionArgs,
        terms: &Arc<Mutex<Terms>>,
    ) -> Outcome<Candidate> {
        let mut links = Vec::new();
        for node in 0..NODES {
            links.push(Link::open(ensemble.client_addr(node)).await?);
        }
        let addresses: Vec<String> = links.iter().map(Link::addr).collect();
        let mut command = own_command("candidate", settings.broken)?;
        command.args(["--connect", &addresses.join(","), "--elections", &settings.elections.to_string()]);
        let mut child = command.spawn()?;
        let said = child.stdout.take().ok_or("the output of the candidate is not piped")?;
        let terms = terms.clone();
        let record = move |report| lock(&terms).record(number, report);
        let reports = tokio::spawn(read_reports(said, "a candidate", record));
        Ok(Candidate { links, child, reports })
    }

    fn signal(&mut self, signal: Signal) {
        send_signal(&mut self.child, signal);
    }

    async fn kill(&mut self) {
        let _ = self.child.kill().await;
        let _ = (&mut self.reports).await;
    }

    async fn cut(&self, reset: bool) {
        for link in &self.links {
            link.set_fault(BLOCKED);
            if reset {
                link.close_connections().await;
            }
        }
    }

    fn heal(&self) {
        self.links.iter().for_each(|link| link.set_fault(LinkFault::default()));
    }

    async fn order(&mut self, order: &str) -> Outcome<()> {
        let input = self.child.stdin.as_mut().ok_or("the input of the candidate is not piped")?;
        Ok(input.write_all(format!("{order}\n").as_bytes()).await?)
    }

    /// Ends the candidate. Returns what went wrong.
    async fn end(mut self) -> Option<String> {
        let _ = self.order("end").await;
        let ended = timeout(READY, async {
            let status = self.child.wait().await;
            // All reports must be recorded before the judge looks at the terms.
            let _ = self.reports.await;
            status
        });
        match ended.await {
            Ok(Ok(status)) if status.success() => None,
            ended => Some(format!("a candidate ended with {ended:?}")),
        }
    }
}
