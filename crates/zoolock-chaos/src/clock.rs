//! One clock for all processes of the run: they are on one machine, so their stamps can be compared.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started, those it slept included.
pub(crate) fn now() -> i64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Seconds of so many nanoseconds.
pub(crate) fn seconds(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}
