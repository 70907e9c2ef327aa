//! `zoolock run`: runs a command under a lock.

pub(crate) mod acquire;
pub(crate) mod hold;
mod holder;
mod keep;
mod outer;
mod release;
mod supervisor;
mod under;

use std::sync::Arc;

use crate::base::exit::{Exit, Failure};
use crate::base::input::InputEnd;
use crate::base::signals::Signals;
use crate::base::talk::Talk;
use crate::local::Keeper;
use crate::plan::Run;
use crate::reaper::ending::Ending;
use crate::run::acquire::{Acquired, acquire};
use crate::run::keep::keep;
use release::give_back;
use under::{program, run_under};

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
    let Acquired { zoolock, holder } = acquired;
    give_back(zoolock, holder, name, talk).await;
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
