//! The release of a lock, and the end of its client.

use std::time::Duration;

use zoolock::{LossReason, Zoolock};

use crate::base::talk::Talk;
use crate::run::holder::Holder;
use crate::service::connect::{abandon, close};

/// Maximum time for the server to confirm a release.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// Releases the lock if it is still held, and closes the session.
pub(crate) async fn give_back(zoolock: Zoolock, holder: Holder, name: &str, talk: &Talk) {
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

/// Returns the reason of a loss, for messages.
pub(crate) fn why(reason: LossReason) -> &'static str {
    match reason {
        LossReason::SessionExpired => "the session expired",
        LossReason::Broken => "its node was deleted by somebody else",
        LossReason::Unreachable => {
            "the server could not be reached in time (is it down, or at its limit of connections, maxClientCnxns?)"
        }
        LossReason::Closed => "the connection was closed",
        _ => "it was taken away",
    }
}
