//! `zoolock run`: runs a command under a lock.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Acquired, acquire};
use crate::args::OnLost;
use crate::child::{Child, Ending, Environment, Start};
use crate::clock;
use crate::connect::{abandon, close};
use crate::exit::{Exit, Failure};
use crate::holder::Holder;
use crate::input::InputEnd;
use crate::keep::keep;
use crate::local::{HolderFile, Keeper};
use crate::plan::Run;
use crate::signals::Signals;
use crate::supervisor::{End, Supervisor};
use crate::talk::{Talk, printable};
use crate::terminal::{self, Terminal};

/// Maximum time for the server to confirm a release.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// Acquires the lock, runs the command and releases the lock. With `--keep`, repeats that.
pub(crate) async fn run(plan: Run, talk: &Arc<Talk>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
    let _keeper = Keeper::of(&plan.service, talk);
    if plan.keep {
        return keep(&plan, talk, &mut signals).await;
    }
    let input = &mut InputEnd::never();
    let acquired = acquire(&plan.service, &plan.wanted, talk, &mut signals, input, &mut false).await?;
    let name = plan.wanted.name.as_str();
    talk.detail(format_args!("holding {name}, token {}", acquired.holder.ticket()));
    let result = run_under(&plan, &acquired, talk, &mut signals).await;
    give_back(acquired, name, talk).await;
    let end = result?;
    if end.lock_lost {
        return Err(Failure::new(
            Exit::LOST,
            format!("lost {name} while {} ran; it ended with {}", program(&plan), end.ending),
        ));
    }
    if end.ending != Ending::Code(0) {
        talk.note(format_args!("{} ended with {}", program(&plan), end.ending));
    }
    Ok(end.ending.exit())
}

/// Runs the command once.
pub(crate) async fn run_under(
    plan: &Run,
    acquired: &Acquired,
    talk: &Talk,
    signals: &mut Signals,
) -> Result<End, Failure> {
    let Acquired { zoolock, holder } = acquired;
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
        held: [&plan.wanted.outer[..], &[holder.acquisition_id()]].concat().join(" "),
        owner: plan.service.owner.clone(),
    };
    let terminal = Terminal::open();
    let foreground = terminal.as_ref().is_some_and(|terminal| terminal.is_ours())
        && terminal::wanted_at_once()
        && !plan.keep;
    if terminal.is_some() {
        // After ^Z on a terminal that zoolock shares with the command, the command stops first, then zoolock.
        let _ = signals.also(rustix::process::Signal::TSTP);
    }
    let lease = (plan.on_lost == OnLost::Kill).then(|| clock::at(holder.valid_until()));
    let grace = plan.grace_of(zoolock.session_timeout().unwrap_or(plan.service.session_timeout));
    let file = HolderFile::of(&plan.service, holder.session_id());
    let start = Start {
        command: &plan.command,
        environment: &environment,
        foreground,
        grace,
        lease,
        held: file.as_ref().map(HolderFile::file),
    };
    let child = Child::start(start).await?;
    let supervisor = Supervisor::new(plan, acquired, grace, talk, child, lease, terminal.as_ref());
    Ok(supervisor.until_the_end(signals).await)
}

/// Returns the command's name, for messages.
pub(crate) fn program(plan: &Run) -> String {
    plan.command.first().map(|program| printable(&program.to_string_lossy())).unwrap_or_default()
}

/// Releases the lock if it is still held, and closes the session.
pub(crate) async fn give_back(acquired: Acquired, name: &str, talk: &Talk) {
    let Acquired { zoolock, holder } = acquired;
    if holder.is_valid() {
        release(holder, name, talk).await;
        close(zoolock).await;
    } else {
        abandon(zoolock).await;
    }
}

/// Releases the lock. Waits at most [`RELEASE_BOUND`], because the end of the session frees the lock, too.
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
