//! The commands that acquire locks, and the two hidden commands that `run` starts.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::values::time;
use super::waiting::{KindArgs, MonitoringArgs, WaitingArgs};

const RUN_HELP: &str = "\
Examples (if nothing names servers, a lock excludes only this user's commands on this machine):
  zoolock run --connect zk1,zk2,zk3 --quiet --try --on-busy-exit 0 nightly -- ./backup.sh
      a cron job of several hosts: does not run while it runs on another host. If the clocks of the hosts differ by more \
time than it takes, it runs again on the host that is late: let a short job end with `sleep 60`
  zoolock run --timeout 5m --on-busy-exit 99 deploy -- make deploy
      waits at most five minutes for the lock; 99 is not an exit code of make, so it means that the lock was busy
  zoolock run --permits 3 downloads -- ./fetch.sh
      runs at most three times at once

Exit codes:
  of CMD   exit code of CMD; 128+N if signal N ended CMD
  64       invalid command line, or an invalid value in it
  69       the server cannot be reached, or a process or thread cannot be started
  70       the lock or the queue position was lost, or the lock could not be renewed in time
  75       lock not acquired in time (--try, --timeout), unless --on-busy-exit names another code
  77       permission denied
  126/127  CMD cannot be executed / CMD was not found

CMD runs in its own process group, with the standard input of zoolock and with these environment variables:
  ZOOLOCK_NAME      name of the lock, or the names of several locks, separated by spaces
  ZOOLOCK_PATH      path of the lock in ZooKeeper, or several paths, separated by spaces
  ZOOLOCK_TOKEN     fencing token: rises with every holder, so that a service can reject late writes of earlier holders
  ZOOLOCK_TICKET    value that `zoolock revoke` and `zoolock break` need for --token to act on this holder
  ZOOLOCK_SLOT      with --slot, a number that no other holder has, or several, separated by spaces
  ZOOLOCK_PREVIOUS  how the hold of the previous holder ended: clean, crashed, unknown
  ZOOLOCK_OWNER     owner id: `why` and `deadlocks` count all locks with the same id as locks of one job
  ZOOLOCK_HELD      for a zoolock that CMD runs (see below)
  ZOOLOCK_CONNECT   servers, for a zoolock that CMD runs; CMD also gets ZOOLOCK_ROOT, ZOOLOCK_AUTH, ZOOLOCK_CACERT, \
ZOOLOCK_CERT and ZOOLOCK_KEY if the command line has their flags, but no ZOOLOCK_AUTH if --auth names a command
ZOOLOCK_TOKEN is not set with --shared and --permits, because the lock can then have several holders at once.

zoolock passes signals on to this process group. At a second INT or TERM, it sends KILL. If a signal to zoolock, or ^C, \
ends CMD, zoolock ends by the same signal, so that ^C ends a script around zoolock, too. \
zoolock leaves sockets and the watchdog of systemd to CMD: LISTEN_PID and WATCHDOG_PID are set to the process id of \
CMD. If CMD sends messages to systemd, the unit needs `NotifyAccess=all`.

While the server cannot be reached, CMD keeps running. If the lock is about to be lost, the process group gets TERM \
and, after the time of --grace, KILL. Both come before another client can acquire the lock. If an operator breaks the \
lock (zoolock break), they come after that.

If CMD runs zoolock for a lock that becomes free only when CMD ends, this inner zoolock fails at once with exit code \
64, even if --on-busy-exit is given. The inner zoolock reads in ZOOLOCK_HELD which locks the outer zoolock holds, \
and on which servers. It fails with 64 on other servers, unless its command line names them.

Several NAMEs are acquired together, all or none. Their order does not matter: two commands that name the same locks \
in a different order do not deadlock.

If zoolock holds the lock and is asked to release it (zoolock revoke), CMD gets TERM, once. If zoolock is asked while \
it still waits for the lock, it does not start CMD, and exits with the code of --on-busy-exit. With --keep, it waits \
for the lock again instead.

zoolock releases the lock when CMD and its process group have ended. If other processes of the group are left when CMD \
ends, they get TERM and, after the time of --grace, KILL. Processes that have left the group, such as daemons, keep \
running without the lock. But with --keep, or if the lock is lost, zoolock ends these processes, too.

zoolock has a second process, lock-reaper. If zoolock is killed, or stopped (STOP) for so long that the lock is about \
to be lost, lock-reaper kills CMD and all its descendants, daemons included. If zoolock was killed, lock-reaper then ends the \
session, so that the lock is free at once, but not while a descendant lives. If lock-reaper is killed, zoolock does \
the same. Neither can kill processes that it has no permission to signal (sudo, set-user-ID programs), or processes \
that another program started for CMD. If both are killed at once, the kernel kills CMD, but not its descendants.

With --keep, zoolock restarts CMD whenever CMD ends, with any exit code. If no server can be reached at the start, zoolock exits with 69. The pause before a restart grows from half a \
second to half a minute. After CMD has run for half a minute, the next pause is half a second again. When the lock is \
lost or revoked, or if CMD keeps ending soon and others wait for the lock, zoolock waits for it again, at the end of \
the queue. If zoolock passes INT, QUIT or TERM (or HUP, if there is a terminal) on to CMD, and CMD ends, zoolock does not \
restart it, and ends as CMD has ended. During a pause or a wait, the signal ends zoolock.";

