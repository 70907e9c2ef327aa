//! One run: starts the ensemble and the workers, injects and heals one fault after the other, stops, and judges.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};
use zoolock_tests::lock;

use crate::Outcome;
use crate::clock::{now, seconds};
use crate::divergence::restart_diverged_nodes;
use crate::ensemble::{Ensemble, NODES, START, SYNC_LIMIT, WHOLE, save_logs};
use crate::faults::{FaultKind, Targets};
use crate::judge;
use crate::referee::Referee;
use crate::report;
use crate::settings::DrillArgs;
use crate::task::DeliberateBug;
use crate::tree;
use crate::usable_spans::{Prober, UsableSpans};
use crate::verdict::{Observations, ProgressSample};
use crate::worker::TIMEOUTS;
use crate::workers::Workers;

/// The time after healing within which all waiters must be served.
const SERVED: Duration = Duration::from_secs(60);
/// The pause before each comparison of the nodes' trees while tasks wait.
const LOOK: Duration = Duration::from_secs(5);

/// Runs the drill. Returns whether there were no violations.
pub(crate) async fn run(settings: &DrillArgs) -> Outcome<bool> {
    let seed = settings.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}, {} workers, {:?}", settings.workers, settings.time);
    let dir = std::env::temp_dir();
    let dir = TempDir::with_prefix_in("zoolock-chaos-", dir)?;
    let file = dir.path().join("referee.sqlite");
    let socket = dir.path().join("referee");
    let mut ensemble = Ensemble::configure(dir.path(), SYNC_LIMIT).await?;
    ensemble.wait_until_whole(START).await?;
    let referee = Arc::new(Referee::start(&file, &socket, settings.broken != Some(DeliberateBug::Unfenced))?);
    let nodes: Vec<_> = (0..NODES).map(|node| ensemble.client_addr(node)).collect();
    let prober = Prober::start(&nodes);
    let workers = Workers::new(settings.workers, &nodes, socket, seed, settings.broken).await?;
    let mut targets = Targets { ensemble, workers };
    targets.heal()?;
    let observations = Arc::new(Mutex::new(Observations { began: now(), ..Observations::default() }));
    let sampling = tokio::spawn(record_progress(referee.clone(), observations.clone()));
    let mut fault_loop =
        FaultLoop { settings, seed, targets: &mut targets, referee: &referee, observations: &observations };
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = fault_loop.run() => ended?,
        _ = tokio::signal::ctrl_c() => eprintln!("interrupted: healing and judging now"),
        _ = terminated.recv() => return Err("terminated".into()),
    }
    stop_and_check_leftovers(&mut targets, &referee, &observations).await?;
    sampling.abort();
    let _ = sampling.await;
    let reach = UsableSpans { usable: prober.usable(), broken: targets.workers.broken_spans() };
    drop(prober);
    drop(targets);
    let referee = Arc::into_inner(referee).ok_or("the referee is still in use")?;
    referee.close().await?;
    let observations = Arc::into_inner(observations).ok_or("a task still records observations")?;
    let observations =
        Observations { reach, ..observations.into_inner().unwrap_or_else(PoisonError::into_inner) };
    let verdict = judge::judge(&file, observations)?;
    let text = report::format_report(settings, seed, &verdict);
    println!("{text}");
    if let Some(out) = &settings.out {
        std::fs::create_dir_all(out)?;
        std::fs::write(out.join("chaos.md"), &text)?;
        std::fs::write(out.join("chaos.svg"), crate::timeline::draw_timeline(&verdict))?;
        std::fs::copy(&file, out.join("referee.sqlite"))?;
        save_logs(dir.path(), out)?;
    }
    Ok(verdict.violations.is_empty())
}

fn record_violation(observations: &Mutex<Observations>, violation: String) {
    eprintln!("VIOLATION: {violation}");
    lock(observations).violations.push(violation);
}

async fn record_progress(referee: Arc<Referee>, observations: Arc<Mutex<Observations>>) {
    loop {
        let sample = {
            let live = referee.live();
            ProgressSample { at: now(), sections: live.sections }
        };
        lock(&observations).samples.push(sample);
        sleep(Duration::from_secs(1)).await;
    }
}

struct FaultLoop<'a> {
    settings: &'a DrillArgs,
    seed: u64,
    targets: &'a mut Targets,
    referee: &'a Referee,
    observations: &'a Mutex<Observations>,
}

