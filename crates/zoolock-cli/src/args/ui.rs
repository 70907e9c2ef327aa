//! `zoolock ui`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

const UI_HELP: &str = "\
Anyone who can connect to --listen sees /metrics, and every lock that zoolock has permission to read. There is no TLS: \
listen on a loopback address, and put a reverse proxy with TLS in front. The pages are read-only unless \
--allow-operate is given. With --allow-operate, anyone who logs in may revoke and break locks. The login token in \
--token-file is the password. It has at least 16 characters. Create one with: head -c 24 /dev/urandom | base64.

zoolock ui reads locks only while a page is open, and for at most a fifth of the time. It keeps the history of the \
locks in memory, until it ends.";

/// `zoolock ui`.
#[derive(Debug, ClapArgs)]
#[command(after_help = UI_HELP)]
pub(crate) struct UiArgs {
    /// Address to listen on, printed on standard output; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2190")]
    pub(crate) listen: String,

    /// Host name to accept in requests, such as that of the reverse proxy [always accepted: localhost, IP addresses]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,

    /// Let users who log in revoke and break locks; without this flag, the pages are read-only
    #[arg(long, requires = "token_file")]
    pub(crate) allow_operate: bool,

    /// File with the login token; refused if other users can read the file (use mode 0600)
    #[arg(long, value_name = "FILE", requires = "allow_operate")]
    pub(crate) token_file: Option<PathBuf>,
}
