//! A clock that continues while the machine is suspended, and timers on it.
//!
//! `std::time::Instant` and tokio's timers use CLOCK_MONOTONIC, which stops while a laptop or a
//! virtual machine is suspended. With that clock, a lock whose session expired in the meantime
//! would still look valid. CLOCK_BOOTTIME continues, and a timer on it fires directly after the
//! resume.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use async_io::Async;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use zoolock_client::{add_limit_advice, boot_time};
use zoolock_core::Instant;

/// Reads the clock that continues while the machine is suspended.
pub(crate) fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::base::host::on_host(|host| host.now()) {
        return now;
    }
    boot_time()
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
    Timer(Async<OwnedFd>),
    /// Reads the clock repeatedly. For a forked process, which does not have the thread that waits for timers.
    Polled,
    #[cfg(feature = "simulation")]
    Simulated(std::sync::Arc<dyn crate::base::host::SimulatedMachine>),
}

/// The id of the process that created the first timer.
static FIRST_PROCESS: OnceLock<u32> = OnceLock::new();

/// The time between two reads of the clock by [`Alarm::Polled`].
const POLL: Duration = Duration::from_millis(50);

impl Alarm {
    pub(crate) fn new() -> io::Result<Alarm> {
        #[cfg(feature = "simulation")]
        if let Some(host) = crate::base::host::host() {
            return Ok(Alarm::Simulated(host));
        }
        if *FIRST_PROCESS.get_or_init(std::process::id) != std::process::id() {
            return Ok(Alarm::Polled);
        }
        let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Alarm::Timer(Async::new(fd)?))
    }

    /// Waits until `at`. Cancel safe.
    pub(crate) async fn wait_until(&self, at: Instant) -> io::Result<()> {
        while now() < at {
            match self {
                Alarm::Timer(fd) => wait_for_timer(fd, at).await?,
                Alarm::Polled => tokio::time::sleep(now().until(at).min(POLL)).await,
                #[cfg(feature = "simulation")]
                Alarm::Simulated(host) => host.alarm(at).await,
            }
        }
        Ok(())
    }
}

/// Starts the thread that wakes the timers of this process, unless the thread runs already. Without
/// this call, the first timer starts the thread.
///
/// # Errors
/// If the system refuses a file or the thread. For a refused thread, async-io also prints a panic message.
#[doc(hidden)]
pub fn start_timers() -> io::Result<()> {
    #[cfg(feature = "simulation")]
    if crate::base::host::host().is_some() {
        return Ok(());
    }
    // Checks first that files can be opened. If async-io gets no files for its poller, it panics,
    // and its thread never runs again.
    let files: io::Result<Vec<_>> = (0..4).map(|_| std::fs::File::open("/dev/null")).collect();
    drop(files.map_err(add_limit_advice)?);
    // async-io panics if the system refuses its thread.
    let started = std::panic::catch_unwind(|| Alarm::new().map(drop));
    started.unwrap_or_else(|_| Err(rustix::io::Errno::AGAIN.into())).map_err(add_limit_advice)
}

async fn wait_for_timer(fd: &Async<OwnedFd>, at: Instant) -> io::Result<()> {
    // A time of zero would disarm the timer.
    let at = Timespec { tv_sec: (at.0 / 1_000_000_000) as i64, tv_nsec: (at.0 % 1_000_000_000).max(1) as _ };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
    timerfd_settime(fd.get_ref(), TimerfdTimerFlags::ABSTIME, &once)?;
    fd.readable().await?;
    // The read clears the readiness. The caller reads the clock to see whether the time has come.
    let _ = rustix::io::read(fd.get_ref(), &mut [0u8; 8]);
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
