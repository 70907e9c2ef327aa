//! What may be written on the command line; nothing here looks at the world.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{FalseyValueParser, OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

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

/// Flags that may stand before or after the subcommand.
#[derive(Debug, ClapArgs)]
pub(crate) struct Global {
    /// The ensemble: h1:2181,h2:2181/chroot. Without it, the server of this user on this machine
    #[arg(long, global = true, env = "ZOOLOCK_CONNECT", value_name = "HOSTS", help_heading = "Connection")]
    pub(crate) connect: Option<String>,

    /// After how long without us the server gives our locks away
    #[arg(
        long,
        global = true,
        env = "ZOOLOCK_SESSION_TIMEOUT",
        value_name = "TIME",
        default_value = "30s",
        help_heading = "Connection"
    )]
    pub(crate) session_timeout: String,

    /// How long to try to reach the service
    #[arg(
        long,
        global = true,
        env = "ZOOLOCK_CONNECT_TIMEOUT",
        value_name = "TIME",
        default_value = "10s",
        help_heading = "Connection"
    )]
    pub(crate) connect_timeout: String,

    /// Credentials, as digest:@FILE, digest:env:NAME or digest:command:COMMAND: that file, which is yours alone (mode 0600),
    /// that variable, or what the command prints, is USER:PASSWORD; with sasl instead of digest, by SASL DIGEST-MD5
    #[arg(
        long,
        global = true,
        env = "ZOOLOCK_AUTH",
        hide_env_values = true,
        value_name = "SCHEME:SOURCE",
        help_heading = "Connection"
    )]
    pub(crate) auth: Option<String>,

    /// Speak TLS, and trust the authorities in this file (PEM) to sign the certificate of the service
    #[arg(long, global = true, env = "ZOOLOCK_CACERT", value_name = "FILE", value_parser = file(), help_heading = "Connection")]
    pub(crate) cacert: Option<PathBuf>,

    /// Our certificate in PEM, followed by those between it and the root; what we create belongs to the name in it
    #[arg(long, global = true, env = "ZOOLOCK_CERT", value_name = "FILE", value_parser = file(), help_heading = "Connection")]
    pub(crate) cert: Option<PathBuf>,

    /// Its private key in PEM; others may not read the file
    #[arg(long, global = true, env = "ZOOLOCK_KEY", value_name = "FILE", value_parser = file(), help_heading = "Connection")]
    pub(crate) key: Option<PathBuf>,

    /// Who may look at what we create with --auth or --cert, as SCHEME:ID; it belongs to those who have our credentials
    #[arg(
        long,
        global = true,
        value_name = "SCHEME:ID",
        conflicts_with = "world_writable",
        help_heading = "Connection"
    )]
    pub(crate) reader: Vec<String>,

    /// Let everybody do everything with what we create, though we have credentials
    #[arg(long, global = true, help_heading = "Connection")]
    pub(crate) world_writable: bool,

    /// Keep those who may queue for a lock from taking it from its holder: nobody may delete or write in its directory, and
    /// whoever lets go closes a session. All users of the lock need it; break, revoke and resize are for administrators then
    #[arg(long, global = true, env = "ZOOLOCK_HARDENED", value_parser = FalseyValueParser::new(), help_heading = "Connection")]
    pub(crate) hardened: bool,
    /// It was the variable that said so, of whatever is done on the machine.
    #[arg(skip)]
    pub(crate) hardened_by_variable: bool,

    /// Who may queue for the locks that we make with --hardened besides those who have our credentials, as SCHEME:ID
    #[arg(long, global = true, value_name = "SCHEME:ID", help_heading = "Connection")]
    pub(crate) member: Vec<String>,

    /// The directory that holds the locks whose names do not start with /
    #[arg(
        long,
        global = true,
        env = "ZOOLOCK_ROOT",
        value_name = "PATH",
        default_value = "/locks",
        help_heading = "Connection"
    )]
    pub(crate) root: String,

    /// The first part of every token; raise it when the ensemble is wiped, restored or replaced
    #[arg(
        long,
        global = true,
        env = "ZOOLOCK_TOKEN_EPOCH",
        value_name = "N",
        default_value_t = 0,
        help_heading = "Connection"
    )]
    pub(crate) token_epoch: u32,

    /// Print JSON on standard output (hold, ls, show, watch, why, deadlocks, bench, doctor, serve --status)
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,

    /// Say nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Output")]
    pub(crate) quiet: bool,

    /// Say more; up to three times
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    pub(crate) verbose: u8,

    /// Whether to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub(crate) color: ColorWhen,
}

