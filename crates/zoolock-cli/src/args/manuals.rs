//! Arguments of the commands that print completions and manual pages.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap_complete::Shell;

const COMPLETIONS_HELP: &str = "\
The Debian package installs them. By hand:
  zoolock completions bash > ~/.local/share/bash-completion/completions/zoolock
  zoolock completions fish > ~/.config/fish/completions/zoolock.fish
  zoolock completions zsh > ~/.zfunc/_zoolock    with ~/.zfunc in fpath, before compinit";

/// `zoolock completions`.
#[derive(Debug, ClapArgs)]
#[command(after_help = COMPLETIONS_HELP)]
pub(crate) struct CompletionsArgs {
    /// Shell to print completions for
    #[arg(value_parser = PossibleValuesParser::new(["bash", "fish", "zsh"]).try_map(|name| name.parse::<Shell>()))]
    pub(crate) shell: Shell,
}

const MAN_HELP: &str = "\
To read one: zoolock man run | man -l -";

/// `zoolock man`.
#[derive(Debug, ClapArgs)]
#[command(after_help = MAN_HELP)]
pub(crate) struct ManArgs {
    /// Command whose page to print [default: zoolock itself]
    pub(crate) command: Option<String>,

    /// Write all pages into this directory, as zoolock.1, zoolock-run.1 and so on
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) write: Option<PathBuf>,
}
