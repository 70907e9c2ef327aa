//! `zoolock run --keep`: stand by, take over, start again; exactly one in the fleet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::{Acquired, acquire};
use crate::backoff::Backoff;
use crate::duration::humane;
use crate::exit::{Exit, Failure};
use crate::hold::why;
use crate::input::InputEnd;
use crate::plan::Run;
use crate::run::{give_back, program, run_under};
use crate::signals::{Signals, name as signal_name};
use crate::talk::Talk;

/// Keeps the command running, here or elsewhere, until somebody ends us; then the code is the command's.
pub(crate) async fn keep(plan: &Run, talk: &Arc<Talk>, signals: &mut Signals) -> Result<Exit, Failure> {
    let name = plan.wanted.name.as_str();
    let mut reached = false;
    let mut unreached = Backoff::default();
    loop {
        let input = &mut InputEnd::never();
        let acquired = match acquire(&plan.service, &plan.wanted, talk, signals, input, &mut reached).await {
            Ok(acquired) => acquired,
            // Who could not reach it once has most likely been told a wrong address.
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
        give_back(acquired, name, talk).await;
        if let Some(exit) = result {
            return Ok(exit);
        }
    }
}

/// Whether trying again may help.
fn is_passing(exit: Exit, plan: &Run) -> bool {
    exit == Exit::UNAVAILABLE || exit == Exit::LOST || exit == plan.wanted.on_busy
}

/// Starts the command again and again while the lock is ours; `None` when it is not any more, or another is to have it.
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
            // No process or no file to be had, a reaper that was killed: it passes, as an end of the command does.
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
