//! The commands that take locks, and the two that `run` is helped by.

use std::ffi::OsString;

use clap::{Args as ClapArgs, ValueEnum};

use super::waiting::Waiting;

const RUN_HELP: &str = "\
CMD gets a process group of its own, our standard input, and in its environment ZOOLOCK_NAME, \
ZOOLOCK_TOKEN (rises with every holder: let what CMD writes to refuse a lower one; not with \
--shared and --permits, where others hold at the same time), ZOOLOCK_TICKET (for `zoolock revoke` and `break`), \
ZOOLOCK_PREVIOUS (clean, crashed, unknown), ZOOLOCK_PATH and ZOOLOCK_OWNER (see --owner). Several names and paths have a space between them. INT, TERM, HUP, QUIT, USR1 and USR2 \
are passed on to the group; a second INT or TERM kills it.

When the server cannot be reached, CMD goes on; if that lasts, the group gets TERM, and --grace \
later, before anyone else can have the lock, KILL.

Several NAMEs are taken together, all or none, and in any order: two commands that name the same \
locks differently never wait for each other in a circle.

When somebody asks us to let go (zoolock revoke), CMD gets TERM, once; if we still wait then, CMD is not started \
and the exit code is that of a busy lock.

The lock is released when CMD and its group have ended: what is left of the group when CMD ends gets TERM and, \
--grace later, KILL. What has left the group by then, as daemons do, lives on without the lock; but not when the lock \
is lost, and not with --keep.

If zoolock is killed with KILL, or is stopped by STOP when the lock runs out, a second process of ours, lock-reaper, \
kills CMD and all that descends from it, daemons too; if lock-reaper is killed, zoolock does. What we may not signal \
(sudo, set-user-ID programs), and what CMD only asked others to start, is beyond both. If both are killed at once, \
the kernel kills CMD, but not what CMD has started.

With --keep, CMD is started again whatever its exit code, after a pause that grows from half a second to half a \
minute, until it has run for half a minute. When the lock is lost or somebody asks for it, we wait for it again, at \
the end of the queue. INT or TERM to zoolock, or ^C, ends both, with the exit code of CMD.";

/// `zoolock run`.
#[derive(Debug, ClapArgs)]
#[command(after_help = RUN_HELP, override_usage = "zoolock run [OPTIONS] NAME [NAME]... -- CMD [ARG]...")]
pub(crate) struct RunArgs {
    /// The lock, or several to be taken together: names below --root, or absolute paths
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// How long CMD has to end when the lock is being lost [default: 5s, at most a sixth of the session timeout that the service grants]
    #[arg(long, value_name = "TIME")]
    pub(crate) grace: Option<String>,

    /// When somebody asks us to let go: send TERM to CMD, or only say so
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_revoke: OnRevoke,

    /// When the lock is lost: kill CMD before anyone else can have it, or warn and let CMD finish (if zoolock is killed,
    /// CMD is all the same)
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Start CMD again when it ends, and stand by for the lock again when it is lost: exactly one in the fleet
    #[arg(long, conflicts_with_all = ["try_once", "timeout", "on_busy_exit"])]
    pub(crate) keep: bool,

    /// The command and its arguments; run as given, without a shell
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    // Last: its headings would go on for what follows.
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// What happens to the child when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    // TERM, then KILL before anyone else can have the lock.
    Kill,
    // Say so and let it finish.
    Warn,
}

/// What happens to the child when somebody asks us to let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnRevoke {
    // TERM, once.
    Term,
    // Say so and let it finish.
    Warn,
}

const HOLD_HELP: &str = "\
The end of standard input releases the lock when that is a pipe, a file or a terminal (^D); \
/dev/null does not count, so that `hold` works as a service.";

/// `zoolock hold`.
#[derive(Debug, ClapArgs)]
#[command(after_help = HOLD_HELP)]
pub(crate) struct HoldArgs {
    /// The lock, or several to be taken together: names below --root, or absolute paths
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// `zoolock become`, the step between our process and the command's.
#[derive(Debug, ClapArgs)]
pub(crate) struct BecomeArgs {
    /// The process that watches over the command
    #[arg(long)]
    pub(crate) parent: i32,

    /// Take the terminal first
    #[arg(long)]
    pub(crate) foreground: bool,

    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// `zoolock reap`, the process that ends the command when we cannot.
#[derive(Debug, ClapArgs)]
pub(crate) struct ReapArgs {
    /// Between TERM and KILL, in milliseconds
    #[arg(long)]
    grace: u64,

    /// Have the command take the terminal
    #[arg(long)]
    pub(crate) foreground: bool,
}

impl ReapArgs {
    pub(crate) fn grace(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.grace)
    }
}
