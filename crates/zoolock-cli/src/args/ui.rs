//! `zoolock ui`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

const UI_HELP: &str = "\
Anyone who can connect to --listen sees every lock that zoolock may read, and /metrics. There is no TLS: listen on a \
loopback address and put a reverse proxy in front. The pages are read-only unless --allow-operate is given; then anyone \
who logs in may revoke and break. The token in --token-file is a password of at least 16 characters; create one with: \
head -c 24 /dev/urandom | base64.

Locks are read only while a page is open, and for at most a fifth of the time. History is kept in memory until the \
command ends.";

/// `zoolock ui`.
#[derive(Debug, ClapArgs)]
#[command(after_help = UI_HELP)]
pub(crate) struct UiArgs {
    /// Address to listen on, printed on standard output; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2190")]
    pub(crate) listen: String,

    /// Host name to accept besides localhost and IP addresses, such as that of the reverse proxy
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,

    /// Allow revoke and break after login; without it, the pages are read-only
    #[arg(long, requires = "token_file")]
    pub(crate) allow_operate: bool,

    /// File with the login token; only its owner may read it (mode 0600)
    #[arg(long, value_name = "FILE", requires = "allow_operate")]
    pub(crate) token_file: Option<PathBuf>,
}
