//! Acquires a lock, and shows a status line while it waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock::internals::Slots;
use zoolock::{AnyGuard, LossReason, Zoolock};

use crate::args::WantedKind;
use crate::base::duration::format_duration;
use crate::base::exit::{Exit, Failure};
use crate::base::input::InputEnd;
use crate::base::reporter::Reporter;
use crate::base::signals::{Signals, signal_name};
use crate::plan::{ConnectionSettings, Endpoint};
use crate::render::status;
use crate::run::flags::WantedLocks;
use crate::run::outer;
use crate::run::release::release;
use crate::run::wanted::acquire_wanted;
use crate::service::connect::{chroot_of, close, connect};

/// Pause between attempts to join the queue.
const PAUSE: Duration = Duration::from_millis(500);

/// Minimum wait for the lock after which zoolock checks whether the lock was revoked during the
/// wait. For a shorter wait, a revocation is unlikely.
const MIN_WAIT_TO_CHECK: Duration = Duration::from_millis(300);
/// Time after the time limit in which the server may still answer. Only its answer shows that the lock is busy.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Maximum time to read the holder of a busy lock, for the message, or its waiters.
pub(crate) const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to leave the queue and to close the session after the time limit. The library waits up to five seconds
/// for unanswered releases before it closes a session. Without the close, a contender whose create had no reply could hold
/// the lock until its session expires.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(7);
/// Maximum time to check for a revocation. The check is a read of the holder's own znode.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// For this time, the end of standard input does not end the wait for the lock. So a free lock is
/// acquired, and a refusal is reported, even if the input has already ended.
const MIN_WAIT_TO_END: Duration = Duration::from_millis(500);

/// An acquired lock and its client.
pub(crate) struct Acquired {
    pub(crate) zoolock: Zoolock,
    pub(crate) holder: AnyGuard,
    pub(crate) slots: Option<Slots>,
}

/// Acquires the lock, and waits for as long as `wanted` allows. Leaves the queue and returns a
/// failure if the input ends, or if a signal asks zoolock to end. Sets `reached` once a server was
/// reached.
pub(crate) async fn acquire(
    service: &ConnectionSettings,
    wanted: &WantedLocks,
    reporter: &Arc<Reporter>,
    signals: &mut Signals,
    input: &mut InputEnd,
    reached: &mut bool,
) -> Result<Acquired, Failure> {
    // One time limit for all attempts, which includes the time to connect.
    let until = wanted.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let answer_by = until.and_then(|until| until.checked_add(ANSWER_TIME));
    loop {
        let zoolock = tokio::select! {
            biased;
            signal = signals.next_end_signal() => return Err(interruption_failure(signal, "connecting")),
            connected = connect_and_note_chroot(service, wanted, reporter) => connected?,
            // The connection has a timeout of its own, with a better message.
            () = sleep_until(answer_by) => return Err(no_answer_failure(service, wanted)),
        };
        *reached = true;
        let began = Instant::now();
        let watcher = tokio::spawn(status::update_status_line(
            zoolock.clone(),
            wanted.names.clone(),
            wanted.lock_delay,
            Arc::clone(reporter),
        ));
        let waited = tokio::select! {
            biased;
            signal = signals.next_end_signal() => {
                let what = format!("waiting for {}; no longer in the queue", wanted.name);
                Err(interruption_failure(signal, &what))
            }
            answer = acquire_with_slots(&zoolock, wanted, until, reporter) => Ok(answer),
            failure = outer::wait_for_conflict(&zoolock, wanted) => Err(failure),
            // With --try, the end of the input is ignored, because there is no wait.
            ended = async {
                tokio::time::sleep(MIN_WAIT_TO_END).await;
                input.wait_until_ended().await
            }, if !wanted.try_once => {
                let what = format!("{ended} ended while waiting for {}; no longer in the queue", wanted.name);
                Err(Failure::new(wanted.on_busy, what))
            }
            () = sleep_until(answer_by) => Err(no_answer_failure(service, wanted)),
        };
        watcher.abort();
        let _ = watcher.await;
        reporter.clear_status();
        // With --try, or if the time limit is near, there is no time to join the queue again.
        let has_time = !wanted.try_once && until.is_none_or(|until| until > Instant::now() + PAUSE);
        let failure = match waited {
            Err(failure) => failure,
            Ok(Ok(Some((holder, _)))) if was_revoked_while_waiting(&holder, began.elapsed()).await => {
                release(holder, &wanted.name, reporter).await;
                Failure::new(wanted.on_busy, format!("{}: revoked while waiting", wanted.name))
            }
            Ok(Ok(Some((holder, slots)))) => {
                if began.elapsed() > Duration::from_secs(1) {
                    reporter.note(format_args!(
                        "got {} after {}",
                        wanted.name,
                        format_duration(began.elapsed())
                    ));
                }
                return Ok(Acquired { zoolock, holder, slots });
            }
            Ok(Ok(None) | Err(zoolock::Error::Timeout { .. })) => {
                busy_failure(&zoolock, wanted, answer_by).await
            }
            Ok(Err(error)) if has_time && should_rejoin(&error, service) => {
                reporter.note(format_args!(
                    "{error}; waiting for {} again, at the end of the queue",
                    wanted.name
                ));
                tokio::select! {
                    () = async { tokio::join!(close(zoolock), tokio::time::sleep(PAUSE)); } => continue,
                    signal = signals.next_end_signal() => return Err(interruption_failure(signal, "waiting")),
                }
            }
            Ok(Err(error @ zoolock::Error::Conflict { .. })) if wanted.slot => {
                Failure::new(wanted.on_busy, error.to_string())
            }
            Ok(Err(error)) => error.into(),
        };
        // If a signal arrives, zoolock ends without waiting for the close. The session then expires
        // on the server.
        tokio::select! {
            () = close(zoolock) => {}
            () = tokio::time::sleep(LEAVE_TIMEOUT), if until.is_some() => {}
            _ = signals.next_end_signal() => {}
        }
        return Err(failure);
    }
}

