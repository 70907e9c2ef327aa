//! The settings, the observations and the verdict of a run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::faults::FaultKind;
use crate::reach::Reach;
use crate::task::DeliberateBug;

/// The settings of a run.
#[derive(Args, Debug)]
pub(crate) struct DrillArgs {
    /// The length of the run: `90s`, `30m`.
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub(crate) time: Duration,
    /// The seed of the plan of faults. A random one by default. It is printed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Only these kinds of fault, in turn.
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    pub(crate) only: Vec<FaultKind>,
    /// The number of workers, with twenty-two tasks each.
    #[arg(long, default_value_t = 4)]
    pub(crate) workers: usize,
    /// Adds a deliberate bug: the run must fail.
    #[arg(long = "break", value_name = "WHAT")]
    pub(crate) broken: Option<DeliberateBug>,
    /// The directory for the data of the servers and the referee.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The directory for the report, the plot and the referee's file.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Parses `90s` or `30m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is no time; say 90s or 30m"))?;
    match unit {
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(60 * number)),
        _ => Err(format!("`{text}` has no unit; say 90s or 30m")),
    }
}

/// The observations of a run that are not in the referee's file.
#[derive(Default)]
pub(crate) struct Observations {
    /// Violations, in words.
    pub(crate) violations: Vec<String>,
    /// The nodes whose tree differed from that of the others.
    pub(crate) diverged: Vec<String>,
    pub(crate) samples: Vec<ProgressSample>,
    /// The spans in which the nodes were usable, and in which the links of the workers were broken.
    pub(crate) reach: Reach,
    pub(crate) began: i64,
    pub(crate) ended: i64,
}

/// The number of critical sections at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgressSample {
    pub(crate) at: i64,
    pub(crate) sections: u64,
}

/// The verdict on a run.
#[derive(Default)]
pub(crate) struct RunVerdict {
    /// Violations, in words.
    pub(crate) violations: Vec<String>,
    /// Servers whose tree differed from that of the others, and which were restarted without data.
    pub(crate) diverged: Vec<String>,
    pub(crate) faults: Vec<FaultRecord>,
    pub(crate) samples: Vec<ProgressSample>,
    pub(crate) began: i64,
    pub(crate) ended: i64,
    /// Number of sections during which a guard was valid, by kind of lock.
    pub(crate) sections: BTreeMap<String, u64>,
    /// Number of accepted writes.
    pub(crate) written: u64,
    /// The times of the writes that the referee refused.
    pub(crate) refused: Vec<i64>,
    /// Number of refused writes with a valid guard, after a fault had deleted the znode or closed the session.
    pub(crate) refused_while_valid: u64,
    /// Number of overlapping holds after a fault had deleted the znode or closed the session.
    pub(crate) excused: u64,
    /// Number of confirmed releases.
    pub(crate) released: u64,
    /// Number of locks that were lost with their session or its lease.
    pub(crate) lost: u64,
    /// Number of locks that were lost although a server could have kept them.
    pub(crate) needlessly_lost: u64,
    /// Errors of acquisitions, and losses, each with its count.
    pub(crate) ends: BTreeMap<String, u64>,
    /// The longest time from an acquire call to its grant, in seconds.
    pub(crate) longest_wait: f64,
}

/// Suffix of the kind of a fault that was not injected.
pub(crate) const NOT_DONE: &str = " (not done)";

/// A fault of the run.
pub(crate) struct FaultRecord {
    pub(crate) kind: String,
    pub(crate) target: String,
    pub(crate) struck: i64,
    pub(crate) healed: i64,
    pub(crate) settled: i64,
}

impl FaultRecord {
    /// Returns whether the fault was injected. An injection may fail: for example, no session can
    /// be taken if there is no contender.
    pub(crate) fn is_done(&self) -> bool {
        !self.kind.ends_with(NOT_DONE)
    }
}
