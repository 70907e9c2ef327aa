//! The clock of all processes of the run. They run on one machine, so their times can be compared.

use zoolock_client::session_time;

/// Returns the nanoseconds since the machine started, including the time in suspend.
pub(crate) fn now() -> i64 {
    session_time().0 as i64
}

/// Converts nanoseconds to seconds.
pub(crate) fn seconds(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}
