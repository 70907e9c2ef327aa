use std::time::Duration;

/// A time on a clock that counts suspend (CLOCK_BOOTTIME), in nanoseconds. Sessions and leases are measured in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// Returns the point in time that is later by `duration`.
    #[must_use]
    pub fn after(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time from `self` to `later`, or zero if `later` is earlier.
    pub fn until(self, later: Instant) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}