/// Unlike clap's own, it takes an empty path: an empty variable is as none.
fn file() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// When colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    // On a terminal that has them, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
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
    /// Measure this service: acquire, hand-over, many locks, beside a plain create + delete
    Bench(BenchArgs),
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

/// How long to wait for a lock, and what others see of us.
#[derive(Debug, ClapArgs)]
pub(crate) struct Waiting {
    /// Do not wait when the lock is held
    #[arg(long = "try", conflicts_with = "timeout")]
    pub(crate) try_once: bool,

    /// Give up when the lock was not acquired within this time
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,

    /// Exit code when the lock was not acquired in time; 0: that is no error, and --quiet does not say it
    #[arg(long, value_name = "CODE", default_value_t = 75)]
    pub(crate) on_busy_exit: u8,

    /// Renew the lock by writes, which not even a leader that was cut off can confirm, however long the session timeout
    #[arg(long)]
    pub(crate) strict_renewal: bool,

    /// A word to whoever looks at the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// To whom the lock belongs, for `why` and `deadlocks`: commands of one job have one owner [default: for run, a new
    /// one, which CMD inherits]
    #[arg(long, env = "ZOOLOCK_OWNER", value_name = "ID")]
    pub(crate) owner: Option<String>,

    #[command(flatten)]
    pub(crate) kind: KindArgs,

    #[command(flatten)]
    pub(crate) export: ExportArgs,
}

/// What monitors see while a lock is waited for and held.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct ExportArgs {
    /// Where to answer /metrics over HTTP, for Prometheus; it asks for no credentials
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<String>,

    /// The collector of OpenTelemetry's to push metrics to, as http://HOST:4318
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,

    /// Tell the figures of different locks apart, by a label lock with the path
    #[arg(long)]
    pub(crate) metrics_by_lock: bool,
}

/// What kind of lock is taken.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Kind of lock")]
pub(crate) struct KindArgs {
    /// Hold it together with others that share it; without it, alone
    #[arg(long, conflicts_with_all = ["write", "permits"])]
    pub(crate) shared: bool,

    /// Hold it alone, as the write side of Curator's read/write lock
    #[arg(long, conflicts_with = "permits")]
    pub(crate) write: bool,

    /// It is a semaphore of so many permits; everybody has to say the same number
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,

    /// Whose names to use, so that clients of other makes in the same queue see us: native, curator, kazoo, write-lock,
    /// curator-semaphore
    #[arg(long, env = "ZOOLOCK_NAMING", value_name = "NAMING", default_value = "native")]
    pub(crate) naming: String,

    /// Every kazoo client of this lock was made with extra_lock_patterns=["lock-"], and so sees native names
    #[arg(long)]
    pub(crate) kazoo_pattern: bool,

    /// How many of the permits to take, all or none
    #[arg(long, value_name = "K", requires = "permits", conflicts_with_all = ["shared", "write"], default_value_t = 1)]
    pub(crate) take: u32,

    /// Note in the lock when we begin, so that the next holder knows if we die: its ZOOLOCK_PREVIOUS is "crashed"
    #[arg(long, conflicts_with_all = ["shared", "permits"])]
    pub(crate) crash_detection: bool,

    /// Wait this long before we begin, unless the last holder left cleanly
    #[arg(long, value_name = "TIME", conflicts_with = "permits")]
    pub(crate) lock_delay: Option<String>,
}

const RUN_HELP: &str = "\
CMD gets a process group of its own, our standard input, and in its environment ZOOLOCK_NAME, \
ZOOLOCK_TOKEN (rises with every holder: let what CMD writes to refuse a lower one; not with \
--shared and --permits, where others hold at the same time), ZOOLOCK_TICKET (for `zoolock revoke` and `break`), \
ZOOLOCK_PREVIOUS (clean, crashed, unknown), ZOOLOCK_PATH and ZOOLOCK_OWNER (see --owner). Several names and paths have a space between them. INT, TERM, HUP, QUIT, USR1 and USR2 \
are passed on to the group; a second INT or TERM kills it.

When the server cannot be reached, CMD goes on; if that lasts, the group gets TERM, and --grace \
later, before anyone else can have the lock, KILL.

Several NAMEs are taken together, all or none, and in any order: two commands that name the same \
locks differently never wait for each other in a circle.

When somebody asks us to let go (zoolock revoke), CMD gets TERM, once; if we still wait then, CMD is not started \
and the exit code is that of a busy lock.

