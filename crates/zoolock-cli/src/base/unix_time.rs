//! Times in milliseconds of Unix time, as the clock of the server and the pages count them.

use std::time::{SystemTime, UNIX_EPOCH};

/// A time that can be shown in milliseconds of Unix time.
pub(crate) trait UnixTime {
    type Ms;

    /// Returns the milliseconds of Unix time.
    fn unix_ms(self) -> Self::Ms;
}

impl UnixTime for SystemTime {
    type Ms = u64;

    fn unix_ms(self) -> u64 {
        let since = self.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

impl UnixTime for Option<SystemTime> {
    type Ms = Option<u64>;

    fn unix_ms(self) -> Option<u64> {
        self.map(UnixTime::unix_ms)
    }
}

/// Returns the time at this number of milliseconds of Unix time.
#[cfg(test)]
pub(crate) fn time_at(ms: u64) -> SystemTime {
    UNIX_EPOCH + std::time::Duration::from_millis(ms)
}
