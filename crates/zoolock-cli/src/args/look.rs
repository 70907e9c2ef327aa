//! The commands that only look, but for some keys of `top`.

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
Who is there already is told first (holds, waits), then who comes, holds and goes, as it is seen, also to a lock that nobody has used yet: \
queued, granted, released, and crashed, panicked or broken where that is written; gone where nothing is written, as \
readers, permits and clients of other makes do; left, gave up waiting. What comes and goes between two looks is \
counted (unseen), and so is an outage told (lost, back). ^C ends it, with exit code 0.";

/// `zoolock watch`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WATCH_HELP)]
pub(crate) struct WatchArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

const TOP_HELP: &str = "\
? lists the keys. Enter shows the queue of a lock; r asks its holder to let go and b takes it away, both after a question \
and only from the one that was seen. No more than a fifth of the time is spent on reading: where one look takes long, the \
next ones come later than --interval says.";

/// `zoolock top`.
#[derive(Debug, ClapArgs)]
#[command(after_help = TOP_HELP)]
pub(crate) struct TopArgs {
    /// Only the locks at and below this name
    pub(crate) prefix: Option<String>,

    /// How often to look, at least 100ms
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: String,

    /// Only look: without the keys that revoke and break
    #[arg(long)]
    pub(crate) read_only: bool,
}

const WHY_HELP: &str = "\
All locks below --root are read, with everyone who waits. Who belongs together is what clients say: `zoolock run` and what it \
runs are one owner, as are locks that one task (or thread) of a program takes; of clients of other makes only the session is \
known.";

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
