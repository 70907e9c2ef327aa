//! The faults, and the settings of the drill.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

/// The session timeout of most holders. `zoolock run` accepts no shorter one, because it does not
/// know the tick of the ensemble.
pub(super) const SESSION: Duration = Duration::from_secs(6);
/// The session timeout of holders whose node is restarted.
const LONG_SESSION: Duration = Duration::from_secs(30);
/// The longest session timeout that a restarted node grants.
pub(super) const SHORTER: Duration = Duration::from_secs(2);

/// A fault. It hits all holders of a round at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
pub(crate) enum LossFault {
    /// The holders do not reach their node. In every other round their connections are also closed.
    Cut,
    /// SIGSTOP to the holders, and SIGCONT after the rivals have the locks.
    Stopped,
    /// The node of the holders is cut off from the other two, and the holders still reach it.
    Isolated,
    /// SIGKILL to the node of the holders, right after a request of one holder was forwarded to the
    /// node.
    Killed,
    /// The node of the holders restarts with a shorter limit for session timeouts. After the holders are attached again, they
    /// are stopped as by `Stopped`.
    Shortened,
}

impl LossFault {
    pub(super) fn name(self) -> &'static str {
        match self {
            LossFault::Cut => "link cut",
            LossFault::Stopped => "holder stopped",
            LossFault::Isolated => "follower isolated",
            LossFault::Killed => "follower killed",
            LossFault::Shortened => "timeout shortened",
        }
    }

    /// Returns the session timeout that the holders ask for.
    pub(super) fn requested(self) -> Duration {
        match self {
            // The node of the holders restarts before the fault. During the restart the holders
            // reach no other node, so the session timeout must be longer than the restart.
            LossFault::Shortened => LONG_SESSION,
            _ => SESSION,
        }
    }

    /// Returns the session timeout that the holders have when the fault hits them.
    pub(super) fn granted(self) -> Duration {
        if self == LossFault::Shortened { SHORTER } else { SESSION }
    }
}

/// A deliberate bug of the holders, which the judge must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LossBug {
    /// Holders report their guards as valid in any case.
    NeverLost,
}

/// The settings of the drill.
#[derive(Args, Debug)]
pub(crate) struct LossArgs {
    /// The number of rounds of each fault.
    #[arg(long, default_value_t = 10)]
    pub(super) rounds: usize,
    /// The number of holders at once. Every fourth is `zoolock run` with a command.
    #[arg(long, default_value_t = 20)]
    pub(super) holders: usize,
    /// The seed of the random choices. A random one by default. It is printed.
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Only these faults.
    #[arg(long, value_delimiter = ',', value_name = "FAULT")]
    pub(super) only: Vec<LossFault>,
    /// Adds a deliberate bug: the drill must fail.
    #[arg(long = "break", value_name = "WHAT")]
    pub(super) broken: Option<LossBug>,
    /// The directory for the table, all figures as JSON and the logs of the servers.
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}
