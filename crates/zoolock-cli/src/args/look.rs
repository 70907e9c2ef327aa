//! Arguments of the commands that read locks. `top` can also change locks, with two of its keys.

use clap::Args as ClapArgs;

/// `zoolock ls`.
#[derive(Debug, ClapArgs)]
pub(crate) struct LsArgs {
    /// List only the locks at and below this name
    pub(crate) prefix: Option<String>,
}

/// `zoolock show`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ShowArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

const WATCH_HELP: &str = "\
Prints a line for each holder, with the word holds, and for each waiter, with the word waits. Then prints a line for each change. A client joins the \
queue (queued), acquires the lock (granted), or gives up (left). When a holder leaves, the line is released, crashed, \
panicked or broken. It is gone if nothing records how the holder left, as for readers, holders of permits, and holders \
that use another library. Clients that join and leave between two reads are only counted (unseen). lost and back are \
the beginning and the end of an outage. The lock need not exist yet. ^C ends the command, with exit code 0.";

/// `zoolock watch`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WATCH_HELP)]
pub(crate) struct WatchArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

const TOP_HELP: &str = "\
The key ? lists the keys. Enter shows the queue of a lock. r asks the holder to release the lock, and b breaks the \
lock. Both need a confirmation, and act only on the holder or waiter that the confirmation names. Reading takes at \
most a fifth of the time: if one read takes long, the next read begins later than --interval says.";

/// `zoolock top`.
#[derive(Debug, ClapArgs)]
#[command(after_help = TOP_HELP)]
pub(crate) struct TopArgs {
    /// Show only the locks at and below this name
    pub(crate) prefix: Option<String>,

    /// Time between two reads of the locks, at least 100ms; longer if a read takes long
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, default_value = "1s")]
    pub(crate) interval: String,

    /// Disable the keys r (revoke) and b (break)
    #[arg(long)]
    pub(crate) read_only: bool,
}

const WHY_HELP: &str = "\
Reads all locks below --root, with all waiters. An owner can hold one lock and wait for another. A `zoolock run` and \
its command are one owner, and so is one task (or thread) of a program. For other client libraries, each session \
counts as one owner.";

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
    /// Search only the locks at and below this name
    pub(crate) prefix: Option<String>,
}
