//! Plans made from command lines, for tests.

use std::ffi::OsString;

#[cfg(feature = "ui")]
use super::ConnectionSettings;
use super::Plan;
use crate::args::Args;
use crate::base::exit::{Exit, Failure};

/// Returns the plan for a command line that clap accepts.
pub(super) fn plan(line: &[&str]) -> Result<Plan, Failure> {
    let line: Vec<OsString> = ["zoolock"].iter().chain(line).map(OsString::from).collect();
    let args = Args::parse_line(&line).expect("clap accepts the command line");
    Plan::new(args)
}

/// Returns the error message for a refused command line.
pub(super) fn refused(line: &[&str]) -> String {
    let words: Vec<OsString> = ["zoolock"].iter().chain(line).map(OsString::from).collect();
    if let Err(error) = Args::parse_line(&words) {
        return error.to_string();
    }
    let failure = plan(line).expect_err("the plan must be refused");
    assert_eq!(failure.exit, Exit::USAGE, "{failure}");
    failure.to_string()
}

/// Returns the settings of a command without flags: this user's server, and the root `/locks`.
#[cfg(feature = "ui")]
pub(crate) fn local_service() -> ConnectionSettings {
    match plan(&["ls"]) {
        Ok(Plan::Ls { service, .. }) => service,
        other => panic!("expected a plan of ls: {other:?}"),
    }
}
