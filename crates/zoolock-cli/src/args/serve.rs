//! `zoolock serve`: all that a server is told.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

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
