//! Releases a lock and closes its session.

use std::time::Duration;

use zoolock::internals::Slots;
use zoolock::{AnyGuard, LossReason, Zoolock};

use crate::base::reporter::Reporter;
use crate::service::connect::{close, close_quickly};

/// Maximum time for the server to confirm a release.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// Releases the lock if it is still held, and closes the session.
pub(crate) async fn release_and_close(
    zoolock: Zoolock,
    holder: AnyGuard,
    slots: Option<Slots>,
    name: &str,
    reporter: &Reporter,
) {
    if holder.is_valid() {
        // The slots are free before the permits, so the next holder finds one.
        if let Some(slots) = slots {
            slots.free(&holder);
        }
        release(holder, name, reporter).await;
        close(zoolock).await;
    } else {
        close_quickly(zoolock).await;
    }
}

/// Releases the lock. Waits at most [`RELEASE_BOUND`], because the end of the session frees the lock, too.
/// Returns whether the server has confirmed the release. Otherwise prints the reason.
pub(crate) async fn release(holder: AnyGuard, name: &str, reporter: &Reporter) -> bool {
    let reason = match tokio::time::timeout(RELEASE_BOUND, holder.release()).await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer from the server".to_owned(),
    };
    reporter.note(format_args!("cannot release {name}: {reason}"));
    reporter.note(format_args!("gave up {name}; the server frees it when the session ends"));
    false
}

/// Returns the reason of a loss, for messages.
pub(crate) fn describe_loss(reason: LossReason) -> &'static str {
    match reason {
        // A lease that ends first makes the lock unreachable.
        LossReason::SessionExpired => {
            "the server ended the session before the lease ended (has it lost its data, or was this virtual machine \
             paused, moved or restored?)"
        }
        LossReason::Broken => "another client deleted its znode",
        LossReason::Unreachable => {
            "no server confirmed the lock in time (was this process stopped, or the server down, slow or at \
             maxClientCnxns?)"
        }
        LossReason::Closed => "the session was closed",
        _ => "reason unknown",
    }
}
