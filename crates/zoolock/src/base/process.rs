//! The process that created a client.

use crate::base::error::Error;

/// The process that created a client. A fork copies the client, but not the threads that run its
/// tasks. The locks stay with the process that created the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Process {
        Process(std::process::id())
    }

    /// Returns whether this is a forked copy of the process.
    pub(crate) fn is_forked(self) -> bool {
        std::process::id() != self.0
    }

    /// Fails in a forked process, before any call can wait there for a thread that does not exist.
    pub(crate) fn check_not_forked(self) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked { parent: self.0 });
        }
        Ok(())
    }
}
