//! One clock for all processes of the run. They are on one machine, so their times can be compared.

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds since the machine started, including the time in which it slept.
pub(crate) fn now() -> i64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Converts nanoseconds to seconds.
pub(crate) fn seconds(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}
