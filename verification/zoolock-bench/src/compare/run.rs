//! The run: work after work, round after round, and in each round client after client.

use std::time::Duration;

use indicatif::ProgressBar;

use super::CompareArgs;
use super::client::ClientOnServer;
use super::plan::ComparedWork;
use super::results::{Results, RoundResult};
use super::running_servers::Fleet;
use super::workers::WorkerPool;
use crate::Outcome;
use crate::job::{Job, Measurement};

/// The time in which the second process must end its last acquisition.
const LEAVING: Duration = Duration::from_secs(60);

/// Runs all jobs. Adds each result to `results` as soon as its job has ended.
pub(super) async fn run(
    settings: &CompareArgs,
    works: &[ComparedWork],
    results: &mut Results,
    progress: &ProgressBar,
) -> Outcome<()> {
    let all = super::plan::works(&settings.sizes(), settings.rtt);
    let order: Vec<&str> = all.iter().map(|work| work.name).collect();
    let mut testbed = Testbed {
        workers: WorkerPool::new()?,
        fleet: Fleet::new(settings.zoolock.clone(), settings.dir(), settings.rtt),
        jobs: 0,
        progress: progress.clone(),
    };
    for work in works {
        let measured = results.begin(work, settings.quick, &order);
        if work.needs_own_server {
            // Idle servers of other works would disturb the measurement.
            testbed.fleet.stop_all();
        }
        for _ in 0..work.warm_ups() {
            for entry in &mut measured.entries {
                testbed.print_progress(work, entry.who, "warming up");
                if let Err(error) = testbed.run_job(work, entry.who, work.warming_job(entry.who)).await {
                    entry.failed = Some(error.to_string());
                }
            }
        }
        let rounds = work.rounds(settings.rounds);
        for round in 0..rounds {
            let count = measured.entries.len();
            for turn in 0..count {
                // The order rotates, so that each round starts with another client.
                let entry = &mut measured.entries[(turn + round) % count];
                testbed.print_progress(work, entry.who, &format!("round {} of {rounds}", round + 1));
                if entry.failed.is_some() {
                    continue;
                }
                match testbed.run_job(work, entry.who, work.job_of(entry.who)).await {
                    Ok((measurement, second)) => {
                        entry.rounds.push(RoundResult::new(measurement, work.figure, second)?)
                    }
                    Err(error) => entry.failed = Some(error.to_string()),
                }
            }
        }
        measured.cut_short = false;
        if let Some(dir) = settings.results_dir() {
            results.save(&dir.join("compare.json"))?;
        }
    }
    Ok(())
}

struct Testbed {
    // Declared before the servers, so that the clients are dropped first.
    workers: WorkerPool,
    fleet: Fleet,
    jobs: usize,
    progress: ProgressBar,
}

impl Testbed {
    fn print_progress(&self, work: &ComparedWork, who: ClientOnServer, what: &str) {
        let message = format!("{}: {what}: {}", work.name, who.name());
        if self.progress.is_hidden() {
            eprintln!("{message}");
        }
        self.progress.set_message(message);
        self.progress.inc(1);
    }

    /// Runs one job of a client. Runs a second process of the same client beside it if the work asks for one.
    async fn run_job(
        &mut self,
        work: &ComparedWork,
        who: ClientOnServer,
        job: Job,
    ) -> Outcome<(Measurement, Option<Measurement>)> {
        let measurement = self.run_on_workers(work, who, job).await;
        let trouble = self.fleet.stop_if_failed(who.server);
        if work.needs_own_server {
            self.fleet.stop(who.server);
            self.workers.stop(who.client, 0);
        }
        measurement.map_err(|error| match trouble {
            Some(trouble) => format!("{error}; {trouble}").into(),
            None => error,
        })
    }

    async fn run_on_workers(
        &mut self,
        work: &ComparedWork,
        who: ClientOnServer,
        job: Job,
    ) -> Outcome<(Measurement, Option<Measurement>)> {
        self.jobs += 1;
        // The path is short, because the bytes of watched paths are limited per session.
        let path = format!("/b/{}", self.jobs);
        let address = self.fleet.address(who.server, work.network).await?;
        let job = job.with("connect", address).with("path", &path);
        if !work.has_second_process {
            self.workers.send_job(who.client, 0, &job).await?;
            return Ok((self.workers.receive_result(who.client, 0, work.limit).await?, None));
        }
        let stop = self.workers.dir().join(format!("stop-{}", self.jobs));
        let visit = Job::new("visit").with("connect", address).with("path", format!("{path}-0"));
        self.workers.send_job(who.client, 1, &visit.with("stop", stop.display())).await?;
        self.workers.send_job(who.client, 0, &job.with("stop", stop.display())).await?;
        let measurement = self.workers.receive_result(who.client, 0, work.limit).await;
        // A client that failed has not created this file, which ends the second process.
        std::fs::write(&stop, "")?;
        let second = self.workers.receive_result(who.client, 1, LEAVING).await;
        Ok((measurement?, Some(second?)))
    }
}
