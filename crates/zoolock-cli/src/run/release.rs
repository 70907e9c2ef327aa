//! Releases a lock and closes its session.

use std::time::Duration;

use zoolock::{LossReason, Zoolock};

use crate::base::reporter::Reporter;
use crate::run::any_guard::AnyGuard;
use crate::service::connect::{close, close_quickly};

/// Maximum time for the server to confirm a release.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// Releases the lock if it is still held, and closes the session.
pub(crate) async fn release_and_close(zoolock: Zoolock, holder: AnyGuard, name: &str, reporter: &Reporter) {
    if holder.is_valid() {
        release(holder, name, reporter).await;
        close(zoolock).await;
    } else {
        close_quickly(zoolock).await;
    }
}

/// Releases the lock. Waits at most [`RELEASE_BOUND`], because the end of the session frees the lock, too.
pub(crate) async fn release(holder: AnyGuard, name: &str, reporter: &Reporter) {
    match tokio::time::timeout(RELEASE_BOUND, holder.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => reporter
            .note(format_args!("cannot release {name}: {error}; the server frees it when the session ends")),
        Err(_) => reporter.note(format_args!(
            "cannot release {name}: no answer from the server; the server frees it when the session ends"
        )),
    }
}

/// Returns the reason of a loss, for messages.
pub(crate) fn describe_loss(reason: LossReason) -> &'static str {
    match reason {
        LossReason::SessionExpired => "the session expired",
        LossReason::Broken => "another client deleted its znode",
        LossReason::Unreachable => {
            "the server could not be reached in time (is it down, or at its limit of connections, maxClientCnxns?)"
        }
        LossReason::Closed => "the connection was closed",
        _ => "reason unknown",
    }
}
