//! The flags that every command has.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueEnum};

/// Flags that may stand before or after the subcommand.
#[derive(Debug, ClapArgs)]
pub(crate) struct Global {
    /// Ensemble (h1:2181,h2:2181)
    ///
    /// With a chroot: h1:2181,h2:2181/chroot. Without --connect, this user's server on this machine is used.
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

    /// Credentials, as digest:@FILE
    ///
    /// FILE (mode 0600) holds USER:PASSWORD. digest:env:NAME reads them from a variable, digest:command:COMMAND from the output
    /// of a command. sasl in place of digest sends them by SASL DIGEST-MD5. kerberos[:SERVICE[/HOST]], in a build with the
    /// feature gssapi, shows the ticket of kinit for that service, by default zookeeper.
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

    /// Directory of locks whose names do not start with /
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

    /// Print JSON on standard output
    ///
    /// For hold, ls, show, watch, why, deadlocks, doctor and serve --status.
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
