use std::io;
use std::sync::Arc;

use thiserror::Error;

use crate::ids::Zxid;

/// Why the log cannot go on, or was not opened.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The operating system refused.
    #[error("cannot {what} {file}: {source}; {}, then start again", hint(.source))]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        file: String,
        /// Why it failed.
        source: Arc<io::Error>,
    },
    /// What had been kept has changed.
    #[error(
        "{file} is damaged at byte {offset}: {what}; restore the data directory from a copy, or choose an empty one, \
         without the znodes and sessions"
    )]
    Damaged {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// What had been kept is gone.
    #[error(
        "{file} is missing: {what}; restore the data directory from a copy, or choose an empty one, without the \
         znodes and sessions"
    )]
    Missing {
        /// The file.
        file: String,
        /// What tells so.
        what: String,
    },
    /// A transaction that could not be read back.
    #[error("transaction {zxid} cannot be logged: {what}; nothing can be written until the next start")]
    Unloggable {
        /// Its number.
        zxid: Zxid,
        /// Why.
        what: String,
    },
    /// A snapshot that is ahead of the log.
    #[error(
        "the snapshot of {snapshot} cannot be kept, the log is synced up to {synced} only; sync the log first"
    )]
    NotDurable {
        /// The last transaction in the snapshot.
        snapshot: Zxid,
        /// The last transaction that is synced.
        synced: Zxid,
    },
}

impl LogError {
    pub(super) fn io(what: &'static str, file: String) -> impl FnOnce(io::Error) -> LogError {
        move |source| LogError::Io { what, file, source: Arc::new(source) }
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space on the disk",
        _ => "see to the disk and the rights of the directory",
    }
}
