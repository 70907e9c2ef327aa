//! Flags of the commands that acquire locks.

use std::time::Duration;

use clap::Args as ClapArgs;
use zoolock_core::names::Role;

use super::values::{MetricsAddress, NamingArg, Permits, metrics_address, naming, permits, time};

/// Time to wait for a lock.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct WaitingArgs {
    /// Do not wait if the lock is held [default: wait]
    #[arg(long = "try", conflicts_with = "timeout")]
    pub(crate) try_once: bool,

    /// Give up if the lock is not acquired within this time, such as 500ms, 30s or 1h30m [default: no limit]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    pub(crate) timeout: Option<Duration>,

    /// Exit code, 0 to 255, if the lock is not acquired in time
    ///
    /// With 0, this is no error, and --quiet prints nothing about it.
    #[arg(long, value_name = "CODE", default_value_t = 75)]
    pub(crate) on_busy_exit: u8,
}

/// Settings for operators and Prometheus.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct MonitoringArgs {
    /// Text that `ls` and `show` print about this holder or waiter [default: none]
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// Address to serve /metrics on for Prometheus, as HOST:PORT, over HTTP and without authentication [default: none]
    ///
    /// If it is in use, zoolock continues without metrics, and tries again each second. With HOST:PORT,required it exits
    /// with 69, before it waits for the lock. /leader answers 200 while this process holds the lock alone, the command of run
    /// was not asked to end, and more than the grace period is left of the lease; otherwise 503, and with --shared and
    /// --permits 404. The grace period of hold is 5s, or a sixth of the session timeout if that is shorter.
    /// /live answers 200 while the main loop of zoolock goes on. ZOOLOCK_OTLP=http://HOST:4318 pushes metrics to an
    /// OpenTelemetry collector.
    #[arg(long, value_name = "ADDRESS", value_parser = metrics_address)]
    pub(crate) metrics: Option<MetricsAddress>,
}

/// Kind of the lock.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Kind of lock")]
pub(crate) struct KindArgs {
    /// Share the lock with other holders that use --shared [default: hold the lock alone]
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,

    /// Acquire one permit, or K, of a semaphore of N; all clients give the same N [default: no semaphore]
    ///
    /// K permits are acquired together, all or none.
    #[arg(long, value_name = "[K/]N", value_parser = permits)]
    pub(crate) permits: Option<Permits>,

    /// Znode naming scheme, for sharing a queue with other client libraries: native, curator, kazoo, write-lock
    ///
    /// With rw, as in curator,rw, a lock without --shared is the writer of a read/write lock. With kazoo-pattern, as in
    /// native,kazoo-pattern, every kazoo client of this lock must have extra_lock_patterns=["lock-"], and so wait for native
    /// names.
    #[arg(long, env = "ZOOLOCK_NAMING", value_name = "NAMING", default_value = "native", value_parser = naming)]
    pub(crate) naming: NamingArg,

    /// Record this holder in the lock directory: if zoolock dies or loses the lock, the next holder gets
    /// ZOOLOCK_PREVIOUS=crashed
    #[arg(long, conflicts_with_all = ["shared", "permits"])]
    pub(crate) crash_detection: bool,

    /// Time to wait before the grant, such as 5s, unless a record says that the previous holder released cleanly, or there
    /// was none; counts toward --timeout, which must be longer [default: 0s]
    ///
    /// Give --crash-detection, too. Without it, zoolock also waits after a clean release if another client gave up since.
    /// Readers record no release.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time, conflicts_with = "permits")]
    pub(crate) lock_delay: Option<Duration>,
}

/// Kind of lock to acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WantedKind {
    Exclusive,
    Shared,
    Write,
    Permits { size: u32, take: u32 },
}

impl WantedKind {
    /// Returns the role of its contenders.
    pub(crate) fn role(self) -> Role {
        match self {
            WantedKind::Exclusive | WantedKind::Write => Role::Exclusive,
            WantedKind::Shared => Role::Shared,
            WantedKind::Permits { .. } => Role::Permit,
        }
    }

    /// Returns the number of permits to acquire from a semaphore, or 1 for the other kinds of lock.
    pub(crate) fn weight(self) -> u32 {
        match self {
            WantedKind::Permits { take, .. } => take,
            _ => 1,
        }
    }
}

impl KindArgs {
    /// Returns the kind of lock to acquire, or the reason why the flags are refused. `names`: the locks to acquire together.
    pub(crate) fn check_kind(&self, names: &[String]) -> Result<WantedKind, String> {
        let kind = match (self.permits, self.shared) {
            (Some(Permits { take, size }), _) => WantedKind::Permits { size, take },
            (None, true) => return Ok(WantedKind::Shared),
            (None, false) if self.naming.is_rw => WantedKind::Write,
            (None, false) => return Ok(WantedKind::Exclusive),
        };
        let flag = if self.permits.is_some() { "--permits" } else { "rw in --naming" };
        match names {
            [_] => Ok(kind),
            _ => Err(format!(
                "{flag} needs exactly one NAME, not {}: {}; write the command after --",
                names.len(),
                names.join(" ")
            )),
        }
    }
}
