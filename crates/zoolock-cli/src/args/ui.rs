//! `zoolock ui`.

use std::net::SocketAddr;

use clap::Args as ClapArgs;

use super::values::{address, host_name};

const UI_HELP: &str = "\
Anyone who can connect to --listen sees /metrics, and every lock that zoolock has permission to read. There is no TLS: \
listen on a loopback address, and put a reverse proxy with TLS and a login in front. The pages change nothing. They show \
the commands that revoke and break a lock, to copy into a terminal.

zoolock ui reads locks only while a page is open, and for at most a fifth of the time.";

/// `zoolock ui`.
#[derive(Debug, ClapArgs)]
#[command(after_help = UI_HELP)]
pub(crate) struct UiArgs {
    /// Address to listen on, printed on standard output; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2190", value_parser = address)]
    pub(crate) listen: SocketAddr,

    /// Host name to accept in requests, such as that of the reverse proxy [always accepted: localhost, IP addresses]
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    pub(crate) host: Vec<String>,
}
