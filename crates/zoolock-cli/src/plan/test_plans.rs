//! Plans made from command lines, for tests.

use clap::Parser as _;

use super::Plan;
use crate::args::Args;
use crate::base::exit::{Exit, Failure};

/// Returns the plan for a command line that clap accepts.
pub(super) fn plan(line: &[&str]) -> Result<Plan, Failure> {
    let args = Args::try_parse_from(["zoolock"].iter().chain(line)).expect("clap accepts the command line");
    Plan::new(args)
}

/// Returns the error message for a command line that clap accepts and the plan refuses.
pub(super) fn refused(line: &[&str]) -> String {
    let failure = plan(line).expect_err("the plan must be refused");
    assert_eq!(failure.exit, Exit::USAGE, "{failure}");
    failure.to_string()
}
