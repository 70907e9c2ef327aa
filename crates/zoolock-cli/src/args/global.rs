//! Flags of every command.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueEnum};

use super::copied::CopiedFlags;
use super::environment::Environment;
use super::values::{reader, root, time_within};

/// Minimum session timeout: three ticks, at the default tick time of Apache ZooKeeper.
const SHORTEST_SESSION: Duration = Duration::from_secs(6);
/// Maximum session timeout that the library accepts.
const LONGEST_SESSION: Duration = Duration::from_secs(60 * 60);

/// Flags that are accepted before or after the subcommand.
#[derive(Debug, ClapArgs)]
pub(crate) struct Global {
    /// Servers of the ensemble, as h1:2181,h2:2181
    ///
    /// A chroot after the servers is a prefix of all paths, as in h1:2181,h2:2181/team.
    ///
    /// Without --connect, or with `local`, zoolock uses this user's own server on this machine. Its locks exclude no other
    /// machine. Its files are in ZOOLOCK_STATE_DIR, $XDG_STATE_HOME/zoolock or ~/.local/state/zoolock, which must be on a
    /// disk of this machine. /etc/zoolock.conf, or the file that ZOOLOCK_CONFIG names, can set the variables of these
    /// flags for the whole machine.
    ///
    /// [default: this user's own server]
    #[arg(long, global = true, env = "ZOOLOCK_CONNECT", value_name = "HOSTS", help_heading = "Connection")]
    pub(crate) connect: Option<String>,

    /// Session timeout to request, from 6s to 1h: the time after which the server frees the lock of a crashed holder
    #[arg(
        long,
        global = true,
        env = "ZOOLOCK_SESSION_TIMEOUT",
        value_name = "TIME",
        allow_hyphen_values = true,
        default_value = "30s",
        value_parser = time_within(SHORTEST_SESSION..=LONGEST_SESSION, "choose a time from 6s to 1h"),
        help_heading = "Connection"
    )]
    pub(crate) session_timeout: Duration,

    /// Credentials, for example digest:@FILE
    ///
    /// The file (mode 0600) contains USER:PASSWORD. digest:env:NAME reads USER:PASSWORD from the environment variable NAME,
    /// and digest:command:COMMAND from the output of COMMAND. With sasl instead of digest, zoolock authenticates with
    /// SASL DIGEST-MD5. With kerberos[:SERVICE[/HOST]], in a build with the feature gssapi, zoolock authenticates to
    /// SERVICE (default: zookeeper) with the ticket of kinit.
    ///
    /// [default: no credentials]
    #[arg(
        long,
        global = true,
        env = "ZOOLOCK_AUTH",
        hide_env_values = true,
        value_name = "SCHEME:SOURCE",
        help_heading = "Connection"
    )]
    pub(crate) auth: Option<String>,

    /// Connect with TLS; trust server certificates that an authority in this file has signed (PEM) [default: no TLS]
    #[arg(long, global = true, env = "ZOOLOCK_CACERT", value_name = "FILE", value_parser = path_parser(), help_heading = "Connection")]
    pub(crate) cacert: Option<PathBuf>,

    /// Client certificate (PEM) and its intermediate certificates; created znodes belong to the certificate's subject
    /// [default: none]
    #[arg(long, global = true, env = "ZOOLOCK_CERT", value_name = "FILE", value_parser = path_parser(), help_heading = "Connection")]
    pub(crate) cert: Option<PathBuf>,

    /// Private key for --cert (PEM); refused if everyone can read the file [default: none]
    #[arg(long, global = true, env = "ZOOLOCK_KEY", value_name = "FILE", value_parser = path_parser(), help_heading = "Connection")]
    pub(crate) key: Option<PathBuf>,

    /// Let this identity read the znodes that zoolock creates; needs --auth or --cert; can be repeated [default: none]
    #[arg(
        long,
        global = true,
        value_name = "SCHEME:ID",
        value_parser = reader,
        help_heading = "Connection"
    )]
    pub(crate) reader: Vec<(String, String)>,

    /// Parent path of each NAME that has no leading /
    #[arg(
        long,
        global = true,
        env = "ZOOLOCK_ROOT",
        value_name = "PATH",
        default_value = "/locks",
        value_parser = root,
        help_heading = "Connection"
    )]
    pub(crate) root: String,

    /// Print JSON on standard output
    ///
    /// Works with hold, ls, show, watch, why, deadlocks, history, doctor and serve --status.
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,

    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Output")]
    pub(crate) quiet: bool,

    /// Print more
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(crate) verbose: bool,

    /// When to use colors
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub(crate) color: ColorWhen,

    /// The flags for commands to copy. [`Args::parse_line`](super::Args::parse_line) sets them.
    #[arg(skip)]
    pub(crate) copied: CopiedFlags,
    /// The settings of the environment. [`Args::parse_line`](super::Args::parse_line) sets them.
    #[arg(skip)]
    pub(crate) environment: Environment,

    /// The variables that the file of this machine sets, or the reason why it cannot be used.
    #[arg(skip = Ok(Vec::new()))]
    pub(crate) machine: Result<Vec<String>, String>,

    /// Variables of the environment that look like settings, but are none.
    #[arg(skip)]
    pub(crate) unknown: Vec<String>,
}

/// Parses a path. Unlike clap's own parser, this parser accepts an empty path, because an empty environment variable
/// counts as unset.
fn path_parser() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Use of colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    // Use colors on a terminal, unless NO_COLOR is set or TERM is `dumb`.
    Auto,
    Always,
    Never,
}
