//! What may be written on the command line; nothing here looks at the world.
//!
//! * `global.rs`: the flags that every command has; `waiting.rs`: what is asked of a lock that is taken.
//! * `run.rs`, `look.rs`, `operate.rs`, `doctor.rs`, `ui.rs`, `serve.rs`, `about.rs`: the commands.

mod about;
mod doctor;
mod global;
mod look;
mod operate;
mod run;
mod serve;
mod ui;
mod waiting;

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use about::{CompletionsArgs, ManArgs};
pub(crate) use doctor::DoctorArgs;
pub(crate) use global::{ColorWhen, Global};
pub(crate) use look::{DeadlocksArgs, LsArgs, ShowArgs, TopArgs, WatchArgs, WhyArgs};
pub(crate) use operate::{BreakArgs, ResizeArgs, RevokeArgs};
pub(crate) use run::{BecomeArgs, HoldArgs, OnLost, OnRevoke, ReapArgs, RunArgs};
pub(crate) use serve::{Durability, ServeArgs, TlsArgs, TlsClients};
pub(crate) use ui::UiArgs;
pub(crate) use waiting::{ExportArgs, KindArgs, Waiting};

/// After the help of `zoolock` itself.
const EXIT_CODES: &str = "\
Exit codes:
  of CMD   its own; 128+N when signal N ended it
  64       the command line, or a value in it, is wrong
  69       the service cannot be reached
  70       the lock was lost while it was held
  74       the output cannot be written
  75       the lock was not acquired in time (--try, --timeout), or nobody has that token (revoke, break)
  77       permission denied
  126/127  CMD cannot be executed / was not found

Without --connect, a server for this user on this machine is started when needed.";

/// Distributed locks over ZooKeeper: flock for a fleet.
#[derive(Debug, Parser)]
#[command(name = "zoolock", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Reads a command line, and the environment.
    pub(crate) fn read(
        line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Args, clap::Error> {
        let mut matches = Args::command().try_get_matches_from(line)?;
        let source = matches.value_source("hardened");
        let read = Args::from_arg_matches_mut(&mut matches);
        let mut args = read.map_err(|error| error.format(&mut Args::command()))?;
        args.global.hardened_by_variable = source == Some(ValueSource::EnvVariable);
        Ok(args)
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(RunArgs),
    /// Take a lock, print its token, and hold it until ^C, TERM or the end of input
    Hold(HoldArgs),
    /// List the locks: who holds them, since when, who waits
    Ls(LsArgs),
    /// Show one lock: its holder and everyone who waits
    Show(ShowArgs),
    /// Watch one lock: a line for what is seen to happen to it
    Watch(WatchArgs),
    /// All locks on one screen, live: by waiters, by longest wait, by hand-overs
    Top(TopArgs),
    /// Say why a lock is not free: who holds it, what that one waits for itself, and so on
    Why(WhyArgs),
    /// Find those who wait for each other in a circle, and say what to break
    Deadlocks(DeadlocksArgs),
    /// Ask the holder of a lock to let go
    Revoke(RevokeArgs),
    /// Take a lock away from the one holder that has this token
    Break(BreakArgs),
    /// Change how many permits a semaphore has
    Resize(ResizeArgs),
    /// Say what is wrong with the service and the locks on it, and what to do about it
    Doctor(DoctorArgs),
    /// Show the locks in a browser, live: who holds, who waits, and for whom
    Ui(UiArgs),
    /// Be the embedded server, in the foreground; or ask for the one of this user
    Serve(Box<ServeArgs>),
    /// Print what makes a shell complete our command line
    Completions(CompletionsArgs),
    /// Print the manual page of zoolock, or of one of its commands
    Man(ManArgs),
    /// Become the command of `run`
    #[command(hide = true, name = "become")]
    Become(BecomeArgs),
    /// Watch over the command of `run`
    #[command(hide = true)]
    Reap(ReapArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn global_flags_stand_before_or_after_the_subcommand() {
        for line in [
            ["zoolock", "--connect", "a:1", "show", "x"],
            ["zoolock", "show", "--connect", "a:1", "x"],
            ["zoolock", "show", "x", "--connect", "a:1"],
        ] {
            let args = Args::try_parse_from(line).expect("all three are allowed");
            assert_eq!(args.global.connect.as_deref(), Some("a:1"));
        }
    }

    #[test]
    fn what_follows_the_dashes_is_the_commands() {
        let args = Args::try_parse_from(["zoolock", "run", "x", "--", "ls", "-q", "--json", "--"])
            .expect("the command's flags are its own");
        assert!(!args.global.quiet && !args.global.json);
        let Command::Run(run) = args.command else { panic!("run was asked for") };
        assert_eq!(run.command, ["ls", "-q", "--json", "--"]);
    }
}
