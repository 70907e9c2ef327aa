//! `-h`: the most used flags, on one screen. `--help` shows all flags and the notes.

use clap::{Arg, Command};

/// Last line of `-h`.
const NOTE: &str = "See --help for all options.";

/// Global flags that `-h` shows.
const GLOBAL: [&str; 5] = ["connect", "auth", "root", "json", "quiet"];

/// Flags that `-h` shows for commands with many flags.
const SHOWN: [(&str, &[&str]); 3] = [
    (
        "run",
        &["try_once", "timeout", "on_busy_exit", "note", "keep", "shared", "permits", "connect", "quiet"],
    ),
    (
        "hold",
        &["try_once", "timeout", "on_busy_exit", "note", "shared", "permits", "connect", "json", "quiet"],
    ),
    ("serve", &["listen", "data", "tls_listen", "require_auth", "users", "metrics", "status", "stop"]),
];

/// Builds the command line: adds the global flags to the subcommands.
pub(super) fn build(mut command: Command) -> Command {
    command.build();
    group_help_flags(command).mut_subcommands(|command| group_help_flags(hide_useless_flags(command)))
}

/// Hides the global flags that have no use for a command.
fn hide_useless_flags(command: Command) -> Command {
    let is_offline = ["completions", "man"].contains(&command.get_name());
    let has_json =
        !is_offline && !["run", "top", "revoke", "break", "resize", "ui"].contains(&command.get_name());
    command.mut_args(|arg| {
        let is_useless =
            !has_json && arg.get_id() == "json" || is_offline && arg.get_help_heading() == Some("Connection");
        if is_useless { arg.hide(true) } else { arg }
    })
}

/// Lists `--help` and `--version` with the flags for the output, if all other flags of the command have a heading.
fn group_help_flags(command: Command) -> Command {
    let is_help = |arg: &Arg| ["help", "version"].contains(&arg.get_id().as_str());
    let has_heading = |arg: &Arg| arg.get_help_heading().is_some() || arg.is_positional() || is_help(arg);
    if command.get_name() == "help" || !command.get_arguments().all(has_heading) {
        return command;
    }
    command.mut_args(|arg| if is_help(&arg) { arg.help_heading("Output") } else { arg })
}

/// Hides all flags but the listed ones from the `-h` of each command, and moves the notes to `--help`.
pub(super) fn shorten_help(command: Command) -> Command {
    let command = build(command);
    let commands = |command: Command| {
        if command.get_name() == "help" { command.hide(true) } else { shorten_command_help(command) }
    };
    shorten_command_help(command).mut_subcommands(commands)
}

/// Hides all flags but the listed ones from the `-h` of one command, and moves its notes to `--help`.
fn shorten_command_help(command: Command) -> Command {
    let chosen = SHOWN.iter().find(|(name, _)| *name == command.get_name()).map(|(_, flags)| *flags);
    let notes = command.get_after_help().cloned().unwrap_or_default();
    let command = command.mut_args(|arg| {
        let id = arg.get_id().as_str();
        let is_shown = arg.is_positional()
            || ["help", "version"].contains(&id)
            || match chosen {
                Some(flags) => flags.contains(&id),
                None => !arg.is_global_set() || GLOBAL.contains(&id),
            };
        arg.hide_short_help(!is_shown)
    });
    command.after_help(NOTE).after_long_help(notes)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Args;

    #[test]
    fn flags_of_short_help_exist() {
        let mut zoolock = Args::command();
        zoolock.build();
        let has = |command: &Command, flag: &str| command.get_arguments().any(|arg| arg.get_id() == flag);
        assert!(GLOBAL.iter().all(|flag| has(&zoolock, flag)));
        for (name, flags) in SHOWN {
            let command = zoolock.find_subcommand(name).expect("the command exists");
            assert!(flags.iter().all(|flag| has(command, flag)), "{name}");
        }
    }
}
