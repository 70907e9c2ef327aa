//! Arguments of the commands that change locks of other clients.

use std::time::Duration;

use clap::Args as ClapArgs;
use zoolock::Ticket;

use super::values::{PERMITS, at_least_one, time, token};

const REVOKE_HELP: &str = "\
Revoking only asks the holder. `zoolock run` sends TERM to its command, and releases the lock when the command has \
ended. `zoolock hold` releases the lock at once. Other programs decide for themselves. A holder that uses Curator can \
be asked only if it has made its lock revocable. Holders that use other client libraries cannot be asked to release \
the lock; the exit code is then 78, and `zoolock break` is the way out. With --wait, the last lines say how each holder \
left the queue, as far as that is recorded, and which client holds the lock now. The first request to a \
holder is recorded, and later ones with --note, see `zoolock history`. A repeated request sends no second TERM.";

/// `zoolock revoke`.
#[derive(Debug, ClapArgs)]
#[command(after_help = REVOKE_HELP)]
pub(crate) struct RevokeArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// Ask only the holder or waiter with this token, which `zoolock show` prints [default: ask all holders]
    #[arg(long, value_name = "TOKEN", value_parser = token)]
    pub(crate) token: Option<Ticket>,

    /// Wait until all that were asked have left the queue, for at most this time, such as 30s or 5m. If one is left then,
    /// the exit code is 76 [default: do not wait]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    pub(crate) wait: Option<Duration>,

    /// Reason to record with the request
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

const CHECK_HELP: &str = "\
Exits with 0 if a holder of the lock has the token, and with 75 if none has; then the message names the holder. The answer was true \
at a moment during the call, and a majority of the servers has confirmed it. It says nothing about the time after: use it before long \
work, and let a resource that must be safe compare tokens with each write. ZOOLOCK_TOKEN_EPOCH must be that of the holder. A ticket of \
a reader or of a permit (ZOOLOCK_TICKET) works as well.";

/// `zoolock check`.
#[derive(Debug, ClapArgs)]
#[command(after_help = CHECK_HELP)]
pub(crate) struct CheckArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// Token of the holder, such as ZOOLOCK_TOKEN of its command, or ZOOLOCK_TICKET
    #[arg(value_name = "TOKEN", value_parser = token)]
    pub(crate) token: Ticket,
}

const BREAK_HELP: &str = "\
Deletes the znode of the holder or waiter with this token. If no holder or waiter has it, changes nothing and exits \
with 75; if there is no such lock, with 66. After the break of its only holder, the next waiter acquires the lock at \
once. The former holder learns of this a moment later, if it uses zoolock and can reach the server. Its job may run until \
then, or until its lease ends. If the holder writes to a resource that does not check fencing tokens, stop it before the \
break. Each break is recorded, see `zoolock history`.";

/// `zoolock break`.
#[derive(Debug, ClapArgs)]
#[command(after_help = BREAK_HELP)]
pub(crate) struct BreakArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// Token of the holder or waiter, which `zoolock show` prints. Without it, nothing changes, and the command is printed
    /// that breaks the lock of the holder
    #[arg(long, value_name = "TOKEN", value_parser = token)]
    pub(crate) token: Option<Ticket>,

    /// Reason to record with the break
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

const RESIZE_HELP: &str = "\
Holders keep their permits. If the holders have more permits than the new number, the last of them are shown as waiters. \
Afterwards, clients that give another number with --permits are refused, until the semaphore is idle and ZooKeeper removes its \
directory. Then the next client sets the number: change --permits in all jobs, too.";

/// `zoolock resize`.
#[derive(Debug, ClapArgs)]
#[command(after_help = RESIZE_HELP)]
pub(crate) struct ResizeArgs {
    /// The semaphore: a name below --root, or an absolute path
    pub(crate) name: String,

    /// New number of permits
    #[arg(long, value_name = "N", value_parser = at_least_one::<u32>(PERMITS))]
    pub(crate) permits: u32,
}
