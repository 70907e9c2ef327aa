//! `zoolock completions`: shell completion scripts.

use clap::builder::Resettable;
use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;

use crate::args::Args;

/// Returns the script for one shell.
pub(crate) fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut without_hidden(&Args::command()), "zoolock", &mut text);
    String::from_utf8(text).expect("names and help are text")
}

/// Copies the command without the flags and subcommands that `--help` hides. clap would complete them, and
/// cannot remove them from a command.
fn without_hidden(command: &Command) -> Command {
    let (hidden, args): (Vec<&Arg>, Vec<&Arg>) = command.get_arguments().partition(|arg| arg.is_hide_set());
    let args = args.into_iter().cloned().map(|arg| {
        if hidden.is_empty() {
            return arg;
        }
        // Removes this flag's references to other flags, because clap rejects a reference to a removed flag. In a
        // completion script, references only hide flags.
        arg.conflicts_with(Resettable::Reset).required_unless_present(Resettable::Reset)
    });
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(without_hidden);
    let shown = Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(args)
        .subcommands(commands);
    match command.get_version() {
        Some(version) => shown.version(version.to_owned()),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_flags_are_not_completed() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let script = script(shell);
            for word in ["run", "revoke", "--on-busy-exit", "--tls-client-ca"] {
                assert!(script.contains(word.trim_start_matches('-')), "{shell}: {word}");
            }
            for word in ["reap", "become", "local-idle", "--idle", "-l idle", "--local", "-l local"] {
                assert!(!script.contains(word), "{shell}: {word}");
            }
        }
    }
}
