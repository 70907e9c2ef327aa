//! The commands that acquire locks, and the two hidden commands that `run` starts.

use std::ffi::OsString;

use clap::{Args as ClapArgs, ValueEnum};

use super::waiting::Waiting;

const RUN_HELP: &str = "\
CMD runs in its own process group with the standard input of zoolock, and with these environment variables: ZOOLOCK_NAME, \
ZOOLOCK_TOKEN (fencing token: increases with every holder, so a service that CMD writes to can reject lower ones; not with \
--shared and --permits, where several hold at once), ZOOLOCK_TICKET (for `zoolock revoke` and `break`), \
ZOOLOCK_PREVIOUS (clean, crashed, unknown), ZOOLOCK_PATH, ZOOLOCK_OWNER (see --owner) and ZOOLOCK_HELD (for zoolock \
itself). Several names and paths are separated by spaces. INT, TERM, HUP, QUIT, USR1 and USR2 are forwarded to the group; \
a second INT or TERM kills it. The sockets and the watchdog that systemd gives to zoolock are for CMD: LISTEN_PID and \
WATCHDOG_PID name its process. Messages of CMD to systemd need `NotifyAccess=all` in the unit.

While the server cannot be reached, CMD keeps running. If the lock is about to be lost, the group gets TERM and, after \
--grace, KILL, before another client can acquire the lock.

If CMD runs zoolock again, with a lock that it would get only after CMD has ended, that zoolock fails at once, with exit \
code 64 also if --on-busy-exit is given. It knows from ZOOLOCK_HELD which locks are held around it.

Several NAMEs are acquired together, all or none, and in any order: two commands that name the same locks in different \
order do not deadlock.

When the lock is revoked (zoolock revoke), CMD gets TERM, once. If the lock is not acquired yet, CMD is not started and \
the exit code is that of a busy lock.

The lock is released after CMD and its process group have ended. If other processes of the group are left when CMD ends, \
they get TERM and, after --grace, KILL. Processes that have left the group, such as daemons, keep running without the \
lock; but they are killed when the lock is lost, and with --keep.

If zoolock is killed with KILL, or is stopped by STOP until the lock expires, its second process, lock-reaper, kills CMD \
and all its descendants, daemons included. If lock-reaper is killed, zoolock does the same. Neither can kill processes \
that it may not signal (sudo, set-user-ID programs), or processes that another program started for CMD. If both are \
killed at once, the kernel kills CMD, but not its descendants.

With --keep, CMD is restarted whenever it ends, whatever its exit code. The pause before a restart grows from half a \
second to half a minute, until CMD has run for half a minute. When the lock is lost or revoked, zoolock waits for it again \
at the end of the queue. INT or TERM to zoolock, or ^C, ends both, with the exit code of CMD.";

/// `zoolock run`.
#[derive(Debug, ClapArgs)]
#[command(after_help = RUN_HELP, override_usage = "zoolock run [OPTIONS] NAME [NAME]... -- CMD [ARG]...")]
pub(crate) struct RunArgs {
    /// Lock to acquire, or several to acquire together: names below the root, or absolute paths
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// Time between TERM and KILL when the lock is being lost [default: 5s, at most a sixth of the negotiated session timeout]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) grace: Option<String>,

    /// When the lock is revoked: send TERM to CMD, or print a warning
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_revoke: OnRevoke,

    /// When the lock is lost: kill CMD before another client can acquire it, or print a warning and let CMD finish (CMD is
    /// killed in any case if zoolock is killed)
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Restart CMD when it ends, and wait for the lock again when it is lost: at most one in the fleet
    #[arg(long, conflicts_with_all = ["try_once", "timeout", "on_busy_exit"])]
    pub(crate) keep: bool,

    /// Command and arguments, executed without a shell
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    // The last field, because the help headings of `Waiting` would also apply to the flags after it.
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// Action on CMD when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    // Send TERM, then KILL, before another client can acquire the lock.
    Kill,
    // Print a warning and let CMD finish.
    Warn,
}

/// Action on CMD when the lock is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnRevoke {
    // Send TERM once.
    Term,
    // Print a warning and let CMD finish.
    Warn,
}

const HOLD_HELP: &str = "\
The lock is released at the end of standard input if that is a pipe, a file or a terminal (^D). \
If the input ends while `hold` waits for the lock, it leaves the queue and exits with the code of a busy lock. \
/dev/null does not count, so `hold` also works as a service.";

/// `zoolock hold`.
#[derive(Debug, ClapArgs)]
#[command(after_help = HOLD_HELP)]
pub(crate) struct HoldArgs {
    /// Lock to acquire, or several to acquire together: names below the root, or absolute paths
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// `zoolock become`: executes CMD in place of itself. lock-reaper starts it.
#[derive(Debug, ClapArgs)]
pub(crate) struct BecomeArgs {
    /// Process id of the parent, lock-reaper
    #[arg(long)]
    pub(crate) parent: i32,

    /// Process id of `zoolock run`
    #[arg(long)]
    pub(crate) main: i32,

    /// Move to the foreground of the terminal first
    #[arg(long)]
    pub(crate) foreground: bool,

    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// `zoolock reap`: kills the command if `zoolock run` no longer can.
#[derive(Debug, ClapArgs)]
pub(crate) struct ReapArgs {
    /// Time between TERM and KILL, in milliseconds
    #[arg(long)]
    grace: u64,

    /// Move the command to the foreground of the terminal
    #[arg(long)]
    pub(crate) foreground: bool,
}

impl ReapArgs {
    /// Returns the time between TERM and KILL.
    pub(crate) fn grace(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.grace)
    }
}
