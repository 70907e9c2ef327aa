//! The command line and its help. Nothing here reads files or connects.
//!
//! * `global.rs`: flags of every command; `waiting.rs`: flags of commands that acquire a lock.
//! * `environment.rs`: settings that only the environment gives.
//! * `values.rs`: parsers of the values of flags.
//! * `machine.rs`: the settings of this machine, which are defaults of flags.
//! * `short_help.rs`: the flags that `-h` shows; `copied.rs`: the flags of commands to copy.
//! * `run.rs`, `look.rs`, `operate.rs`, `doctor.rs`, `ui.rs`, `serve.rs`, `manuals.rs`: the commands.
//! * `completions.rs`, `manual.rs`: shell completions and manual pages, generated from all of these.

pub(crate) mod completions;
mod copied;
mod doctor;
mod environment;
mod global;
mod look;
mod machine;
pub(crate) mod manual;
mod manuals;
mod operate;
mod run;
mod serve;
mod short_help;
#[cfg(feature = "ui")]
mod ui;
mod values;
mod waiting;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use copied::CopiedFlags;
pub(crate) use doctor::DoctorArgs;
pub(crate) use environment::Environment;
pub(crate) use global::{ColorWhen, Global};
pub(crate) use look::{
    DeadlocksArgs, HistoryArgs, LeaderArgs, ListOrder, LsArgs, ShowArgs, TopArgs, WatchArgs, WhyArgs,
};
pub(crate) use manuals::{CompletionsArgs, ManArgs};
pub(crate) use operate::{BreakArgs, CheckArgs, ResizeArgs, RevokeArgs};
pub(crate) use run::{BecomeArgs, ChildArgs, HoldArgs, IfKilled, ReapArgs, RunArgs};
pub(crate) use serve::{DurabilityArg, RecoverArg, ServeArgs, TlsArgs, TlsClients};
#[cfg(feature = "ui")]
pub(crate) use ui::UiArgs;
pub(crate) use values::MetricsAddress;
pub(crate) use waiting::{KindArgs, MonitoringArgs, WaitingArgs, WantedKind};

/// Notes after the help of `zoolock` itself.
const EXIT_CODES: &str = "\
Exit codes:
  of CMD   run: exit code of CMD; 128+N if signal N ended CMD
  1        deadlocks: found a deadlock
           serve --status: no server runs
           doctor: the worst finding is a warning
  2        doctor: a finding is an error
  64       invalid command line, or an invalid value in it
           run, hold: lock not acquired in time, and --timeout is not longer than --lock-delay
  66       leader: nobody leads
           show, why, revoke, break: no lock has this name: never used, its directory removed, or misspelled; a free lock can give 0, too
           ls, show, leader, why, deadlocks, history, revoke, break: --root does not exist (and is not /locks)
  69       the server cannot be reached, a process or thread cannot be started, or the command of --auth failed
  70       the lock or the queue position was lost, or the lock could not be renewed in time
  74       the output cannot be written
  75       run, hold: lock not acquired in time (--try, --timeout)
           revoke, break: no holder or waiter has the token
           check: no holder has the token
  76       revoke --wait: a holder that was asked is still in the queue
  77       permission denied
  78       revoke: the client libraries of the holders read no such requests
  126/127  run: CMD cannot be executed / CMD was not found

Settings that only environment variables give:
  ZOOLOCK_CONNECT_TIMEOUT  maximum time to connect to a server, such as 500ms; more than 0s [default: 10s]
  ZOOLOCK_OTLP             run, hold: OpenTelemetry collector to push metrics to, as http://HOST:4318 [default: none]
  ZOOLOCK_OWNER            owner id: `why` and `deadlocks` count all locks with the same id as locks of one job \
[default: `run` makes a new id, which CMD inherits; `hold` has none]
  ZOOLOCK_TOKEN_EPOCH      first part of every fencing token; increase it when the ensemble is wiped, restored or \
replaced [default: 0]
  ZOOLOCK_WORLD_WRITABLE   1: create znodes that every client may change, even with --auth or --cert [default: 0]

If neither --connect, ZOOLOCK_CONNECT nor /etc/zoolock.conf names servers, zoolock starts an embedded server for this user, \
on this machine, when it needs one.";

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
    /// Parses a command line, the environment, and the text of the file with the settings of this machine.
    pub(crate) fn parse_line(line: &[OsString], file: Result<String, String>) -> Result<Args, clap::Error> {
        let unknown = machine::unknown_variables(&Args::command());
        let (machine, command) = machine::apply(file, Args::command());
        let mut matches =
            short_help::shorten_help(command).try_get_matches_from(line).map_err(values::name_flag)?;
        let copied = CopiedFlags::new(&matches);
        let mut args =
            Args::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut Args::command()))?;
        let file_value = |name: &str| {
            let values = machine.as_ref().ok()?;
            values.iter().find(|(variable, _)| variable == name).map(|(_, value)| value.into())
        };
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        args.global.environment = Environment::read(|name| set(name).or_else(|| file_value(name)))?;
        args.global.machine = machine.map(|values| values.into_iter().map(|(name, _)| name).collect());
        (args.global.copied, args.global.unknown) = (copied, unknown);
        Ok(args)
    }
}