The lock is released when CMD and its group have ended: what is left of the group when CMD ends gets TERM and, \
--grace later, KILL. What has left the group by then, as daemons do, lives on without the lock; but not when the lock \
is lost, and not with --keep.

If zoolock is killed with KILL, or is stopped by STOP when the lock runs out, a second process of ours, lock-reaper, \
kills CMD and all that descends from it, daemons too; if lock-reaper is killed, zoolock does. What we may not signal \
(sudo, set-user-ID programs), and what CMD only asked others to start, is beyond both. If both are killed at once, \
the kernel kills CMD, but not what CMD has started.

With --keep, CMD is started again whatever its exit code, after a pause that grows from half a second to half a \
minute, until it has run for half a minute. When the lock is lost or somebody asks for it, we wait for it again, at \
the end of the queue. INT or TERM to zoolock, or ^C, ends both, with the exit code of CMD.";

/// `zoolock run`.
#[derive(Debug, ClapArgs)]
#[command(after_help = RUN_HELP, override_usage = "zoolock run [OPTIONS] NAME [NAME]... -- CMD [ARG]...")]
pub(crate) struct RunArgs {
    /// The lock, or several to be taken together: names below --root, or absolute paths
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) waiting: Waiting,

    /// How long CMD has to end when the lock is being lost [default: 5s, at most a sixth of the session timeout that the service grants]
    #[arg(long, value_name = "TIME")]
    pub(crate) grace: Option<String>,

    /// When somebody asks us to let go: send TERM to CMD, or only say so
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_revoke: OnRevoke,

    /// When the lock is lost: kill CMD before anyone else can have it, or warn and let CMD finish (if zoolock is killed,
    /// CMD is all the same)
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Start CMD again when it ends, and stand by for the lock again when it is lost: exactly one in the fleet
    #[arg(long, conflicts_with_all = ["try_once", "timeout", "on_busy_exit"])]
    pub(crate) keep: bool,

    /// The command and its arguments; run as given, without a shell
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What happens to the child when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    // TERM, then KILL before anyone else can have the lock.
    Kill,
    // Say so and let it finish.
    Warn,
}

/// What happens to the child when somebody asks us to let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnRevoke {
    // TERM, once.
    Term,
    // Say so and let it finish.
    Warn,
}

const HOLD_HELP: &str = "\
The end of standard input releases the lock when that is a pipe, a file or a terminal (^D); \
/dev/null does not count, so that `hold` works as a service.";

/// `zoolock hold`.
#[derive(Debug, ClapArgs)]
#[command(after_help = HOLD_HELP)]
pub(crate) struct HoldArgs {
    /// The lock, or several to be taken together: names below --root, or absolute paths
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// `zoolock ls`.
#[derive(Debug, ClapArgs)]
pub(crate) struct LsArgs {
    /// Only the locks at and below this name
    pub(crate) prefix: Option<String>,
}

/// `zoolock show`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ShowArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

const WATCH_HELP: &str = "\
Who is there already is told first (holds, waits), then who comes, holds and goes, as it is seen, also to a lock that nobody has used yet: \
queued, granted, released, and crashed, panicked or broken where that is written; gone where nothing is written, as \
readers, permits and clients of other makes do; left, gave up waiting. What comes and goes between two looks is \
counted (unseen; not for semaphores of Curator and kazoo), and so is an outage told (lost, back). ^C ends it, with exit code 0.";

/// `zoolock watch`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WATCH_HELP)]
pub(crate) struct WatchArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

const TOP_HELP: &str = "\
? lists the keys. Enter shows the queue of a lock; r asks its holder to let go and b takes it away, both after a question \
and only from the one that was seen. No more than a fifth of the time is spent on reading: where one look takes long, the \
next ones come later than --interval says.";

/// `zoolock top`.
#[derive(Debug, ClapArgs)]
#[command(after_help = TOP_HELP)]
pub(crate) struct TopArgs {
    /// Only the locks at and below this name
    pub(crate) prefix: Option<String>,

    /// How often to look, at least 100ms
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: String,

    /// Only look: without the keys that revoke and break
    #[arg(long)]
    pub(crate) read_only: bool,
}

const WHY_HELP: &str = "\
All locks below --root are read, with everyone who waits. Who belongs together is what clients say: `zoolock run` and what it \
runs are one owner, as are locks that one task (or thread) of a program takes; of clients of other makes only the session is \
known.";

/// `zoolock why`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WHY_HELP)]
pub(crate) struct WhyArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,
}

