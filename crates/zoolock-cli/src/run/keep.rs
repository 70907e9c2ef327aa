//! `zoolock run --keep`: restarts the command, and waits for the lock again after a loss. At most
//! one command runs in the fleet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::backoff::Backoff;
use crate::base::duration::humane;
use crate::base::exit::{Exit, Failure};
use crate::base::input::InputEnd;
use crate::base::signals::{Signals, name as signal_name};
use crate::base::talk::Talk;
use crate::plan::Run;
use crate::run::acquire::{Acquired, acquire};
use crate::run::release::{give_back, why};
use crate::run::under::{program, run_under};

/// Acquires the lock and runs the command, again and again, until a signal ends zoolock.
/// Returns the exit code of the command.
pub(crate) async fn keep(plan: &Run, talk: &Arc<Talk>, signals: &mut Signals) -> Result<Exit, Failure> {
    let name = plan.wanted.name.as_str();
    let mut reached = false;
    let mut unreached = Backoff::default();
    loop {
        let input = &mut InputEnd::never();
        let acquired = match acquire(&plan.service, &plan.wanted, talk, signals, input, &mut reached).await {
            Ok(acquired) => acquired,
            // Not before the first connection: then the address is probably wrong.
            Err(failure) if reached && is_passing(failure.exit, plan) => {
                let pause = unreached.after(Duration::ZERO);
                talk.note(format_args!("{failure}; waiting for {name} again in {}", humane(pause)));
                tokio::select! {
                    () = tokio::time::sleep(pause) => continue,
                    signal = signals.end() => return Ok(Exit::signal(signal)),
                }
            }
            Err(failure) => return Err(failure),
        };
        unreached = Backoff::default();
        talk.note(format_args!("{name} is ours; starting {}", program(plan)));
        let result = keep_under(plan, &acquired, talk, signals).await;
        let Acquired { zoolock, holder } = acquired;
        give_back(zoolock, holder, name, talk).await;
        if let Some(exit) = result {
            return Ok(exit);
        }
    }
}

/// Returns whether another attempt may succeed.
fn is_passing(exit: Exit, plan: &Run) -> bool {
    exit == Exit::UNAVAILABLE || exit == Exit::LOST || exit == plan.wanted.on_busy
}

/// Runs the command again and again under the lock. `None` after the lock was lost or revoked.
async fn keep_under(plan: &Run, acquired: &Acquired, talk: &Talk, signals: &mut Signals) -> Option<Exit> {
    let holder = &acquired.holder;
    let name = plan.wanted.name.as_str();
    let mut backoff = Backoff::default();
    loop {
        let begun = Instant::now();
        let what = match run_under(plan, acquired, talk, signals).await {
            Err(failure) if failure.exit == Exit::LOST => {
                talk.error(format_args!("{failure}; standing by"));
                return None;
            }
            // The system refused a process or a file, or the reaper was killed. A restart may help, as
            // after the end of the command.
            Err(failure) => failure.to_string(),
            Ok(end) => {
                let what = format!("{} ended with {}", program(plan), end.ending);
                if end.wanted {
                    talk.note(what);
                    return Some(if end.lock_lost { Exit::LOST } else { end.ending.exit() });
                }
                if end.lock_lost {
                    talk.error(format_args!("lost {name}; {what}; standing by"));
                    return None;
                }
                if end.revoked {
                    talk.note(format_args!("{what}; letting go of {name}, and standing by"));
                    return None;
                }
                what
            }
        };
        let pause = backoff.after(begun.elapsed());
        talk.note(format_args!("{what}; starting it again in {}", humane(pause)));
        tokio::select! {
            biased;
            signal = signals.end() => {
                talk.note(format_args!("ended by {}", signal_name(signal)));
                return Some(Exit::signal(signal));
            }
            reason = holder.lost() => {
                talk.error(format_args!("lost {name}: {}; standing by", why(reason)));
                return None;
            }
            () = holder.revoked() => {
                talk.note(format_args!("somebody asks for {name}; letting go, and standing by"));
                return None;
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}
