//! `zoolock ui`: where its pages are, and who may do what there.

use std::path::PathBuf;

use clap::Args as ClapArgs;

const UI_HELP: &str = "\
Whoever reaches --listen sees every lock that we may read, and /metrics; there is no TLS here, so keep it on a loopback \
address and put a reverse proxy before it. Nothing can be changed unless --allow-operate is given; then whoever logs \
in may revoke and break. The token of --token-file is a password of 16 characters or more: head -c 24 /dev/urandom | \
base64.

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
    #[arg(long, requires = "token_file")]
    pub(crate) allow_operate: bool,

    /// Log in with the token in this file, which is yours alone (mode 0600)
    #[arg(long, value_name = "FILE", requires = "allow_operate")]
    pub(crate) token_file: Option<PathBuf>,
}