/// `zoolock deadlocks`.
#[derive(Debug, ClapArgs)]
#[command(after_help = WHY_HELP)]
pub(crate) struct DeadlocksArgs {
    /// Only among the locks at and below this name
    pub(crate) prefix: Option<String>,
}

const REVOKE_HELP: &str = "\
A revoked holder is only asked: `zoolock run` sends TERM to its command and lets go when that has ended, \
`zoolock hold` lets go at once, programs do what they were written to do. A lock of Curator's that \
was made revocable is asked in Curator's words; other makes cannot be asked, only broken (zoolock break).";

/// `zoolock revoke`.
#[derive(Debug, ClapArgs)]
#[command(after_help = REVOKE_HELP)]
pub(crate) struct RevokeArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// Only the holder or waiter with this token, as `zoolock show` prints it; without it, everyone who holds
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,

    /// A word for the record
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

const BREAK_HELP: &str = "\
The lock moves on at once, and whoever held it may not have noticed yet: it will within a moment if it can reach \
the server. If it still writes to something that does not check tokens, wait, or stop it first. Nothing is broken but \
the one node that has this token: if it is gone, the exit code is 75. Who broke what is kept below .audit in the root.";

/// `zoolock break`.
#[derive(Debug, ClapArgs)]
#[command(after_help = BREAK_HELP)]
pub(crate) struct BreakArgs {
    /// The lock: a name below --root, or an absolute path
    pub(crate) name: String,

    /// The token of the holder or waiter, as `zoolock show` prints it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: String,

    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

const RESIZE_HELP: &str = "\
Those who hold permits keep them. Those who come with another --permits are refused from now on. Clients of kazoo that \
have looked at the size before go by the old one until they are started again.";

/// `zoolock resize`.
#[derive(Debug, ClapArgs)]
#[command(after_help = RESIZE_HELP)]
pub(crate) struct ResizeArgs {
    /// The semaphore: a name below --root, or an absolute path
    pub(crate) name: String,

    /// How many permits it has from now on
    #[arg(long, value_name = "N")]
    pub(crate) permits: u32,

    /// Whose semaphore it is: native or kazoo (that of Curator is written nowhere)
    #[arg(long, env = "ZOOLOCK_NAMING", value_name = "NAMING", default_value = "native")]
    pub(crate) naming: String,
}

const BENCH_HELP: &str = "\
The service is loaded while this runs: one work at a time, each for --time in all. Everything is below a directory of \
its own in the root, of at most some 1100 znodes at a time, and removed at the end, after ^C as well.

What is printed was measured from this machine, the way to the server and back included. RATIO is the median beside the \
one of create-delete: two writes, one awaited after the other, are the least that acquiring and releasing a lock can \
cost where both are awaited. Below 1 is what waits for less; 1/500 is what asks the service for nothing. All works \
take turns, so that they meet the same weather.";

/// `zoolock bench`.
#[derive(Debug, ClapArgs)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct BenchArgs {
    /// How long each work goes on, at most 1m
    #[arg(long, value_name = "TIME", default_value = "3s")]
    pub(crate) time: String,

    /// Only this work; may be given several times
    #[arg(long, value_name = "WORK")]
    pub(crate) only: Vec<Work>,

    /// How many tasks hand the lock over to each other, on two sessions
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) tasks: usize,
}

/// What `zoolock bench` measures, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Work {
    /// A znode created and deleted, both awaited, and no lock: what the others are compared with
    CreateDelete,
    /// A lock that nobody else wants, acquired and released, both awaited
    AcquireRelease,
    /// The same in a loop, let go of without waiting for the answer
    Loop,
    /// From one task's release to the next one's grant
    HandOver,
    /// Five hundred different locks at once, through one session
    Many,
    /// A lock that its process keeps for a while, taken again
    ReAcquire,
}

const DOCTOR_HELP: &str = "\
Looks at each server (four-letter words), a session and what it is granted, how long requests take, the clock, access, and at \
the directories at and below the root: their access control lists, how near they are to the end of their numbers, and who \
stands in their queues. It makes one ephemeral node to measure with, and deletes it.

Levels: ok; note, worth knowing; warning, locks work, but less well than they could; error, locks fail or more than one \
may hold. With --strict the worst of them is in the exit code: 1 for a warning, 2 for an error; without it the code is 0 \
whatever was found. 69 and 77: it could not look.";

