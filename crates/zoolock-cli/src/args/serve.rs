//! `zoolock serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use zoolock_server::FourLetterWord;

use super::values::{address, at_least_one, time, time_within, word};

/// Minimum of `--idle`: the command that starts a server needs time to connect.
const MIN_IDLE: Duration = Duration::from_millis(100);

const SERVE_HELP: &str = "\
Without --require-auth, any client that can connect may acquire and break any lock. With --require-auth, clients must \
authenticate, with a certificate (--tls-client-ca) or with an account in --users. Without TLS, passwords cross the \
network unencrypted.

The files of --users and --super-digest-file contain lines USER:HASH. HASH is base64(sha1(USER:PASSWORD)), the format \
of ZooKeeper:
  printf '%s' USER:PASSWORD | openssl sha1 -binary | base64";

/// `zoolock serve`.
#[derive(Debug, ClapArgs)]
#[command(after_help = SERVE_HELP)]
pub(crate) struct ServeArgs {
    /// Address to listen on; unless it is a loopback address, clients on other hosts can connect
    #[arg(
        long,
        value_name = "ADDRESS",
        value_parser = address,
        required_unless_present_any = ["tls_listen", "backup", "status", "stop", "adopt", "local"]
    )]
    pub(crate) listen: Option<SocketAddr>,

    /// Directory to store znodes and sessions in; without it, they are lost when the server ends
    #[arg(long, value_name = "DIR", conflicts_with_all = OWN_SERVER)]
    pub(crate) data: Option<PathBuf>,

    /// Durability of acknowledged writes
    #[arg(long, value_name = "HOW", requires = "data", default_value = "sync")]
    pub(crate) durability: DurabilityArg,

    /// If the log is damaged or incomplete, say what would be lost, ask, and start from what is left
    #[arg(
        long,
        value_name = "ANSWER",
        requires = "data",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "ask"
    )]
    pub(crate) recover: Option<RecoverArg>,

    /// Back up --data to a new directory, also while a server uses it, and exit
    #[arg(long, value_name = "NEWDIR", requires = "data", conflicts_with_all = ["listen", "tls_listen", "recover"])]
    pub(crate) backup: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) access: AccessArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) operation: MonitoringArgs,

    /// Report on this user's server; exit with 0 if it is running, with 1 if it is not
    #[arg(long, conflicts_with_all = ["listen", "stop"])]
    pub(crate) status: bool,

    /// Stop this user's server, and wait for it to end
    #[arg(long, conflicts_with = "listen")]
    pub(crate) stop: bool,

    /// Make this user's state directory, which another machine has used, belong to this machine
    #[arg(long, conflicts_with_all = ["listen", "status", "stop"])]
    pub(crate) adopt: bool,

    /// Run as this user's server, as `zoolock run` starts it
    #[arg(long, hide = true, conflicts_with_all = ["listen", "status", "stop", "adopt"])]
    pub(crate) local: bool,

    /// Time without a session after which this user's server stops
    #[arg(
        long,
        hide = true,
        env = "ZOOLOCK_LOCAL_IDLE",
        value_name = "TIME",
        default_value = "10m",
        value_parser = time_within(
            MIN_IDLE..=Duration::MAX,
            "the server would end before a client connects; choose 100ms or more (--idle, or ZOOLOCK_LOCAL_IDLE)"
        )
    )]
    pub(crate) idle: Duration,
}

/// Flags that act on this user's server. They conflict with the flags that configure another server.
const OWN_SERVER: [&str; 4] = ["status", "stop", "adopt", "local"];

/// Durability of acknowledged writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Each write is synced to disk before it is acknowledged, and survives a power failure
    Sync,
    /// Writes stay in memory, and end with the server; when the server starts again, it waits until the old sessions
    /// have expired
    Memory,
}

/// Answer to the question whether to start from what is left of a damaged log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecoverArg {
    /// Ask on the terminal
    Ask,
    /// Start without a question
    Yes,
}

/// TLS settings.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// Address to listen on for TLS, in addition to --listen or instead of it
    #[arg(
        long,
        value_name = "ADDRESS",
        value_parser = address,
        requires_all = ["tls_cert", "tls_key"],
        conflicts_with_all = OWN_SERVER
    )]
    pub(crate) tls_listen: Option<SocketAddr>,

    /// Server certificate (PEM) and its intermediate certificates
    #[arg(long, value_name = "FILE", requires = "tls_listen")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key for --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_listen")]
    pub(crate) tls_key: Option<PathBuf>,

    /// File of authorities (PEM) that may sign client certificates; the subject of a certificate is the client's x509
    /// identity
    #[arg(long, value_name = "FILE", requires = "tls_listen")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Certificates that clients need [default: required with --tls-client-ca, none without it]
    #[arg(long, value_name = "WHEN", requires = "tls_client_ca")]
    pub(crate) tls_clients: Option<TlsClients>,
}

/// Client certificates that the server asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TlsClients {
    None,
    Optional,
    Required,
}

/// Authentication settings.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// Serve only clients that authenticate, with an account in --users or with a certificate
    #[arg(long, conflicts_with_all = OWN_SERVER)]
    pub(crate) require_auth: bool,

    /// File of accounts, one USER:HASH per line; without this file, any user name with any password is accepted
    #[arg(long, value_name = "FILE", conflicts_with_all = OWN_SERVER)]
    pub(crate) users: Option<PathBuf>,

    /// File with the USER:HASH of a super user, whom no access control list restricts [default: no such user]
    #[arg(long, value_name = "FILE", conflicts_with_all = OWN_SERVER)]
    pub(crate) super_digest_file: Option<PathBuf>,
}

/// Limits on connections, and times of sessions.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Maximum number of connections [default: as many as the limit on open files allows]
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = at_least_one::<usize>("no client could connect; omit it for the default"),
        conflicts_with_all = OWN_SERVER
    )]
    pub(crate) max_connections: Option<usize>,

    /// Maximum number of connections per client address; 0: no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) max_connections_per_address: usize,

    /// Length of a tick; the server expires sessions only at multiples of this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, default_value = "2s", value_parser = time)]
    pub(crate) tick: Duration,

    /// Minimum negotiated session timeout [default: 2 ticks]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time, conflicts_with_all = OWN_SERVER)]
    pub(crate) min_session_timeout: Option<Duration>,

    /// Maximum negotiated session timeout [default: 20 ticks]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time, conflicts_with_all = OWN_SERVER)]
    pub(crate) max_session_timeout: Option<Duration>,
}

/// Monitoring settings.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Operation")]
pub(crate) struct MonitoringArgs {
    /// Address for /metrics (Prometheus), /ready and /live over HTTP, without authentication
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with_all = OWN_SERVER)]
    pub(crate) metrics: Option<SocketAddr>,

    /// Four-letter words to answer [default: envi,isro,mntr,ruok,srvr,wchs; only ruok with --require-auth]
    #[arg(long, value_name = "WORDS", value_delimiter = ',', value_parser = word, conflicts_with_all = OWN_SERVER)]
    pub(crate) words: Option<Vec<FourLetterWord>>,
}
