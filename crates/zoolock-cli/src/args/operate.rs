//! The commands that change what others have.

use clap::Args as ClapArgs;

const REVOKE_HELP: &str = "\
A revoked holder is only asked: `zoolock run` sends TERM to its command and lets go when that has ended, \
`zoolock hold` lets go at once, programs do what they were written to do. A lock of Curator's that \
was made revocable is asked in Curator's words; other makes cannot be asked, only broken (zoolock break).";

/// `zoolock revoke`.
#[derive(Debug, ClapArgs)]
#[command(after_help = REVOKE_HELP)]
pub(crate) struct RevokeArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// Only the holder or waiter with this token, as `zoolock show` prints it; without it, everyone who holds
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,

    /// A word for the record
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

const BREAK_HELP: &str = "\
The lock moves on at once, and whoever held it may not have noticed yet: it will within a moment if it can reach \
the server. If it still writes to something that does not check tokens, wait, or stop it first. Nothing is broken but \
the one node that has this token: if it is gone, the exit code is 75. Who broke what is kept below .audit in the root.";

/// `zoolock break`.
#[derive(Debug, ClapArgs)]
#[command(after_help = BREAK_HELP)]
pub(crate) struct BreakArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// The token of the holder or waiter, as `zoolock show` prints it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: String,

    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

const RESIZE_HELP: &str = "\
Those who hold permits keep them. Those who come with another --permits are refused from now on.";

/// `zoolock resize`.
#[derive(Debug, ClapArgs)]
#[command(after_help = RESIZE_HELP)]
pub(crate) struct ResizeArgs {
    /// The semaphore: a name below --root, or an absolute path
    pub(crate) name: String,

    /// How many permits it has from now on
    #[arg(long, value_name = "N")]
    pub(crate) permits: u32,
}
