//! Arguments of the commands that read locks. Only `top` can also change them, with two of its keys.

use clap::Args as ClapArgs;

/// `zoolock ls`.
#[derive(Debug, ClapArgs)]
pub(crate) struct LsArgs {
    /// Only the locks at and below this name
    pub(crate) prefix: Option<String>,
}

/// `zoolock show`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ShowArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

const WATCH_HELP: &str = "\
Prints a line for each holder (holds) and waiter (waits) at the start, then a line for each change: queued, granted, \
released; crashed, panicked or broken if the release marker says so, and gone if there is no marker, as for readers, \
permits and other client libraries; left when a waiter gives up. Contenders that come and go between two reads are \
counted (unseen). lost and back mark an outage. The lock need not exist yet. ^C ends it, with exit code 0.";

/// `zoolock watch`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WATCH_HELP)]
pub(crate) struct WatchArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

const TOP_HELP: &str = "\
? lists the keys. Enter shows the queue of a lock. r asks the holder to release it, and b breaks it; both need a \
confirmation, and affect only the contender that is shown. Reads take at most a fifth of the time: if one read takes \
long, the next ones come later than --interval says.";

/// `zoolock top`.
#[derive(Debug, ClapArgs)]
#[command(after_help = TOP_HELP)]
pub(crate) struct TopArgs {
    /// Only the locks at and below this name
    pub(crate) prefix: Option<String>,

    /// Interval between reads, at least 100ms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, default_value = "1s")]
    pub(crate) interval: String,

    /// Disable the keys that revoke and break
    #[arg(long)]
    pub(crate) read_only: bool,
}

const WHY_HELP: &str = "\
Reads all locks below --root, with all waiters. Clients tell which contenders have the same owner: `zoolock run` and \
its command are one owner, and so are all locks of one task (or thread) of a program. For other client libraries, the \
session counts as the owner.";

/// `zoolock why`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WHY_HELP)]
pub(crate) struct WhyArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

/// `zoolock deadlocks`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WHY_HELP)]
pub(crate) struct DeadlocksArgs {
    /// Only among the locks at and below this name
    pub(crate) prefix: Option<String>,
}
