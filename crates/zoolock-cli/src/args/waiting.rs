//! Flags of the commands that acquire locks.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args as ClapArgs;
use zoolock::Naming;
use zoolock_core::names::Role;

use super::values::{PERMITS, address, at_least_one, naming, time};

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

    /// Exit code, 0 to 255, if the lock is not acquired in time; with 0, this is no error, and --quiet prints nothing
    /// about it
    #[arg(long, value_name = "CODE", default_value_t = 75)]
    pub(crate) on_busy_exit: u8,
}

/// Description of this holder or waiter, for operators.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct DescriptionArgs {
    /// Text that `ls` and `show` print about this holder or waiter [default: none]
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// Owner id: `why` and `deadlocks` count all locks with the same id as locks of one job [default: `run` makes a new
    /// id, which CMD inherits; `hold` has none]
    #[arg(long, env = "ZOOLOCK_OWNER", value_name = "ID")]
    pub(crate) owner: Option<String>,
}

/// Export of metrics while the command waits for a lock and holds it.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct ExportArgs {
    /// Address to serve /metrics on for Prometheus, as HOST:PORT, over HTTP and without authentication; while the address
    /// is in use, zoolock continues without metrics [default: none]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// OpenTelemetry collector to push metrics to, as http://HOST:4318 [default: none]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,

    /// Label the metrics of each lock with the path of the lock
    #[arg(long)]
    pub(crate) metrics_by_lock: bool,
}

/// Kind of the lock.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Kind of lock")]
pub(crate) struct KindArgs {
    /// Share the lock with other holders that use --shared [default: hold the lock alone]
    #[arg(long, conflicts_with_all = ["write", "permits"])]
    pub(crate) shared: bool,

    /// Hold the lock alone, as a writer in the queue of Curator's read/write lock
    #[arg(long, conflicts_with = "permits")]
    pub(crate) write: bool,

    /// Use a semaphore with N permits in total; all its clients must give the same number [default: no semaphore]
    #[arg(long, value_name = "N", value_parser = at_least_one::<u32>(PERMITS))]
    pub(crate) permits: Option<u32>,

    /// Znode naming scheme, for sharing a queue with other client libraries: native, curator, kazoo, write-lock
    #[arg(long, env = "ZOOLOCK_NAMING", value_name = "NAMING", default_value = "native", value_parser = naming)]
    pub(crate) naming: Naming,

    /// Declare that every kazoo client of this lock has extra_lock_patterns=["lock-"], and so waits for native names
    #[arg(long)]
    pub(crate) kazoo_pattern: bool,

    /// Number of permits to acquire together, all or none
    #[arg(
        long,
        value_name = "K",
        requires = "permits",
        conflicts_with_all = ["shared", "write"],
        default_value_t = 1,
        value_parser = at_least_one::<u32>("take at least one permit")
    )]
    pub(crate) take: u32,

    /// Record this holder in the lock directory: if zoolock dies or loses the lock, the next holder gets
    /// ZOOLOCK_PREVIOUS=crashed
    #[arg(long, conflicts_with_all = ["shared", "permits"])]
    pub(crate) crash_detection: bool,

    /// Time to wait before the grant, such as 5s, unless the previous holder released the lock cleanly or there was none;
    /// counts toward --timeout, which must be longer [default: 0s]
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
        let require_one_name = |flag: &str| match names {
            [_] => Ok(()),
            _ => Err(format!(
                "{flag} needs exactly one NAME, not {}: {}; write the command after --",
                names.len(),
                names.join(" ")
            )),
        };
        match (self.permits, self.take) {
            (Some(size), take) => {
                require_one_name("--permits")?;
                match take > size {
                    true => Err(format!("--take {take}: more than the {size} of --permits")),
                    false => Ok(WantedKind::Permits { size, take }),
                }
            }
            _ if self.write => require_one_name("--write").map(|()| WantedKind::Write),
            _ if self.shared => Ok(WantedKind::Shared),
            _ => Ok(WantedKind::Exclusive),
        }
    }
}
