//! What is asked of a lock that is taken.

use clap::Args as ClapArgs;

/// How long to wait for a lock, and what others see of us.
#[derive(Debug, ClapArgs)]
pub(crate) struct Waiting {
    /// Do not wait when the lock is held
    #[arg(long = "try", conflicts_with = "timeout")]
    pub(crate) try_once: bool,

    /// Give up when the lock was not acquired within this time
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,

    /// Exit code when the lock was not acquired in time; 0: that is no error, and --quiet does not say it
    #[arg(long, value_name = "CODE", default_value_t = 75)]
    pub(crate) on_busy_exit: u8,

    /// Renew the lock by writes, which not even a leader that was cut off can confirm, however long the session timeout
    #[arg(long)]
    pub(crate) strict_renewal: bool,

    /// A word to whoever looks at the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// To whom the lock belongs, for `why` and `deadlocks`: commands of one job have one owner [default: for run, a new
    /// one, which CMD inherits]
    #[arg(long, env = "ZOOLOCK_OWNER", value_name = "ID")]
    pub(crate) owner: Option<String>,

    #[command(flatten)]
    pub(crate) kind: KindArgs,

    #[command(flatten)]
    pub(crate) export: ExportArgs,
}

/// What monitors see while a lock is waited for and held.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct ExportArgs {
    /// Where to answer /metrics over HTTP, for Prometheus; it asks for no credentials
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<String>,

    /// The collector of OpenTelemetry's to push metrics to, as http://HOST:4318
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,

    /// Tell the figures of different locks apart, by a label lock with the path
    #[arg(long)]
    pub(crate) metrics_by_lock: bool,
}

/// What kind of lock is taken.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Kind of lock")]
pub(crate) struct KindArgs {
    /// Hold it together with others that share it; without it, alone
    #[arg(long, conflicts_with_all = ["write", "permits"])]
    pub(crate) shared: bool,

    /// Hold it alone, as the write side of Curator's read/write lock
    #[arg(long, conflicts_with = "permits")]
    pub(crate) write: bool,

    /// It is a semaphore of so many permits; everybody has to say the same number
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,

    /// Whose names to use, so that clients of other makes in the same queue see us: native, curator, kazoo, write-lock
    #[arg(long, env = "ZOOLOCK_NAMING", value_name = "NAMING", default_value = "native")]
    pub(crate) naming: String,

    /// Every kazoo client of this lock was made with extra_lock_patterns=["lock-"], and so sees native names
    #[arg(long)]
    pub(crate) kazoo_pattern: bool,

    /// How many of the permits to take, all or none
    #[arg(long, value_name = "K", requires = "permits", conflicts_with_all = ["shared", "write"], default_value_t = 1)]
    pub(crate) take: u32,

    /// Note in the lock when we begin, so that the next holder knows if we die: its ZOOLOCK_PREVIOUS is "crashed"
    #[arg(long, conflicts_with_all = ["shared", "permits"])]
    pub(crate) crash_detection: bool,

    /// Wait this long before we begin, unless the last holder left cleanly
    #[arg(long, value_name = "TIME", conflicts_with = "permits")]
    pub(crate) lock_delay: Option<String>,
}
