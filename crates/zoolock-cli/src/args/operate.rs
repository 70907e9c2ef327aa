//! Arguments of the commands that change locks of other clients.

use clap::Args as ClapArgs;

const REVOKE_HELP: &str = "\
Revoking only asks the holder: `zoolock run` sends TERM to its command and releases the lock when the command has \
ended, `zoolock hold` releases it at once, other programs decide for themselves. Revocable locks of Curator are asked \
in Curator's format. Holders of other client libraries cannot be asked, only broken (zoolock break).";

/// `zoolock revoke`.
#[derive(Debug, ClapArgs)]
#[command(after_help = REVOKE_HELP)]
pub(crate) struct RevokeArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// Only the holder or waiter with this token, as `zoolock show` prints it; default: all holders
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,

    /// Reason to record
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

const BREAK_HELP: &str = "\
The next waiter acquires the lock at once. The former holder may not have noticed yet; it notices within a moment if \
it can reach the server. If it still writes to a resource that does not check tokens, wait, or stop it first. Only the \
znode with this token is deleted; if there is none, the exit code is 75. Breaks are recorded below .audit in the root.";

/// `zoolock break`.
#[derive(Debug, ClapArgs)]
#[command(after_help = BREAK_HELP)]
pub(crate) struct BreakArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// The token of the holder or waiter, as `zoolock show` prints it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: String,

    /// Reason to record
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

const RESIZE_HELP: &str = "\
Holders keep their permits. From now on, clients with another --permits are refused.";

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