/// `zoolock doctor`.
#[derive(Debug, ClapArgs)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Say the worst finding in the exit code: 1 for a warning, 2 for an error
    #[arg(long)]
    pub(crate) strict: bool,

    /// How many directories to look at
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(crate) limit: usize,
}

const UI_HELP: &str = "\
Whoever reaches --listen sees every lock that we may read, and /metrics; there is no TLS here, so keep it on a loopback \
address and put a reverse proxy before it. Nothing can be changed unless --allow-operate is given; then whoever logs \
in may revoke and break. The token of --token-file is a password of 16 characters or more: head -c 24 /dev/urandom | \
base64. --trusted-header believes whatever --trusted-proxy says, and so any process on that host.

The list is read again as often as it takes no more than a fifth of the time, and only while somebody looks. History \
is kept in memory, for as long as this command runs.";

/// `zoolock ui`.
#[derive(Debug, ClapArgs)]
#[command(after_help = UI_HELP)]
pub(crate) struct UiArgs {
    /// Where to listen; port 0 takes a free one. The address is printed on standard output
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2190")]
    pub(crate) listen: String,

    /// A name by which browsers reach us, besides localhost and addresses: that of the reverse proxy, say
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,

    /// Let those who log in revoke and break; without it the pages only show
    #[arg(long)]
    pub(crate) allow_operate: bool,

    /// Log in with the token in this file, which is yours alone (mode 0600)
    #[arg(long, value_name = "FILE", requires = "allow_operate")]
    pub(crate) token_file: Option<PathBuf>,

    /// Or be who a reverse proxy says in this header, as X-Forwarded-User
    #[arg(long, value_name = "HEADER", requires_all = ["allow_operate", "trusted_proxy"], conflicts_with = "token_file")]
    pub(crate) trusted_header: Option<String>,

    /// The address of that proxy; from others the header is not believed
    #[arg(long, value_name = "IP", requires = "trusted_header")]
    pub(crate) trusted_proxy: Vec<std::net::IpAddr>,
}

const SERVE_HELP: &str = "\
Whoever reaches the server may take and break any lock, unless --require-auth is given: then clients \
show a certificate (--tls-client-ca), or are one of --users. Without TLS their passwords can be read on the way.

The files of --users and --super-digest-file have lines USER:HASH, where HASH is \
base64(sha1(USER:PASSWORD)), as ZooKeeper writes it:
  printf '%s' USER:PASSWORD | openssl sha1 -binary | base64";

/// `zoolock serve`.
#[derive(Debug, ClapArgs)]
#[command(after_help = SERVE_HELP)]
pub(crate) struct ServeArgs {
    /// Where to listen; anything but a loopback address is open to the network
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["tls_listen", "status", "stop", "local"])]
    pub(crate) listen: Option<String>,

    /// Where to keep znodes and sessions; without it they end with the server
    #[arg(long, value_name = "DIR", conflicts_with_all = ELSEWHERE)]
    pub(crate) data: Option<PathBuf>,

    /// What a client that has its answer may rely on
    #[arg(long, value_name = "HOW", requires = "data", default_value = "sync")]
    pub(crate) durability: Durability,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) access: AccessArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) operation: OperationArgs,

    /// Say whether this user's server is running: exit 0 if it is, 1 if not
    #[arg(long, conflicts_with_all = ["listen", "stop"])]
    pub(crate) status: bool,

    /// Stop this user's server, and wait until it is gone
    #[arg(long, conflicts_with = "listen")]
    pub(crate) stop: bool,

    /// Be this user's server, as `zoolock run` starts it
    #[arg(long, hide = true, conflicts_with_all = ["listen", "status", "stop"])]
    pub(crate) local: bool,

    /// After how long without a session this user's server leaves
    #[arg(long, hide = true, env = "ZOOLOCK_LOCAL_IDLE", value_name = "TIME", default_value = "10m")]
    pub(crate) idle: String,
}

/// What is said to this user's server goes with nothing that a server of one's own is told.
const ELSEWHERE: [&str; 3] = ["status", "stop", "local"];

/// What `zoolock serve` promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// It is on disk, and outlives a power cut
    Sync,
    /// It will be on disk within moments; a crash may undo the last of it, sessions among it
    Async,
    /// Nothing: znodes and sessions end with the server, and the next one waits until they are over
    Memory,
}

