//! The commands that take a lock away from a contender. All commands and views show them in the same order: first the request
//! to release, if the contender reads requests, because its job then ends before the next one starts. Then the break.

use std::fmt::Write as _;

use zoolock::admin::Entry;

use super::text::{TextStyle, format_asked, lock_name, wrap_text};
use crate::base::shell::quote_for_shell;
use crate::plan::ConnectionSettings;

/// Operator action on a holder or waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminAction {
    Revoke,
    Break,
}

impl AdminAction {
    /// Returns the name, as in command lines and window titles.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Revoke => "revoke",
            Self::Break => "break",
        }
    }
}

/// Returns the command line for an action on the contender with this token, ready to copy into a shell.
pub(crate) fn command_line(
    service: &ConnectionSettings,
    action: AdminAction,
    path: &str,
    token: &str,
) -> String {
    service.command_to_copy(&format!("{} {} --token {token}", action.word(), quoted_name(path, service)))
}

/// Returns the name of a lock, quoted for a shell. A name that begins with a hyphen would be read as a flag, so the
/// path is returned instead.
pub(crate) fn quoted_name(path: &str, service: &ConnectionSettings) -> String {
    let name = Some(lock_name(path, &service.root)).filter(|name| !name.starts_with('-'));
    quote_for_shell(name.unwrap_or(path))
}

/// The warning beside each command that breaks a lock.
pub(crate) const STOP_FIRST: &str = "the next waiter may acquire the lock at once, and the old job may run until it notices \
                                     or its lease ends: stop it first if they must not overlap";

/// The commands that take a lock away from a contender.
pub(crate) struct Remedy {
    pub(crate) request: Request,
    /// The command that breaks the lock.
    pub(crate) break_command: String,
}

/// The request to release.
pub(crate) enum Request {
    /// The command that asks the contender.
    Command(String),
    /// The contender was asked, and is still in the queue: `asked to release`, with the time since then if it is known.
    Sent(String),
    /// The contender cannot be asked, for this reason.
    Impossible(&'static str),
}

impl Remedy {
    /// Returns the commands for a contender of the lock at `path`. `None` if its token could not be read.
    pub(crate) fn of(service: &ConnectionSettings, path: &str, entry: &Entry) -> Option<Remedy> {
        let command = |action| Some(command_line(service, action, path, &entry.token?.to_string()));
        let request = match (entry.unrevocable, format_asked(entry)) {
            (Some(reason), _) => Request::Impossible(reason),
            (None, Some(asked)) => Request::Sent(asked),
            (None, None) => Request::Command(command(AdminAction::Revoke)?),
        };
        Some(Remedy { request, break_command: command(AdminAction::Break)? })
    }

    /// Formats the commands as indented lines, with a warning. Does not wrap the commands, so that they can be copied.
    pub(crate) fn lines(&self, style: &TextStyle) -> String {
        let mut text = String::new();
        let label = match &self.request {
            Request::Impossible(reason) => {
                let reason = format!("it cannot be asked to release: {reason}");
                _ = writeln!(text, "  {}", wrap_text(&reason, 4, style.width));
                "next:"
            }
            Request::Sent(asked) => {
                let asked = asked.trim_start_matches("asked ");
                _ = writeln!(text, "  asked:   {asked}, and it is still in the queue");
                "next:"
            }
            Request::Command(command) => {
                _ = writeln!(text, "  ask it:  {command}");
                "or else:"
            }
        };
        let warning = wrap_text(&format!("{:9}{STOP_FIRST}", ""), 11, style.width);
        _ = writeln!(text, "  {label:8} {}\n  {warning}", self.break_command);
        text
    }

    /// Formats the commands as one sentence.
    pub(crate) fn sentence(&self) -> String {
        match &self.request {
            Request::Command(command) => {
                format!("ask for the lock: {command}; if it is not released: {}", self.break_command)
            }
            Request::Sent(asked) => format!("it was {asked}; to break the lock: {}", self.break_command),
            Request::Impossible(_) => self.break_command.clone(),
        }
    }
}