impl FaultLoop<'_> {
    async fn run(&mut self) -> Outcome<()> {
        let mut rng = Rng::with_seed(self.seed);
        let until = Instant::now() + self.settings.time;
        let kinds = if self.settings.only.is_empty() { FaultKind::all() } else { &self.settings.only[..] };
        let mut round: Vec<FaultKind> = Vec::new();
        let mut count = 0;
        self.wait_until_served(now()).await?;
        while Instant::now() < until {
            sleep(Duration::from_millis(rng.u64(200..2_000))).await;
            if round.is_empty() {
                // Each kind occurs once before any kind repeats.
                round.extend_from_slice(kinds);
                rng.shuffle(&mut round);
            }
            let Some(kind) = round.pop() else { continue };
            count += 1;
            self.inject_one(kind, count, &mut rng).await?;
        }
        Ok(())
    }

    async fn inject_one(&mut self, kind: FaultKind, count: u32, rng: &mut Rng) -> Outcome<()> {
        let struck = now();
        let injected = kind.inject(self.targets, self.referee, rng).await;
        let target = match &injected {
            Ok(injected) => {
                sleep(injected.lasts).await;
                if let Some(node) = injected.node_to_wipe {
                    self.targets.ensemble.wipe(node).await?;
                }
                injected.target.clone()
            }
            Err(error) => format!("not done: {error}"),
        };
        for ended in self.targets.workers.ended_workers() {
            record_violation(self.observations, ended);
        }
        let lives: Vec<u32> =
            (0..self.targets.workers.len()).map(|it| self.targets.workers.starts_of(it)).collect();
        self.targets.heal()?;
        for (worker, life) in lives.into_iter().enumerate() {
            let lives = self.targets.workers.starts_of(worker);
            if lives != life {
                self.referee.remove_tasks_of_worker(worker, lives);
            }
        }
        let healed = now();
        if let Err(error) = self.targets.ensemble.wait_until_whole(WHOLE).await {
            let logs: Vec<String> = (0..NODES).map(|node| self.targets.ensemble.log_tail(node)).collect();
            record_violation(
                self.observations,
                format!("after {}: {error}\n{}", kind.name(), logs.join("\n--\n")),
            );
        }
        self.wait_until_served(healed).await?;
        let settled = now();
        restart_diverged(self.targets, self.observations).await?;
        let done = if injected.is_ok() { kind.name() } else { kind.name() + crate::verdict::NOT_DONE };
        self.referee.record_fault(&done, &target, struck, healed, settled);
        if let Err(error) = self.check_releases().await {
            eprintln!("not looked for lost releases: {error}");
        }
        let (sections, refused) = {
            let live = self.referee.live();
            (live.sections, live.refused)
        };
        let (lasted, settling) = (seconds(healed - struck), seconds(settled - healed));
        eprintln!(
            "{count:4} {done:18} {target:32} {lasted:5.1} s, all served {settling:4.1} s later; {sections} sections, {refused} writes refused",
        );
        Ok(())
    }

    /// Waits until all attempts that began before `since` have ended. Records a violation if that
    /// takes longer than [`SERVED`].
    async fn wait_until_served(&mut self, since: i64) -> Outcome<()> {
        let deadline = Instant::now() + SERVED;
        let mut look = Instant::now() + LOOK;
        loop {
            let waiting: Vec<String> = {
                let live = self.referee.live();
                let old = live.busy.iter().filter(|(_, (asked, _))| *asked < since);
                old.map(|(who, (asked, locks))| {
                    format!("{who:?} for {} since {:.1} s", locks.join(" and "), seconds(now() - asked))
                })
                .collect()
            };
            if waiting.is_empty() {
                return Ok(());
            }
            if Instant::now() > look {
                restart_diverged(self.targets, self.observations).await?;
                look = Instant::now() + LOOK;
            }
            if Instant::now() > deadline {
                record_violation(
                    self.observations,
                    format!("not served {SERVED:?} after healing: {}", waiting.join(", ")),
                );
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn check_releases(&self) -> Outcome<()> {
        let released = self.referee.live().released.clone();
        let client = tree::connect(&self.targets.ensemble.connect_string()).await?;
        for contender in tree::contenders(&client).await? {
            if released.contains(&ticket(contender.czxid)) {
                record_violation(
                    self.observations,
                    format!("{} is there, and its release was confirmed", contender.path),
                );
            }
        }
        Ok(())
    }
}

/// Restarts a node whose tree differs from that of the others. Such a difference is a bug of
/// ZooKeeper, and no violation.
async fn restart_diverged(targets: &mut Targets, observations: &Mutex<Observations>) -> Outcome<()> {
    let diverged = restart_diverged_nodes(&mut targets.ensemble, WHOLE).await?;
    lock(observations).diverged.extend(diverged);
    Ok(())
}

fn ticket(czxid: i64) -> String {
    format!("{:08x}-{czxid:016x}-{:08x}", 0, 0)
}

/// Stops all workers, and checks that no contender's znode is left.
async fn stop_and_check_leftovers(
    targets: &mut Targets,
    referee: &Referee,
    observations: &Mutex<Observations>,
) -> Outcome<()> {
    targets.heal()?;
    targets.ensemble.wait_until_whole(WHOLE).await?;
    restart_diverged(targets, observations).await?;
    for late in targets.workers.stop(SERVED).await {
        record_violation(observations, late);
    }
    lock(observations).ended = now();
    restart_diverged(targets, observations).await?;
    let client = tree::connect(&targets.ensemble.connect_string()).await?;
    // The sessions of killed workers must expire first.
    let deadline = Instant::now() + 3 * TIMEOUTS[1];
    loop {
        let left = tree::contenders(&client).await?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let released = referee.live().released.clone();
            let sessions: HashSet<i64> = left.iter().map(|it| it.session).collect();
            for contender in &left {
                let lost = released.contains(&ticket(contender.czxid));
                let what = if lost { "its release was confirmed" } else { "its session should be over" };
                record_violation(observations, format!("{} is left, and {what}", contender.path));
            }
            record_violation(
                observations,
                format!("{} nodes of {} sessions are left", left.len(), sessions.len()),
            );
            return Ok(());
        }
        sleep(Duration::from_millis(100)).await;
    }
}