/// The subcommands. Each has a method `run`, which checks the flags that depend on each other and then runs the command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(RunArgs),
    /// Hold a lock until ^C, TERM, or the end of its script or input
    Hold(HoldArgs),
    /// List locks with their holders and waiters
    Ls(LsArgs),
    /// Show the holder and all waiters of one lock
    Show(ShowArgs),
    /// Print a line for each change of one lock's queue
    Watch(WatchArgs),
    /// Show all locks live on one screen
    Top(TopArgs),
    /// Print the leader of an election
    Leader(LeaderArgs),
    /// Check whether a token is that of the present holder
    Check(CheckArgs),
    /// Explain why a lock is not free, and what its holder waits for
    Why(WhyArgs),
    /// Find deadlocks, and name the commands that end them
    Deadlocks(DeadlocksArgs),
    /// Show what operators did, and the crashes that holders found
    History(HistoryArgs),
    /// Ask the holder of a lock to release it
    Revoke(RevokeArgs),
    /// Take a lock away from the holder with the given token
    Break(BreakArgs),
    /// Change the number of permits of a semaphore
    Resize(ResizeArgs),
    /// Check the servers and the locks, and suggest remedies
    Doctor(DoctorArgs),
    /// Show the locks live in a browser
    #[cfg(feature = "ui")]
    Ui(UiArgs),
    /// Run the embedded server, or report on this user's server
    Serve(Box<ServeArgs>),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print a manual page
    Man(ManArgs),
}

/// The hidden commands, which `run` starts as child processes. They have a small parser of their own, which is much
/// faster than the parser of all commands.
#[derive(Debug, Parser)]
#[command(name = "zoolock")]
pub(crate) enum Internal {
    /// Execute the command of `run` in place of this process
    Become(BecomeArgs),
    /// Kill the command of `run` if `run` is killed
    Reap(ReapArgs),
}

impl Internal {
    /// Parses the command line of a hidden command. Returns `None` for any other command line.
    pub(crate) fn parse_line(line: &[OsString]) -> Option<Result<Internal, clap::Error>> {
        let is_internal = line.get(1).is_some_and(|command| command == "become" || command == "reap");
        is_internal.then(|| Internal::try_parse_from(line))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn help_and_guide_list_every_exit_code() {
        let constants = include_str!("../base/exit.rs").lines().filter_map(|line| {
            let (name, code) =
                line.trim().strip_prefix("pub(crate) const ")?.split_once(": Self = Self::Code(")?;
            Some((name, code.strip_suffix(");")?))
        });
        let codes: Vec<_> = constants.filter(|(name, _)| *name != "OK").collect();
        assert!(codes.len() > 10, "{codes:?}");
        let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../guide/src/jobs.md"))
            .expect("the guide is readable");
        let (_, guide) = guide.split_once("\n## Exit codes\n").expect("a chapter");
        // The first column of a line that lists codes, as in `126/127  run: …` and `| 126, 127 | …`.
        let lists = |text: &str, code: &str| {
            let first = |line: &str| {
                line.trim_start_matches(['|', ' ']).split(['|', ' ']).take(2).collect::<Vec<_>>().join(" ")
            };
            text.lines().any(|line| first(line).split([' ', ',', '/']).any(|word| word == code))
        };
        for (name, code) in codes {
            assert!(lists(EXIT_CODES, code), "--help does not list {name}, {code}");
            assert!(lists(guide, code), "the guide does not list {name}, {code}");
        }
    }

    #[test]
    fn global_flags_work_before_and_after_the_subcommand() {
        for line in [
            ["zoolock", "--connect", "a:1", "show", "x"],
            ["zoolock", "show", "--connect", "a:1", "x"],
            ["zoolock", "show", "x", "--connect", "a:1"],
        ] {
            let args = Args::try_parse_from(line).expect("all three positions are accepted");
            assert_eq!(args.global.connect.as_deref(), Some("a:1"));
        }
    }

    #[test]
    fn flags_after_the_dashes_belong_to_cmd() {
        let args = Args::try_parse_from(["zoolock", "run", "x", "--", "ls", "-q", "--json", "--"])
            .expect("flags of CMD are not parsed");
        assert!(!args.global.quiet && !args.global.json);
        let Command::Run(run) = args.command else { panic!("expected run") };
        assert_eq!(run.command, ["ls", "-q", "--json", "--"]);
    }
}