/// Acquires the lock, and the slots if they are wanted. Gives the lock back if there are no slots.
async fn acquire_with_slots(
    zoolock: &Zoolock,
    wanted: &WantedLocks,
    until: Option<Instant>,
    reporter: &Arc<Reporter>,
) -> Result<Option<(AnyGuard, Option<Slots>)>, zoolock::Error> {
    let Some(holder) = acquire_wanted(zoolock, wanted, until, reporter).await? else { return Ok(None) };
    let WantedKind::Permits { size, take } = wanted.kind else { return Ok(Some((holder, None))) };
    if !wanted.slot {
        return Ok(Some((holder, None)));
    }
    let patience = match until {
        _ if wanted.try_once => Duration::ZERO,
        Some(until) => until.saturating_duration_since(Instant::now()),
        None => Duration::MAX,
    };
    match holder.take_slots(size, take, patience).await {
        Ok(slots) => Ok(Some((holder, Some(slots)))),
        Err(error) => {
            release(holder, &wanted.name, reporter).await;
            Err(error)
        }
    }
}

/// Connects, and prints a note if the first lock in a chroot will create the chroot, because its name may be misspelled.
async fn connect_and_note_chroot(
    service: &ConnectionSettings,
    wanted: &WantedLocks,
    reporter: &Reporter,
) -> Result<Zoolock, Failure> {
    let zoolock = connect(service, reporter).await?;
    let chroot = chroot_of(service.endpoint.address());
    let root = if service.root == "/" { &wanted.names[0] } else { &service.root };
    if !chroot.is_empty() && zoolock.admin().snapshot(root).await.is_ok_and(|root| !root.exists) {
        reporter.note(format_args!(
            "no lock has been acquired in the chroot {chroot} yet; creating its directories"
        ));
    }
    Ok(zoolock)
}

/// Returns whether the lock was revoked during the wait. The caller then releases the lock, and
/// starts no command, because the command would be ended at once.
async fn was_revoked_while_waiting(holder: &AnyGuard, waited: Duration) -> bool {
    waited > MIN_WAIT_TO_CHECK
        && tokio::time::timeout(CHECK_TIMEOUT, holder.revoked_by_now()).await == Ok(true)
}

/// Returns whether to join the queue again. Reasons are: the znode was deleted, the session ended
/// although this process did not close it, or this user's server has ended.
fn should_rejoin(error: &zoolock::Error, service: &ConnectionSettings) -> bool {
    match error {
        zoolock::Error::Removed { .. } => true,
        zoolock::Error::Lost { reason, .. } => *reason != LossReason::Closed,
        // This user's server has ended. The next connection starts it again.
        zoolock::Error::Unavailable { .. } => matches!(service.endpoint, Endpoint::Local),
        _ => false,
    }
}

/// Returns the failure of a zoolock process that ends because of `signal`. `what` says what the
/// process was doing.
pub(crate) fn interruption_failure(signal: rustix::process::Signal, what: &str) -> Failure {
    Failure::new(Exit::Signal(signal), format!("ended by {} while {what}", signal_name(signal)))
}

/// Resolves at `deadline`. Never resolves without a deadline.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns the failure of a wait that ended before the server has shown that the lock is busy.
fn no_answer_failure(service: &ConnectionSettings, wanted: &WantedLocks) -> Failure {
    let (address, name) = (service.endpoint.address(), &wanted.name);
    Failure::unavailable(if service.endpoint.awaits_credentials() {
        format!(
            "{name}: the command that prints the credentials (--auth) did not end in time; raise --timeout"
        )
    } else {
        format!(
            "{address}: the server did not answer in time while waiting for {name}; check that it runs, or raise --timeout"
        )
    })
}

/// Returns the failure of a busy lock. Names its holder if that can be read until `deadline`.
async fn busy_failure(zoolock: &Zoolock, wanted: &WantedLocks, deadline: Option<Instant>) -> Failure {
    if let Some(failure) = outer::find_conflict(zoolock, wanted).await {
        return failure;
    }
    let look = status::describe_holder(zoolock, &wanted.names, wanted.kind.role());
    let limit = deadline.map_or(LOOK_TIMEOUT, |deadline| {
        deadline.saturating_duration_since(Instant::now()).min(LOOK_TIMEOUT)
    });
    let held = match tokio::time::timeout(limit, look).await {
        Ok(Some(held)) => held,
        _ => format!("{} was busy; its present holder is not known", wanted.name),
    };
    let Some(timeout) = wanted.timeout else { return Failure::new(wanted.on_busy, held) };
    let message = format!("{}: not acquired within {}; {held}", wanted.name, format_duration(timeout));
    if timeout <= wanted.lock_delay {
        // Not `on_busy`, because after a crash no attempt would ever succeed.
        let delay = format_duration(wanted.lock_delay);
        return Failure::usage(format!("{message}; raise --timeout above --lock-delay ({delay})"));
    }
    Failure::new(wanted.on_busy, message)
}
