//! Arguments of the commands that read locks. `top` can also change locks, with two of its keys.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use serde::Deserialize;

use super::values::{at_least_one, time, time_within};

/// Minimum interval of `top`. A shorter interval shows nothing more, and loads the server.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum interval of `top`.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60 * 60);

const LS_HELP: &str = "\
HELD is the time since the grant, by the server's clock. To read that clock, ls creates a znode below --root and deletes it; without this \
permission, HELD uses the clock of this machine. With the sign ≤, HELD is a maximum: no record says when the lock was granted, so it is \
the time since the holder joined the queue, by the clock of the holder. LONGEST uses the clocks of the waiters. A clock that is wrong \
shows a wrong time.";

/// `zoolock ls`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = LS_HELP)]
pub(crate) struct LsArgs {
    /// List only the locks at and below this name
    pub(crate) prefix: Option<String>,

    /// Order of the list; with held and longest, the longest time comes first
    #[arg(long, value_name = "ORDER", default_value = "name")]
    pub(crate) sort: ListOrder,

    /// List only locks with waiters
    #[arg(long)]
    pub(crate) waiting: bool,

    /// List only locks with a holder on this host
    #[arg(long, value_name = "HOST")]
    pub(crate) held_by: Option<String>,

    /// List only locks that have been held, or may have been held, for this time or longer
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    pub(crate) older: Option<Duration>,
}

/// Order of the list of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ListOrder {
    /// By name; numbers in names are compared as numbers.
    Name,
    /// By the number of waiters.
    Waiting,
    /// By the time since the grant.
    Held,
    /// By the longest wait.
    Longest,
    /// By the hand-overs per second. Only `top` and `ui` know them, because they read the locks repeatedly.
    #[value(skip)]
    Rate,
}

const HISTORY_HELP: &str = "\
The events are: asked (an operator asked the holder or waiter to release), broken (an operator took the lock away from \
it), crashed (the holder ended without a release) and panicked (a thread of the holder panicked). A crash is found only \
with --crash-detection, by the next holder, and the time is that of the discovery. Clean releases, and waiters that gave \
up, are not recorded. The \
history is kept in znodes below ROOT/.audit, where ROOT is the path of --root. The last 1000 requests and crashes are \
kept, and all breaks. Any client that may acquire locks may write there.";

/// `zoolock history`.
#[derive(Debug, ClapArgs)]
#[command(after_help = HISTORY_HELP)]
pub(crate) struct HistoryArgs {
    /// Show only the events of this lock: a name below --root, or an absolute path
    pub(crate) name: Option<String>,

    /// Show at most this number of events, the last ones [default: 50; with --since, all]
    #[arg(
        long,
        value_name = "N",
        value_parser = at_least_one::<usize>("must be at least 1; the default is 50")
    )]
    pub(crate) last: Option<usize>,

    /// Show only the events of the last TIME, such as 1h or 2d, and those without a known time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    pub(crate) since: Option<Duration>,
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
that use another library. Clients that join and leave between two reads are only counted (unseen). A holder or waiter that is asked to \
release is asked. unreachable and back are the beginning and the end of an outage. The lock need not exist yet. After TERM, the exit code is 0; ^C also ends a script around the command.";

/// `zoolock watch`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WATCH_HELP)]
pub(crate) struct WatchArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

const TOP_HELP: &str = "\
The key ? lists the keys. Enter shows the queue of a lock. w shows why a lock is not free, as zoolock why does. 1, 2, 3 \
and 4 sort by waiters, longest wait, hand-overs per second and time held; R reverses the order. r asks the holder to \
release the lock, and b breaks the lock. Both need a confirmation, and act only on the holder or waiter that the \
confirmation names. If no server answers, a line says unreachable, and the rows are old. Another line names the locks of \
a deadlock. The search for deadlocks covers the waiters that top reads: all of them if no lock has more than 1000, and all locks together not more than 2000. Reading \
takes at most a fifth of the time: if one read takes long, the next read begins later than --interval says.";

/// `zoolock top`.
#[derive(Debug, ClapArgs)]
#[command(after_help = TOP_HELP)]
pub(crate) struct TopArgs {
    /// Show only the locks at and below this name
    pub(crate) prefix: Option<String>,

    /// Time between two reads of the locks, at least 100ms; longer if a read takes long
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        default_value = "1s",
        value_parser = time_within(SHORTEST_INTERVAL..=LONGEST_INTERVAL, "must be between 100ms and 1h")
    )]
    pub(crate) interval: Duration,

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

const LEADER_HELP: &str = "\
An election is a lock that one holder has alone: the holder of `zoolock run --keep NAME -- CMD`, or a program with the library's \
election, is the leader. The answer is the first contender in the queue, as one server knows it. The answer can be late: \
a crashed leader is named until its session has expired. The first contender may also still be waiting: for its lock delay, or \
for the other locks that it acquires together with this one. A leader whose command was asked to end is named until it has \
released. A resource that must be safe compares tokens.";

/// `zoolock leader`.
#[derive(Debug, ClapArgs)]
#[command(after_help = LEADER_HELP)]
pub(crate) struct LeaderArgs {
    /// The election: a name below --root, or an absolute path
    pub(crate) name: String,
}

/// `zoolock deadlocks`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WHY_HELP)]
pub(crate) struct DeadlocksArgs {
    /// Search only the locks at and below this name
    pub(crate) prefix: Option<String>,
}
