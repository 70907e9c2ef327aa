//! The end of a process.

use rustix::process::{Signal, WaitIdStatus};
use serde::{Deserialize, Serialize};

use crate::base::exit::Exit;
use crate::base::signals;

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    /// The process exited with this code.
    Code(u8),
    /// A signal with this number ended the process.
    Signal(i32),
}

impl Ending {
    /// Reads the status that `waitid` returns for a process that has ended.
    pub(crate) fn of(status: &WaitIdStatus) -> Option<Self> {
        if status.exited() {
            let code = status.exit_status().unwrap_or_default();
            return Some(Self::Code((code & 0xff) as u8));
        }
        if status.killed() || status.dumped() {
            return Some(Self::Signal(status.terminating_signal().unwrap_or_default()));
        }
        None
    }

    /// Returns the exit code with which zoolock ends in place of the command.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Code(code) => Exit::Code(code),
            Self::Signal(signal) => Exit::from_signal_number(signal),
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => match Signal::from_named_raw(*signal) {
                Some(signal) => write!(f, "signal {}", signals::signal_name(signal)),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}
