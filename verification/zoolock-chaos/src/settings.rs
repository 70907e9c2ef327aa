//! The settings of a run.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::faults::FaultKind;
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
