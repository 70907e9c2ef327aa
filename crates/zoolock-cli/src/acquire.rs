//! Waiting for a lock, and telling people about it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock::{LossReason, Zoolock};

use crate::connect::{close, connect};
use crate::duration::humane;
use crate::exit::{Exit, Failure};
use crate::holder::Holder;
use crate::plan::{Endpoint, Patience, Service, Wanted};
use crate::run::release;
use crate::signals::{Signals, name as signal_name};
use crate::status;
use crate::talk::Talk;

/// Between two attempts to queue.
const PAUSE: Duration = Duration::from_millis(500);

/// Who waited for less than this was hardly asked for anything.
const ASKABLE: Duration = Duration::from_millis(300);
/// How long the look at our own znode may take.
const LOOK: Duration = Duration::from_millis(500);

/// A lock that is ours, and the connection it came over.
pub(crate) struct Acquired {
    pub(crate) zoolock: Zoolock,
    pub(crate) holder: Holder,
}

/// Waits for the lock for as long as `wanted` allows. A signal that asks us to end gives the place in the queue
/// back first. `reached` becomes true when the service was there.
pub(crate) async fn acquire(
    service: &Service,
    wanted: &Wanted,
    talk: &Arc<Talk>,
    signals: &mut Signals,
    reached: &mut bool,
) -> Result<Acquired, Failure> {
    let mut deadline = None;
    loop {
        let zoolock = tokio::select! {
            biased;
            signal = signals.end() => return Err(interrupted(signal, "connecting")),
            connected = connect(service, talk) => connected?,
        };
        *reached = true;
        // The time to wait for the lock begins when we can ask for it, and once.
        let until = match (deadline, wanted.patience) {
            (None, Patience::For(patience)) => Instant::now().checked_add(patience),
            (known, _) => known,
        };
        deadline = until;
        let began = Instant::now();
        let watcher = tokio::spawn(status::show(zoolock.clone(), wanted.names.clone(), Arc::clone(talk)));
        let waited = tokio::select! {
            biased;
            signal = signals.end() => Err(Interruption::Signal(signal)),
            answer = Holder::acquire(&zoolock, wanted, until, talk) => answer.map_err(Interruption::Error),
        };
        watcher.abort();
        let _ = watcher.await;
        talk.clear_status();
        let failure = match waited {
            Ok(Some(holder)) if asked_meanwhile(&holder, began.elapsed()).await => {
                release(holder, &wanted.name, talk).await;
                Failure::new(
                    wanted.on_busy,
                    format!("{}: somebody asked us to let go while we waited", wanted.name),
                )
            }
            Ok(Some(holder)) => {
                if began.elapsed() > Duration::from_secs(1) {
                    talk.note(format_args!("got {} after {}", wanted.name, humane(began.elapsed())));
                }
                return Ok(Acquired { zoolock, holder });
            }
            Ok(None) => busy(&zoolock, wanted).await,
            Err(Interruption::Signal(signal)) => {
                interrupted(signal, &format!("waiting for {}; no longer in the queue", wanted.name))
            }
            Err(Interruption::Error(error)) if asks_again(&error, service) => {
                talk.note(format_args!(
                    "{error}; waiting for {} again, at the end of the queue",
                    wanted.name
                ));
                tokio::select! {
                    () = async { tokio::join!(close(zoolock), tokio::time::sleep(PAUSE)); } => continue,
                    signal = signals.end() => return Err(interrupted(signal, "waiting")),
                }
            }
            Err(Interruption::Error(zoolock::Error::Timeout { .. })) => busy(&zoolock, wanted).await,
            Err(Interruption::Error(error)) => error.into(),
        };
        // A second signal ends it at once: the server then waits for the session to expire.
        tokio::select! {
            () = close(zoolock) => {}
            _ = signals.end() => {}
        }
        return Err(failure);
    }
}

enum Interruption {
    Signal(rustix::process::Signal),
    Error(zoolock::Error),
}

/// Whether a waiter was asked to let go: better not to begin at all than to be ended at once.
async fn asked_meanwhile(holder: &Holder, waited: Duration) -> bool {
    waited > ASKABLE && tokio::time::timeout(LOOK, holder.revoked_by_now()).await == Ok(true)
}

/// Whether it was the session that ended, not the wish.
fn asks_again(error: &zoolock::Error, service: &Service) -> bool {
    match error {
        zoolock::Error::Lost { reason, .. } => *reason != LossReason::Closed,
        // This user's server left; the next is started.
        zoolock::Error::Unavailable { .. } => matches!(service.endpoint, Endpoint::Local),
        _ => false,
    }
}

/// We were told to end.
pub(crate) fn interrupted(signal: rustix::process::Signal, what: &str) -> Failure {
    Failure::new(Exit::signal(signal), format!("ended by {} while {what}", signal_name(signal)))
}

async fn busy(zoolock: &Zoolock, wanted: &Wanted) -> Failure {
    let look = status::held_lock(zoolock, &wanted.names);
    let held = match tokio::time::timeout(Duration::from_secs(1), look).await {
        Ok(Some((name, who))) => format!("{name} is held by {who}"),
        _ => format!("{} is held", wanted.name),
    };
    let message = match wanted.patience {
        Patience::For(patience) => {
            format!("{}: not acquired within {}; {held}", wanted.name, humane(patience))
        }
        Patience::Try | Patience::Forever => held,
    };
    Failure::new(wanted.on_busy, message)
}