/// How `zoolock serve` speaks TLS.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// Where to listen for TLS, beside --listen or instead of it
    #[arg(long, value_name = "ADDRESS", requires_all = ["tls_cert", "tls_key"], conflicts_with_all = ELSEWHERE)]
    pub(crate) tls_listen: Option<String>,

    /// The server's certificate in PEM, followed by those between it and the root
    #[arg(long, value_name = "FILE", requires = "tls_listen")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Its private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_listen")]
    pub(crate) tls_key: Option<PathBuf>,

    /// The authorities in PEM that sign certificates of clients; their subjects are identities of scheme x509
    #[arg(long, value_name = "FILE", requires = "tls_listen")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Whether clients show certificates [default: required with --tls-client-ca, none without]
    #[arg(long, value_name = "WHEN", requires = "tls_client_ca")]
    pub(crate) tls_clients: Option<TlsClients>,
}

/// Whether clients show certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TlsClients {
    None,
    Optional,
    Required,
}

/// Whom `zoolock serve` lets in.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// Serve only those who have authenticated: as one of --users, or with a certificate
    #[arg(long, conflicts_with_all = ELSEWHERE)]
    pub(crate) require_auth: bool,

    /// The only accounts of scheme digest, one USER:HASH a line; without it any user and password will do
    #[arg(long, value_name = "FILE", conflicts_with_all = ELSEWHERE)]
    pub(crate) users: Option<PathBuf>,

    /// The account that may do anything, as USER:HASH; without it there is none
    #[arg(long, value_name = "FILE", conflicts_with_all = ELSEWHERE)]
    pub(crate) super_digest_file: Option<PathBuf>,
}

/// How much `zoolock serve` gives away.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// How many connections there may be [default: as many as the files this process may open]
    #[arg(long, value_name = "COUNT", conflicts_with_all = ELSEWHERE)]
    pub(crate) max_connections: Option<usize>,

    /// How many of them one address may have; 0: any number
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) max_connections_per_address: usize,

    /// The unit in which sessions end
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) tick: String,

    /// The shortest session timeout granted [default: 2 ticks]
    #[arg(long, value_name = "TIME", conflicts_with_all = ELSEWHERE)]
    pub(crate) min_session_timeout: Option<String>,

    /// The longest session timeout granted [default: 20 ticks]
    #[arg(long, value_name = "TIME", conflicts_with_all = ELSEWHERE)]
    pub(crate) max_session_timeout: Option<String>,
}

/// What `zoolock serve` tells its operator.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Operation")]
pub(crate) struct OperationArgs {
    /// Where to answer /metrics (for Prometheus), /ready and /live over HTTP; they ask for no credentials
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ELSEWHERE)]
    pub(crate) metrics: Option<String>,

    /// The four-letter words that are answered [default: envi,isro,mntr,ruok,srvr,wchs; ruok with --require-auth]
    #[arg(long, value_name = "WORDS", value_delimiter = ',', conflicts_with_all = ELSEWHERE)]
    pub(crate) words: Option<Vec<String>>,
}

const COMPLETIONS_HELP: &str = "\
The Debian package has put them where the shells look. By hand:
  zoolock completions bash > ~/.local/share/bash-completion/completions/zoolock
  zoolock completions fish > ~/.config/fish/completions/zoolock.fish
  zoolock completions zsh > ~/.zfunc/_zoolock    with ~/.zfunc in fpath, before compinit";

/// `zoolock completions`.
#[derive(Debug, ClapArgs)]
#[command(after_help = COMPLETIONS_HELP)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

const MAN_HELP: &str = "\
To read one: zoolock man run | man -l -";

/// `zoolock man`.
#[derive(Debug, ClapArgs)]
#[command(after_help = MAN_HELP)]
pub(crate) struct ManArgs {
    /// Of which command; without it, of zoolock itself
    pub(crate) command: Option<String>,

    /// Write all pages into this directory instead, as zoolock.1, zoolock-run.1 and so on
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) write: Option<PathBuf>,
}

/// `zoolock become`, the step between our process and the command's.
#[derive(Debug, ClapArgs)]
pub(crate) struct BecomeArgs {
    /// The process that watches over the command
    #[arg(long)]
    pub(crate) parent: i32,

    /// Take the terminal first
    #[arg(long)]
    pub(crate) foreground: bool,

    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// `zoolock reap`, the process that ends the command when we cannot.
#[derive(Debug, ClapArgs)]
pub(crate) struct ReapArgs {
    /// Between TERM and KILL, in milliseconds
    #[arg(long)]
    grace: u64,

    /// Have the command take the terminal
    #[arg(long)]
    pub(crate) foreground: bool,
}

impl ReapArgs {
    pub(crate) fn grace(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.grace)
    }
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
