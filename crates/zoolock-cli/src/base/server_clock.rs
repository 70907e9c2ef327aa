//! The server's clock, as this process estimates it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Difference of the server's clock to this machine's in milliseconds. A process asks one ensemble only.
static AHEAD_MS: AtomicI64 = AtomicI64::new(0);

/// Records that the server's clock is ahead of this machine's clock.
pub(crate) fn set_ahead(ms: i64) {
    AHEAD_MS.store(ms, Ordering::Relaxed);
}

/// Returns the Unix time of the server's clock in milliseconds: this machine's, until the server's is known.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    now.saturating_add_signed(AHEAD_MS.load(Ordering::Relaxed))
}

/// Returns the time in milliseconds that was `span` before `now_ms`.
pub(crate) fn ms_before(now_ms: u64, span: Duration) -> u64 {
    now_ms.saturating_sub(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}
