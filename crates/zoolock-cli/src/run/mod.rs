//! `zoolock run`: runs a command under a lock.

pub(crate) mod acquire;
mod flags;
mod hold;
mod job;
mod keep;
mod outer;
mod release;
mod run_once;
mod supervisor;
mod wanted;

use std::sync::Arc;

use crate::args::RunArgs;
use crate::base::exit::{Exit, Failure};
use crate::base::input::InputEnd;
use crate::base::reporter::Reporter;
use crate::base::signals::Signals;
use crate::local::ServerKeeper;
use crate::metrics::export_while;
use crate::plan::Context;
use crate::reaper::ending::Ending;
use crate::run::acquire::{Acquired, acquire};
use crate::run::job::Job;
use crate::run::keep::run_with_restarts;
use release::release_and_close;
use run_once::{command_name, run_once};

impl RunArgs {
    /// Runs `zoolock run`.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let job = Job::check(self, context)?;
        let otlp = context.global.environment.otlp.as_deref();
        export_while(
            job.metrics,
            otlp,
            job.wanted.leader.clone(),
            &context.reporter,
            run(&job, &context.reporter),
        )
        .await
    }
}

/// Acquires the lock, runs the command and releases the lock. With `--keep`, repeats that.
async fn run(job: &Job, reporter: &Arc<Reporter>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let _keeper = ServerKeeper::start_for(&job.service, reporter);
    if job.child.keep {
        return run_with_restarts(job, reporter, &mut signals).await;
    }
    let input = &mut InputEnd::never();
    let acquired = acquire(&job.service, &job.wanted, reporter, &mut signals, input, &mut false).await?;
    let name = job.wanted.name.as_str();
    reporter.detail(format_args!("holding {name}, token {}", acquired.holder.ticket()));
    let mut result = run_once(job, &acquired, reporter, &mut signals, false).await;
    if let Ok(outcome) = &mut result {
        outcome.reaper.begin_release();
    }
    let Acquired { zoolock, holder, slots } = acquired;
    release_and_close(zoolock, holder, slots, name, reporter).await;
    let outcome = result?;
    outcome.reaper.dismiss().await;
    if let Some(loss) = outcome.loss {
        let what = format!("{loss} while {} ran; it ended with {}", command_name(job), outcome.ending);
        return Err(Failure::new(Exit::LOST, what));
    }
    if outcome.ending != Ending::Code(0) {
        reporter.note(format_args!("{} ended with {}", command_name(job), outcome.ending));
    }
    Ok(outcome.exit)
}
