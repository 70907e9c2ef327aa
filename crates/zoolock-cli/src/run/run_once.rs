//! Runs the command once under a lock.

use crate::args::OnLost;
use crate::base::clock;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::base::signals::Signals;
use crate::base::terminal::{self, Terminal};
use crate::local::HolderFile;
use crate::plan::RunPlan;
use crate::reaper::child::{CommandStart, Environment, RunningCommand};
use crate::run::acquire::Acquired;
use crate::run::supervisor::{RunOutcome, Supervisor};

/// Starts the command under the acquired lock, and supervises it until it has ended.
pub(crate) async fn run_once(
    plan: &RunPlan,
    acquired: &Acquired,
    reporter: &Reporter,
    signals: &mut Signals,
) -> Result<RunOutcome, Failure> {
    let Acquired { zoolock, holder } = acquired;
    let name = plan.wanted.name.as_str();
    if !holder.is_valid() {
        return Err(Failure::new(Exit::LOST, format!("lost {name} before the command was started")));
    }
    let environment = Environment {
        name: plan.wanted.names.join(" "),
        token: holder.token().map(|token| token.to_string()),
        ticket: holder.ticket().to_string(),
        previous: holder.previous().to_string(),
        path: holder.paths().join(" "),
        held: [&plan.wanted.outer[..], &[holder.acquisition_id()]].concat().join(" "),
        owner: plan.service.owner.clone(),
    };
    let terminal = Terminal::open();
    let foreground = terminal.as_ref().is_some_and(|terminal| terminal.is_foreground())
        && terminal::command_starts_in_foreground()
        && !plan.keep;
    if terminal.is_some() {
        // Handles ^Z on a terminal that zoolock shares with the command. The command stops first,
        // then zoolock.
        let _ = signals.add_unless_ignored(rustix::process::Signal::TSTP);
    }
    let lease = (plan.on_lost == OnLost::Kill).then(|| clock::lease_time_of(holder.valid_until()));
    let grace = plan.grace_of(zoolock.session_timeout().unwrap_or(plan.service.session_timeout));
    let file = HolderFile::create_for(&plan.service, holder.session_id());
    let start = CommandStart {
        command: &plan.command,
        environment: &environment,
        foreground,
        grace,
        lease,
        held: file.as_ref().map(HolderFile::file),
    };
    let child = RunningCommand::start(start).await?;
    let supervisor = Supervisor::new(plan, acquired, grace, reporter, child, lease, terminal.as_ref());
    Ok(supervisor.supervise(signals).await)
}

/// Returns the command's name, for messages.
pub(crate) fn command_name(plan: &RunPlan) -> String {
    plan.command.first().map(|program| escape_unprintable(&program.to_string_lossy())).unwrap_or_default()
}
