//! Arguments of the commands that change locks of other clients.

use clap::Args as ClapArgs;

const REVOKE_HELP: &str = "\
Revoking only asks the holder. `zoolock run` sends TERM to its command, and releases the lock when the command has \
ended. `zoolock hold` releases the lock at once. Other programs decide for themselves. A holder that uses Curator can \
be asked only if it has made its lock revocable. Holders that use other client libraries cannot be asked to release \
the lock; use `zoolock break` instead.";

/// `zoolock revoke`.
#[derive(Debug, ClapArgs)]
#[command(after_help = REVOKE_HELP)]
pub(crate) struct RevokeArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// Ask only the holder or waiter with this token, which `zoolock show` prints [default: ask all holders]
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
}

const BREAK_HELP: &str = "\
Deletes the znode of the holder or waiter with this token. If no holder or waiter has it, changes nothing and exits \
with 75. After the break of a holder, the next waiter acquires the lock at once. The former holder learns of this a \
moment later, if it uses zoolock and can reach the server. If the holder writes to a resource that does not check \
fencing tokens, stop it before the break. Each break is recorded in a znode below ROOT/.audit, where ROOT is the path \
of --root.";

/// `zoolock break`.
#[derive(Debug, ClapArgs)]
#[command(after_help = BREAK_HELP)]
pub(crate) struct BreakArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// Token of the holder or waiter, which `zoolock show` prints
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: String,

    /// Reason to record with the break
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

const RESIZE_HELP: &str = "\
Holders keep their permits. Afterwards, clients that give another number with --permits are refused.";

/// `zoolock resize`.
#[derive(Debug, ClapArgs)]
#[command(after_help = RESIZE_HELP)]
pub(crate) struct ResizeArgs {
    /// The semaphore: a name below --root, or an absolute path
    pub(crate) name: String,

    /// New number of permits
    #[arg(long, value_name = "N")]
    pub(crate) permits: u32,
}
