//! What may be written on the command line; nothing here looks at the world.
//!
//! * `global.rs`: the flags that every command has; `waiting.rs`: what is asked of a lock that is taken.
//! * `short_help.rs`: which flags `-h` shows.
//! * `run.rs`, `look.rs`, `operate.rs`, `doctor.rs`, `ui.rs`, `serve.rs`, `about.rs`: the commands.

mod about;
mod doctor;
mod global;
mod look;
mod operate;
mod run;
mod serve;
mod short_help;
mod ui;
mod waiting;

use std::ffi::OsString;

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
        let mut matches = short_help::shorten(Args::command()).try_get_matches_from(line)?;
        Args::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut Args::command()))
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(RunArgs),
    /// Hold a lock until ^C, TERM or the end of input
    Hold(HoldArgs),
    /// List locks with their holders and waiters
    Ls(LsArgs),
    /// Show the holder and all waiters of one lock
    Show(ShowArgs),
    /// Print a line for each event of one lock
    Watch(WatchArgs),
    /// Show all locks live on one screen
    Top(TopArgs),
    /// Explain why a lock is held, and what its holder waits for
    Why(WhyArgs),
    /// Find deadlocks, and say which lock to break
    Deadlocks(DeadlocksArgs),
    /// Ask the holder of a lock to release it
    Revoke(RevokeArgs),
    /// Take a lock away from the holder with this token
    Break(BreakArgs),
    /// Change the number of permits of a semaphore
    Resize(ResizeArgs),
    /// Check the service and its locks, and suggest remedies
    Doctor(DoctorArgs),
    /// Show the locks live in a browser
    Ui(UiArgs),
    /// Run the embedded server, or report on this user's server
    Serve(Box<ServeArgs>),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print a manual page
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
    use clap::CommandFactory as _;

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
