//! The clock of sessions. It counts suspend, because the server's clock does.

use rustix::time::{ClockId, clock_gettime};

use crate::Instant;

/// Reads the clock.
pub(crate) fn now() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    Instant((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}
