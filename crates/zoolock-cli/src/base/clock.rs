//! The clock of leases. It continues while the machine sleeps, except in local mode, where the server sleeps, too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, read};
use rustix::time::{Itimerspec, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use zoolock_client::{session_time, session_timer_clock};

/// Returns the time since the machine was started. zoolock and its reaper read the same clock.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(session_time().0)
}

/// Converts a lease deadline to a time on this clock. If this process pauses between the two clock reads, the result is
/// too early, never too late.
pub(crate) fn lease_time_of(deadline: zoolock::Deadline) -> Duration {
    let now = now();
    now + deadline.remaining()
}

/// A timer on the clock of this module. It is a file that `poll` can wait for.
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> Result<Self, Errno> {
        timerfd_create(session_timer_clock(), TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC).map(Self)
    }

    /// Sets the timer to `at`. `None` disarms the timer.
    pub(crate) fn set(&self, at: Option<Duration>) {
        // Zero disarms the timer.
        let at = at.map_or(Duration::ZERO, |at| at.max(Duration::from_nanos(1)));
        let at = Timespec::try_from(at).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let once = Itimerspec { it_interval: Timespec::default(), it_value: at };
        // Clears the timer's count of expirations, which no caller uses: callers read the clock instead.
        let _ = read(&self.0, &mut [0_u8; 8]);
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
