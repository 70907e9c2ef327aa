//! Parsed command lines, for tests.

use std::ffi::OsString;
use std::sync::Arc;

use crate::args::{Args, Command};
use crate::base::reporter::Reporter;
use crate::plan::{ConnectionSettings, Context};

/// Parses the command line of a command.
pub(crate) fn parse(line: &[&str]) -> Result<(Context, Command), clap::Error> {
    let line: Vec<OsString> = ["zoolock"].iter().chain(line).map(OsString::from).collect();
    let Args { global, command } = Args::parse_line(&line, Ok(String::new()))?;
    Ok((Context { global, reporter: Arc::new(Reporter::plain()) }, command))
}

/// Returns the settings of a command line of `ls` with these flags, or the message that refuses them.
pub(crate) fn connection(flags: &[&str]) -> Result<ConnectionSettings, String> {
    let (context, _) = parse(&[&["ls"], flags].concat()).map_err(|error| error.to_string())?;
    context.connection().map_err(|failure| failure.to_string())
}

/// Returns the settings of a command without flags: this user's server, and the root `/locks`.
#[cfg(feature = "ui")]
pub(crate) fn local_service() -> ConnectionSettings {
    connection(&[]).expect("the defaults are valid")
}
