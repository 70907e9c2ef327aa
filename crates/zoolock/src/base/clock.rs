//! A clock that continues while the machine is suspended, and timers on it.
//!
//! `std::time::Instant` and tokio's timers use CLOCK_MONOTONIC, which stops while a laptop or a
//! virtual machine is suspended. With that clock, a lock whose session expired in the meantime
//! would still look valid. CLOCK_BOOTTIME continues, and a timer on it fires directly after the
//! resume. A process whose server is on the same machine may use CLOCK_MONOTONIC for both
//! ([`zoolock_client::stop_session_clock_in_suspend`]).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use zoolock_client::{session_time, session_timer_clock};
use zoolock_core::Instant;

/// Reads the clock that continues while the machine is suspended.
pub(crate) fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::base::host::on_host(|host| host.now()) {
        return now;
    }
    session_time()
}

/// Reads the clock of callers' deadlines and of tokio's timers.
pub(crate) fn monotonic() -> std::time::Instant {
    #[cfg(feature = "simulation")]
    if crate::base::host::on_host(|_| ()).is_some() {
        return tokio::time::Instant::now().into_std();
    }
    std::time::Instant::now()
}

/// A point in time on the clock that continues while the machine is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub(crate) Instant);

impl Deadline {
    /// A deadline that has passed.
    pub(crate) const PASSED: Deadline = Deadline(Instant(0));

    /// Returns the time until the deadline, zero if the deadline has passed. Reads the clock.
    pub fn remaining(&self) -> Duration {
        now().until(self.0)
    }

    /// Returns whether the deadline has passed. Reads the clock.
    pub fn has_passed(&self) -> bool {
        now() >= self.0
    }
}

/// A timer on the clock that continues while the machine is suspended.
pub(crate) enum Alarm {
    Timer(AsyncFd<OwnedFd>),
    #[cfg(feature = "simulation")]
    Simulated(std::sync::Arc<dyn crate::base::host::SimulatedMachine>),
}

impl Alarm {
    /// Creates an alarm on the tokio runtime of the calling task.
    pub(crate) fn new() -> io::Result<Alarm> {
        #[cfg(feature = "simulation")]
        if let Some(host) = crate::base::host::host() {
            return Ok(Alarm::Simulated(host));
        }
        let fd = timerfd_create(session_timer_clock(), TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // The function is deprecated because some types close the file too early. `OwnedFd` does not.
        #[allow(deprecated)]
        Ok(Alarm::Timer(AsyncFd::with_interest(fd, Interest::READABLE)?))
    }

    /// Waits until `at`. Cancel safe.
    pub(crate) async fn wait_until(&self, at: Instant) -> io::Result<()> {
        while now() < at {
            match self {
                Alarm::Timer(fd) => wait_for_timer(fd, at).await?,
                #[cfg(feature = "simulation")]
                Alarm::Simulated(host) => host.alarm(at).await,
            }
        }
        Ok(())
    }
}

async fn wait_for_timer(fd: &AsyncFd<OwnedFd>, at: Instant) -> io::Result<()> {
    // A time of zero would disarm the timer.
    let at = Timespec { tv_sec: (at.0 / 1_000_000_000) as i64, tv_nsec: (at.0 % 1_000_000_000).max(1) as _ };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
    timerfd_settime(fd.get_ref(), TimerfdTimerFlags::ABSTIME, &once)?;
    let mut ready = fd.readable().await?;
    // Ignores the result, because the caller reads the clock to see whether the time has come.
    let _ = rustix::io::read(fd.get_ref(), &mut [0u8; 8]);
    ready.clear_ready();
    Ok(())
}

/// Returns the time at which a wait of this length ends, if it begins now. A wait is limited to a
/// hundred years.
pub(crate) fn deadline_after(timeout: Duration) -> std::time::Instant {
    // Long enough to mean "never", and short enough that no clock overflows.
    const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);
    monotonic() + timeout.min(FOR_EVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn alarm_waits_and_can_be_reused() {
        let alarm = Alarm::new().expect("timerfd");
        for _ in 0..2 {
            let at = now().after(Duration::from_millis(20));
            alarm.wait_until(at).await.expect("wait");
            assert!(now() >= at);
        }
        alarm.wait_until(Instant(1)).await.expect("a time in the past ends the wait at once");
    }
}
