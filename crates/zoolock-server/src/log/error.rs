use std::io;
use std::sync::Arc;

use thiserror::Error;

use crate::ids::Zxid;

/// The reason why the log has failed, or cannot be opened.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The operating system reported an error.
    #[error(
        "cannot {what} {file}: {source}; {}, then start again; no acknowledged write is lost",
        hint(.source)
    )]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The file.
        file: String,
        /// The error.
        source: Arc<io::Error>,
    },
    /// A file is damaged.
    #[error("{file} is damaged at byte {offset}: {what}; {REMEDY}")]
    Damaged {
        /// The file.
        file: String,
        /// The byte at which the damage begins.
        offset: u64,
        /// The kind of damage.
        what: String,
    },
    /// A file is missing.
    #[error("{file} is missing: {what}; {REMEDY}")]
    Missing {
        /// The file.
        file: String,
        /// The evidence that the file existed.
        what: String,
    },
    /// The directory was replaced or removed, so another server may use its path.
    #[error(
        "{directory} was replaced or removed while the server used it; stop any other server that uses this path, put \
         the directory back, and start again"
    )]
    Replaced {
        /// The directory.
        directory: String,
    },
    /// A transaction cannot be logged, because recovery could not read it.
    #[error("transaction {zxid} cannot be logged: {what}; nothing can be written until the next start")]
    Unloggable {
        /// The number of the transaction.
        zxid: Zxid,
        /// The reason.
        what: String,
    },
    /// A snapshot is newer than the synced part of the log.
    #[error(
        "cannot complete the snapshot of {snapshot}: the log is synced only up to {synced}; sync the log first"
    )]
    NotDurable {
        /// The last transaction in the snapshot.
        snapshot: Zxid,
        /// The last synced transaction.
        synced: Zxid,
    },
}

/// The next steps after damage.
const REMEDY: &str = "restore the data directory from a copy, or start with `zoolock serve --recover`, which says what \
                      would be lost and asks";

impl LogError {
    /// Describes the error without the next step.
    pub fn problem(&self) -> String {
        let text = self.to_string();
        text.strip_suffix(REMEDY).and_then(|text| text.strip_suffix("; ")).unwrap_or(&text).to_owned()
    }

    /// Returns whether files are damaged or missing, so that a part of the log may be lost.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, LogError::Damaged { .. } | LogError::Missing { .. })
    }

    pub(super) fn io(what: &'static str, file: String) -> impl FnOnce(io::Error) -> LogError {
        move |source| LogError::Io { what, file, source: Arc::new(source) }
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space on the disk",
        _ => "check the disk and the permissions of the directory",
    }
}
