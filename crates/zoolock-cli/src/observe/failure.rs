//! Failures of reads.

use zoolock::Error;
use zoolock::observe::ReadOutcome;

/// The reason why a read failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// No server answers. Nothing is known about the locks since then.
    Unreachable(String),
    /// A server answers, but refuses the read.
    Refused(String),
}

impl ReadFailure {
    /// Returns the failure that an outcome tells, if there is one. After [`ReadOutcome::Silent`] the read continues.
    pub(crate) fn of(outcome: &Result<ReadOutcome, Error>) -> Option<ReadFailure> {
        match outcome {
            Ok(ReadOutcome::Read | ReadOutcome::Slow) => None,
            Ok(ReadOutcome::Silent(why) | ReadOutcome::Unreachable(why)) => {
                Some(ReadFailure::Unreachable(why.clone()))
            }
            Err(error) => Some(ReadFailure::Refused(error.to_string())),
        }
    }
}
