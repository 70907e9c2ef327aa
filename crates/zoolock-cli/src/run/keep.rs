//! `zoolock run --keep`: restarts the command when it ends, and waits for the lock again after a
//! loss. With an exclusive lock, only one host of a fleet runs the command at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::base::backoff::Backoff;
use crate::base::duration::format_duration;
use crate::base::exit::{Exit, Failure};
use crate::base::input::InputEnd;
use crate::base::reporter::Reporter;
use crate::base::signals::{Signals, signal_name};
use crate::reaper::child::RunningCommand;
use crate::run::acquire::{Acquired, LOOK_TIMEOUT, acquire};
use crate::run::job::Job;
use crate::run::release::{describe_loss, release_and_close};
use crate::run::run_once::{command_name, run_once};

/// The commands that have ended.
#[derive(Default)]
struct EarlierCommands {
    /// The last command, with its reaper.
    last: Option<RunningCommand>,
    /// Set if processes of a command may live.
    has_leftovers: bool,
}

impl EarlierCommands {
    /// Dismisses the reaper of the last command.
    async fn dismiss(&mut self) {
        if let Some(last) = self.last.take() {
            self.has_leftovers |= !last.dismiss().await;
        }
    }
}

/// Acquires the lock and runs the command, again and again, until a signal ends zoolock. Returns
/// the exit code of the command that was running, or the code of the signal if none was running.
/// Returns [`Exit::LOST`] if the lock was lost, too.
pub(crate) async fn run_with_restarts(
    job: &Job,
    reporter: &Arc<Reporter>,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let name = job.wanted.name.as_str();
    signals.stay_at_hup_without_terminal(reporter);
    let mut reached = false;
    let mut unreached = Backoff::default();
    let mut earlier = EarlierCommands::default();
    loop {
        job.wanted.leader.wait();
        let input = &mut InputEnd::never();
        let acquired = match acquire(&job.service, &job.wanted, reporter, signals, input, &mut reached).await
        {
            Ok(acquired) => acquired,
            // Tries again only if the server was reached before. Otherwise the address is probably wrong.
            Err(failure) if reached && is_transient(failure.exit, job) => {
                let pause = unreached.next_pause(Duration::ZERO);
                reporter
                    .note(format_args!("{failure}; waiting for {name} again in {}", format_duration(pause)));
                tokio::select! {
                    () = tokio::time::sleep(pause) => continue,
                    signal = signals.next_end_signal() => return Ok(Exit::Signal(signal)),
                }
            }
            Err(failure) => return Err(failure),
        };
        unreached = Backoff::default();
        reporter.note(format_args!("acquired {name}; starting {}", command_name(job)));
        let result = restart_until_lock_ends(job, &acquired, reporter, signals, &mut earlier).await;
        if let Some(last) = &mut earlier.last {
            last.begin_release();
        }
        let Acquired { zoolock, holder, slots } = acquired;
        release_and_close(zoolock, holder, slots, name, reporter).await;
        earlier.dismiss().await;
        if let Some(exit) = result {
            return Ok(exit);
        }
    }
}

/// Returns whether another attempt may succeed after a failure with the code `exit`.
fn is_transient(exit: Exit, job: &Job) -> bool {
    exit == Exit::UNAVAILABLE || exit == Exit::LOST || exit == job.wanted.on_busy
}

/// Returns whether others wait for one of these locks. An answer that is late counts as no.
async fn others_wait(acquired: &Acquired, names: &[String]) -> bool {
    let looks = names.iter().map(async |name| acquired.zoolock.admin().poller(name, 0).snapshot().await);
    let seen = tokio::time::timeout(LOOK_TIMEOUT, join_all(looks)).await.unwrap_or_default();
    seen.iter().flatten().any(|seen| seen.lock.waiting > 0)
}

/// Runs the command again and again under the lock. Returns the exit code if a signal has asked
/// zoolock to end. Returns `None` after the lock was lost or revoked, or if the command always ends soon and others
/// wait for the lock, because the command may work on another host. Leaves the last command in `earlier`; dismiss it after the
/// release.
async fn restart_until_lock_ends(
    job: &Job,
    acquired: &Acquired,
    reporter: &Reporter,
    signals: &mut Signals,
    earlier: &mut EarlierCommands,
) -> Option<Exit> {
    let holder = &acquired.holder;
    let name = job.wanted.name.as_str();
    let mut backoff = Backoff::default();
    loop {
        // The reaper of the last command has ended before the next one learns of the session.
        earlier.dismiss().await;
        let begun = Instant::now();
        let what = match run_once(job, acquired, reporter, signals, earlier.has_leftovers).await {
            Err(failure) if failure.exit == Exit::LOST => {
                reporter.error(format_args!("{failure}; waiting for it again"));
                return None;
            }
            // The system refused a process or a file, or the reaper was killed. Another start may succeed.
            Err(failure) => {
                earlier.has_leftovers = true;
                failure.to_string()
            }
            Ok(outcome) => {
                let what = format!("{} ended with {}", command_name(job), outcome.ending);
                earlier.last = Some(outcome.reaper);
                if outcome.by_user {
                    reporter.note(what);
                    return Some(if outcome.loss.is_some() { Exit::LOST } else { outcome.exit });
                }
                if let Some(loss) = outcome.loss {
                    reporter.error(format_args!("{loss}; {what}; waiting for it again"));
                    return None;
                }
                if outcome.revoked {
                    reporter.note(format_args!(
                        "{what}; {name} was revoked; releasing it, and waiting for it again"
                    ));
                    return None;
                }
                what
            }
        };
        let pause = backoff.next_pause(begun.elapsed());
        if backoff.is_longest() && others_wait(acquired, &job.wanted.names).await {
            reporter.note(format_args!(
                "{what} again; others wait for {name}; releasing it, and waiting for it again"
            ));
            return None;
        }
        reporter.note(format_args!("{what}; starting it again in {}", format_duration(pause)));
        tokio::select! {
            biased;
            signal = signals.next_end_signal() => {
                reporter.note(format_args!("ended by {}", signal_name(signal)));
                return Some(Exit::Signal(signal));
            }
            reason = holder.lost() => {
                reporter.error(format_args!("lost {name}: {}; waiting for it again", describe_loss(reason)));
                return None;
            }
            () = holder.revoked() => {
                reporter.note(format_args!("{name} was revoked; releasing it, and waiting for it again"));
                return None;
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}
