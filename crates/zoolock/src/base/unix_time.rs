//! Times of the wall clock. ZooKeeper and JSON have them in milliseconds of Unix time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time at this number of milliseconds of Unix time.
pub(crate) fn time_at(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Serializes a time as milliseconds of Unix time.
pub(crate) fn serialize<S: serde::Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(milliseconds(time.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

/// Serializes a time that may be unknown.
pub(crate) fn serialize_option<S: serde::Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serialize(time, serializer),
        None => serializer.serialize_none(),
    }
}

/// Serializes a duration that may be unknown, in milliseconds.
pub(crate) fn serialize_duration<S: serde::Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => serializer.serialize_u64(milliseconds(*duration)),
        None => serializer.serialize_none(),
    }
}
