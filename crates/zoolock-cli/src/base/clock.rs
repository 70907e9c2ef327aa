//! The clock of leases, which continues while the machine sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, read};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// Returns the time since the machine was started. All processes read the same clock.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Returns a deadline on this clock. A pause of this process between the two reads makes the result earlier, never later.
pub(crate) fn boot_time_of(deadline: zoolock::Deadline) -> Duration {
    let now = now();
    now + deadline.remaining()
}

/// A timer on this clock, as a file to poll.
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> Result<Self, Errno> {
        timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC).map(Self)
    }

    /// Sets the timer to `at`, or disarms it. The former setting is lost.
    pub(crate) fn set(&self, at: Option<Duration>) {
        let at = match at {
            // A zero would disarm it.
            Some(at) => at.max(Duration::from_nanos(1)),
            None => Duration::ZERO,
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: zero, it_value: at };
        // Clears the count of expirations. The caller reads the clock instead.
        let _ = read(&self.0, &mut [0_u8; 8]);
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
