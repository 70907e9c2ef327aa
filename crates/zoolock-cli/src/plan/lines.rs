//! Command lines, as tests write them.

use clap::Parser as _;

use super::Plan;
use crate::args::Args;
use crate::exit::{Exit, Failure};

pub(super) fn plan(line: &[&str]) -> Result<Plan, Failure> {
    let args = Args::try_parse_from(["zoolock"].iter().chain(line)).expect("the line is well formed");
    Plan::new(args)
}

pub(super) fn refused(line: &[&str]) -> String {
    let failure = plan(line).expect_err("the plan must be refused");
    assert_eq!(failure.exit, Exit::USAGE, "{failure}");
    failure.to_string()
}