/// `zoolock run`.
#[derive(Debug, ClapArgs)]
#[command(after_help = RUN_HELP, override_usage = "zoolock run [OPTIONS] NAME [NAME]... -- CMD [ARG]...")]
pub(crate) struct RunArgs {
    /// Lock, or several locks to acquire together: absolute paths, or names below --root
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// Command and arguments, executed without a shell
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    // The order of these fields is the order of the sections in the help. A heading also applies to the flags after it.
    #[command(flatten)]
    pub(crate) waiting: WaitingArgs,

    #[command(flatten)]
    pub(crate) child: ChildArgs,

    #[command(flatten)]
    pub(crate) kind: KindArgs,

    #[command(flatten)]
    pub(crate) monitoring: MonitoringArgs,
}

/// The fate of a lock whose zoolock is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfKilled {
    /// The lock is free once CMD and all its descendants are dead
    Free,
    /// The lock is free when the session has expired: for a CMD that leaves work to another program, such as a database
    Wait,
}

/// Reactions of `run` to events, and the end of CMD.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Child")]
pub(crate) struct ChildArgs {
    /// Time between TERM and KILL, such as 2s, if the lock is about to be lost, or if CMD ends and leaves processes
    /// behind [default: 5s, at most a sixth of the negotiated session timeout]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    pub(crate) grace: Option<Duration>,

    /// Number this holder of permits: sets ZOOLOCK_SLOT to a number from 0 to N-1 that no other holder has, or to K numbers
    /// [default: no number]
    ///
    /// All holders give --slot. A number is free again when CMD has ended, or when the session of a crashed holder expires.
    #[arg(long, requires = "permits")]
    pub(crate) slot: bool,

    /// Fate of the lock if zoolock is killed (KILL)
    #[arg(long, value_name = "WHEN", default_value = "free")]
    pub(crate) if_killed: IfKilled,

    /// Restart CMD when it ends, and wait for the lock again if it is lost: keeps CMD running on one host at a time
    #[arg(long, conflicts_with_all = ["try_once", "timeout", "on_busy_exit"])]
    pub(crate) keep: bool,
}

const HOLD_HELP: &str = "\
Example, for the rest of a bash script:
  coproc zoolock hold --connect zk1,zk2,zk3 --quiet nightly
  hold=$COPROC_PID
  read -r token <&\"${COPROC[0]}\" || { wait \"$hold\"; exit; }
  # fails once hold knows that the lock is lost, broken or revoked
  kill -0 \"$hold\"
  # releases the lock, as the end of the script does
  kill \"$hold\"
In such a script, `exec CMD` releases the lock before CMD runs, because bash closes the coproc.

Exit codes: 0 after a revoke, TERM, or the end of the script or input; 64, 69, 70, 75 and 77 as for `run`; 74 if the token \
cannot be written.

`zoolock hold` prints the token once it has the lock, and then runs until the lock is released. It cannot end the script: if \
the lock is lost, broken or revoked, the script runs on. `zoolock run NAME -- CMD` ends CMD then.

`zoolock hold` releases the lock when the script or shell that started it ends (a subshell counts as its script), and \
at the end of standard input if standard input is a pipe, a file or a terminal (^D). If one of them ends while `hold` \
still waits for the lock, `hold` leaves the queue and exits with the code of --on-busy-exit.

`hold` outlives the process that started it with --stay, with nohup, and as the first process of a session (setsid, systemd). \
A `hold` that still waits ends by TERM. ^C, QUIT and HUP end it by the signal, as they end a script around it. USR1, USR2 and \
WINCH have no effect.";

/// `zoolock hold`.
#[derive(Debug, ClapArgs)]
#[command(after_help = HOLD_HELP, override_usage = "zoolock hold [OPTIONS] NAME [NAME]...")]
pub(crate) struct HoldArgs {
    /// At least one lock; several are acquired together: absolute paths, or names below --root
    #[arg(required_unless_present = "after_dashes", value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// A name, or by mistake a command
    #[arg(last = true, hide = true)]
    pub(crate) after_dashes: Vec<String>,

    /// Hold the lock even after the process that started `hold` has ended; the end of its input still ends it, so give it
    /// </dev/null
    #[arg(long, help_heading = "Waiting")]
    pub(crate) stay: bool,

    #[command(flatten)]
    pub(crate) waiting: WaitingArgs,

    #[command(flatten)]
    pub(crate) kind: KindArgs,

    #[command(flatten)]
    pub(crate) monitoring: MonitoringArgs,
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

    /// Start the command with PIPE ignored
    #[arg(long)]
    pub(crate) ignore_pipe: bool,

    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// `zoolock reap`: kills the command if `zoolock run` no longer can.
#[derive(Debug, ClapArgs)]
pub(crate) struct ReapArgs {
    /// Time between TERM and KILL
    #[arg(long, value_parser = time)]
    pub(crate) grace: Duration,

    /// Move the command to the foreground of the terminal
    #[arg(long)]
    pub(crate) foreground: bool,

    /// Start the command with PIPE ignored
    #[arg(long)]
    pub(crate) ignore_pipe: bool,

    /// Read lease deadlines on the clock that stops during suspend
    #[arg(long)]
    pub(crate) stop_in_suspend: bool,
}
