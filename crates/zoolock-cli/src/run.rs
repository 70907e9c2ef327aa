//! `zoolock run`: a command under a lock.

use std::sync::Arc;
use std::time::Duration;

use zoolock::{Guard, Previous};

use crate::acquire::{Acquired, acquire};
use crate::child::{Child, Ending, Environment};
use crate::connect::{abandon, close};
use crate::exit::{Exit, Failure};
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
    let Acquired { zoolock, guard } = acquire(&plan.service, &plan.wanted, talk, &mut signals).await?;
    let name = plan.wanted.name.as_str();
    talk.detail(format_args!("holding {name}, token {}", guard.token()));
    let result = run_under(&plan, &guard, talk, &mut signals).await;
    if guard.is_valid() {
        release(guard, name, talk).await;
        close(zoolock).await;
    } else {
        abandon(zoolock).await;
    }
    result
}

async fn run_under(plan: &Run, guard: &Guard, talk: &Talk, signals: &mut Signals) -> Result<Exit, Failure> {
    let name = plan.wanted.name.as_str();
    if !guard.is_valid() {
        return Err(Failure::new(Exit::LOST, format!("lost {name} before the command was started")));
    }
    let environment = Environment {
        name: name.to_owned(),
        token: guard.token().to_string(),
        previous: previous(guard.previous()),
        path: guard.path().to_owned(),
    };
    let terminal = Terminal::open();
    let foreground =
        terminal.as_ref().is_some_and(|terminal| terminal.is_ours() && terminal::wanted_at_once());
    if terminal.is_some() {
        // ^Z on a terminal that we share with the command: it stops first, then we do.
        let _ = signals.also(rustix::process::Signal::TSTP);
    }
    let child = Child::start(&plan.command, &environment, foreground)?;
    let end = Watch::new(plan, guard, talk, child, terminal.as_ref()).until_the_end(signals).await;
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
pub(crate) async fn release(guard: Guard, name: &str, talk: &Talk) {
    match tokio::time::timeout(RELEASE_BOUND, guard.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            talk.note(format_args!("releasing {name}: {error}; it frees itself with our session"))
        }
        Err(_) => talk.note(format_args!(
            "releasing {name}: no answer from the server; it frees itself with our session"
        )),
    }
}

/// How the last holder left, as the command's environment has it.
pub(crate) fn previous(previous: Previous) -> &'static str {
    match previous {
        Previous::Clean => "clean",
        _ => "unknown",
    }
}
