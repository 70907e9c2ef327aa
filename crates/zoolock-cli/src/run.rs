//! `zoolock run`: a command under a lock.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Acquired, acquire};
use crate::child::{Child, Ending, Environment};
use crate::connect::{abandon, close};
use crate::exit::{Exit, Failure};
use crate::holder::Holder;
use crate::local::Keeper;
use crate::plan::Run;
use crate::signals::Signals;
use crate::talk::{Talk, printable};
use crate::terminal::{self, Terminal};
use crate::watch::Watch;

/// How long the server may take to confirm a release.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// Takes the lock, runs the command, gives the lock back.
pub(crate) async fn run(plan: Run, talk: &Arc<Talk>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
    let _keeper = Keeper::of(&plan.service, talk);
    let Acquired { zoolock, holder } = acquire(&plan.service, &plan.wanted, talk, &mut signals).await?;
    let name = plan.wanted.name.as_str();
    talk.detail(format_args!("holding {name}, token {}", holder.ticket()));
    let result = run_under(&plan, &holder, talk, &mut signals).await;
    if holder.is_valid() {
        release(holder, name, talk).await;
        close(zoolock).await;
    } else {
        abandon(zoolock).await;
    }
    result
}

async fn run_under(plan: &Run, holder: &Holder, talk: &Talk, signals: &mut Signals) -> Result<Exit, Failure> {
    let name = plan.wanted.name.as_str();
    if !holder.is_valid() {
        return Err(Failure::new(Exit::LOST, format!("lost {name} before the command was started")));
    }
    let environment = Environment {
        name: plan.wanted.names.join(" "),
        token: holder.token(),
        ticket: holder.ticket(),
        previous: holder.previous(),
        path: holder.paths().join(" "),
    };
    let terminal = Terminal::open();
    let foreground =
        terminal.as_ref().is_some_and(|terminal| terminal.is_ours() && terminal::wanted_at_once());
    if terminal.is_some() {
        // ^Z on a terminal that we share with the command: it stops first, then we do.
        let _ = signals.also(rustix::process::Signal::TSTP);
    }
    let child = Child::start(&plan.command, &environment, foreground)?;
    let end = Watch::new(plan, holder, talk, child, terminal.as_ref()).until_the_end(signals).await;
    let program =
        plan.command.first().map(|program| printable(&program.to_string_lossy())).unwrap_or_default();
    if end.lock_lost {
        return Err(Failure::new(
            Exit::LOST,
            format!("lost {name} while {program} ran; it ended with {}", end.ending),
        ));
    }
    if end.ending != Ending::Code(0) {
        talk.note(format_args!("{program} ended with {}", end.ending));
    }
    Ok(end.ending.exit())
}

/// Gives the lock back, and does not wait for it longer than it takes to free itself.
pub(crate) async fn release(holder: Holder, name: &str, talk: &Talk) {
    match tokio::time::timeout(RELEASE_BOUND, holder.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            talk.note(format_args!("releasing {name}: {error}; it frees itself with our session"))
        }
        Err(_) => talk.note(format_args!(
            "releasing {name}: no answer from the server; it frees itself with our session"
        )),
    }
}
