//! Acquires a lock, and shows a status line while it waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock::{LossReason, Zoolock};

use crate::base::duration::human_duration;
use crate::base::exit::{Exit, Failure};
use crate::base::input::InputEnd;
use crate::base::reporter::Reporter;
use crate::base::signals::{Signals, name as signal_name};
use crate::plan::{AcquireTimeout, Endpoint, Service, WantedLocks};
use crate::render::status;
use crate::run::holder::Holder;
use crate::run::outer;
use crate::run::release::release;
use crate::service::connect::{close, connect};

/// Pause between attempts to join the queue.
const PAUSE: Duration = Duration::from_millis(500);

/// Minimum wait after which the command checks for a revocation. In a shorter wait a revocation is unlikely.
const MIN_WAIT_TO_CHECK: Duration = Duration::from_millis(300);
/// Maximum time to check for a revocation, which is a read of the holder's own znode.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// Minimum wait before the end of standard input can end it. So a free lock is acquired, and a refusal is reported, even
/// if the input has already ended.
const MIN_WAIT_TO_END: Duration = Duration::from_millis(500);

/// An acquired lock and its client.
pub(crate) struct Acquired {
    pub(crate) zoolock: Zoolock,
    pub(crate) holder: Holder,
}

/// Acquires the lock, and waits for as long as `wanted` allows. On a signal to end the command, or at the end of the
/// input, leaves the queue and returns a failure. Sets `reached` once the server has been reached.
pub(crate) async fn acquire(
    service: &Service,
    wanted: &WantedLocks,
    reporter: &Arc<Reporter>,
    signals: &mut Signals,
    input: &mut InputEnd,
    reached: &mut bool,
) -> Result<Acquired, Failure> {
    let mut deadline = None;
    loop {
        let zoolock = tokio::select! {
            biased;
            signal = signals.end() => return Err(interrupted(signal, "connecting")),
            connected = connect(service, reporter) => connected?,
        };
        *reached = true;
        // The time to wait begins at the first connection, and does not begin again after a reconnect.
        let until = match (deadline, wanted.patience) {
            (None, AcquireTimeout::For(patience)) => Instant::now().checked_add(patience),
            (known, _) => known,
        };
        deadline = until;
        let began = Instant::now();
        let watcher = tokio::spawn(status::show(zoolock.clone(), wanted.names.clone(), Arc::clone(reporter)));
        let waited = tokio::select! {
            biased;
            signal = signals.end() => Err(Interruption::Signal(signal)),
            answer = Holder::acquire(&zoolock, wanted, until, reporter) => answer.map_err(Interruption::Error),
            failure = outer::wait_for_conflict(&zoolock, wanted) => Err(Interruption::Outer(failure)),
            // With --try, the end of the input is ignored, because there is no wait.
            () = async {
                tokio::time::sleep(MIN_WAIT_TO_END).await;
                input.ended().await;
            }, if !matches!(wanted.patience, AcquireTimeout::Try) => Err(Interruption::EndOfInput),
        };
        watcher.abort();
        let _ = watcher.await;
        reporter.clear_status();
        let failure = match waited {
            Ok(Some(holder)) if was_revoked_while_waiting(&holder, began.elapsed()).await => {
                release(holder, &wanted.name, reporter).await;
                Failure::new(wanted.on_busy, format!("{}: revoked while waiting", wanted.name))
            }
            Ok(Some(holder)) => {
                if began.elapsed() > Duration::from_secs(1) {
                    reporter.note(format_args!(
                        "got {} after {}",
                        wanted.name,
                        human_duration(began.elapsed())
                    ));
                }
                return Ok(Acquired { zoolock, holder });
            }
            Ok(None) => busy_failure(&zoolock, wanted).await,
            Err(Interruption::Signal(signal)) => {
                interrupted(signal, &format!("waiting for {}; no longer in the queue", wanted.name))
            }
            Err(Interruption::EndOfInput) => Failure::new(
                wanted.on_busy,
                format!("the input ended while waiting for {}; no longer in the queue", wanted.name),
            ),
            // The time limit leaves no time to join the queue again.
            Err(Interruption::Error(error))
                if should_rejoin(&error, service)
                    && (matches!(wanted.patience, AcquireTimeout::Try)
                        || until.is_some_and(|until| until <= Instant::now() + PAUSE)) =>
            {
                error.into()
            }
            Err(Interruption::Error(error)) if should_rejoin(&error, service) => {
                reporter.note(format_args!(
                    "{error}; waiting for {} again, at the end of the queue",
                    wanted.name
                ));
                tokio::select! {
                    () = async { tokio::join!(close(zoolock), tokio::time::sleep(PAUSE)); } => continue,
                    signal = signals.end() => return Err(interrupted(signal, "waiting")),
                }
            }
            Err(Interruption::Outer(failure)) => failure,
            Err(Interruption::Error(zoolock::Error::Timeout { .. })) => busy_failure(&zoolock, wanted).await,
            Err(Interruption::Error(error)) => error.into(),
        };
        // A second signal ends the command at once. The session then expires on the server.
        tokio::select! {
            () = close(zoolock) => {}
            _ = signals.end() => {}
        }
        return Err(failure);
    }
}

enum Interruption {
    Signal(rustix::process::Signal),
    EndOfInput,
    Error(zoolock::Error),
    Outer(Failure),
}

/// Returns whether the lock was revoked during the wait. Then the command is not started, because it would be ended at once.
async fn was_revoked_while_waiting(holder: &Holder, waited: Duration) -> bool {
    waited > MIN_WAIT_TO_CHECK
        && tokio::time::timeout(CHECK_TIMEOUT, holder.revoked_by_now()).await == Ok(true)
}

/// Returns whether to join the queue again: the znode was deleted, the session ended although this process did not close
/// it, or this user's server has ended.
fn should_rejoin(error: &zoolock::Error, service: &Service) -> bool {
    match error {
        zoolock::Error::Removed { .. } => true,
        zoolock::Error::Lost { reason, .. } => *reason != LossReason::Closed,
        // This user's server has ended. The next connection starts it again.
        zoolock::Error::Unavailable { .. } => matches!(service.endpoint, Endpoint::Local),
        _ => false,
    }
}

/// Returns the failure for a command that `signal` has ended while it did `what`.
pub(crate) fn interrupted(signal: rustix::process::Signal, what: &str) -> Failure {
    Failure::new(Exit::signal(signal), format!("ended by {} while {what}", signal_name(signal)))
}

async fn busy_failure(zoolock: &Zoolock, wanted: &WantedLocks) -> Failure {
    if let Some(failure) = outer::find_conflict(zoolock, wanted).await {
        return failure;
    }
    let look = status::held_lock(zoolock, &wanted.names);
    let held = match tokio::time::timeout(Duration::from_secs(1), look).await {
        Ok(Some((name, who))) => format!("{name} is held by {who}"),
        _ => format!("{} is held", wanted.name),
    };
    let message = match wanted.patience {
        AcquireTimeout::For(patience) => {
            format!("{}: not acquired within {}; {held}", wanted.name, human_duration(patience))
        }
        AcquireTimeout::Try | AcquireTimeout::Forever => held,
    };
    Failure::new(wanted.on_busy, message)
}
