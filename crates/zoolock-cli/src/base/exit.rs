//! Exit codes and signals by which zoolock ends, and the mapping from failures to exit codes.

use std::path::Path;
use std::process::ExitCode;
use std::{fmt, io};

use rustix::process::{
    DumpableBehavior, Pid, Signal, getpid, kill_current_process_group, set_dumpable_behavior,
};
use signal_hook::low_level::emulate_default_handler;
use zoolock_client::add_limit_advice;

/// The end of zoolock: an exit code or a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(u8),
    /// Ends by this signal, because a shell stops its script after ^C only if INT has ended the command.
    Signal(Signal),
    /// Ends by this signal, which the terminal has sent to the process group of the command only. Sends the signal to
    /// zoolock's own process group first, because a script there needs it, too.
    TerminalSignal(Signal),
}

impl Exit {
    /// Success.
    pub(crate) const OK: Self = Self::Code(0);
    /// `serve --status` found no server.
    pub(crate) const NOT_RUNNING: Self = Self::Code(1);
    /// `deadlocks` found a deadlock.
    pub(crate) const DEADLOCK: Self = Self::Code(1);
    /// `doctor` found a warning.
    pub(crate) const WARNING: Self = Self::Code(1);
    /// `doctor` found an error.
    pub(crate) const ERROR: Self = Self::Code(2);
    /// The command line, or a value in it, is wrong.
    pub(crate) const USAGE: Self = Self::Code(64);
    /// No lock has this name.
    pub(crate) const NO_SUCH_LOCK: Self = Self::Code(66);
    /// The server cannot be reached, or does not speak ZooKeeper's protocol. This is also the code
    /// if a process or thread cannot be started.
    pub(crate) const UNAVAILABLE: Self = Self::Code(69);
    /// The lock was lost, or a waiter lost its queue position.
    pub(crate) const LOST: Self = Self::Code(70);
    /// The output cannot be written to standard output.
    pub(crate) const OUTPUT: Self = Self::Code(74);
    /// The lock was not acquired in time.
    pub(crate) const BUSY: Self = Self::Code(75);
    /// `revoke --wait`: a holder that was asked is still in the queue.
    pub(crate) const STILL_HELD: Self = Self::Code(76);
    /// Permission denied.
    pub(crate) const DENIED: Self = Self::Code(77);
    /// `revoke`: no holder can be asked, because their client libraries read no such requests.
    pub(crate) const NOT_REVOCABLE: Self = Self::Code(78);
    /// The command to run exists, but cannot be executed.
    pub(crate) const NOT_EXECUTABLE: Self = Self::Code(126);
    /// The command to run does not exist.
    pub(crate) const NOT_FOUND: Self = Self::Code(127);

    /// Returns the code that a shell reports for a process that the signal with this number ended.
    pub(crate) fn from_signal_number(signal: i32) -> Self {
        Self::Code(u8::try_from(128 + (signal & 0x7f)).unwrap_or(u8::MAX))
    }

    /// Returns the end of `hold` and `watch` after this signal. TERM is a success, because scripts and service managers end
    /// them by TERM when they have done their work.
    pub(crate) fn after_signal(signal: Signal) -> Self {
        if signal == Signal::TERM { Self::OK } else { Self::Signal(signal) }
    }

    /// Returns the exit code, or the code that a shell reports for the signal.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) | Self::TerminalSignal(signal) => {
                Self::from_signal_number(signal.as_raw()).number()
            }
        }
    }

    /// Ends this process by the signal, or returns the exit code to end with.
    pub(crate) fn end(self) -> ExitCode {
        if let Self::TerminalSignal(signal) = self {
            let _ = kill_current_process_group(signal);
        }
        if let Self::Signal(signal) | Self::TerminalSignal(signal) = self
            // The kernel ignores the signal if this is process 1 of a container.
            && getpid() != Pid::INIT
            // QUIT must not dump the memory of zoolock, which has credentials.
            && set_dumpable_behavior(DumpableBehavior::NotDumpable).is_ok()
        {
            // Returns for a signal without a name.
            let _ = emulate_default_handler(signal.as_raw());
        }
        ExitCode::from(self.number())
    }
}

/// The reason why zoolock failed, as a message for people and as an exit code for programs.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Exit code of the process.
    pub(crate) exit: Exit,
    message: String,
}

impl Failure {
    /// Creates a failure with the exit code `exit`.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// Creates a failure for a wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::USAGE, message)
    }

    /// Creates a failure for an unreachable server.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Exit::UNAVAILABLE, message)
    }

    /// Creates the failure of an attempt to listen on an address.
    pub(crate) fn cannot_listen(error: &io::Error, message: impl Into<String>) -> Self {
        let exit = match error.kind() {
            io::ErrorKind::PermissionDenied => Exit::DENIED,
            _ => Exit::UNAVAILABLE,
        };
        Self::new(exit, message)
    }
}

/// Creates the failure to report when the system refuses to start a process or a thread. `what`
/// names that process or thread. The message names the resource limit that was reached, if any.
pub(crate) fn cannot_start(what: &str, error: io::Error) -> Failure {
    // A process starts with its standard files open, for which /dev/null takes the place of others.
    let is_missing = error.kind() == io::ErrorKind::NotFound && !Path::new("/dev/null").exists();
    let cause = if is_missing { "; /dev/null is missing: mount /dev" } else { "" };
    Failure::unavailable(format!("cannot start {what}: {}{cause}", add_limit_advice(error)))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<zoolock::Error> for Failure {
    fn from(error: zoolock::Error) -> Self {
        let exit = match &error {
            zoolock::Error::Timeout { .. }
            | zoolock::Error::Conflict { .. }
            | zoolock::Error::NoSuchHolder { .. } => Exit::BUSY,
            zoolock::Error::Lost { .. } | zoolock::Error::Removed { .. } => Exit::LOST,
            zoolock::Error::Denied { .. } => Exit::DENIED,
            zoolock::Error::NotRevocable { .. } => Exit::NOT_REVOCABLE,
            zoolock::Error::Invalid { .. }
            | zoolock::Error::Closed
            | zoolock::Error::Forked { .. }
            | zoolock::Error::WrongSize { .. }
            | zoolock::Error::WrongKind { .. }
            | zoolock::Error::ForeignContender { .. } => Exit::USAGE,
            // Unavailable servers, servers with another protocol, and errors that later versions of
            // the library add.
            _ => Exit::UNAVAILABLE,
        };
        Self::new(exit, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_exit_code_is_that_of_a_shell() {
        assert_eq!(Exit::Signal(Signal::INT).number(), 130);
        assert_eq!(Exit::TerminalSignal(Signal::QUIT).number(), 131);
        assert_eq!(Exit::from_signal_number(9).number(), 137);
        assert_eq!(Exit::from_signal_number(64).number(), 192);
    }
}
